//! Signals: when they are recorded, in which order, and the receipts of their keys.

use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer, envelope, merged, text};

async fn signal(client: &Client, name: &str, fields: Value) -> Answer {
    client
        .post(&format!("/workflows/wf/signal/{name}"), fields)
        .await
}

fn signals(history: &[Value]) -> Vec<&str> {
    history
        .iter()
        .filter(|event| event["event_type"] == "SignalReceived")
        .map(|event| text(&event["payload"], "signal_name"))
        .collect()
}

/// Rule: the answer to an accepted signal, key by key.
#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_signal_is_receipted() {
    let server = TestServer::start().await;
    let client = &server.client;
    let run = client.start("wf", "flow", "q").await;
    let mut body = signal(client, "go", json!({"request_id": "k"}))
        .await
        .expect(202);
    body.as_object_mut().unwrap().remove("control_plane");
    let expected = json!({
        "workflow_id": "wf",
        "run_id": run,
        "requested_run_id": null,
        "resolved_run_id": run,
        "workflow_type": "flow",
        "signal_name": "go",
        "outcome": "signal_received",
        "command_id": format!("{run}-c2"),
        "command_sequence": 2,
        "command_status": "accepted",
        "command_source": "control_plane",
        "target_scope": "instance",
        "request_id": "k",
        "retained": false,
        "intent_verified": true,
        "run_status": "pending",
        "reason": null,
    });
    assert_eq!(body, expected);
    let path = format!("/workflows/wf/runs/{run}/signal/go");
    let body = client.post(&path, json!({})).await.expect(202);
    assert_eq!(body["target_scope"], "run");
    assert_eq!(body["requested_run_id"], run);
    server.stop().await;
}

/// Rule: a signal that comes while a task is ready or leased is held, and recorded in the order of
/// arrival after that task's own events; between tasks it is recorded at once.
#[tokio::test(flavor = "multi_thread")]
async fn fc_25_signals_are_recorded_at_task_boundaries() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let run = client.start("wf", "flow", "q").await;
    // Before the first task is taken, and while it is held.
    signal(client, "ready", json!({})).await.expect(202);
    let task = client.poll("workflow", "w", "q", 5).await;
    signal(client, "leased", json!({"input": [1]}))
        .await
        .expect(202);
    signal(client, "leased2", json!({})).await.expect(202);
    assert_eq!(
        client.events("wf", &run).await,
        ["StartAccepted", "WorkflowStarted"]
    );
    client
        .complete(
            &task,
            json!([{"type": "schedule_activity", "activity_type": "act"}]),
        )
        .await
        .expect(200);
    let history = client.history("wf", &run).await;
    assert_eq!(history[2]["event_type"], "ActivityScheduled");
    assert_eq!(signals(&history), ["ready", "leased", "leased2"]);
    let payload = &history[4]["payload"];
    assert_eq!(payload["arguments"], envelope(json!([1])));
    assert_eq!(payload["payload_codec"], "avro");
    assert_eq!(payload["workflow_run_id"], run);
    assert_eq!(payload["workflow_command_id"], format!("{run}-c3"));
    // One task follows for all three.
    let next = client.poll("workflow", "w", "q", 5).await;
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    assert_eq!(next["total_history_events"], 6);
    client.wait_for_history(&next).await.expect(200);
    // Between tasks: at once, with a task of its own.
    signal(client, "waiting", json!({})).await.expect(202);
    assert_eq!(signals(&client.history("wf", &run).await).len(), 4);
    assert!(client.poll("workflow", "w", "q", 0).await.is_object());
    server.stop().await;
}

/// Rule: signals that wait when a workflow ends are recorded before its end; after the end they are
/// refused.
#[tokio::test(flavor = "multi_thread")]
async fn fc_25_held_signals_are_recorded_before_the_end() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    signal(client, "late", json!({"request_id": "k"}))
        .await
        .expect(202);
    client
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    let run = text(&task, "run_id");
    let events = client.events("wf", run).await;
    assert_eq!(events[2..], ["SignalReceived", "WorkflowCompleted"]);
    let before = server.db.contents().await;
    let body = signal(client, "late", json!({"request_id": "k2"}))
        .await
        .refused(409, "run_not_active");
    assert_eq!(body["outcome"], "rejected_not_active");
    assert_eq!(body["run_status"], "completed");
    assert_eq!(body["is_terminal"], true);
    assert_eq!(body["control_plane"]["operation"], "signal");
    assert_eq!(server.db.contents().await, before);
    server.stop().await;
}

