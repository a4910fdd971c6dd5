//! Cancel, terminate and archive: what they write, in which order, and what they refuse.

use serde_json::{Value, json};

use crate::support::{TestServer, only, text};

/// Rule: the answer to a closing, key by key.
#[tokio::test(flavor = "multi_thread")]
async fn a_closing_is_receipted() {
    let server = TestServer::start().await;
    let client = &server.client;
    for (command, outcome) in [("cancel", "cancelled"), ("terminate", "terminated")] {
        let run = client.start(command, "flow", "q").await;
        let path = format!("/workflows/{command}/{command}");
        let mut body = client
            .post(&path, json!({"reason": "r", "request_id": "k"}))
            .await
            .expect(200);
        body.as_object_mut().unwrap().remove("control_plane");
        let expected = json!({
            "workflow_id": command,
            "run_id": run,
            "requested_run_id": null,
            "resolved_run_id": run,
            "workflow_type": "flow",
            "outcome": outcome,
            "command_id": format!("{run}-c2"),
            "command_sequence": 2,
            "command_status": "accepted",
            "command_source": "control_plane",
            "target_scope": "instance",
            "request_id": "k",
            "retained": false,
            "run_status": outcome,
            "reason": null,
        });
        assert_eq!(body, expected);
    }
    server.stop().await;
}

/// Rule: the request, then one event per open activity and timer, then what was held, and the end
/// last, with the caller's words.
#[tokio::test(flavor = "multi_thread")]
async fn a_closing_ends_everything_that_is_open() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    for (command, status, request, end) in [
        (
            "cancel",
            "cancelled",
            "CancelRequested",
            "WorkflowCancelled",
        ),
        (
            "terminate",
            "terminated",
            "TerminateRequested",
            "WorkflowTerminated",
        ),
    ] {
        let run = client.start(command, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let act = json!({"type": "schedule_activity", "activity_type": "act"});
        client
            .complete(
                &task,
                json!([act, {"type": "start_timer", "delay_seconds": 2}, act]),
            )
            .await
            .expect(200);
        let activity = client.poll("activity", "w", "q", 5).await;
        client.started(&activity).await;
        client
            .post(&format!("/workflows/{command}/signal/go"), json!({}))
            .await
            .expect(202);
        let held = client.poll("workflow", "w", "q", 5).await;
        client
            .post(&format!("/workflows/{command}/signal/held"), json!({}))
            .await
            .expect(202);
        let reason = "because – 🚀";
        client
            .post(
                &format!("/workflows/{command}/{command}"),
                json!({ "reason": reason }),
            )
            .await
            .expect(200);
        let history = client.history(command, &run).await;
        let kinds: Vec<&str> = history[7..]
            .iter()
            .map(|event| text(event, "event_type"))
            .collect();
        let expected = [
            request,
            "ActivityCancelled",
            "ActivityCancelled",
            "TimerCancelled",
            "SignalReceived",
            end,
        ];
        assert_eq!(kinds, expected);
        let asked = &only(&history, request)["payload"];
        assert_eq!(asked["reason"], reason);
        assert_eq!(asked["command_type"], command);
        assert_eq!(asked["workflow_run_id"], run);
        let last = &only(&history, end)["payload"];
        assert_eq!(last["reason"], reason);
        assert_eq!(last["message"], format!("Workflow {status}: {reason}"));
        assert_eq!(last["closed_reason"], status);
        assert_eq!(last["failure_category"], status);
        assert_eq!(last["exception_class"], end);
        assert_eq!(last["workflow_instance_id"], command);
        for key in ["workflow_command_id", "failure_id"] {
            assert!(last[key].is_string(), "{key}");
        }
        let described = client
            .get(&format!("/workflows/{command}"))
            .await
            .expect(200);
        assert_eq!(described["status"], status);
        assert_eq!(described["status_bucket"], "failed");
        assert_eq!(described["closed_reason"], status);
        assert_eq!(described["reason"], reason);
        assert_eq!(described["failures"], json!([]));
        // Nothing is left to be handed out, fired or recorded.
        for kind in ["workflow", "activity"] {
            assert!(client.poll(kind, "w", "q", 0).await.is_null(), "{kind}");
        }
        let contents = server.db.contents().await;
        assert!(contents["tasks"].starts_with("0 "), "{contents:?}");
        assert!(contents["timers"].starts_with("0 "), "{contents:?}");
        assert_eq!(
            client.complete(&held, json!([])).await.expect(200)["recorded"],
            false
        );
        assert_eq!(client.history(command, &run).await.len(), history.len());
    }
    server.stop().await;
}

/// Rule: without a reason the end has none.
#[tokio::test(flavor = "multi_thread")]
async fn a_reason_is_optional() {
    let server = TestServer::start().await;
    let client = &server.client;
    for (n, body) in [json!({}), json!({"reason": null}), json!({"reason": ""})]
        .into_iter()
        .enumerate()
    {
        let id = format!("wf{n}");
        let run = client.start(&id, "flow", "q").await;
        client
            .post(&format!("/workflows/{id}/cancel"), body)
            .await
            .expect(200);
        let history = client.history(&id, &run).await;
        let last = &only(&history, "WorkflowCancelled")["payload"];
        assert!(last["reason"].is_null());
        assert_eq!(last["message"], "Workflow cancelled.");
        assert!(client.get(&format!("/workflows/{id}")).await.expect(200)["reason"].is_null());
    }
    server.stop().await;
}

