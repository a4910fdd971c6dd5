//! Reports on a run that closed under its worker: by a cancel, a terminate, a deadline.

use serde_json::{Value, json};

use crate::support::{TestServer, eventually, text};

fn finish() -> Value {
    json!([{"type": "complete_workflow"}])
}

/// Rule: a completion or failure under the fence that was live when a caller closed the run is
/// answered with 200 and recorded: false; nothing of it is applied.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_under_the_lease_that_a_closing_cut_off_is_ignored() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    for (command, status) in [("cancel", "cancelled"), ("terminate", "terminated")] {
        let run = client.start(command, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        client
            .post(
                &format!("/workflows/{command}/{command}"),
                json!({"reason": "r"}),
            )
            .await
            .expect(200);
        let before = server.db.contents().await;
        let mut body = client.complete(&task, finish()).await.expect(200);
        let fields = body.as_object_mut().unwrap();
        fields.remove("server_capabilities");
        assert!(fields.remove("run_closed_at").unwrap().is_string());
        let expected = json!({
            "protocol_version": "1.13",
            "task_id": task["task_id"],
            "workflow_task_attempt": 1,
            "outcome": "ignored",
            "recorded": false,
            "reason": "run_closed",
            "stop_reason": format!("run_{status}"),
            "cancel_requested": true,
            "can_continue": false,
            "run_id": run,
            "run_status": status,
            "run_closed_reason": status,
            "task_status": "cancelled",
            "created_task_ids": [],
        });
        assert_eq!(body, expected);
        for answer in [
            client.wait_for_history(&task).await,
            client.task(&task, "fail", json!({"message": "x"})).await,
            client.complete(&task, json!([])).await,
        ] {
            let body = answer.expect(200);
            assert_eq!(body["recorded"], false);
            assert_eq!(body["outcome"], "ignored");
        }
        assert_eq!(server.db.contents().await, before);
    }
    server.stop().await;
}

/// Rule: every other report on a closed run is refused as `run_closed`, with the stop fields.
#[tokio::test(flavor = "multi_thread")]
async fn other_reports_on_a_closed_run_are_refused_with_the_stop_fields() {
    let server = TestServer::with(|settings| settings.leases.workflow_task_seconds = 1).await;
    let client = &server.client;
    let older = client.first_task().await;
    client.register("v", "q", &["flow"], &[]).await;
    let held = client.poll("workflow", "v", "q", 10).await;
    assert_eq!(held["workflow_task_attempt"], 2);
    client
        .post("/workflows/wf/cancel", json!({"reason": "enough"}))
        .await
        .expect(200);
    let before = server.db.contents().await;
    for answer in [
        client.complete(&older, finish()).await,
        client.wait_for_history(&older).await,
        client.task(&older, "heartbeat", json!({})).await,
        client.task(&older, "history", json!({})).await,
        // The fence that was live may finish, and no more.
        client.task(&held, "heartbeat", json!({})).await,
        client.task(&held, "history", json!({})).await,
        // Forged: the right attempt of the wrong worker, the wrong attempt of the right one.
        client
            .task(
                &held,
                "complete",
                json!({"lease_owner": "w", "commands": []}),
            )
            .await,
        client
            .task(
                &held,
                "complete",
                json!({"workflow_task_attempt": 3, "commands": []}),
            )
            .await,
    ] {
        let body = answer.refused(409, "run_closed");
        assert_eq!(body["stop_reason"], "run_cancelled");
        assert_eq!(body["cancel_requested"], true);
        assert_eq!(body["can_continue"], false);
        assert_eq!(body["run_status"], "cancelled");
        assert_eq!(body["run_closed_reason"], "cancelled");
        assert!(body["run_closed_at"].is_string());
        assert_eq!(body["task_status"], "cancelled");
        assert_eq!(body["task_id"], held["task_id"]);
        for key in ["lease_owner", "lease_expires_at"] {
            assert_eq!(body.get(key), Some(&Value::Null), "{key}");
        }
        assert!(body["workflow_task_attempt"].is_number());
    }
    assert_eq!(server.db.contents().await, before);
    assert_eq!(
        client.complete(&held, finish()).await.expect(200)["outcome"],
        "ignored"
    );
    server.stop().await;
}