/// Rule: signals that wait when a workflow continues as new move to its successor, none lost and none
/// doubled.
#[tokio::test(flavor = "multi_thread")]
async fn held_signals_move_to_the_successor() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    for name in ["a", "b", "c"] {
        signal(client, name, json!({})).await.expect(202);
    }
    client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    let older = client.history("wf", text(&task, "run_id")).await;
    let task = client.poll("workflow", "w", "q", 5).await;
    client.wait_for_history(&task).await.expect(200);
    let newer = client.history("wf", text(&task, "run_id")).await;
    let mut all = signals(&older);
    all.extend(signals(&newer));
    assert_eq!(all, ["a", "b", "c"]);
    assert!(signals(&older).is_empty());
    assert!(client.poll("workflow", "w", "q", 0).await.is_object());
    server.stop().await;
}

/// Rule: the same key and intent again gives the first receipt, also after the run has closed; another
/// intent is a conflict that names what differs.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_stands_for_one_signal() {
    let server = TestServer::start().await;
    let client = &server.client;
    let run = client.start("wf", "flow", "q").await;
    let fields = json!({"request_id": "k", "input": [1]});
    let first = signal(client, "go", fields.clone()).await.expect(202);
    let assert_repeat = async || {
        let again = signal(client, "go", fields.clone()).await.expect(202);
        assert_eq!(again["retained"], true);
        assert_eq!(again["intent_verified"], true);
        for key in [
            "command_id",
            "command_sequence",
            "outcome",
            "run_id",
            "resolved_run_id",
            "signal_name",
            "request_id",
        ] {
            assert_eq!(again[key], first[key], "{key}");
        }
    };
    let assert_conflicts = async || {
        let run_path = format!("/workflows/wf/runs/{run}/signal/go");
        for (answer, differs) in [
            (
                signal(client, "other", fields.clone()).await,
                json!(["name"]),
            ),
            (
                signal(client, "go", json!({"request_id": "k", "input": [2]})).await,
                json!(["arguments"]),
            ),
            (
                signal(client, "go", json!({"request_id": "k"})).await,
                json!(["arguments"]),
            ),
            (
                client.post(&run_path, fields.clone()).await,
                json!(["run_target"]),
            ),
            (
                client.post(&run_path, json!({"request_id": "k"})).await,
                json!(["arguments", "run_target"]),
            ),
            (
                signal(client, "other", json!({"request_id": "k", "input": 7})).await,
                json!(["name", "arguments"]),
            ),
        ] {
            let body = answer.refused(409, "request_id_conflict");
            assert_eq!(body["conflict"], differs);
            assert_eq!(body["request_id"], "k");
            assert_eq!(body["retained_command_id"], first["command_id"]);
            assert_eq!(body["retained_command_type"], "signal");
            assert_eq!(body["retained_outcome"], "signal_received");
        }
    };
    let before = server.db.contents().await;
    assert_repeat().await;
    assert_conflicts().await;
    assert_eq!(server.db.contents().await, before);
    // Keys are opaque and compare exactly.
    for other in ["K", "k ", "ke", "🚀"] {
        let body = signal(client, "go", json!({"request_id": other, "input": [1]}))
            .await
            .expect(202);
        assert_eq!(body["retained"], false);
    }
    client
        .post("/workflows/wf/cancel", json!({}))
        .await
        .expect(200);
    assert_repeat().await;
    assert_conflicts().await;
    assert_eq!(signals(&client.history("wf", &run).await).len(), 5);
    server.stop().await;
}

/// Rule: a key holds for the workflow over its runs: a repeat after continue-as-new applies nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_holds_over_the_chain() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    client.wait_for_history(&task).await.expect(200);
    let fields = json!({"request_id": "k"});
    let first = signal(client, "go", fields.clone()).await.expect(202);
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    let again = signal(client, "go", fields).await.expect(202);
    assert_eq!(again["retained"], true);
    assert_eq!(again["run_id"], first["run_id"]);
    let task = client.poll("workflow", "w", "q", 5).await;
    assert!(signals(task["history_events"].as_array().unwrap()).is_empty());
    server.stop().await;
}