/// Rule: a closed run is not closed again; the same key gets its first receipt.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_closed_once() {
    let server = TestServer::start().await;
    let client = &server.client;
    let run = client.start("wf", "flow", "q").await;
    let closings = (0..8).map(|_| client.post("/workflows/wf/cancel", json!({"reason": "r"})));
    let answers = futures_util::future::join_all(closings).await;
    let (closed, refused): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.status == 200);
    assert_eq!(closed.len(), 1);
    for answer in refused {
        answer.refused(409, "run_not_active");
    }
    client.start("keyed", "flow", "q").await;
    let keyed = json!({"reason": "r", "request_id": "k"});
    let first = client
        .post("/workflows/keyed/terminate", keyed.clone())
        .await
        .expect(200);
    let before = server.db.contents().await;
    let again = client
        .post("/workflows/keyed/terminate", keyed.clone())
        .await
        .expect(200);
    assert_eq!(again["retained"], true);
    for key in ["command_id", "outcome", "run_id"] {
        assert_eq!(again[key], first[key], "{key}");
    }
    client
        .post("/workflows/keyed/cancel", keyed)
        .await
        .refused(409, "run_not_active");
    let body = client
        .post("/workflows/keyed/terminate", json!({"request_id": "k2"}))
        .await;
    let body = body.refused(409, "run_not_active");
    assert_eq!(body["outcome"], "rejected_not_active");
    assert_eq!(body["run_status"], "terminated");
    assert_eq!(server.db.contents().await, before);
    let events = client.events("wf", &run).await;
    assert_eq!(
        events
            .iter()
            .filter(|kind| *kind == "WorkflowCancelled")
            .count(),
        1
    );
    server.stop().await;
}

/// Rule: fields and targets of closings are checked.
#[tokio::test(flavor = "multi_thread")]
async fn a_closing_is_checked() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let first = text(&task, "run_id").to_owned();
    client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    let current = client.get("/workflows/wf").await.expect(200)["run_id"].take();
    let before = server.db.contents().await;
    for command in ["cancel", "terminate", "archive"] {
        for (fields, wrong) in [
            (json!({"reason": "x".repeat(1_001)}), "reason"),
            (json!({"reason": 1}), "reason"),
            (json!({"request_id": ""}), "request_id"),
            (json!({"request_id": "x".repeat(256)}), "request_id"),
            (json!({"reason": "a\u{0}b"}), "reason"),
        ] {
            client
                .post(&format!("/workflows/wf/{command}"), fields)
                .await
                .invalid(&[wrong]);
        }
        client
            .post(&format!("/workflows/none/{command}"), json!({}))
            .await
            .refused(404, "instance_not_found");
        client
            .post(&format!("/workflows/wf/runs/x/{command}"), json!({}))
            .await
            .refused(404, "run_not_found");
    }
    for command in ["cancel", "terminate"] {
        let body = client
            .post(&format!("/workflows/wf/runs/{first}/{command}"), json!({}))
            .await;
        let body = body.refused(409, "selected_run_not_current");
        assert_eq!(body["resolved_run_id"], current);
        assert_eq!(body["target_scope"], "run");
    }
    assert_eq!(server.db.contents().await, before);
    let path = format!("/workflows/wf/runs/{}/cancel", current.as_str().unwrap());
    let body = client
        .post(&path, json!({"reason": "x".repeat(1_000)}))
        .await
        .expect(200);
    assert_eq!(body["target_scope"], "run");
    server.stop().await;
}

/// Rule: only a closed run can be archived; it is once, behind its end; a repeat needs nothing, and
/// under the same key gets the first receipt.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_run_is_archived_once() {
    let server = TestServer::start().await;
    let client = &server.client;
    let run = client.start("wf", "flow", "q").await;
    let body = client
        .post("/workflows/wf/archive", json!({}))
        .await
        .refused(409, "run_not_closed");
    assert_eq!(body["outcome"], "rejected_run_not_closed");
    assert_eq!(body["run_status"], "pending");
    client
        .post("/workflows/wf/terminate", json!({}))
        .await
        .expect(200);
    let keyed = json!({"reason": "keep", "request_id": "k"});
    let first = client
        .post("/workflows/wf/archive", keyed.clone())
        .await
        .expect(200);
    assert_eq!(first["outcome"], "archived");
    assert!(first["command_id"].is_string());
    let before = server.db.contents().await;
    let again = client
        .post("/workflows/wf/archive", keyed)
        .await
        .expect(200);
    assert_eq!(again["retained"], true);
    assert_eq!(again["outcome"], "archived");
    assert_eq!(again["command_id"], first["command_id"]);
    let path = format!("/workflows/wf/runs/{run}/archive");
    for body in [
        client
            .post("/workflows/wf/archive", json!({}))
            .await
            .expect(200),
        client
            .post(&path, json!({"request_id": "k2"}))
            .await
            .expect(200),
    ] {
        assert_eq!(body["outcome"], "archive_not_needed");
        assert_eq!(body["command_id"], Value::Null);
    }
    assert_eq!(server.db.contents().await, before);
    let history = client.history("wf", &run).await;
    let kinds: Vec<&str> = history[2..]
        .iter()
        .map(|event| text(event, "event_type"))
        .collect();
    assert_eq!(
        kinds,
        [
            "TerminateRequested",
            "WorkflowTerminated",
            "ArchiveRequested",
            "WorkflowArchived"
        ]
    );
    let archived = &only(&history, "WorkflowArchived")["payload"];
    assert_eq!(archived["reason"], "keep");
    assert_eq!(archived["archive_command_id"], first["command_id"]);
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(described["status"], "terminated");
    assert_eq!(described["actions"]["can_archive"], false);
    server.stop().await;
}
