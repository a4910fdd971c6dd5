//! A server that is stopped and started again on its database: what was answered holds.

use serde_json::json;

use crate::support::{TestServer, envelope, text};

/// Rule: leases, receipts, timers and registrations outlive the process; its fences are still good.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_outlives_the_process() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client
        .first_activity(json!({"retry_policy": {"max_attempts": 2}}))
        .await;
    client
        .report(&activity, "heartbeat", json!({"details": {"n": 1}}))
        .await
        .expect(200);
    client.start("other", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    let keyed = json!({"request_id": "k", "input": [1]});
    let signalled = client
        .post("/workflows/wf/signal/go", keyed.clone())
        .await
        .expect(202);
    let resumed = client.poll("workflow", "w", "q", 5).await;
    let timer = json!([{"type": "start_timer", "delay_seconds": 1}]);
    let completed = client.complete(&resumed, timer.clone()).await.expect(200);
    let before = client.history("wf", text(&activity, "run_id")).await;
    let db = server.stop_keeping().await;

    let server = TestServer::on(db, |_| {}).await;
    let client = &server.client;
    assert_eq!(
        client.history("wf", text(&activity, "run_id")).await,
        before
    );
    // Repeats get their first answers.
    let again = client
        .post("/workflows/wf/signal/go", keyed)
        .await
        .expect(202);
    assert_eq!(again["retained"], true);
    assert_eq!(again["command_id"], signalled["command_id"]);
    let again = client.complete(&resumed, timer).await.expect(200);
    assert_eq!(again["duplicate"], true);
    assert_eq!(again["created_task_ids"], completed["created_task_ids"]);
    // Leases are still held, under their fences.
    client.task(&task, "heartbeat", json!({})).await.expect(200);
    client
        .task(
            &task,
            "complete",
            json!({"lease_owner": "v", "commands": []}),
        )
        .await
        .refused(409, "lease_owner_mismatch");
    client
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    client
        .report(&activity, "heartbeat", json!({}))
        .await
        .expect(200);
    client
        .report(&activity, "complete", json!({"result": 7}))
        .await
        .expect(200);
    // The registration is as it was, and the timer goes off.
    let task = client.poll("workflow", "w", "q", 5).await;
    client.wait_for_history(&task).await.expect(200);
    let task = client.poll("workflow", "w", "q", 10).await;
    let events = client.events("wf", text(&task, "run_id")).await;
    for kind in [
        "ActivityHeartbeatRecorded",
        "ActivityCompleted",
        "TimerFired",
    ] {
        assert_eq!(
            events.iter().filter(|event| *event == kind).count(),
            1,
            "{kind} in {events:?}"
        );
    }
    let result = envelope(json!("done"));
    client
        .complete(
            &task,
            json!([{"type": "complete_workflow", "result": result}]),
        )
        .await
        .expect(200);
    assert_eq!(
        client.get("/workflows/wf").await.expect(200)["output"],
        "done"
    );
    server.stop().await;
}
