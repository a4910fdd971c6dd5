//! Updates: accepted at once, delivered one by one, answered by the worker or by the end of the run,
//! and asked after by their key.

use serde_json::{Value, json};

use super::{VERSIONS, ask, first_task, register, server};
use crate::support::{Answer, Client, envelope, merged, only, text};

async fn update(client: &Client, name: &str, body: Value) -> Answer {
    client
        .post(&format!("/workflows/wf/update/{name}"), body)
        .await
}

async fn poll(client: &Client) -> Value {
    let task = client.poll("workflow", "w", "q", 5).await;
    assert!(task.is_object(), "no task");
    task
}

/// The next task that carries an update; tasks before it have nothing to do.
async fn poll_update(client: &Client) -> Value {
    loop {
        let task = poll(client).await;
        if task["workflow_update_id"].is_string() {
            return task;
        }
        client.wait_for_history(&task).await.expect(200);
    }
}

/// A run that waits, and its id.
async fn waiting(client: &Client) -> String {
    let task = first_task(client).await;
    client.wait_for_history(&task).await.expect(200);
    text(&task, "run_id").to_owned()
}

fn complete(task: &Value, result: Value) -> Value {
    json!([{
        "type": "complete_update",
        "update_id": task["workflow_update_id"],
        "result": envelope(result),
    }])
}

/// Rule: the answer to an accepted update, key by key; its event, and the task that carries it.
#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_update_is_receipted_and_delivered() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        let run = waiting(client).await;
        let body = json!({"request_id": "k", "input": [1]});
        let mut answer = update(client, "change", body).await.expect(202);
        answer.as_object_mut().unwrap().remove("control_plane");
        let id = text(&answer, "update_id").to_owned();
        let expected = json!({
            "workflow_id": "wf",
            "run_id": run,
            "requested_run_id": null,
            "resolved_run_id": run,
            "workflow_type": "flow",
            "update_id": id,
            "update_name": "change",
            "update_status": "accepted",
            "outcome": null,
            "result": null,
            "result_envelope": null,
            "wait_for": "accepted",
            "wait_timed_out": false,
            "wait_timeout_seconds": 10,
            "command_id": format!("{run}-c2"),
            "command_sequence": 2,
            "command_status": "accepted",
            "command_source": "control_plane",
            "target_scope": "instance",
            "request_id": "k",
            "retained": false,
            "intent_verified": true,
            "run_status": "running",
            "reason": null,
        });
        assert_eq!(answer, expected);
        let task = poll(client).await;
        assert_eq!(task["workflow_update_id"], id);
        assert_eq!(task["workflow_wait_kind"], "update");
        assert_eq!(task["resume_source_kind"], "workflow_update");
        assert_eq!(task["resume_source_id"], id);
        assert_eq!(task["open_wait_id"], format!("update:{id}"));
        assert_eq!(task["workflow_command_id"], answer["command_id"]);
        let history = client.history("wf", &run).await;
        let accepted = &only(&history, "UpdateAccepted")["payload"];
        assert_eq!(accepted["update_id"], id);
        assert_eq!(accepted["update_name"], "change");
        assert_eq!(accepted["arguments"], envelope(json!([1])));
        assert_eq!(accepted["workflow_command_id"], answer["command_id"]);
        assert_eq!(accepted["workflow_instance_id"], "wf");
        assert_eq!(accepted["workflow_run_id"], run);
        client
            .complete(&task, complete(&task, json!({"a": 1})))
            .await
            .expect(200);
        let history = client.history("wf", &run).await;
        let applied = only(&history, "UpdateApplied");
        assert_eq!(applied["payload"]["update_name"], "change");
        assert_eq!(applied["payload"]["arguments"], envelope(json!([1])));
        let completed = only(&history, "UpdateCompleted");
        assert_eq!(completed["payload"]["result"], envelope(json!({"a": 1})));
        assert_eq!(
            completed["sequence"],
            applied["sequence"].as_u64().unwrap() + 1
        );
        server.stop().await;
    }
}

