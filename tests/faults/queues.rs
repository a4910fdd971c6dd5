//! Polls on several queues, and polls that end while they are spoken for.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::raw;
use crate::support::{Client, TestServer, eventually};

async fn register(client: &Client, worker: &str, queues: &[&str]) {
    let body = json!({
        "worker_id": worker,
        "task_queues": queues,
        "runtime": "external",
        "supported_workflow_types": ["greet"],
        "supported_activity_types": [],
        "capability_manifest": {},
    });
    client.post("/worker/register", body).await.expect(200);
}

async fn poll_all(client: &Client, worker: &str, queues: &[&str]) -> Value {
    let body = json!({"worker_id": worker, "task_queues": queues, "poll_timeout_seconds": 5});
    client
        .post("/worker/workflow-tasks/poll", body)
        .await
        .expect(200)["task"]
        .take()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_finds_what_waits_on_any_of_its_queues_at_once() {
    let server = TestServer::start().await;
    let client = &server.client;
    let queues = ["a", "b", "c"];
    register(client, "w", &queues).await;
    for round in 0..5 {
        for queue in queues {
            client
                .start(&format!("{queue}-{round}"), "greet", queue)
                .await;
            let began = Instant::now();
            let task = poll_all(client, "w", &queues).await;
            let took = began.elapsed();
            assert_eq!(task["task_queue"], queue);
            assert!(
                took < Duration::from_millis(1_000),
                "queue {queue}: {took:?}"
            );
            client
                .complete(&task, json!([{"type": "complete_workflow"}]))
                .await
                .expect(200);
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_that_a_claim_left_empty_handed_ends_when_its_worker_is_replaced() {
    let server = TestServer::start().await;
    let client = &server.client;
    register(client, "w", &["q"]).await;
    register(client, "other", &["q"]).await;
    // The only ready task is locked, so the claim for the poll takes its time and then finds nothing.
    client.start("wf", "greet", "q").await;
    let mut holder = server.db.connect().await;
    sqlx::query("begin").execute(&mut holder).await.unwrap();
    sqlx::query("lock table tasks in access exclusive mode")
        .execute(&mut holder)
        .await
        .unwrap();
    let waiting = raw::poll(&server.url, "workflow", "w", &["q"], 30).await;
    let mut watcher = server.db.connect().await;
    // PostgreSQL shows the first 1024 bytes of a statement: this is in them, and in claims only.
    eventually("the claim is under way", 5, async || {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database()
             and wait_event_type = 'Lock' and query like '%unnest(%) with ordinality as w(owner, poll, place)%'",
        )
        .fetch_one(&mut watcher)
        .await
        .unwrap();
        (waiting >= 1).then_some(())
    })
    .await;
    // The new registration gives back what the old one held, and waits for the table, too.
    let registering = tokio::spawn({
        let client = client.clone();
        async move { register(&client, "w", &["q"]).await }
    });
    eventually("the registration is written", 5, async || {
        let epoch: i64 = sqlx::query_scalar("select epoch from workers where worker_id = 'w'")
            .fetch_one(&mut watcher)
            .await
            .unwrap();
        (epoch == 2).then_some(())
    })
    .await;
    sqlx::query("update tasks set visible_at = clock_timestamp() + interval '1 h'")
        .execute(&mut holder)
        .await
        .unwrap();
    sqlx::query("commit").execute(&mut holder).await.unwrap();
    registering.await.unwrap();
    let (status, body) = waiting.answer(Duration::from_secs(3)).await.unwrap();
    assert_eq!(status, 200);
    assert_eq!(body["poll_status"], "stale_worker_registration", "{body:#}");
    server.stop().await;
}
