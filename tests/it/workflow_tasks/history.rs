//! Pages of the history of a task that a worker holds.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::support::{Client, TestServer, text};

fn token(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// A task whose run has `3 + n` events, polled with pages of `size`.
async fn long_task(client: &Client, n: usize, size: u64) -> Value {
    let task = client.first_task().await;
    let effect =
        json!({"type": "record_side_effect", "result": crate::support::envelope(json!("x"))});
    client
        .complete(&task, json!(vec![effect; n]))
        .await
        .expect(200);
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    let body = json!({"worker_id": "w", "task_queue": "q", "timeout_seconds": 5, "history_page_size": size});
    let task = client
        .post("/worker/workflow-tasks/poll", body)
        .await
        .expect(200)["task"]
        .take();
    assert_eq!(task["total_history_events"], 3 + n);
    task
}

/// Rule: pages by token give every event once, in order, under both names; counts are of the whole
/// history; the last page has no token.
#[tokio::test(flavor = "multi_thread")]
async fn pages_reassemble_the_history() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = long_task(client, 20, 5).await;
    let mut events = task["history_events"].as_array().unwrap().clone();
    let mut next = task["next_history_page_token"].clone();
    let mut pages = 1;
    while !next.is_null() {
        let asked = json!({"next_history_page_token": next, "history_page_size": 5});
        let page = client.task(&task, "history", asked).await.expect(200);
        assert_eq!(page["task_id"], task["task_id"]);
        assert_eq!(page["workflow_task_attempt"], 1);
        assert_eq!(page["history"], page["history_events"]);
        for key in [
            "total_history_events",
            "history_size_bytes",
            "history_fan_out",
            "continue_as_new_recommended",
            "history_budget_pressure",
            "history_budget_pressure_dimensions",
            "last_history_sequence",
        ] {
            assert_eq!(page[key], task[key], "{key}");
        }
        assert_ne!(page["next_history_page_token"], next);
        events.extend(page["history_events"].as_array().unwrap().iter().cloned());
        next = page["next_history_page_token"].clone();
        pages += 1;
    }
    assert_eq!(pages, 5);
    assert_eq!(events.len(), 23);
    let served = client.history("wf", text(&task, "run_id")).await;
    for (event, served) in events.iter().zip(&served) {
        for key in ["id", "sequence", "event_type", "payload", "recorded_at"] {
            assert_eq!(event[key], served[key]);
        }
    }
    server.stop().await;
}

/// The token of the page after event `after` of a task's run.
async fn token_after(client: &Client, task: &Value, after: u64) -> Value {
    let page = client.task(task, "history", json!({"page_size": after}));
    page.await.expect(200)["next_history_page_token"].take()
}

fn sequences(page: &Value) -> Vec<u64> {
    let events = page["history_events"].as_array().unwrap();
    events
        .iter()
        .map(|event| event["sequence"].as_u64().unwrap())
        .collect()
}

/// Rule: a token says where its page begins; the first page has the token that SDKs write themselves,
/// and no token at all stands for it too; both spellings of token and size are read.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_say_where_a_page_begins() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = long_task(client, 20, 5).await;
    assert_eq!(
        task["next_history_page_token"],
        token_after(client, &task, 5).await
    );
    let page = async |fields: Value| client.task(&task, "history", fields).await.expect(200);
    for first in [
        json!({"page_token": "MA==", "page_size": 2}),
        json!({"next_history_page_token": "MA==", "history_page_size": 2}),
        json!({"page_token": null, "page_size": 2}),
        json!({"page_size": "2"}),
        json!({"page_token": "MA==", "next_history_page_token": "MA==", "page_size": 2}),
    ] {
        assert_eq!(sequences(&page(first).await), [1, 2]);
    }
    let near_end = token_after(client, &task, 21).await;
    let rest = page(json!({"page_token": near_end, "page_size": 100_000})).await;
    assert_eq!(sequences(&rest), [22, 23]);
    assert!(rest["next_history_page_token"].is_null());
    // A page that ends with the history needs no token.
    let exact = page(json!({"page_token": near_end, "page_size": 2})).await;
    assert!(exact["next_history_page_token"].is_null());
    server.stop().await;
}

