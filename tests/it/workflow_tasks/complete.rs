//! Completions: what each command records, what is refused as a whole, and repeats.

use serde_json::{Value, json};

use crate::support::{TestServer, envelope, only, text};

fn finish() -> Value {
    json!([{"type": "complete_workflow", "result": envelope(json!({"ok": true}))}])
}

/// Rule: the answer to a completion that leaves the run waiting, key by key.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_is_answered_with_what_it_made() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let act = json!({"type": "schedule_activity", "activity_type": "act"});
    let mut body = client.complete(&task, json!([act, act])).await.expect(200);
    let run = text(&task, "run_id");
    body.as_object_mut().unwrap().remove("server_capabilities");
    let expected = json!({
        "protocol_version": "1.13",
        "task_id": task["task_id"],
        "workflow_task_attempt": 1,
        "outcome": "completed",
        "recorded": true,
        "duplicate": false,
        "run_id": run,
        "run_status": "waiting",
        "created_task_ids": [format!("{run}-2"), format!("{run}-3")],
        "next_task_id": null,
        "reason": null,
    });
    assert_eq!(body, expected);
    let mut offered = Vec::new();
    for _ in 0..2 {
        offered.push(client.poll("activity", "w", "q", 5).await["task_id"].take());
    }
    assert_eq!(json!(offered), body["created_task_ids"]);
    server.stop().await;
}

/// Rule: an empty list is accepted; the run waits, and something new opens the next task.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_list_leaves_the_run_waiting() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let body = client.complete(&task, json!([])).await.expect(200);
    assert_eq!(body["run_status"], "waiting");
    assert_eq!(body["created_task_ids"], json!([]));
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    assert_eq!(client.events("wf", text(&task, "run_id")).await.len(), 2);
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    let next = client.poll("workflow", "w", "q", 5).await;
    client.complete(&next, finish()).await.expect(200);
    server.stop().await;
}

/// Rule: `complete_workflow` closes the run with its result, in any form; without one with null.
#[tokio::test(flavor = "multi_thread")]
async fn complete_workflow_closes_the_run_with_its_result() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let value = json!({"a": [1, 2.5, null, "ä"], "b": true});
    let encoded = envelope(value.clone());
    for (n, (command, output)) in [
        (json!({"result": encoded}), value.clone()),
        (json!({"result": encoded["blob"]}), value.clone()),
        (
            json!({"result": encoded, "payload_codec": "avro"}),
            value.clone(),
        ),
        (
            json!({"result": {"codec": "AVRO", "blob": encoded["blob"]}}),
            value,
        ),
        (json!({}), Value::Null),
        (json!({"result": null}), Value::Null),
    ]
    .into_iter()
    .enumerate()
    {
        let workflow = format!("wf{n}");
        let run = client.start(&workflow, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let command = crate::support::merged(json!({"type": "complete_workflow"}), command);
        let body = client.complete(&task, json!([command])).await.expect(200);
        assert_eq!(body["run_status"], "completed");
        let described = client
            .get(&format!("/workflows/{workflow}"))
            .await
            .expect(200);
        assert_eq!(described["status"], "completed");
        assert_eq!(described["output"], output);
        let history = client.history(&workflow, &run).await;
        let last = history.last().unwrap();
        assert_eq!(last["event_type"], "WorkflowCompleted");
        assert_eq!(last["payload"]["payload_codec"], "avro");
        assert_eq!(last["payload"]["output"]["codec"], "avro");
        assert_eq!(last["workflow_task_id"], task["task_id"]);
    }
    server.stop().await;
}

