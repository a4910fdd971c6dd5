//! Heartbeats of activities: what they keep alive, what they carry, and how they tell to stop.

use serde_json::{Value, json};

use crate::support::{TestServer, envelope, eventually, only, text};

/// Rule: a recorded heartbeat, key by key; it renews the lease and writes no event.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_renews_and_is_not_in_the_history() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    let run = text(&activity, "run_id");
    let events = client.events("wf", run).await;
    let mut body = client
        .report(&activity, "heartbeat", json!({}))
        .await
        .expect(200);
    assert!(text(&body, "lease_expires_at") > text(&activity, "lease_expires_at"));
    assert!(text(&body, "last_heartbeat_at") < text(&body, "lease_expires_at"));
    let fields = body.as_object_mut().unwrap();
    for key in [
        "lease_expires_at",
        "last_heartbeat_at",
        "server_capabilities",
    ] {
        fields.remove(key);
    }
    let expected = json!({
        "protocol_version": "1.13",
        "task_id": activity["task_id"],
        "activity_attempt_id": activity["activity_attempt_id"],
        "lease_owner": "w",
        "heartbeat_recorded": true,
        "can_continue": true,
        "cancel_requested": false,
        "reason": null,
        "run_closed_reason": null,
        "run_closed_at": null,
        "worker_session": null,
    });
    assert_eq!(body, expected);
    for n in 0..20 {
        client
            .report(&activity, "heartbeat", json!({"details": {"n": n}}))
            .await
            .expect(200);
    }
    assert_eq!(client.events("wf", run).await, events);
    // The last one enters the history with the outcome.
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    let history = client.history("wf", run).await;
    let beat = &only(&history, "ActivityHeartbeatRecorded")["payload"];
    assert_eq!(beat["progress"], json!({"details": {"n": 19}}));
    assert_eq!(beat["activity_attempt_id"], activity["activity_attempt_id"]);
    assert_eq!(beat["attempt_number"], 1);
    server.stop().await;
}

/// Rule: progress is kept field by field; what is no object becomes `details: {value}`. A heartbeat
/// that says nothing leaves what was said before.
#[tokio::test(flavor = "multi_thread")]
async fn progress_is_mapped_into_one_form() {
    let server = TestServer::start().await;
    let client = &server.client;
    let all =
        json!({"message": "m", "current": 3, "total": 10.5, "unit": "rows", "details": [1, 2]});
    for (n, (fields, kept)) in [
        (all.clone(), json!({"message": "m", "current": 3.0, "total": 10.5, "unit": "rows", "details": [1, 2]})),
        (json!({"progress": {"message": "m", "own": true}}), json!({"message": "m", "own": true})),
        (json!({"progress": 5}), json!({"details": {"value": 5}})),
        (json!({"progress": "half"}), json!({"details": {"value": "half"}})),
        (json!({"progress": [1]}), json!({"details": {"value": [1]}})),
        (json!({"progress": {"message": "a"}, "message": "b"}), json!({"message": "b"})),
        (json!({"details": envelope(json!(1))}), json!({"details": envelope(json!(1))})),
        (json!({"progress": null, "details": null}), Value::Null),
    ]
    .into_iter()
    .enumerate()
    {
        let workflow = format!("wf{n}");
        let activity = client.activity_of(&workflow, json!({})).await;
        client.report(&activity, "heartbeat", fields).await.expect(200);
        client.report(&activity, "heartbeat", json!({})).await.expect(200);
        client.report(&activity, "complete", json!({})).await.expect(200);
        let history = client.history(&workflow, text(&activity, "run_id")).await;
        assert_eq!(only(&history, "ActivityHeartbeatRecorded")["payload"]["progress"], kept, "{workflow}");
    }
    server.stop().await;
}

