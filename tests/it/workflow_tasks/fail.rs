//! Failures of workflow tasks: nothing to do, try again, cannot replay. The workflow never fails.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{TestServer, text};

/// Rule: `WorkflowTaskWaitingForHistory` completes the task and leaves the run waiting, in every form
/// in which it is recognised.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_history_completes_the_task() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    for (n, failure) in [
        json!({"failure": {"message": "m", "type": "WorkflowTaskWaitingForHistory"}}),
        json!({"failure": {"message": "m", "type": "workflowtaskwaitingforhistory"}}),
        json!({"failure": {"message": "Workflow task waiting for scheduled history."}}),
        json!({"message": "m", "exception_type": "WorkflowTaskWaitingForHistory"}),
    ]
    .into_iter()
    .enumerate()
    {
        let workflow = format!("wf{n}");
        let run = client.start(&workflow, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let mut body = client.task(&task, "fail", failure).await.expect(200);
        body.as_object_mut().unwrap().remove("server_capabilities");
        let expected = json!({
            "protocol_version": "1.13",
            "task_id": task["task_id"],
            "workflow_task_attempt": 1,
            "outcome": "waiting_for_history",
            "recorded": true,
            "duplicate": false,
            "run_id": run,
            "run_status": "waiting",
            "created_task_ids": [],
            "next_task_id": null,
            "reason": null,
        });
        assert_eq!(body, expected);
        assert!(client.poll("workflow", "w", "q", 0).await.is_null());
        assert_eq!(client.events(&workflow, &run).await.len(), 2);
        let described = client
            .get(&format!("/workflows/{workflow}"))
            .await
            .expect(200);
        assert_eq!(described["status"], "waiting");
    }
    server.stop().await;
}

/// Rule: what came while the task was held follows it at once.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_history_releases_what_was_held() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    let body = client.wait_for_history(&task).await.expect(200);
    let next = client.poll("workflow", "w", "q", 0).await;
    assert_eq!(body["next_task_id"], next["task_id"]);
    assert_eq!(body["run_status"], "running");
    assert_ne!(next["task_id"], task["task_id"]);
    assert_eq!(next["workflow_task_attempt"], 1);
    assert_eq!(next["history_events"].as_array().unwrap().len(), 3);
    // The same report again gives the same answer.
    let again = client.wait_for_history(&task).await.expect(200);
    assert_eq!(again["next_task_id"], next["task_id"]);
    assert_eq!(again["duplicate"], true);
    server.stop().await;
}

/// Rule: any other failure hands the task out again, with the next attempt; at once, then later and
/// later; the run stays open and shows the failure.
#[tokio::test(flavor = "multi_thread")]
async fn another_failure_hands_the_task_out_again() {
    let server = TestServer::start().await;
    let client = &server.client;
    let mut task = client.first_task().await;
    let id = task["task_id"].clone();
    for attempt in 1..=3 {
        assert_eq!(task["workflow_task_attempt"], attempt);
        let failure = json!({"failure": {"message": format!("boom {attempt}"), "type": "Oops", "stack_trace": "at x"}});
        let body = client.task(&task, "fail", failure).await.expect(200);
        assert_eq!(body["outcome"], "failed");
        assert_eq!(body["recorded"], true);
        assert_eq!(body["next_task_id"], id);
        let described = client.get("/workflows/wf").await.expect(200);
        assert_eq!(described["is_terminal"], false);
        assert!(text(&described, "wait_reason").contains(&format!("boom {attempt}")));
        if attempt < 3 {
            task = client.poll("workflow", "w", "q", 0).await;
            assert_eq!(task["task_id"], id);
        }
    }
    let began = Instant::now();
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    task = client.poll("workflow", "w", "q", 10).await;
    assert_eq!(task["workflow_task_attempt"], 4);
    assert!(
        began.elapsed() >= Duration::from_millis(400),
        "{:?}",
        began.elapsed()
    );
    // Nothing of it is in the history, and a good report ends the matter.
    assert_eq!(client.events("wf", text(&task, "run_id")).await.len(), 2);
    client
        .complete(&task, json!([{"type": "start_timer", "delay_seconds": 60}]))
        .await
        .expect(200);
    assert!(client.get("/workflows/wf").await.expect(200)["wait_reason"].is_null());
    server.stop().await;
}

