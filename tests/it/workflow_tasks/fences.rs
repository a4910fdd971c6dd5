//! The lease of a workflow task: renewed, run out, forged, outdated; every guard of the contract.

use serde_json::{Value, json};

use crate::support::{Answer, TestServer, eventually, merged, text};

/// Rule: a renewal echoes the fence exactly and extends the lease by its whole length from now.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_echoes_and_renews() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let mut body = client.task(&task, "heartbeat", json!({})).await.expect(200);
    assert!(text(&body, "lease_expires_at") > text(&task, "lease_expires_at"));
    let fields = body.as_object_mut().unwrap();
    fields.remove("lease_expires_at");
    fields.remove("server_capabilities");
    let expected = json!({
        "protocol_version": "1.13",
        "task_id": task["task_id"],
        "workflow_task_attempt": 1,
        "lease_owner": "w",
        "renewed": true,
        "run_status": "pending",
        "task_status": "leased",
        "reason": null,
    });
    assert_eq!(body, expected);
    // A renewal writes nothing into the history.
    assert_eq!(client.events("wf", text(&task, "run_id")).await.len(), 2);
    server.stop().await;
}

/// Rule: a renewed lease outlives its first end.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_lease_outlives_its_first_end() {
    let server = TestServer::with(|settings| settings.leases.workflow_task_seconds = 1).await;
    let client = &server.client;
    let task = client.first_task().await;
    let end = text(&task, "lease_expires_at")
        .parse::<leasehold::domain::time::Timestamp>()
        .unwrap();
    let past = end.plus_seconds(2).to_string();
    eventually(
        "the first lease would have ended a second ago",
        10,
        async || {
            let body = client.task(&task, "heartbeat", json!({})).await.expect(200);
            (text(&body, "lease_expires_at") > past.as_str()).then_some(())
        },
    )
    .await;
    client
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: a lease that ran out hands the task to another worker under the next attempt, and the former
/// holder is told so by every report; nothing of it is applied.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_goes_to_another_worker() {
    let server = TestServer::with(|settings| settings.leases.workflow_task_seconds = 1).await;
    let client = &server.client;
    let task = client.first_task().await;
    client.register("v", "q", &["flow"], &[]).await;
    let again = client.poll("workflow", "v", "q", 10).await;
    assert_eq!(again["task_id"], task["task_id"]);
    assert_eq!(again["workflow_task_attempt"], 2);
    assert_eq!(again["history_events"], task["history_events"]);
    client
        .task(&again, "heartbeat", json!({}))
        .await
        .expect(200);
    let finish = json!([{"type": "complete_workflow"}]);
    for answer in [
        client.complete(&task, finish.clone()).await,
        client.wait_for_history(&task).await,
        client.task(&task, "heartbeat", json!({})).await,
        client.task(&task, "history", json!({})).await,
    ] {
        let body = answer.refused(409, "lease_owner_mismatch");
        assert_eq!(body["lease_owner"], "v");
        assert_eq!(body["recorded"], false);
    }
    client.complete(&again, finish).await.expect(200);
    assert_eq!(
        client.get("/workflows/wf").await.expect(200)["status"],
        "completed"
    );
    server.stop().await;
}