/// Rule: a task that nobody held when the run was closed has no fence that counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_had_ended_before_the_closing_does_not_count() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    // A new process under the same id has not taken the task yet.
    client.register("w", "q", &["flow"], &[]).await;
    client
        .post("/workflows/wf/terminate", json!({}))
        .await
        .expect(200);
    let body = client
        .complete(&task, finish())
        .await
        .refused(409, "run_closed");
    assert_eq!(body["stop_reason"], "run_terminated");
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    server.stop().await;
}

/// Rule: a run that completed is told apart from one that was stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_completed_run_says_so() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    for (command, stop) in [
        (json!({"type": "complete_workflow"}), "run_completed"),
        (
            json!({"type": "fail_workflow", "message": "x"}),
            "run_failed",
        ),
    ] {
        client.start(stop, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        client.complete(&task, json!([command])).await.expect(200);
        for report in ["heartbeat", "history"] {
            let body = client
                .task(&task, report, json!({}))
                .await
                .refused(409, "run_closed");
            assert_eq!(body["stop_reason"], stop);
            assert_eq!(body["cancel_requested"], false);
        }
    }
    server.stop().await;
}

/// The body that ends a report on a run whose deadline passed; SDKs settle on exactly these fields.
#[track_caller]
fn assert_timed_out(answer: crate::support::Answer, task: &Value) {
    let mut body = answer.refused(409, "run_timed_out");
    let fields = body.as_object_mut().unwrap();
    for key in [
        "server_capabilities",
        "error",
        "message",
        "outcome",
        "operation",
    ] {
        assert!(fields.remove(key).is_some(), "{key}");
    }
    let expected = json!({
        "protocol_version": "1.13",
        "recorded": false,
        "reason": "run_timed_out",
        "run_status": "failed",
        "run_id": task["run_id"],
        "task_id": task["task_id"],
        "workflow_task_attempt": task["workflow_task_attempt"],
    });
    assert_eq!(body, expected);
}

/// Rule: a run whose deadline passed under a live lease answers its late reports as `run_timed_out`.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_after_the_run_timed_out_is_told_so() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let run = client
        .start_with("wf", json!({"run_timeout_seconds": 1}))
        .await;
    let task = client.poll("workflow", "w", "q", 5).await;
    eventually("the run times out", 10, async || {
        let described = client.get("/workflows/wf").await.expect(200);
        (described["closed_reason"] == "timed_out").then_some(())
    })
    .await;
    assert_timed_out(client.complete(&task, finish()).await, &task);
    assert_timed_out(client.wait_for_history(&task).await, &task);
    assert_timed_out(
        client.task(&task, "fail", json!({"message": "x"})).await,
        &task,
    );
    let body = client
        .task(&task, "heartbeat", json!({}))
        .await
        .refused(409, "run_closed");
    assert_eq!(body["stop_reason"], "run_closed");
    assert_eq!(body["run_closed_reason"], "timed_out");
    let events = client.events("wf", &run).await;
    assert_eq!(events.last().unwrap(), "WorkflowTimedOut");
    server.stop().await;
}

/// Rule: a report that comes after the deadline, before anybody noticed it, times the run out instead
/// of being applied.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_after_the_deadline_times_the_run_out() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let run = client
        .start_with("wf", json!({"run_timeout_seconds": 1}))
        .await;
    let task = client.poll("workflow", "w", "q", 5).await;
    // Nobody is left to notice.
    server.db.execute("delete from timers").await;
    let deadline = text(
        &client.get("/workflows/wf").await.expect(200),
        "run_deadline_at",
    )
    .to_owned();
    eventually("the deadline passes", 5, async || {
        let renewed = client.task(&task, "heartbeat", json!({})).await.expect(200);
        let end: leasehold::domain::time::Timestamp =
            text(&renewed, "lease_expires_at").parse().unwrap();
        let past: leasehold::domain::time::Timestamp = deadline.parse().unwrap();
        (end > past.plus_seconds(30)).then_some(())
    })
    .await;
    assert_eq!(
        client.get("/workflows/wf").await.expect(200)["is_terminal"],
        false
    );
    assert_timed_out(client.complete(&task, finish()).await, &task);
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(described["status"], "failed");
    assert_eq!(described["closed_reason"], "timed_out");
    assert_eq!(
        client.events("wf", &run).await,
        ["StartAccepted", "WorkflowStarted", "WorkflowTimedOut"]
    );
    server.stop().await;
}
