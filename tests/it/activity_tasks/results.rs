//! Claims of activities and results in every form.

use serde_json::{Value, json};

use crate::support::{TestServer, envelope, merged, only, text};

/// Rule: the keys of a claimed activity; those without a value are left out.
#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_activity_shows_every_key() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let arguments = envelope(json!(["Ada"]));
    let policy = json!({"max_attempts": 3, "backoff_seconds": [1, 2], "non_retryable_error_types": ["Bad", " Bad "]});
    let command = json!({
        "type": "schedule_activity", "activity_type": "act", "arguments": arguments, "queue": "p",
        "retry_policy": policy, "start_to_close_timeout": 40, "schedule_to_start_timeout": 50,
        "schedule_to_close_timeout": 60, "heartbeat_timeout": 30,
    });
    client.complete(&task, json!([command])).await.expect(200);
    let register = json!({"worker_id": "v", "task_queues": ["p"], "activity_types": ["act"]});
    client.post("/worker/register", register).await.expect(200);
    let poll = json!({"worker_id": "v", "task_queues": ["p"], "poll_timeout_seconds": 0});
    let mut body = client
        .post("/worker/activity-tasks/poll", poll)
        .await
        .expect(200);
    assert_eq!(body["poll_status"], "leased");
    let mut activity = body["task"].take();
    assert_eq!(
        body["lease"]["lease_expires_at"],
        activity["lease_expires_at"]
    );
    assert!(body["lease"]["leased_at"].is_string() && body["server_time"].is_string());
    let run = text(&task, "run_id").to_owned();
    let fields = activity.as_object_mut().unwrap();
    let deadlines = fields.remove("deadlines").unwrap();
    let mut named: Vec<&str> = deadlines
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    named.sort_unstable();
    assert_eq!(
        named,
        [
            "heartbeat",
            "schedule_to_close",
            "schedule_to_start",
            "start_to_close"
        ]
    );
    // 30, 40, 50 and 60 seconds: the order of the names by their times.
    let mut times: Vec<(&str, &str)> = named
        .iter()
        .map(|name| (text(&deadlines, name), *name))
        .collect();
    times.sort_unstable();
    let order: Vec<&str> = times.iter().map(|(_, name)| *name).collect();
    assert_eq!(
        order,
        [
            "heartbeat",
            "start_to_close",
            "schedule_to_start",
            "schedule_to_close"
        ]
    );
    fields.remove("lease_expires_at");
    let execution = fields["activity_execution_id"].clone();
    let expected = json!({
        "task_id": format!("{run}-2"),
        "task_type": "activity",
        "task_kind": "activity",
        "workflow_id": "wf",
        "run_id": run,
        "namespace": "default",
        "activity_execution_id": execution,
        "activity_attempt_id": format!("{run}-2-1"),
        "idempotency_key": execution,
        "attempt_number": 1,
        "attempt": 1,
        "activity_type": "act",
        "payload_codec": "avro",
        "arguments": arguments,
        "retry_policy": {
            "snapshot_version": 1, "max_attempts": 3, "backoff_seconds": [1, 2], "start_to_close_timeout": 40,
            "schedule_to_start_timeout": 50, "schedule_to_close_timeout": 60, "heartbeat_timeout": 30,
            "non_retryable_error_types": ["Bad"],
        },
        "task_queue": "p",
        "lease_owner": "v",
    });
    assert_eq!(activity, expected);
    let history = client.history("wf", &run).await;
    let scheduled = only(&history, "ActivityScheduled");
    assert_eq!(scheduled["payload"]["activity_execution_id"], execution);
    server.stop().await;
}

/// Rule: without a policy and time limits there is no snapshot, and exactly one attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_activity_has_no_policy() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({"retry_policy": {}})).await;
    for absent in ["retry_policy", "worker_session", "connection", "arguments"] {
        assert!(activity.get(absent).is_none(), "{absent}");
    }
    assert_eq!(activity["deadlines"], json!({}));
    client
        .report(&activity, "fail", json!({"failure": {"message": "x"}}))
        .await
        .expect(200);
    let history = client.history("wf", text(&activity, "run_id")).await;
    assert_eq!(
        only(&history, "ActivityFailed")["payload"]["attempt_number"],
        1
    );
    server.stop().await;
}

/// Rule: a result may be an envelope, plain JSON, encoded text inside an envelope, null or absent; it
/// is in the history as an envelope.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_comes_in_any_form() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let object = json!({"a": [1, null, 2.5], "b": "ä"});
    for (n, (fields, value)) in [
        (json!({"result": envelope(object.clone())}), object.clone()),
        (json!({"result": object}), object),
        (json!({"result": [1, 2]}), json!([1, 2])),
        (json!({"result": "plain text"}), json!("plain text")),
        (json!({"result": 7}), json!(7)),
        (json!({"result": false}), json!(false)),
        (
            json!({"result": {"codec": "avro"}}),
            json!({"codec": "avro"}),
        ),
        (
            json!({"result": {"codec": "x", "blob": "y", "z": 1}}),
            json!({"codec": "x", "blob": "y", "z": 1}),
        ),
        (json!({"result": null}), json!(null)),
        (json!({}), json!(null)),
    ]
    .into_iter()
    .enumerate()
    {
        let workflow = format!("wf{n}");
        client.start(&workflow, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        client
            .complete(
                &task,
                json!([{"type": "schedule_activity", "activity_type": "act"}]),
            )
            .await
            .expect(200);
        let activity = client.poll("activity", "w", "q", 5).await;
        client
            .report(&activity, "complete", fields)
            .await
            .expect(200);
        let task = client.poll("workflow", "w", "q", 5).await;
        let events = task["history_events"].as_array().unwrap();
        let completed = &only(events, "ActivityCompleted")["payload"];
        assert_eq!(completed["result"], envelope(value.clone()));
        assert_eq!(completed["payload_codec"], "avro");
        let finish = json!([{"type": "complete_workflow", "result": completed["result"]}]);
        client.complete(&task, finish).await.expect(200);
        assert_eq!(
            client
                .get(&format!("/workflows/{workflow}"))
                .await
                .expect(200)["output"],
            value
        );
    }
    server.stop().await;
}