/// Rule: a report after the lease ran out, while nobody else took the task, is refused: as expired, or
/// as not leased once the lease was taken back. A deadline in the database decides, not a clock here.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_after_the_end_of_the_lease_is_refused() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let history = client.history("wf", text(&task, "run_id")).await;
    server
        .db
        .execute("update tasks set lease_expires_at = clock_timestamp()")
        .await;
    for report in ["heartbeat", "history", "complete", "fail"] {
        let fields = json!({"commands": [{"type": "complete_workflow"}], "message": "x"});
        let answer = client.task(&task, report, fields).await;
        let body = answer.expect(409);
        match text(&body, "reason") {
            "lease_expired" => {
                assert_eq!(body["task_status"], "leased");
                assert_eq!(body["lease_owner"], "w");
                assert!(body["lease_expires_at"].is_string());
            }
            reason => assert_eq!(reason, "task_not_leased"),
        }
        assert_eq!(body["task_id"], task["task_id"]);
        assert_eq!(body["workflow_task_attempt"], 1);
    }
    assert_eq!(client.history("wf", text(&task, "run_id")).await, history);
    let again = client.poll("workflow", "w", "q", 10).await;
    assert_eq!(again["workflow_task_attempt"], 2);
    client
        .complete(&again, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: the guards of a report, one by one, each with what it tells; none changes anything.
#[tokio::test(flavor = "multi_thread")]
async fn every_guard_refuses_and_changes_nothing() {
    let server = TestServer::start().await;
    server
        .db
        .execute("insert into namespaces (name) values ('second')")
        .await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    client.start("other", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    client.register("v", "q", &["flow"], &["act"]).await;
    let id = text(&task, "task_id");
    let run = text(&task, "run_id");
    let before = server.db.contents().await;
    let send = async |id: &str, report: &str, namespace: &str, fence: Value| -> Answer {
        let fields = json!({"commands": [], "message": "WorkflowTaskWaitingForHistory"});
        let request = client
            .request(
                reqwest::Method::POST,
                &format!("/worker/workflow-tasks/{id}/{report}"),
            )
            .header("X-Namespace", namespace)
            .json(&merged(fields, fence));
        client.send(request).await
    };
    let right = json!({"lease_owner": "w", "workflow_task_attempt": 1});
    let unknown = format!("{run}-99");
    let other_run = format!("01ARZ3NDEKTSV4RRFFQ69G5FAV-{}", &id[27..]);
    for report in ["complete", "fail", "heartbeat", "history"] {
        for missing in [
            unknown.as_str(),
            other_run.as_str(),
            "x",
            run,
            "%20",
            &id.to_lowercase(),
            text(&activity, "task_id"),
        ] {
            let body = send(missing, report, "default", right.clone())
                .await
                .refused(404, "task_not_found");
            assert_eq!(body["workflow_task_attempt"], 1, "{report} {missing}");
        }
        let body = send(id, report, "second", right.clone())
            .await
            .refused(404, "task_not_found");
        assert_eq!(body["task_id"], id);
        for (fence, reason, key, value) in [
            (
                json!({"lease_owner": "v", "workflow_task_attempt": 1}),
                "lease_owner_mismatch",
                "lease_owner",
                json!("w"),
            ),
            (
                json!({"lease_owner": "nobody", "workflow_task_attempt": 1}),
                "lease_owner_mismatch",
                "lease_owner",
                json!("w"),
            ),
            (
                json!({"lease_owner": "w", "workflow_task_attempt": 2}),
                "workflow_task_attempt_mismatch",
                "current_attempt",
                json!(1),
            ),
            (
                json!({"lease_owner": "w", "workflow_task_attempt": 4_000_000_000u32}),
                "workflow_task_attempt_mismatch",
                "current_attempt",
                json!(1),
            ),
            (
                json!({"lease_owner": "v", "workflow_task_attempt": 2}),
                "lease_owner_mismatch",
                "lease_owner",
                json!("w"),
            ),
        ] {
            let body = send(id, report, "default", fence)
                .await
                .refused(409, reason);
            assert_eq!(body[key], value, "{report} {reason}");
            assert_eq!(body["task_id"], id);
            assert!(!text(&body, "error").is_empty());
        }
        for (fence, wrong) in [
            (json!({}), "lease_owner"),
            (json!({"lease_owner": "w"}), "workflow_task_attempt"),
            (
                json!({"lease_owner": "w", "workflow_task_attempt": 0}),
                "workflow_task_attempt",
            ),
            (
                json!({"lease_owner": "w", "workflow_task_attempt": -1}),
                "workflow_task_attempt",
            ),
            (
                json!({"lease_owner": "w", "workflow_task_attempt": 5_000_000_000u64}),
                "workflow_task_attempt",
            ),
            (
                json!({"lease_owner": "w", "workflow_task_attempt": "x"}),
                "workflow_task_attempt",
            ),
            (
                json!({"lease_owner": "", "workflow_task_attempt": 1}),
                "worker_id",
            ),
            (
                json!({"lease_owner": "w", "worker_id": "v", "workflow_task_attempt": 1}),
                "worker_id",
            ),
        ] {
            send(id, report, "default", fence).await.invalid(&[wrong]);
        }
    }
    assert_eq!(server.db.contents().await, before);
    send(id, "complete", "default", right).await.expect(200);
    server.stop().await;
}

/// Rule: the contract's spelling names the holder alone; a worker that holds the task need not name
/// the attempt, and it counts for nothing that another one does.
#[tokio::test(flavor = "multi_thread")]
async fn the_contracts_spelling_needs_the_holder_alone() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let path = |report: &str| format!("/worker/workflow-tasks/{}/{report}", text(&task, "task_id"));
    let body = client
        .post(&path("heartbeat"), json!({"worker_id": "w"}))
        .await
        .expect(200);
    assert_eq!(body["workflow_task_attempt"], 1);
    assert_eq!(body["lease_owner"], "w");
    let body = client
        .post(&path("history"), json!({"worker_id": "w"}))
        .await
        .expect(200);
    assert_eq!(body["workflow_task_attempt"], 1);
    let stranger = json!({"worker_id": "v", "commands": []});
    client
        .post(&path("complete"), stranger)
        .await
        .refused(409, "lease_owner_mismatch");
    let fenced = json!({"worker_id": "w", "workflow_task_attempt": 2, "commands": []});
    client
        .post(&path("complete"), fenced)
        .await
        .refused(409, "workflow_task_attempt_mismatch");
    let finish = json!({"worker_id": "w", "commands": [{"type": "complete_workflow"}]});
    let body = client
        .post(&path("complete"), finish.clone())
        .await
        .expect(200);
    assert_eq!(body["workflow_task_attempt"], 1);
    assert_eq!(body["duplicate"], false);
    let body = client.post(&path("complete"), finish).await.expect(200);
    assert_eq!(body["duplicate"], true);
    server.stop().await;
}
