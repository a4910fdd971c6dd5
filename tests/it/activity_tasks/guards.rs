//! The guards of reports on activities: what each tells, and that none changes anything.

use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer, merged, text};

const REPORTS: [&str; 3] = ["complete", "fail", "heartbeat"];

async fn send(client: &Client, id: &str, report: &str, namespace: &str, fence: Value) -> Answer {
    let fields = json!({"result": 1, "message": "m"});
    let request = client
        .request(
            reqwest::Method::POST,
            &format!("/worker/activity-tasks/{id}/{report}"),
        )
        .header("X-Namespace", namespace)
        .json(&merged(fields, fence));
    client.send(request).await
}

/// Rule: unknown task and unknown attempt are 404; an attempt of another task and another holder are
/// 409; each names task and attempt.
#[tokio::test(flavor = "multi_thread")]
async fn every_guard_refuses_and_changes_nothing() {
    let server = TestServer::start().await;
    server
        .db
        .execute("insert into namespaces (name) values ('second')")
        .await;
    let client = &server.client;
    let task = client.first_task().await;
    let act = json!({"type": "schedule_activity", "activity_type": "act"});
    client.complete(&task, json!([act, act])).await.expect(200);
    let activity = client.poll("activity", "w", "q", 5).await;
    let other = client.poll("activity", "w", "q", 5).await;
    client.started(&activity).await;
    client.started(&other).await;
    client.start("third", "flow", "q").await;
    let workflow_task = client.poll("workflow", "w", "q", 5).await;
    let (id, run) = (text(&activity, "task_id"), text(&activity, "run_id"));
    let attempt = text(&activity, "activity_attempt_id");
    let before = server.db.contents().await;
    let fence =
        |attempt: &str, owner: &str| json!({"activity_attempt_id": attempt, "lease_owner": owner});
    for report in REPORTS {
        let unknown = format!("{run}-99");
        for (missing, attempt) in [
            (unknown.as_str(), format!("{unknown}-1")),
            ("x", "x-1".to_owned()),
            (run, format!("{run}-1")),
            (
                text(&workflow_task, "task_id"),
                format!("{}-1", text(&workflow_task, "task_id")),
            ),
        ] {
            let body = send(client, missing, report, "default", fence(&attempt, "w")).await;
            let body = body.refused(404, "task_not_found");
            assert_eq!(body["activity_attempt_id"], attempt, "{report} {missing}");
            assert_eq!(body["task_id"], missing);
        }
        send(client, id, report, "second", fence(attempt, "w"))
            .await
            .refused(404, "task_not_found");
        for missing in [
            "x",
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            &format!("{id}-2"),
            &format!("{id}-0"),
            &format!("{id}-01"),
            id,
        ] {
            let body = send(client, id, report, "default", fence(missing, "w")).await;
            let body = body.refused(404, "attempt_not_found");
            assert_eq!(body["task_id"], id, "{report} {missing}");
            assert_eq!(body["activity_attempt_id"], *missing);
        }
        let foreign = text(&other, "activity_attempt_id");
        let body = send(client, id, report, "default", fence(foreign, "w")).await;
        let body = body.refused(409, "task_mismatch");
        assert_eq!(body["activity_attempt_id"], foreign);
        for stranger in ["v", "W", "w "] {
            let body = send(client, id, report, "default", fence(attempt, stranger)).await;
            let body = body.refused(409, "lease_owner_mismatch");
            assert_eq!(body["lease_owner"], "w");
            assert_eq!(body["task_id"], id);
            assert_eq!(body["activity_attempt_id"], attempt);
            assert!(!text(&body, "error").is_empty());
        }
        for (fence, wrong) in [
            (json!({}), "lease_owner"),
            (json!({"lease_owner": "w"}), "activity_attempt_id"),
            (json!({"activity_attempt_id": attempt}), "lease_owner"),
            (
                json!({"lease_owner": "", "activity_attempt_id": attempt}),
                "worker_id",
            ),
            (
                json!({"lease_owner": "w", "activity_attempt_id": ""}),
                "activity_attempt_id",
            ),
            (
                json!({"lease_owner": "w", "activity_attempt_id": 1}),
                "activity_attempt_id",
            ),
            (
                json!({"lease_owner": "w", "worker_id": "v", "activity_attempt_id": attempt}),
                "worker_id",
            ),
        ] {
            send(client, id, report, "default", fence)
                .await
                .invalid(&[wrong]);
        }
    }
    assert_eq!(server.db.contents().await, before);
    send(client, id, "complete", "default", fence(attempt, "w"))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: the same outcome again is answered with the first one; another body, another report or
/// another worker under the fence is refused with the recorded outcome. Applied once.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_counts_once() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    let id = text(&activity, "task_id");
    let outcome = json!({"result": {"n": 1}});
    let repeats = (0..8).map(|_| client.report(&activity, "complete", outcome.clone()));
    let answers = futures_util::future::join_all(repeats).await;
    let answers: Vec<Value> = answers
        .into_iter()
        .map(|answer| answer.expect(200))
        .collect();
    assert_eq!(
        answers
            .iter()
            .filter(|answer| answer["duplicate"] == false)
            .count(),
        1
    );
    for answer in &answers {
        assert_eq!(answer["next_task_id"], answers[0]["next_task_id"]);
        assert_eq!(answer["recorded"], true);
    }
    let before = server.db.contents().await;
    for answer in [
        client
            .report(&activity, "complete", json!({"result": {"n": 2}}))
            .await,
        client
            .report(&activity, "fail", json!({"failure": {"message": "x"}}))
            .await,
        send(
            client,
            id,
            "complete",
            "default",
            merged(
                outcome.clone(),
                json!({
                    "lease_owner": "v", "activity_attempt_id": activity["activity_attempt_id"],
                }),
            ),
        )
        .await,
    ] {
        let body = answer.refused(409, "stale_attempt");
        assert_eq!(body["recorded"], false);
        assert_eq!(body["recorded_outcome"], "completed");
        assert_eq!(body["lease_owner"], "w");
        assert_eq!(body["activity_status"], "completed");
        assert_eq!(body["attempt_status"], "completed");
        assert_eq!(body["task_status"], "completed");
    }
    // Also after the run has moved on.
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    let after = server.db.contents().await;
    let again = client
        .report(&activity, "complete", outcome)
        .await
        .expect(200);
    assert_eq!(again["duplicate"], true);
    assert_eq!(again["next_task_id"], answers[0]["next_task_id"]);
    client
        .report(&activity, "complete", json!({"result": 3}))
        .await
        .refused(409, "stale_attempt");
    assert_eq!(server.db.contents().await, after);
    assert_eq!(before["tasks"], "1 ".to_owned() + &before["tasks"][2..]);
    server.stop().await;
}