/// Rule: a token belongs to a run: it stays good while the history grows and for the run's later tasks,
/// and is none for another run, however long.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_belongs_to_its_run() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = long_task(client, 20, 5).await;
    let token = task["next_history_page_token"].clone();
    let asked = json!({"next_history_page_token": token, "history_page_size": 5});
    let page = client
        .task(&task, "history", asked.clone())
        .await
        .expect(200);
    assert_eq!(sequences(&page), [6, 7, 8, 9, 10]);
    let effect =
        json!({"type": "record_side_effect", "result": crate::support::envelope(json!("x"))});
    let effects = json!(vec![effect; 20]);
    client.complete(&task, effects.clone()).await.expect(200);
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    let later = client.poll("workflow", "w", "q", 5).await;
    assert_ne!(later["task_id"], task["task_id"]);
    let again = client
        .task(&later, "history", asked.clone())
        .await
        .expect(200);
    assert_eq!(again["history_events"], page["history_events"]);
    // The task that it came with is over: the lease binds the request, not the token.
    client
        .task(&task, "history", asked.clone())
        .await
        .refused(409, "task_not_leased");
    // Another run of the same length.
    client.start("other", "flow", "q").await;
    let other = client.poll("workflow", "w", "q", 5).await;
    client.complete(&other, effects.clone()).await.expect(200);
    client
        .post("/workflows/other/signal/go", json!({}))
        .await
        .expect(202);
    let other = client.poll("workflow", "w", "q", 5).await;
    assert_eq!(other["workflow_id"], "other");
    let refused = client.task(&other, "history", asked).await;
    let body = refused.refused(400, "invalid_page_token");
    assert_eq!(body["task_id"], other["task_id"]);
    assert!(body.get("history_events").is_none());
    // Nothing changed: both tasks are still held and can be completed.
    for task in [&other, &later] {
        client.complete(task, json!([])).await.expect(200);
    }
    server.stop().await;
}

/// Rule: anything else is no token of this server, a bare number included.
#[tokio::test(flavor = "multi_thread")]
async fn other_tokens_are_refused() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = long_task(client, 3, 5).await;
    let bad = [
        "",
        " ",
        "x",
        "0",
        "5",
        "MQ",
        "MA",
        "====",
        "!!!!",
        &token("-1"),
        &token("01"),
        &token("+1"),
        &token("1.0"),
        &token("1"),
        &token("5"),
        &token("0."),
        &token("1."),
        &token("1.0123456789abcdef"),
        &token("x"),
        &token(""),
        &token(" 1"),
        &token("99999999999999999999999"),
    ];
    for bad in bad {
        let answer = client
            .task(&task, "history", json!({ "page_token": bad }))
            .await;
        let body = answer.refused(400, "invalid_page_token");
        assert_eq!(body["task_id"], task["task_id"], "{bad}");
    }
    let given = token_after(client, &task, 4).await;
    for (fields, wrong) in [
        (
            json!({"page_token": "MA==", "next_history_page_token": given}),
            "page_token",
        ),
        (json!({"history_page_size": 0}), "history_page_size"),
        (json!({"history_page_size": 1001}), "history_page_size"),
        (json!({"page_size": 0}), "page_size"),
        (json!({"page_token": 5}), "page_token"),
    ] {
        client
            .task(&task, "history", fields)
            .await
            .invalid(&[wrong]);
    }
    server.stop().await;
}