/// Rule: the fields of a heartbeat and their bounds.
#[tokio::test(flavor = "multi_thread")]
async fn the_fields_of_a_heartbeat_are_checked() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    for (fields, wrong) in [
        (json!({"message": 1}), "message"),
        (json!({"current": "x"}), "current"),
        (json!({"total": []}), "total"),
        (json!({"unit": {}}), "unit"),
        (json!({"details": "x".repeat(70_000)}), "details"),
        (json!({"progress": {"x": "x".repeat(70_000)}}), "details"),
    ] {
        client
            .report(&activity, "heartbeat", fields)
            .await
            .invalid(&[wrong]);
    }
    client
        .report(
            &activity,
            "heartbeat",
            json!({"details": "x".repeat(60_000)}),
        )
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: a cancel or terminate reaches the running activity with its next heartbeat, as 200.
#[tokio::test(flavor = "multi_thread")]
async fn a_closing_reaches_the_activity() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    for (command, status) in [("cancel", "cancelled"), ("terminate", "terminated")] {
        client.start(command, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        client
            .complete(
                &task,
                json!([{"type": "schedule_activity", "activity_type": "act"}]),
            )
            .await
            .expect(200);
        let activity = client.poll("activity", "w", "q", 5).await;
        client
            .report(&activity, "heartbeat", json!({}))
            .await
            .expect(200);
        client
            .post(&format!("/workflows/{command}/{command}"), json!({}))
            .await
            .expect(200);
        let mut body = client
            .report(&activity, "heartbeat", json!({"details": 1}))
            .await
            .expect(200);
        let fields = body.as_object_mut().unwrap();
        fields.remove("server_capabilities");
        assert!(fields.remove("run_closed_at").unwrap().is_string());
        let expected = json!({
            "protocol_version": "1.13",
            "task_id": activity["task_id"],
            "activity_attempt_id": activity["activity_attempt_id"],
            "lease_owner": "w",
            "heartbeat_recorded": false,
            "can_continue": false,
            "cancel_requested": true,
            "reason": format!("run_{status}"),
            "lease_expires_at": null,
            "last_heartbeat_at": null,
            "run_status": status,
            "run_closed_reason": status,
            "worker_session": null,
        });
        assert_eq!(body, expected);
    }
    server.stop().await;
}

/// Rule: every other stop is a 200 as well, with its reason and without a request to cancel.
#[tokio::test(flavor = "multi_thread")]
async fn every_stop_has_its_reason() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let act = json!({"type": "schedule_activity", "activity_type": "act", "retry_policy": {"max_attempts": 2}});
    client.complete(&task, json!([act, act])).await.expect(200);
    let reported = client.poll("activity", "w", "q", 5).await;
    let open = client.poll("activity", "w", "q", 5).await;
    let assert_stop = async |activity: &Value, reason: &str| {
        let body = client
            .report(activity, "heartbeat", json!({}))
            .await
            .expect(200);
        assert_eq!(body["reason"], reason);
        assert_eq!(body["can_continue"], false);
        assert_eq!(body["heartbeat_recorded"], false);
        assert_eq!(body["cancel_requested"], false);
    };
    client
        .report(&reported, "complete", json!({}))
        .await
        .expect(200);
    assert_stop(&reported, "attempt_closed").await;
    // A failed attempt whose successor is ready, then handed out.
    client
        .report(&open, "fail", json!({"failure": {"message": "x"}}))
        .await
        .expect(200);
    assert_stop(&open, "attempt_closed").await;
    let again = client.poll("activity", "w", "q", 5).await;
    assert_eq!(again["attempt"], 2);
    assert_stop(&open, "attempt_closed").await;
    // The workflow ends while the attempt runs.
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    assert_stop(&again, "run_closed").await;
    server.stop().await;
}

/// Rule: a heartbeat puts the heartbeat deadline off; an activity that beats in time outlives it.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_in_time_keeps_the_attempt() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({"heartbeat_timeout": 1})).await;
    let due: leasehold::domain::time::Timestamp =
        text(&activity["deadlines"], "heartbeat").parse().unwrap();
    eventually("the first deadline is long past", 10, async || {
        let body = client
            .report(&activity, "heartbeat", json!({}))
            .await
            .expect(200);
        assert_eq!(body["can_continue"], true);
        let at: leasehold::domain::time::Timestamp =
            text(&body, "last_heartbeat_at").parse().unwrap();
        (at > due.plus_millis(1_000)).then_some(())
    })
    .await;
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    server.stop().await;
}