/// Rule: a failure that was recorded and retried is closed as well: its repeat is answered, its
/// contradiction refused, and the attempt that follows is untouched.
#[tokio::test(flavor = "multi_thread")]
async fn a_retried_attempt_stays_closed() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client
        .first_activity(json!({"retry_policy": {"max_attempts": 2}}))
        .await;
    let failure = json!({"failure": {"message": "x"}});
    let first = client
        .report(&activity, "fail", failure.clone())
        .await
        .expect(200);
    let again = client.poll("activity", "w", "q", 5).await;
    client.started(&again).await;
    let before = server.db.contents().await;
    let repeat = client.report(&activity, "fail", failure).await.expect(200);
    assert_eq!(repeat["duplicate"], true);
    assert_eq!(repeat["next_task_id"], first["next_task_id"]);
    let body = client
        .report(&activity, "complete", json!({"result": 1}))
        .await;
    assert_eq!(
        body.refused(409, "stale_attempt")["recorded_outcome"],
        "failed"
    );
    assert_eq!(server.db.contents().await, before);
    client
        .report(&again, "complete", json!({"result": 2}))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: after a cancel or terminate an outcome is refused with 409 and the stop fields, and ignored.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_after_a_closing_is_ignored() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    for (command, status) in [("cancel", "cancelled"), ("terminate", "terminated")] {
        let run = client.start(command, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        client
            .complete(
                &task,
                json!([{"type": "schedule_activity", "activity_type": "act"}]),
            )
            .await
            .expect(200);
        let activity = client.poll("activity", "w", "q", 5).await;
        client.started(&activity).await;
        client
            .post(&format!("/workflows/{command}/{command}"), json!({}))
            .await
            .expect(200);
        let before = client.history(command, &run).await;
        for (report, fields) in [
            ("complete", json!({"result": 1})),
            ("fail", json!({"failure": {"message": "x"}})),
        ] {
            let body = client.report(&activity, report, fields).await;
            let body = body.refused(409, &format!("run_{status}"));
            for (key, value) in [
                ("outcome", json!("ignored")),
                ("recorded", json!(false)),
                ("cancel_requested", json!(true)),
                ("can_continue", json!(false)),
                ("run_status", json!(status)),
                ("run_closed_reason", json!(status)),
                ("activity_status", json!("cancelled")),
                ("attempt_status", json!("cancelled")),
                ("task_status", json!("cancelled")),
                ("lease_owner", json!("w")),
                ("lease_expires_at", json!(null)),
                ("task_id", activity["task_id"].clone()),
                (
                    "activity_attempt_id",
                    activity["activity_attempt_id"].clone(),
                ),
            ] {
                assert_eq!(body[key], value, "{key}");
            }
            assert!(body["run_closed_at"].is_string());
        }
        assert_eq!(client.history(command, &run).await, before);
    }
    server.stop().await;
}

/// Rule: an outcome after the workflow ended by itself is answered with 200, not recorded.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_after_the_workflow_ended_is_not_recorded() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let act = json!({"type": "schedule_activity", "activity_type": "act"});
    client.complete(&task, json!([act, act])).await.expect(200);
    let first = client.poll("activity", "w", "q", 5).await;
    let second = client.poll("activity", "w", "q", 5).await;
    client
        .report(&first, "complete", json!({}))
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .complete(&task, json!([{"type": "fail_workflow", "message": "x"}]))
        .await
        .expect(200);
    let before = client.history("wf", text(&task, "run_id")).await;
    for (report, fields) in [
        ("complete", json!({"result": 1})),
        ("fail", json!({"failure": {"message": "x"}})),
    ] {
        let body = client.report(&second, report, fields).await.expect(200);
        assert_eq!(body["outcome"], "ignored");
        assert_eq!(body["recorded"], false);
        assert_eq!(body["run_status"], "failed");
        assert!(body["next_task_id"].is_null());
    }
    assert_eq!(client.history("wf", text(&task, "run_id")).await, before);
    server.stop().await;
}