/// Rule: pages have the configured size unless asked otherwise, and never more than the maximum.
#[tokio::test(flavor = "multi_thread")]
async fn pages_have_the_configured_size() {
    let server = TestServer::with(|settings| {
        settings.history.page_size_default = 4;
        settings.history.page_size_max = 8;
    })
    .await;
    let client = &server.client;
    let task = long_task(client, 20, 1_000).await;
    assert_eq!(task["history_events"].as_array().unwrap().len(), 8);
    assert_eq!(task["server_capabilities"], Value::Null);
    let page = client.task(&task, "history", json!({})).await.expect(200);
    assert_eq!(page["history_events"].as_array().unwrap().len(), 4);
    assert_eq!(page["server_capabilities"]["history_page_size_default"], 4);
    assert_eq!(page["server_capabilities"]["history_page_size_max"], 8);
    let page = client
        .task(&task, "history", json!({"page_size": 1_000_000}))
        .await
        .expect(200);
    assert_eq!(page["history_events"].as_array().unwrap().len(), 8);
    server.stop().await;
}

/// Rule: only the holder reads, under its attempt; others are told who holds the task, or that there
/// is none.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_reads() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    client.register("v", "q", &["flow"], &[]).await;
    let body = client
        .task(&task, "history", json!({"lease_owner": "v"}))
        .await;
    let body = body.refused(409, "lease_owner_mismatch");
    assert_eq!(body["lease_owner"], "w");
    assert_eq!(body["task_id"], task["task_id"]);
    assert_eq!(body["workflow_task_attempt"], 1);
    assert!(body.get("history_events").is_none());
    let body = client
        .task(&task, "history", json!({"workflow_task_attempt": 2}))
        .await;
    assert_eq!(
        body.refused(409, "workflow_task_attempt_mismatch")["current_attempt"],
        1
    );
    client
        .task(&task, "history", json!({"workflow_task_attempt": 0}))
        .await
        .invalid(&["workflow_task_attempt"]);
    client
        .task(&task, "history", json!({"workflow_task_attempt": null}))
        .await
        .invalid(&["workflow_task_attempt"]);
    let path = format!("/worker/workflow-tasks/{}/history", text(&task, "task_id"));
    client
        .post(&path, json!({}))
        .await
        .invalid(&["lease_owner"]);
    client
        .post(&path, json!({"worker_id": "w"}))
        .await
        .expect(200);
    client
        .post(&path, json!({"worker_id": "v"}))
        .await
        .refused(409, "lease_owner_mismatch");
    server.stop().await;
}

/// Rule: a task shows the history as it was when it was handed out; what is appended meanwhile comes
/// with the next task.
#[tokio::test(flavor = "multi_thread")]
async fn pages_are_stable_while_events_are_appended() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let act = json!({"type": "schedule_activity", "activity_type": "act"});
    client.complete(&task, json!([act, act])).await.expect(200);
    let first = client.poll("activity", "w", "q", 5).await;
    let second = client.poll("activity", "w", "q", 5).await;
    client.started(&first).await;
    client.started(&second).await;
    client
        .report(&first, "complete", json!({"result": 1}))
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    let events = task["history_events"].as_array().unwrap().clone();
    assert_eq!(events.len(), 7);
    client
        .report(&second, "complete", json!({"result": 2}))
        .await
        .expect(200);
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    let mut read = Vec::new();
    let mut next = json!(token("0"));
    while !next.is_null() {
        let asked = json!({"page_token": next, "page_size": 2});
        let page = client.task(&task, "history", asked).await.expect(200);
        assert_eq!(page["total_history_events"], 7);
        read.extend(page["history_events"].as_array().unwrap().iter().cloned());
        next = page["next_history_page_token"].clone();
    }
    assert_eq!(read, events);
    // The task's own report is not disturbed, and the next task shows the rest.
    let body = client.complete(&task, json!([])).await.expect(200);
    assert_eq!(body["run_status"], "running");
    let task = client.poll("workflow", "w", "q", 5).await;
    let shown = task["history_events"].as_array().unwrap();
    assert_eq!(shown[..7], events[..]);
    assert_eq!(shown[7]["event_type"], "ActivityCompleted");
    assert_eq!(shown[8]["event_type"], "SignalReceived");
    server.stop().await;
}