/// Rule: the answer to a completion, and the event that it writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_is_answered_and_recorded() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    let run = text(&activity, "run_id");
    let mut body = client
        .report(&activity, "complete", json!({"result": 1}))
        .await
        .expect(200);
    body.as_object_mut().unwrap().remove("server_capabilities");
    let expected = json!({
        "protocol_version": "1.13",
        "task_id": activity["task_id"],
        "activity_attempt_id": activity["activity_attempt_id"],
        "outcome": "completed",
        "recorded": true,
        "duplicate": false,
        "reason": null,
        "next_task_id": format!("{run}-3"),
    });
    assert_eq!(body, expected);
    let history = client.history("wf", run).await;
    let completed = &only(&history, "ActivityCompleted")["payload"];
    for key in [
        "activity_attempt_id",
        "activity_execution_id",
        "activity_type",
        "attempt_number",
    ] {
        assert_eq!(completed[key], activity[key], "{key}");
    }
    assert_eq!(completed["sequence"], 1);
    server.stop().await;
}

/// Rule: a payload that cannot be taken is refused with its path and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_result_is_refused() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    let before = server.db.contents().await;
    for (result, reason, field) in [
        (
            json!({"codec": "json", "blob": "{}"}),
            "unsupported_payload_codec",
            "result.codec",
        ),
        (
            json!({"codec": "avro", "blob": 7}),
            "validation_failed",
            "result.blob",
        ),
        (
            json!({"codec": 7, "blob": "x"}),
            "validation_failed",
            "result.codec",
        ),
        (
            json!({"codec": "avro", "external_storage": {"uri": "x"}}),
            "validation_failed",
            "result.external_storage",
        ),
        (
            json!({"codec": "avro", "external_payload": {"id": "x"}}),
            "validation_failed",
            "result.external_payload",
        ),
    ] {
        let body = client
            .report(&activity, "complete", json!({ "result": result }))
            .await;
        let body = body.refused(422, reason);
        assert!(body["errors"].get(field).is_some(), "{field}");
        assert_eq!(body["recorded"], false);
        assert_eq!(body["task_id"], activity["task_id"]);
    }
    assert_eq!(server.db.contents().await, before);
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: a result above the payload limit ends the activity with a failure that trying again cannot
/// help; the limit is 2 MiB of encoded text.
#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_result_becomes_a_failure() {
    let server = TestServer::start().await;
    let client = &server.client;
    let policy = json!({"retry_policy": {"max_attempts": 5}});
    let activity = client.first_activity(policy).await;
    let result = json!({"codec": "avro", "blob": "A".repeat(2_097_153)});
    let body = client
        .report(&activity, "complete", json!({ "result": result }))
        .await
        .expect(200);
    assert_eq!(body["recorded"], true);
    let history = client.history("wf", text(&activity, "run_id")).await;
    let failed = &only(&history, "ActivityFailed")["payload"];
    assert_eq!(failed["failure_category"], "structural_limit");
    assert_eq!(failed["non_retryable"], true);
    assert_eq!(failed["structural_limit_kind"], "payload_size");
    assert_eq!(failed["structural_limit_value"], 2_097_153);
    assert_eq!(failed["structural_limit_configured"], 2_097_152);
    assert!(client.poll("workflow", "w", "q", 5).await.is_object());
    server.stop().await;
}

/// Rule: the contract's spelling names the holder alone and may leave the attempt out.
#[tokio::test(flavor = "multi_thread")]
async fn the_contracts_spelling_needs_the_holder_alone() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client
        .first_activity(json!({"retry_policy": {"max_attempts": 2}}))
        .await;
    let path = |report: &str| {
        format!(
            "/worker/activity-tasks/{}/{report}",
            text(&activity, "task_id")
        )
    };
    let holder = json!({"worker_id": "w"});
    let body = client
        .post(
            &path("heartbeat"),
            merged(holder.clone(), json!({"progress": 1})),
        )
        .await
        .expect(200);
    assert_eq!(body["activity_attempt_id"], activity["activity_attempt_id"]);
    client
        .post(&path("complete"), json!({"worker_id": "v"}))
        .await
        .refused(409, "lease_owner_mismatch");
    let failure =
        json!({"error": "e", "exception_type": "T", "message": "m", "non_retryable": false});
    let body = client
        .post(&path("fail"), merged(holder.clone(), failure))
        .await
        .expect(200);
    assert_eq!(body["outcome"], "failed");
    assert_eq!(body["next_task_id"], activity["task_id"]);
    let again = client.poll("activity", "w", "q", 5).await;
    assert_eq!(again["attempt"], 2);
    let done = merged(holder, json!({"result": Value::from("ok")}));
    let body = client.post(&path("complete"), done).await.expect(200);
    assert_eq!(body["activity_attempt_id"], again["activity_attempt_id"]);
    server.stop().await;
}
