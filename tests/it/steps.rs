//! Steps that save transactions, taken out of the way: the outcome is the same, in transactions of its
//! own.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Client, TestServer, eventually, text};

fn spawn_poll(client: &Client, kind: &'static str) -> JoinHandle<Value> {
    let client = client.clone();
    tokio::spawn(async move { client.poll(kind, "w", "q", 30).await })
}

async fn parked(server: &TestServer, count: usize) {
    eventually("the polls are parked", 5, async || {
        (server.node.engine().parked_polls() == count).then_some(())
    })
    .await;
}

async fn count(server: &TestServer, statement: &'static str) -> i64 {
    sqlx::query_scalar(statement)
        .fetch_one(&mut server.db.connect().await)
        .await
        .expect("a count")
}

/// A workflow task with so many activities scheduled, each a command of its own.
async fn schedule(client: &Client, task: &Value, activities: usize) {
    let command = json!({"type": "schedule_activity", "activity_type": "act"});
    client
        .complete(task, Value::Array(vec![command; activities]))
        .await
        .expect(200);
}

/// Rule: a commit hands an activity to a parked poll, and its start is written with it; with
/// `database.hand_off` off it is claimed, and its start is written afterwards. The history is the same.
#[tokio::test(flavor = "multi_thread")]
async fn without_hand_off_a_parked_poll_is_served_by_a_claim() {
    for hand_off in [true, false] {
        let server = TestServer::with(|settings| settings.database.hand_off = hand_off).await;
        let client = &server.client;
        let mut task = client.first_task().await;
        let run = text(&task, "run_id").to_owned();
        // Its look is over when it ends: the queue is known to be empty and to have no order, and no other poll is
        // spoken for by a look when its task comes.
        assert_eq!(client.poll("activity", "w", "q", 1).await, Value::Null);
        for _ in 0..2 {
            let poll = spawn_poll(client, "activity");
            parked(&server, 1).await;
            schedule(client, &task, 1).await;
            let activity = poll.await.unwrap();
            assert_eq!(activity["attempt"], 1);
            client
                .report(&activity, "complete", json!({}))
                .await
                .expect(200);
            task = client.poll("workflow", "w", "q", 5).await;
        }
        let cycle = ["ActivityScheduled", "ActivityStarted", "ActivityCompleted"];
        let expected = [&["StartAccepted", "WorkflowStarted"][..], &cycle, &cycle].concat();
        assert_eq!(client.events("wf", &run).await, expected);
        let starts_alone = count(
            &server,
            "select count(*) from history_batches where first_event_id = 7",
        )
        .await;
        assert_eq!(starts_alone, i64::from(!hand_off));
        server.stop().await;
    }
}

/// Rule: with `database.claim_batch = 1` each of several polls is given its task by a claim of its own.
#[tokio::test(flavor = "multi_thread")]
async fn single_claims_serve_every_poll() {
    const POLLS: usize = 5;
    let server = TestServer::with(|settings| {
        settings.database.hand_off = false;
        settings.database.claim_batch = 1;
    })
    .await;
    let client = &server.client;
    let task = client.first_task().await;
    let polls: Vec<_> = (0..POLLS).map(|_| spawn_poll(client, "activity")).collect();
    parked(&server, POLLS).await;
    schedule(client, &task, POLLS).await;
    for poll in polls {
        assert!(poll.await.unwrap().is_object());
    }
    // The leases that one claim grants end at one moment.
    let claims = count(
        &server,
        "select count(distinct lease_expires_at) from tasks where state = 1",
    )
    .await;
    assert_eq!(claims, i64::try_from(POLLS).unwrap());
    server.stop().await;
}

/// Rule: with `database.heartbeat_batch = 1` heartbeats that come together are recorded, each in a
/// transaction of its own.
#[tokio::test(flavor = "multi_thread")]
async fn single_heartbeats_are_all_recorded() {
    const HELD: usize = 8;
    let server = TestServer::with(|settings| settings.database.heartbeat_batch = 1).await;
    let client = &server.client;
    let task = client.first_task().await;
    schedule(client, &task, HELD).await;
    let mut held = Vec::new();
    for _ in 0..HELD {
        held.push(client.poll("activity", "w", "q", 5).await);
    }
    let beats = held
        .iter()
        .map(|activity| client.report(activity, "heartbeat", json!({})));
    for beat in futures_util::future::join_all(beats).await {
        assert_eq!(beat.expect(200)["heartbeat_recorded"], true);
    }
    let writers = count(
        &server,
        "select count(distinct xmin::text) from tasks where heartbeat_at is not null",
    )
    .await;
    assert_eq!(writers, i64::try_from(HELD).unwrap());
    server.stop().await;
}