/// Rule: of concurrent requests under one key one is applied, and all get the same receipt.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_repeats_apply_once() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    client.wait_for_history(&task).await.expect(200);
    let sends = (0..16).map(|_| signal(client, "go", json!({"request_id": "k", "input": [1]})));
    let answers = futures_util::future::join_all(sends).await;
    let bodies: Vec<Value> = answers
        .into_iter()
        .map(|answer| answer.expect(202))
        .collect();
    assert_eq!(
        bodies
            .iter()
            .filter(|body| body["retained"] == false)
            .count(),
        1
    );
    for body in &bodies {
        assert_eq!(body["command_id"], bodies[0]["command_id"]);
    }
    assert_eq!(
        signals(&client.history("wf", text(&task, "run_id")).await),
        ["go"]
    );
    server.stop().await;
}

/// Rule: many signals at once are all recorded, each once, and their receipts name distinct commands.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_signals_are_all_recorded() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let sends = (0..40).map(|n| {
        let name = format!("s{n}");
        async move {
            signal(client, &name, json!({"request_id": name}))
                .await
                .expect(202)
        }
    });
    let bodies = futures_util::future::join_all(sends).await;
    client.wait_for_history(&task).await.expect(200);
    let history = client.history("wf", text(&task, "run_id")).await;
    let mut recorded = signals(&history);
    // The order of the receipts is the order of the history.
    let mut by_command: Vec<(u64, &str)> = bodies
        .iter()
        .map(|body| {
            (
                body["command_sequence"].as_u64().unwrap(),
                text(body, "signal_name"),
            )
        })
        .collect();
    by_command.sort_unstable();
    assert_eq!(
        recorded,
        by_command.iter().map(|(_, name)| *name).collect::<Vec<_>>()
    );
    recorded.sort_unstable();
    recorded.dedup();
    assert_eq!(recorded.len(), 40);
    server.stop().await;
}

/// Rule: the fields of a signal and their limits; what does not exist; a run that is not current.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_is_checked() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let first = text(&task, "run_id").to_owned();
    client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    let before = server.db.contents().await;
    for (name, fields, wrong) in [
        ("go", json!({"request_id": ""}), "request_id"),
        ("go", json!({"request_id": "x".repeat(256)}), "request_id"),
        ("go", json!({"request_id": 7}), "request_id"),
        ("go", json!({"dry_run": true}), "dry_run"),
        (
            "go",
            json!({"input": {"codec": "json", "blob": ""}}),
            "input.codec",
        ),
        (
            "go",
            json!({"input": {"codec": "avro", "blob": "A".repeat(2_097_153)}}),
            "input",
        ),
        ("a%0Ab", json!({}), "signal_name"),
        ("%00", json!({}), "path"),
        ("__durable_workflow_x", json!({}), "signal_name"),
        (&"x".repeat(257), json!({}), "signal_name"),
    ] {
        signal(client, name, fields).await.invalid(&[wrong]);
    }
    let body = client
        .post("/workflows/none/signal/go", json!({}))
        .await
        .refused(404, "instance_not_found");
    assert_eq!(body["workflow_id"], "none");
    let body = client
        .post("/workflows/wf/runs/x/signal/go", json!({}))
        .await
        .refused(404, "run_not_found");
    assert_eq!(body["requested_run_id"], "x");
    let body = client
        .post(&format!("/workflows/wf/runs/{first}/signal/go"), json!({}))
        .await;
    let body = body.refused(409, "selected_run_not_current");
    assert_eq!(body["outcome"], "rejected_not_current");
    assert_eq!(body["target_scope"], "run");
    assert_eq!(body["requested_run_id"], first);
    assert_ne!(body["resolved_run_id"], first);
    assert_eq!(server.db.contents().await, before);
    for (name, key) in [
        ("x".repeat(256), "x".repeat(255)),
        ("%C3%A4%20%2F".to_owned(), "ä".to_owned()),
    ] {
        signal(
            client,
            &name,
            merged(json!({"request_id": key}), json!({"input": null})),
        )
        .await
        .expect(202);
    }
    server.stop().await;
}
