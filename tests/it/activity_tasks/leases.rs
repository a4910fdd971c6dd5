//! Leases of activities that end without an outcome.

use serde_json::{Value, json};

use crate::support::{TestServer, eventually, only, text};

/// Rule: an activity whose worker is lost is handed out again with the next attempt number, without
/// spending a retry of its policy; the former holder is told that its attempt is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_spends_no_retry() {
    let server = TestServer::with(|settings| settings.leases.activity_seconds = 1).await;
    let client = &server.client;
    client.register("v", "q", &[], &["act"]).await;
    let first = client
        .first_activity(json!({"retry_policy": {"max_attempts": 2}}))
        .await;
    let second = client.poll("activity", "v", "q", 10).await;
    assert_eq!(second["task_id"], first["task_id"]);
    assert_eq!(second["attempt"], 2);
    assert_eq!(
        second["activity_execution_id"],
        first["activity_execution_id"]
    );
    assert_eq!(second["idempotency_key"], first["idempotency_key"]);
    client.started(&second).await;
    let before = server.db.contents().await;
    client
        .report(&first, "complete", json!({"result": 1}))
        .await
        .refused(409, "stale_attempt");
    client
        .report(&first, "fail", json!({"failure": {"message": "x"}}))
        .await
        .refused(409, "stale_attempt");
    let body = client
        .report(&first, "heartbeat", json!({}))
        .await
        .expect(200);
    assert_eq!(body["reason"], "stale_attempt");
    assert_eq!(body["can_continue"], false);
    assert_eq!(server.db.contents().await, before);
    // The first failure that is reported still has a retry left.
    client
        .report(&second, "fail", json!({"failure": {"message": "one"}}))
        .await
        .expect(200);
    let third = client.poll("activity", "v", "q", 10).await;
    assert_eq!(third["attempt"], 3);
    client
        .report(&third, "fail", json!({"failure": {"message": "two"}}))
        .await
        .expect(200);
    let history = client.history("wf", text(&first, "run_id")).await;
    let attempts: Vec<&Value> = history
        .iter()
        .filter(|event| event["event_type"] == "ActivityStarted")
        .map(|event| &event["payload"]["attempt_number"])
        .collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert_eq!(
        only(&history, "ActivityRetryScheduled")["payload"]["message"],
        "one"
    );
    assert_eq!(
        only(&history, "ActivityFailed")["payload"]["message"],
        "two"
    );
    server.stop().await;
}

/// Rule: a heartbeat renews the lease, so that an attempt may outlive its first one.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_lease_outlives_its_first_end() {
    let server = TestServer::with(|settings| settings.leases.activity_seconds = 1).await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    let end: leasehold::domain::time::Timestamp =
        text(&activity, "lease_expires_at").parse().unwrap();
    eventually(
        "the first lease would have ended a second ago",
        10,
        async || {
            let body = client
                .report(&activity, "heartbeat", json!({}))
                .await
                .expect(200);
            let at: leasehold::domain::time::Timestamp =
                text(&body, "last_heartbeat_at").parse().unwrap();
            (at > end.plus_seconds(1)).then_some(())
        },
    )
    .await;
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: a lease never ends before its attempt's start-to-close deadline, since SDKs do not renew it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_lasts_as_long_as_its_attempt_may() {
    let server = TestServer::with(|settings| settings.leases.activity_seconds = 1).await;
    let client = &server.client;
    let activity = client
        .first_activity(json!({"start_to_close_timeout": 600}))
        .await;
    assert!(text(&activity, "lease_expires_at") >= text(&activity["deadlines"], "start_to_close"));
    server.stop().await;
}