/// Rule: `fail_workflow` closes the run as failed; a structured exception goes over the flat fields.
#[tokio::test(flavor = "multi_thread")]
async fn fail_workflow_closes_the_run_with_its_failure() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let structured =
        json!({"message": "deep", "type": "T2", "class": "C2", "code": 7, "properties": {"x": 1}});
    for (n, (fields, message, kind, class, final_)) in [
        (json!({"message": "no"}), "no", Value::Null, Value::Null, false),
        (
            json!({"message": "no", "exception_type": "T", "exception_class": "C", "non_retryable": true}),
            "no", json!("T"), json!("C"), true,
        ),
        (
            json!({"message": "no", "exception_type": "T", "exception": structured}),
            "deep", json!("T2"), json!("C2"), false,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let workflow = format!("wf{n}");
        let run = client.start(&workflow, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let command = crate::support::merged(json!({"type": "fail_workflow"}), fields);
        let body = client.complete(&task, json!([command])).await.expect(200);
        assert_eq!(body["run_status"], "failed");
        assert_eq!(body["outcome"], "completed");
        let history = client.history(&workflow, &run).await;
        let failed = &only(&history, "WorkflowFailed")["payload"];
        assert_eq!(failed["message"], message);
        assert_eq!(failed["exception_type"], kind);
        assert_eq!(failed["exception_class"], class);
        assert_eq!(failed["non_retryable"], final_);
        assert_eq!(failed["failure_category"], "application");
        let described = client.get(&format!("/workflows/{workflow}")).await.expect(200);
        assert_eq!(described["status"], "failed");
        assert_eq!(described["closed_reason"], "failed");
        assert_eq!(described["error"], message);
        assert_eq!(described["failures"].as_array().unwrap().len(), 1);
    }
    server.stop().await;
}

/// Rule: `continue_as_new` closes the run as completed and opens the next one of the chain, with the
/// same input unless another one is given.
#[tokio::test(flavor = "multi_thread")]
async fn continue_as_new_opens_the_next_run() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow", "flow2"], &[]).await;
    client.register("v", "p", &["flow2"], &[]).await;
    let input = envelope(json!([1]));
    let fields = json!({"input": input, "memo": {"m": 1}, "search_attributes": {"k": "v"}, "business_key": "b"});
    let first = client.start_with("wf", fields).await;
    let task = client.poll("workflow", "w", "q", 5).await;
    let body = client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    assert_eq!(body["run_status"], "completed");
    let second = client.poll("workflow", "w", "q", 5).await;
    assert_ne!(second["run_id"], first.as_str());
    assert_eq!(second["workflow_id"], "wf");
    assert_eq!(second["arguments"], input);
    assert_eq!(second["workflow_task_attempt"], 1);
    let events = second["history_events"].as_array().unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["event_type"], "WorkflowStarted");
    assert_eq!(
        events[0]["payload"]["continued_from_run_id"],
        first.as_str()
    );
    let closed = client.history("wf", &first).await;
    let last = closed.last().unwrap();
    assert_eq!(last["event_type"], "WorkflowContinuedAsNew");
    assert_eq!(last["payload"]["continued_to_run_id"], second["run_id"]);
    assert_eq!(last["payload"]["continued_to_run_number"], 2);
    assert_eq!(last["payload"]["closed_reason"], "continued");
    // Other arguments, type and queue.
    let command = json!({
        "type": "continue_as_new", "arguments": envelope(json!([2])), "workflow_type": "flow2", "queue": "p",
    });
    client.complete(&second, json!([command])).await.expect(200);
    let third = client.poll("workflow", "v", "p", 5).await;
    assert_eq!(third["workflow_type"], "flow2");
    assert_eq!(third["arguments"], envelope(json!([2])));
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(described["run_number"], 3);
    assert_eq!(described["run_count"], 3);
    assert_eq!(described["task_queue"], "p");
    for (key, value) in [
        ("memo", json!({"m": 1})),
        ("search_attributes", json!({"k": "v"})),
        ("business_key", json!("b")),
    ] {
        assert_eq!(described[key], value, "{key}");
    }
    let older = client
        .get(&format!("/workflows/wf/runs/{first}"))
        .await
        .expect(200);
    assert_eq!(older["status"], "completed");
    assert_eq!(older["closed_reason"], "continued");
    assert_eq!(older["is_current_run"], false);
    server.stop().await;
}

