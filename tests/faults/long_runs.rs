//! Runs with as many events as a run may have: what a server needs of memory for them.

use serde_json::{Value, json};

use crate::process::{Server, free_port};
use crate::support::{Client, TestDb, envelope};

/// Commands of one completion, each of them one event.
const COMMANDS: usize = 1_000;
/// Completions of the long run: with its signals and its beginning it has almost 50,000 events.
const ROUNDS: usize = 49;
/// Letters that each event carries.
const LETTERS: usize = 700;
/// Resident memory that a process may need more for the long run than for the short one, in KiB: less
/// than half of the long run's history.
const FLAT: u64 = 24 << 10;

fn effects(count: usize) -> Value {
    let result = envelope(json!("x".repeat(LETTERS)));
    json!(vec![
        json!({"type": "record_side_effect", "result": result});
        count
    ])
}

async fn wake(client: &Client, workflow: &str) {
    client
        .post(&format!("/workflows/{workflow}/signal/go"), json!({}))
        .await
        .expect(202);
}

/// The task of a workflow, whose queue has its name.
async fn claim(client: &Client, workflow: &str, page: u64) -> Value {
    let body = json!({
        "worker_id": "w", "task_queue": workflow, "timeout_seconds": 30, "history_page_size": page,
    });
    client
        .post("/worker/workflow-tasks/poll", body)
        .await
        .expect(200)["task"]
        .take()
}

/// A run whose history was made by completions of so many commands, and that is to go on.
async fn grow(client: &Client, workflow: &str, completions: &[usize]) -> String {
    let run = client.start(workflow, "flow", workflow).await;
    for count in completions {
        let task = claim(client, workflow, 1).await;
        client.complete(&task, effects(*count)).await.expect(200);
        wake(client, workflow).await;
    }
    run
}

fn check(events: &Value, read: &mut u64) {
    for event in events.as_array().unwrap() {
        *read += 1;
        assert_eq!(event["sequence"], *read);
    }
}

/// Reads all pages in both planes, with a heartbeat between them, and completes the task. Returns the
/// number of events and the bytes of history.
async fn work_on(client: &Client, workflow: &str, run: &str) -> (u64, u64) {
    let task = claim(client, workflow, 500).await;
    let mut read = 0;
    check(&task["history_events"], &mut read);
    let mut next = task["next_history_page_token"].clone();
    while !next.is_null() {
        client.task(&task, "heartbeat", json!({})).await.expect(200);
        let asked = json!({"next_history_page_token": next, "history_page_size": 1_000});
        let page = client.task(&task, "history", asked).await.expect(200);
        check(&page["history_events"], &mut read);
        next = page["next_history_page_token"].clone();
    }
    assert_eq!(read, task["total_history_events"]);
    let mut shown = 0;
    let mut token = String::new();
    loop {
        let path = format!(
            "/workflows/{workflow}/runs/{run}/history?page_size=1000&next_page_token={token}"
        );
        let page = client.get(&path).await.expect(200);
        check(&page["events"], &mut shown);
        match page["next_page_token"].as_str() {
            Some(next) => token = next.replace('=', "%3D"),
            None => break,
        }
    }
    assert_eq!(shown, read);
    client.complete(&task, effects(1)).await.expect(200);
    (read, task["history_size_bytes"].as_u64().unwrap())
}

/// Rule: a run of 50,000 events is claimed, paged, completed and caught up in the memory that a run of
/// 500 needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_fifty_thousand_events_needs_no_more_memory_than_a_short_one() {
    let db = TestDb::new().await;
    let mut server = Server::serve(&db.options, free_port(), &[]);
    server.until_ready().await;
    let body = json!({
        "worker_id": "w", "task_queues": ["short", "long"], "workflow_types": ["flow"],
    });
    let registered = server.client.post("/worker/register", body).await;
    registered.expect(200);
    let short = grow(&server.client, "short", &[500]).await;
    let long = grow(&server.client, "long", &[COMMANDS; ROUNDS]).await;
    server.kill();
    let mut peaks = Vec::new();
    let mut sizes = Vec::new();
    for (workflow, run) in [("long", &long), ("short", &short)] {
        let mut server = Server::serve(&db.options, free_port(), &[]);
        server.until_ready().await;
        sizes.push(work_on(&server.client, workflow, run).await);
        peaks.push(server.peak_memory());
        server.kill();
    }
    println!("events and bytes of history, long and short: {sizes:?}; peaks in KiB: {peaks:?}");
    let (long_events, long_bytes) = sizes[0];
    assert!(long_events > 49_000 && sizes[1].0 > 500);
    assert!(
        long_bytes >> 10 > 2 * FLAT,
        "the history is too small to be seen"
    );
    assert!(peaks[0] < peaks[1] + FLAT, "{peaks:?}");
    db.drop().await;
}
