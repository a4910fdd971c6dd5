//! The four time limits of an activity, each enforced without any worker's help.

use serde_json::{Value, json};

use crate::support::{Client, TestServer, eventually, only, text};

async fn event(client: &Client, run: &str, kind: &str) -> Value {
    eventually(kind, 10, async || {
        let history = client.history("wf", run).await;
        history
            .into_iter()
            .find(|event| event["event_type"] == kind)
    })
    .await
}

/// Asserts how an activity timed out, and that its workflow heard of it.
async fn assert_timed_out(client: &Client, run: &str, kind: &str, attempt: u64) {
    let timed_out = event(client, run, "ActivityTimedOut").await;
    let payload = &timed_out["payload"];
    assert_eq!(payload["timeout_kind"], kind);
    assert_eq!(payload["attempt_number"], attempt);
    assert_eq!(payload["failure_category"], "timeout");
    assert!(!text(payload, "message").is_empty());
    assert!(payload["failure_id"].is_string());
    let task = client.poll("workflow", "w", "q", 5).await;
    assert_eq!(task["workflow_event_type"], "ActivityTimedOut");
    let history = client.history("wf", run).await;
    only(&history, "ActivityTimedOut");
    assert!(client.poll("activity", "w", "q", 0).await.is_null());
}

/// Rule: `schedule_to_start`: nobody took the attempt in time.
#[tokio::test(flavor = "multi_thread")]
async fn schedule_to_start() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let command = json!({"type": "schedule_activity", "activity_type": "act", "queue": "nobody", "schedule_to_start_timeout": 1});
    client.complete(&task, json!([command])).await.expect(200);
    assert_timed_out(client, text(&task, "run_id"), "schedule_to_start", 0).await;
    server.stop().await;
}

/// Rule: an attempt that was taken in time is not ended by it.
#[tokio::test(flavor = "multi_thread")]
async fn schedule_to_start_ends_with_the_claim() {
    let server = TestServer::start().await;
    let client = &server.client;
    let limits = json!({"schedule_to_start_timeout": 1, "start_to_close_timeout": 2});
    let activity = client.first_activity(limits).await;
    assert_timed_out(client, text(&activity, "run_id"), "start_to_close", 1).await;
    server.stop().await;
}

/// Rule: `start_to_close`: the attempt took too long, heartbeats or not; its report is stale.
#[tokio::test(flavor = "multi_thread")]
async fn start_to_close() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client
        .first_activity(json!({"start_to_close_timeout": 1}))
        .await;
    client
        .report(&activity, "heartbeat", json!({"details": {"n": 1}}))
        .await
        .expect(200);
    let run = text(&activity, "run_id");
    assert_timed_out(client, run, "start_to_close", 1).await;
    let history = client.history("wf", run).await;
    let beat = only(&history, "ActivityHeartbeatRecorded");
    assert_eq!(beat["payload"]["progress"], json!({"details": {"n": 1}}));
    let before = server.db.contents().await;
    let body = client
        .report(&activity, "complete", json!({"result": 1}))
        .await;
    assert_eq!(body.refused(409, "stale_attempt")["recorded"], false);
    let body = client
        .report(&activity, "heartbeat", json!({}))
        .await
        .expect(200);
    assert_eq!(body["can_continue"], false);
    assert_eq!(server.db.contents().await, before);
    server.stop().await;
}

/// Rule: `heartbeat`: the attempt was silent for too long.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat() {
    let server = TestServer::start().await;
    let client = &server.client;
    let limits = json!({"heartbeat_timeout": 1, "start_to_close_timeout": 60});
    let activity = client.first_activity(limits).await;
    assert_timed_out(client, text(&activity, "run_id"), "heartbeat", 1).await;
    server.stop().await;
}

/// Rule: `schedule_to_close` bounds all attempts and is never extended; no retry follows it.
#[tokio::test(flavor = "multi_thread")]
async fn schedule_to_close() {
    let server = TestServer::start().await;
    let client = &server.client;
    let limits = json!({
        "schedule_to_close_timeout": 1, "retry_policy": {"max_attempts": 10, "backoff_seconds": [0]},
    });
    let activity = client.first_activity(limits).await;
    client
        .report(&activity, "fail", json!({"failure": {"message": "x"}}))
        .await
        .expect(200);
    let again = client.poll("activity", "w", "q", 5).await;
    assert_eq!(again["attempt"], 2);
    client.started(&again).await;
    let run = text(&activity, "run_id");
    assert_timed_out(client, run, "schedule_to_close", 2).await;
    client
        .report(&again, "complete", json!({}))
        .await
        .refused(409, "stale_attempt");
    server.stop().await;
}

/// Rule: a timed-out attempt is retried like a failed one, and the retry says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_timed_out_attempt_is_retried() {
    let server = TestServer::start().await;
    let client = &server.client;
    let limits = json!({"start_to_close_timeout": 1, "retry_policy": {"max_attempts": 2, "backoff_seconds": [0]}});
    let activity = client.first_activity(limits).await;
    let run = text(&activity, "run_id");
    let retry = event(client, run, "ActivityRetryScheduled").await;
    assert_eq!(retry["payload"]["timeout_kind"], "start_to_close");
    assert_eq!(retry["payload"]["retry_reason"], "timeout");
    assert_eq!(retry["payload"]["retry_after_attempt"], 1);
    client
        .report(&activity, "complete", json!({}))
        .await
        .refused(409, "stale_attempt");
    let again = client.poll("activity", "w", "q", 5).await;
    assert_eq!(again["attempt"], 2);
    client
        .report(&again, "complete", json!({"result": 2}))
        .await
        .expect(200);
    let history = client.history("wf", run).await;
    assert_eq!(
        only(&history, "ActivityCompleted")["payload"]["attempt_number"],
        2
    );
    server.stop().await;
}