/// Rule: a worker that cannot replay blocks the run: no task follows at once, the operator sees why,
/// and a later worker may still heal it.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_failure_blocks_until_a_later_hand_out() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let mut blocked = Vec::new();
    for (n, failure) in [
        json!({"failure": {"message": "m", "reason": "workflow_nondeterministic"}}),
        json!({"failure": {"message": "m", "reason": "timer_delay_mismatch", "type": "X"}}),
        json!({"failure": {"message": "Non-Determinism detected", "type": "X"}}),
        json!({"message": "replay error: unexpected", "exception_type": "X"}),
        json!({"failure": {"message": "m", "type": "WorkflowEntryArgumentsMismatch", "reason": "workflow_entry_arguments_mismatch"}}),
    ]
    .into_iter()
    .enumerate()
    {
        let workflow = format!("wf{n}");
        client.start(&workflow, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 0).await;
        assert_eq!(task["workflow_id"], workflow);
        let body = client.task(&task, "fail", failure).await.expect(200);
        assert_eq!(body["outcome"], "failed");
        assert_eq!(body["recorded"], true);
        assert!(body["next_task_id"].is_null(), "{body:#}");
        let described = client.get(&format!("/workflows/{workflow}")).await.expect(200);
        assert_eq!(described["is_terminal"], false);
        let reason: Value = serde_json::from_str(text(&described, "wait_reason")).unwrap();
        assert_eq!(reason["code"], "workflow_replay_blocked");
        blocked.push(workflow);
    }
    for _ in 0..blocked.len() {
        let task = client.poll("workflow", "w", "q", 10).await;
        assert_eq!(task["workflow_task_attempt"], 2);
        client
            .complete(&task, json!([{"type": "complete_workflow"}]))
            .await
            .expect(200);
    }
    for workflow in blocked {
        let described = client
            .get(&format!("/workflows/{workflow}"))
            .await
            .expect(200);
        assert_eq!(described["status"], "completed");
        assert!(described["wait_reason"].is_null());
    }
    server.stop().await;
}

/// Rule: the fields of a failure and their limits.
#[tokio::test(flavor = "multi_thread")]
async fn the_fields_of_a_failure_are_checked() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    for (fields, wrong) in [
        (json!({}), "failure.message"),
        (json!({"failure": {}}), "failure.message"),
        (json!({"failure": {"message": 1}}), "failure.message"),
        (
            json!({"failure": {"message": "m", "type": "t".repeat(513)}}),
            "failure.type",
        ),
        (
            json!({"failure": {"message": "m", "reason": "r".repeat(192)}}),
            "failure.reason",
        ),
        (
            json!({"failure": {"message": "m", "sequence": 0}}),
            "failure.sequence",
        ),
        (json!({"failure": "m"}), "failure"),
        (
            json!({"message": "m", "exception_type": "t".repeat(513)}),
            "failure.type",
        ),
    ] {
        client.task(&task, "fail", fields).await.invalid(&[wrong]);
    }
    let largest = json!({"failure": {
        "message": "m".repeat(100_000), "type": "t".repeat(512), "reason": "r".repeat(191), "sequence": 1,
    }});
    client.task(&task, "fail", largest).await.expect(200);
    // The older form of the contract.
    let task = client.poll("workflow", "w", "q", 5).await;
    let path = format!("/worker/workflow-tasks/{}/fail", text(&task, "task_id"));
    let flat =
        json!({"worker_id": "w", "error": "e", "exception_type": "T", "non_retryable": true});
    let body = client.post(&path, flat).await.expect(200);
    assert_eq!(body["outcome"], "failed");
    assert!(
        text(
            &client.get("/workflows/wf").await.expect(200),
            "wait_reason"
        )
        .contains(": e")
    );
    server.stop().await;
}