/// Rule: a caller that waits for completion gets result or failure when the handler has run: 200 with
/// both forms of the result, 422 with the failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_may_wait_for_the_handler() {
    let server = server("1.20").await;
    let client = &server.client;
    let run = waiting(client).await;
    let wait = json!({"wait_for": "completed", "wait_timeout_seconds": 55});
    let caller = ask(client, "wf", "update/change", wait.clone());
    let task = poll_update(client).await;
    client
        .complete(&task, complete(&task, json!([7])))
        .await
        .expect(200);
    let body = caller.await.unwrap().expect(200);
    assert_eq!(body["update_status"], "completed");
    assert_eq!(body["outcome"], "update_completed");
    assert_eq!(body["result"], json!([7]));
    assert_eq!(body["result_envelope"], envelope(json!([7])));
    assert_eq!(body["wait_for"], "completed");
    assert_eq!(body["wait_timed_out"], false);
    assert!(body["request_id"].is_null());

    let caller = ask(client, "wf", "update/change", wait);
    let task = poll_update(client).await;
    let failure = json!([{
        "type": "fail_update", "update_id": task["workflow_update_id"], "message": "too much",
        "exception_type": "TooMuch", "non_retryable": true,
    }]);
    client.complete(&task, failure).await.expect(200);
    let body = caller.await.unwrap().expect(422);
    assert_eq!(body["update_status"], "failed");
    assert_eq!(body["outcome"], "update_failed");
    assert_eq!(body["failure_message"], "too much");
    assert!(!text(&body, "failure_id").is_empty());
    let history = client.history("wf", &run).await;
    let failed = &history.last().unwrap()["payload"];
    assert_eq!(failed["failure_id"], body["failure_id"]);
    assert_eq!(failed["exception_type"], "TooMuch");
    assert_eq!(failed["non_retryable"], true);
    server.stop().await;
}

/// Rule: a wait that ends first says so and touches nothing; the same key asks after the same update
/// and gets its current state, also after the run has closed and from another node.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_asks_after_its_update() {
    let server = server("1.20").await;
    let client = &server.client;
    let run = waiting(client).await;
    let (other, elsewhere) = server.other_node().await;
    elsewhere.get("/workflows/wf").await.expect(200);
    let wait = json!({"request_id": "k", "wait_for": "completed", "wait_timeout_seconds": 1});
    let first = update(client, "change", wait.clone()).await.expect(202);
    assert_eq!(first["wait_timed_out"], true);
    assert_eq!(first["wait_timeout_seconds"], 1);
    assert_eq!(first["retained"], false);
    let assert_same = |body: &Value| {
        assert_eq!(body["retained"], true);
        assert_eq!(body["intent_verified"], true);
        for key in ["update_id", "command_id", "command_sequence", "run_id"] {
            assert_eq!(body[key], first[key], "{key}");
        }
    };
    let body = update(client, "change", json!({"request_id": "k"})).await;
    let body = body.expect(202);
    assert_same(&body);
    assert_eq!(body["update_status"], "accepted");
    let task = poll(client).await;
    client
        .complete(&task, complete(&task, json!(1)))
        .await
        .expect(200);
    for client in [client, &elsewhere] {
        let body = update(client, "change", wait.clone()).await.expect(200);
        assert_same(&body);
        assert_eq!(body["result"], 1);
    }
    client
        .post("/workflows/wf/cancel", json!({}))
        .await
        .expect(200);
    let before = server.db.contents().await;
    for client in [client, &elsewhere] {
        let body = update(client, "change", wait.clone()).await.expect(200);
        assert_same(&body);
        for (name, fields, differs) in [
            ("other", json!({}), json!(["name"])),
            ("change", json!({"input": [1]}), json!(["arguments"])),
        ] {
            let answer = update(client, name, merged(wait.clone(), fields)).await;
            let body = answer.refused(409, "request_id_conflict");
            assert_eq!(body["conflict"], differs);
            assert_eq!(body["retained_command_type"], "update");
            assert_eq!(body["retained_command_id"], first["command_id"]);
        }
        let path = format!("/workflows/wf/runs/{run}/update/change");
        let answer = client.post(&path, wait.clone()).await;
        let body = answer.refused(409, "request_id_conflict");
        assert_eq!(body["conflict"], json!(["run_target"]));
        // Without the key it is another update, and the run is closed.
        let answer = update(client, "change", json!({})).await;
        answer.refused(409, "run_not_active");
    }
    assert_eq!(server.db.contents().await, before);
    other.stop().await;
    server.stop().await;
}

/// Rule: of concurrent requests under one key one is applied, and all wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_repeats_are_one_update() {
    let server = server("1.20").await;
    let client = &server.client;
    let run = waiting(client).await;
    let wait = json!({"request_id": "k", "wait_for": "completed", "wait_timeout_seconds": 55});
    let callers: Vec<_> = (0..8)
        .map(|_| ask(client, "wf", "update/change", wait.clone()))
        .collect();
    let task = poll(client).await;
    client
        .complete(&task, complete(&task, json!(1)))
        .await
        .expect(200);
    let mut fresh = 0;
    for caller in callers {
        let body = caller.await.unwrap().expect(200);
        assert_eq!(body["update_id"], task["workflow_update_id"]);
        fresh += u32::from(body["retained"] == false);
    }
    assert_eq!(fresh, 1);
    only(&client.history("wf", &run).await, "UpdateAccepted");
    server.stop().await;
}