/// Rule: steps are numbered from 1 in the order of the commands, apart from the history's own count.
#[tokio::test(flavor = "multi_thread")]
async fn steps_are_numbered_in_command_order() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let commands = json!([
        {"type": "record_version_marker", "change_id": "c", "version": 2, "min_supported": -1, "max_supported": 3},
        {"type": "record_side_effect", "result": envelope(json!("uuid"))},
        {"type": "schedule_activity", "activity_type": "act", "arguments": envelope(json!(["x"]))},
        {"type": "start_timer", "delay_seconds": 3600},
        {"type": "start_timer", "delay_seconds": 0},
    ]);
    client.complete(&task, commands).await.expect(200);
    let history = client.history("wf", text(&task, "run_id")).await;
    let seen: Vec<(String, u64)> = history[2..]
        .iter()
        .map(|event| {
            (
                text(event, "event_type").to_owned(),
                event["payload"]["sequence"].as_u64().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("VersionMarkerRecorded", 1),
        ("SideEffectRecorded", 2),
        ("ActivityScheduled", 3),
        ("TimerScheduled", 4),
        ("TimerScheduled", 5),
        ("TimerFired", 5),
    ];
    assert_eq!(seen, expected.map(|(kind, step)| (kind.to_owned(), step)));
    let marker = &only(&history, "VersionMarkerRecorded")["payload"];
    let expected = json!({"sequence": 1, "change_id": "c", "version": 2, "min_supported": -1, "max_supported": 3});
    assert_eq!(*marker, expected);
    let effect = &only(&history, "SideEffectRecorded")["payload"];
    assert_eq!(effect["result"], envelope(json!("uuid")));
    let scheduled = &only(&history, "ActivityScheduled")["payload"];
    assert_eq!(scheduled["activity"]["arguments"], envelope(json!(["x"])));
    assert_eq!(scheduled["activity"]["queue"], "q");
    assert_eq!(
        scheduled["activity"]["id"],
        scheduled["activity_execution_id"]
    );
    let timer = &history[5]["payload"];
    assert_eq!(timer["delay_seconds"], 3600);
    // Readers take the absence of a kind for a plain timer.
    assert!(timer.get("timer_kind").is_none());
    assert!(timer["fire_at"].is_string());
    // The next step goes on after the largest one.
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .complete(&task, json!([{"type": "start_timer", "delay_seconds": 60}]))
        .await
        .expect(200);
    let history = client.history("wf", text(&task, "run_id")).await;
    assert_eq!(history.last().unwrap()["payload"]["sequence"], 6);
    server.stop().await;
}

/// Rule: the position of the terminal command does not matter, it is applied last; two are one too
/// many.
#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_command_is_applied_last_and_alone() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let both = json!([{"type": "complete_workflow"}, {"type": "fail_workflow", "message": "x"}]);
    let body = client
        .complete(&task, both)
        .await
        .refused(409, "invalid_commands");
    assert_eq!(body["recorded"], false);
    assert_eq!(body["run_status"], "pending");
    assert_eq!(body["run_id"], task["run_id"]);
    let effect = json!({"type": "record_side_effect", "result": envelope(json!(1))});
    client
        .complete(&task, json!([{"type": "complete_workflow"}, effect]))
        .await
        .expect(200);
    let events = client.events("wf", text(&task, "run_id")).await;
    assert_eq!(events[2..], ["SideEffectRecorded", "WorkflowCompleted"]);
    server.stop().await;
}

/// Rule: a refused completion changes nothing and leaves the lease in place: the worker may report
/// again under the same attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_completion_changes_nothing_and_keeps_the_lease() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let good = json!({"type": "schedule_activity", "activity_type": "act"});
    let before = server.db.contents().await;
    let marker = json!({"type": "record_version_marker", "change_id": "c", "version": 5, "min_supported": 1, "max_supported": 3});
    for (commands, status, reason) in [
        (
            json!([good, {"type": "no_such_command"}]),
            422,
            "validation_failed",
        ),
        (
            json!([good, {"type": "start_timer"}]),
            422,
            "validation_failed",
        ),
        (json!([good, marker]), 409, "invalid_commands"),
        (
            json!([good, {"type": "complete_workflow"}, {"type": "complete_workflow"}]),
            409,
            "invalid_commands",
        ),
        (
            json!(vec![
                json!({"type": "start_timer", "delay_seconds": 60});
                1001
            ]),
            422,
            "structural_limit_exceeded",
        ),
    ] {
        client
            .complete(&task, commands)
            .await
            .refused(status, reason);
        assert_eq!(server.db.contents().await, before, "{reason}");
    }
    client.task(&task, "heartbeat", json!({})).await.expect(200);
    client.complete(&task, finish()).await.expect(200);
    server.stop().await;
}

/// Rule: a limit tells its kind, what it would come to, and what is allowed.
#[tokio::test(flavor = "multi_thread")]
async fn a_structural_limit_tells_its_numbers() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let timers = json!(vec![
        json!({"type": "start_timer", "delay_seconds": 60});
        1001
    ]);
    let body = client
        .complete(&task, timers)
        .await
        .refused(422, "structural_limit_exceeded");
    assert_eq!(body["limit_kind"], "command_batch_size");
    assert_eq!(body["current_value"], 1001);
    assert_eq!(body["configured_limit"], 1000);
    assert_eq!(body["outcome"], "rejected");
    assert_eq!(body["recorded"], false);
    assert_eq!(body["task_id"], task["task_id"]);
    // Exactly the limit is fine; a second limit bounds what is open at once.
    let timers = json!(vec![
        json!({"type": "start_timer", "delay_seconds": 60});
        1000
    ]);
    client.complete(&task, timers.clone()).await.expect(200);
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    let task = client.poll("workflow", "w", "q", 5).await;
    client.complete(&task, timers).await.expect(200);
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    let task = client.poll("workflow", "w", "q", 5).await;
    let one = json!([{"type": "start_timer", "delay_seconds": 60}]);
    let answer = client.complete(&task, one).await;
    let body = answer.refused(422, "structural_limit_exceeded");
    assert_eq!(body["limit_kind"], "pending_timer_count");
    assert_eq!(body["current_value"], 2001);
    assert_eq!(body["configured_limit"], 2000);
    server.stop().await;
}

/// Rule: the same completion again, under the same fence and with the same body, is answered with the
/// first outcome; it is applied once.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_completion_is_answered_with_the_first_outcome() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let commands = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    let first = client.complete(&task, commands.clone()).await.expect(200);
    let before = server.db.contents().await;
    for _ in 0..3 {
        let mut again = client.complete(&task, commands.clone()).await.expect(200);
        assert_eq!(again["duplicate"], true);
        again["duplicate"] = false.into();
        assert_eq!(again, first);
    }
    assert_eq!(server.db.contents().await, before);
    // Also at the same time, and after the run has moved on and closed.
    let activity = client.poll("activity", "w", "q", 5).await;
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    let last = client.poll("workflow", "w", "q", 5).await;
    let repeats = (0..8).map(|_| client.complete(&last, finish()));
    let answers = futures_util::future::join_all(repeats).await;
    let answers: Vec<Value> = answers
        .into_iter()
        .map(|answer| answer.expect(200))
        .collect();
    let applied = answers
        .iter()
        .filter(|answer| answer["duplicate"] == false)
        .count();
    assert_eq!(applied, 1);
    let again = client.complete(&task, commands).await.expect(200);
    assert_eq!(again["created_task_ids"], first["created_task_ids"]);
    assert_eq!(again["duplicate"], true);
    let events = client.events("wf", text(&task, "run_id")).await;
    assert_eq!(
        events
            .iter()
            .filter(|kind| *kind == "WorkflowCompleted")
            .count(),
        1
    );
    assert_eq!(
        events
            .iter()
            .filter(|kind| *kind == "ActivityScheduled")
            .count(),
        1
    );
    server.stop().await;
}

/// Rule: another body or another report under a fence that was used is refused with the recorded
/// outcome; an older attempt never counts.
#[tokio::test(flavor = "multi_thread")]
async fn another_report_under_a_used_fence_is_refused() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    client
        .complete(
            &task,
            json!([{"type": "start_timer", "delay_seconds": 3600}]),
        )
        .await
        .expect(200);
    let before = server.db.contents().await;
    for answer in [
        client
            .complete(
                &task,
                json!([{"type": "start_timer", "delay_seconds": 3601}]),
            )
            .await,
        client.complete(&task, finish()).await,
        client.wait_for_history(&task).await,
        client.task(&task, "fail", json!({"message": "x"})).await,
    ] {
        let body = answer.refused(409, "task_not_leased");
        assert_eq!(body["recorded"], false);
        assert_eq!(body["recorded_outcome"], "completed");
        assert_eq!(body["lease_owner"], "w");
    }
    let other = client
        .task(
            &task,
            "complete",
            json!({"lease_owner": "v", "commands": finish()}),
        )
        .await;
    assert_eq!(other.refused(409, "task_not_leased")["lease_owner"], "w");
    let older = client
        .task(
            &task,
            "complete",
            json!({"workflow_task_attempt": 7, "commands": finish()}),
        )
        .await;
    older.refused(409, "task_not_leased");
    client
        .task(&task, "heartbeat", json!({}))
        .await
        .refused(409, "task_not_leased");
    client
        .task(&task, "history", json!({}))
        .await
        .refused(409, "task_not_leased");
    assert_eq!(server.db.contents().await, before);
    server.stop().await;
}