/// Rule: an update that comes while a task is open is answered at once and held; each gets a task of
/// its own, in the order of arrival, behind the signals that came before it.
#[tokio::test(flavor = "multi_thread")]
async fn updates_take_turns() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        register(client, "w", "q", json!({})).await;
        let run = client.start("wf", "flow", "q").await;
        // Before the first task is taken, and while it is held.
        update(client, "a", json!({})).await.expect(202);
        let task = poll(client).await;
        assert!(task["workflow_update_id"].is_null());
        client
            .post("/workflows/wf/signal/go", json!({}))
            .await
            .expect(202);
        update(client, "b", json!({})).await.expect(202);
        update(client, "c", json!({})).await.expect(202);
        assert_eq!(client.events("wf", &run).await.len(), 2);
        client.wait_for_history(&task).await.expect(200);
        let mut kinds = Vec::new();
        for _ in 0..3 {
            let task = poll_update(client).await;
            let history = client.history("wf", &run).await;
            let last = history.last().unwrap();
            assert_eq!(last["event_type"], "UpdateAccepted");
            assert_eq!(last["payload"]["update_id"], task["workflow_update_id"]);
            client
                .complete(&task, complete(&task, json!(null)))
                .await
                .expect(200);
        }
        for event in client.history("wf", &run).await {
            let payload = &event["payload"];
            let name = payload["update_name"].as_str().unwrap_or_default();
            kinds.push(format!("{} {name}", text(&event, "event_type")));
        }
        assert_eq!(
            kinds[2..],
            [
                "UpdateAccepted a",
                "UpdateApplied a",
                "UpdateCompleted a",
                "SignalReceived ",
                "UpdateAccepted b",
                "UpdateApplied b",
                "UpdateCompleted b",
                "UpdateAccepted c",
                "UpdateApplied c",
                "UpdateCompleted c",
            ]
        );
        server.stop().await;
    }
}

/// Rule: a task that carries an update and ends without an answer fails it; a task that could not be
/// processed carries it again.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_needs_an_answer() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    let wait = json!({"wait_for": "completed", "wait_timeout_seconds": 55});
    let caller = ask(client, "wf", "update/change", wait);
    let task = poll(client).await;
    client
        .task(&task, "fail", json!({"failure": {"message": "no"}}))
        .await
        .expect(200);
    let again = poll(client).await;
    assert_eq!(again["workflow_update_id"], task["workflow_update_id"]);
    client.complete(&again, json!([])).await.expect(200);
    let body = caller.await.unwrap().expect(422);
    assert_eq!(body["update_status"], "failed");
    server.stop().await;
}

/// Rule: updates without an outcome fail when the run closes, before its terminal event, and their
/// callers hear of it at once: the one that is delivered and the ones that are held.
#[tokio::test(flavor = "multi_thread")]
async fn a_closing_run_fails_its_updates() {
    for (path, body) in [
        (None, json!([{"type": "complete_workflow"}])),
        (Some("cancel"), json!({})),
        (Some("terminate"), json!({})),
    ] {
        let server = server("1.20").await;
        let client = &server.client;
        let run = waiting(client).await;
        let wait = json!({"wait_for": "completed", "wait_timeout_seconds": 55});
        let first = ask(client, "wf", "update/a", wait.clone());
        let task = poll(client).await;
        update(client, "b", json!({"request_id": "k"}))
            .await
            .expect(202);
        match path {
            None => client.complete(&task, body).await.expect(200),
            Some(path) => client
                .post(&format!("/workflows/wf/{path}"), body)
                .await
                .expect(200),
        };
        let body = first.await.unwrap().expect(422);
        assert_eq!(body["update_status"], "failed");
        assert_eq!(body["outcome"], "update_failed");
        let answer = update(client, "b", json!({"request_id": "k"})).await;
        let body = answer.expect(422);
        assert_eq!(body["retained"], true);
        assert_eq!(body["update_status"], "failed");
        let history = client.history("wf", &run).await;
        let kinds: Vec<_> = history.iter().map(|e| text(e, "event_type")).collect();
        let ends: Vec<_> = kinds
            .iter()
            .enumerate()
            .filter(|(_, kind)| **kind == "UpdateCompleted")
            .map(|(place, _)| place)
            .collect();
        assert_eq!(ends.len(), 2, "{kinds:?}");
        assert!(kinds.last().unwrap().starts_with("Workflow"), "{kinds:?}");
        let reason = &history[ends[1]]["payload"]["terminal_reason"];
        assert!(reason.is_string(), "{reason}");
        server.stop().await;
    }
}

/// Rule: an update that the run did not take when it continued as new is delivered by its successor,
/// and its caller hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn held_updates_move_to_the_successor() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let wait = json!({"wait_for": "completed", "wait_timeout_seconds": 55, "request_id": "k"});
    update(client, "change", json!({"request_id": "k"}))
        .await
        .expect(202);
    let caller = ask(client, "wf", "update/change", wait.clone());
    client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    let task = poll_update(client).await;
    client
        .complete(&task, complete(&task, json!(3)))
        .await
        .expect(200);
    let body = caller.await.unwrap().expect(200);
    assert_eq!(body["result"], 3);
    let again = update(client, "change", wait).await.expect(200);
    assert_eq!(again["update_id"], body["update_id"]);
    let history = client.history("wf", text(&task, "run_id")).await;
    let accepted = &only(&history, "UpdateAccepted")["payload"];
    assert_eq!(accepted["update_id"], body["update_id"]);
    server.stop().await;
}

/// Rule: an answer is for the update that the task carries, once; anything else contradicts the
/// history, changes nothing and keeps the lease.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_carried_update_is_answered() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    update(client, "a", json!({})).await.expect(202);
    let task = poll(client).await;
    let later = update(client, "b", json!({})).await.expect(202);
    let id = &task["workflow_update_id"];
    let completed = |id: &Value| json!({"type": "complete_update", "update_id": id});
    let failed = |id: &Value| json!({"type": "fail_update", "update_id": id, "message": "m"});
    let before = server.db.contents().await;
    for commands in [
        json!([completed(&json!("none"))]),
        json!([completed(&later["update_id"])]),
        json!([failed(&later["update_id"])]),
        json!([completed(id), completed(id)]),
        json!([completed(id), failed(id)]),
    ] {
        let body = client
            .complete(&task, commands)
            .await
            .refused(409, "invalid_commands");
        assert_eq!(body["recorded"], false);
    }
    for (command, field) in [
        (json!({"type": "complete_update"}), "update_id"),
        (json!({"type": "fail_update", "update_id": id}), "message"),
        (
            json!({"type": "complete_update", "update_id": id, "result": [1]}),
            "result",
        ),
        (
            json!({"type": "complete_update", "update_id": id, "non_retryable": true}),
            "non_retryable",
        ),
    ] {
        client
            .complete(&task, json!([command]))
            .await
            .invalid(&[&format!("commands.0.{field}")]);
    }
    assert_eq!(server.db.contents().await, before);
    client
        .complete(&task, json!([completed(id)]))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: the fields of an update; what does not exist; a run that is not current; a name that the
/// workers declared not to have.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_is_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let first = text(&task, "run_id").to_owned();
    client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    let contract = json!({"workflow_command_contracts": {"flow": {"updates": ["change"]}}});
    register(client, "w", "q", contract).await;
    let before = server.db.contents().await;
    for (name, fields, wrong) in [
        ("change", json!({"request_id": ""}), "request_id"),
        (
            "change",
            json!({"request_id": "x".repeat(256)}),
            "request_id",
        ),
        ("change", json!({"dry_run": true}), "dry_run"),
        ("change", json!({"wait_for": "done"}), "wait_for"),
        ("change", json!({"wait_policy": "accepted"}), "wait_policy"),
        (
            "change",
            json!({"wait_timeout_seconds": 0}),
            "wait_timeout_seconds",
        ),
        (
            "change",
            json!({"input": {"codec": "json", "blob": ""}}),
            "input.codec",
        ),
        ("a%0Ab", json!({}), "update_name"),
        (&"x".repeat(257), json!({}), "update_name"),
    ] {
        update(client, name, fields).await.invalid(&[wrong]);
    }
    let body = update(client, "other", json!({}))
        .await
        .refused(404, "unknown_update");
    assert_eq!(body["outcome"], "rejected_unknown_update");
    assert_eq!(body["declared_updates"], json!(["change"]));
    client
        .post("/workflows/none/update/change", json!({}))
        .await
        .refused(404, "instance_not_found");
    client
        .post("/workflows/wf/runs/x/update/change", json!({}))
        .await
        .refused(404, "run_not_found");
    let path = format!("/workflows/wf/runs/{first}/update/change");
    let body = client
        .post(&path, json!({}))
        .await
        .refused(409, "selected_run_not_current");
    assert_eq!(body["outcome"], "rejected_not_current");
    assert_eq!(server.db.contents().await, before);
    // The longest wait is cut to what clients bear.
    let caller = json!({"wait_timeout_seconds": 600});
    let body = update(client, "change", caller).await.expect(202);
    assert_eq!(body["wait_timeout_seconds"], 55);
    server.stop().await;
}
