//! Descriptions of runs, and the list of a workflow's runs.

use serde_json::{Value, json};

use crate::support::{TestServer, envelope, text};

/// Rule: every group of a description is there for an open and for a closed run, under both routes.
#[tokio::test(flavor = "multi_thread")]
async fn a_description_has_every_group() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let open = client.start_with("open", json!({})).await;
    client.poll("workflow", "w", "q", 5).await;
    let failed = client.start_with("failed", json!({})).await;
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .complete(
            &task,
            json!([{"type": "fail_workflow", "message": "no", "exception_type": "T"}]),
        )
        .await
        .expect(200);
    for (id, run) in [("open", open), ("failed", failed)] {
        let described = client.get(&format!("/workflows/{id}")).await.expect(200);
        for key in [
            "workflow_id",
            "run_id",
            "namespace",
            "workflow_type",
            "business_key",
            "run_number",
            "run_count",
            "is_current_run",
            "task_queue",
            "payload_codec",
            "status",
            "status_bucket",
            "is_terminal",
            "closed_reason",
            "reason",
            "wait_kind",
            "wait_reason",
            "started_at",
            "closed_at",
            "last_progress_at",
            "execution_timeout_seconds",
            "run_timeout_seconds",
            "execution_deadline_at",
            "run_deadline_at",
            "input",
            "output",
            "input_envelope",
            "output_envelope",
            "memo",
            "search_attributes",
            "compatibility",
            "compatibility_status",
            "compatibility_supported_in_fleet",
            "compatibility_fleet_reason",
            "actions",
            "commands_scope",
            "commands",
            "updates_scope",
            "updates",
            "failures",
            "control_plane",
        ] {
            assert!(described.get(key).is_some(), "{key} of {id}");
        }
        for action in [
            "can_signal",
            "can_query",
            "can_update",
            "can_cancel",
            "can_terminate",
            "can_repair",
            "can_archive",
        ] {
            assert!(described["actions"][action].is_boolean(), "{action}");
        }
        assert_eq!(described["commands_scope"], "selected_run");
        assert!(described["failures"].is_array() && described["updates"].is_array());
        let mut by_run = client
            .get(&format!("/workflows/{id}/runs/{run}"))
            .await
            .expect(200);
        let mut by_id = described;
        by_run.as_object_mut().unwrap().remove("control_plane");
        by_id.as_object_mut().unwrap().remove("control_plane");
        assert_eq!(by_run, by_id);
    }
    server.stop().await;
}

/// Rule: status, bucket and what is waited for, through the life of a run.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_described_through_its_life() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    client.start("wf", "flow", "q").await;
    let assert_is = async |status: &str, wait: Value| {
        let described = client.get("/workflows/wf").await.expect(200);
        assert_eq!(described["status"], status);
        assert_eq!(described["status_bucket"], "running");
        assert_eq!(described["is_terminal"], false);
        assert_eq!(described["wait_kind"], wait);
        for key in [
            "closed_at",
            "closed_reason",
            "reason",
            "output",
            "output_envelope",
        ] {
            assert!(described[key].is_null(), "{key}");
        }
        for (action, can) in [
            ("can_signal", true),
            ("can_cancel", true),
            ("can_terminate", true),
            ("can_archive", false),
        ] {
            assert_eq!(described["actions"][action], can, "{action}");
        }
    };
    assert_is("pending", json!("workflow-task")).await;
    let task = client.poll("workflow", "w", "q", 5).await;
    assert_is("running", json!("workflow-task")).await;
    client
        .complete(
            &task,
            json!([{"type": "schedule_activity", "activity_type": "act"}]),
        )
        .await
        .expect(200);
    assert_is("waiting", json!("activity")).await;
    let activity = client.poll("activity", "w", "q", 5).await;
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    assert_is("running", json!("workflow-task")).await;
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .complete(&task, json!([{"type": "start_timer", "delay_seconds": 60}]))
        .await
        .expect(200);
    assert_is("waiting", json!("timer")).await;
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    let task = client.poll("workflow", "w", "q", 5).await;
    let result = envelope(json!({"ok": true}));
    client
        .complete(
            &task,
            json!([{"type": "complete_workflow", "result": result}]),
        )
        .await
        .expect(200);
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(described["status"], "completed");
    assert_eq!(described["status_bucket"], "completed");
    assert_eq!(described["is_terminal"], true);
    assert_eq!(described["closed_reason"], "completed");
    assert_eq!(described["output"], json!({"ok": true}));
    assert_eq!(described["output_envelope"], result);
    assert!(described["wait_kind"].is_null());
    assert!(text(&described, "closed_at") > text(&described, "started_at"));
    assert_eq!(described["closed_at"], described["last_progress_at"]);
    for (action, can) in [
        ("can_signal", false),
        ("can_cancel", false),
        ("can_terminate", false),
        ("can_archive", true),
    ] {
        assert_eq!(described["actions"][action], can, "{action}");
    }
    server.stop().await;
}

/// Rule: a failed run tells its failure in every form that clients read.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_tells_its_failure() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let exception = json!({"message": "deep", "type": "T", "class": "my.T"});
    let command = json!({"type": "fail_workflow", "message": "flat", "exception": exception, "non_retryable": true});
    client.complete(&task, json!([command])).await.expect(200);
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(described["error"], "deep");
    assert_eq!(
        described["exception"],
        json!({"type": "T", "class": "my.T", "message": "deep"})
    );
    let failure = &described["failure"];
    for (key, value) in [
        ("message", json!("deep")),
        ("reason", json!("failed")),
        ("exception_type", json!("T")),
        ("exception_class", json!("my.T")),
        ("failure_category", json!("application")),
        ("non_retryable", json!(true)),
        ("source_kind", json!("workflow_run")),
        ("source_id", task["run_id"].clone()),
        ("event_sequence", json!(3)),
        ("exception", exception),
        ("activity_failures", json!([])),
    ] {
        assert_eq!(failure[key], value, "{key}");
    }
    assert_eq!(described["failures"].as_array().unwrap().len(), 1);
    assert_eq!(failure["failures"], described["failures"]);
    server.stop().await;
}

/// Rule: commands are shown with their keys and their order.
#[tokio::test(flavor = "multi_thread")]
async fn commands_are_shown_in_their_order() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.start("wf", "flow", "q").await;
    client
        .post("/workflows/wf/signal/go", json!({"request_id": "k1"}))
        .await
        .expect(202);
    client
        .post("/workflows/wf/cancel", json!({"request_id": "k2"}))
        .await
        .expect(200);
    let described = client.get("/workflows/wf").await.expect(200);
    let shown: Vec<(&str, &Value, &Value)> = described["commands"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| {
            (
                text(command, "command_type"),
                &command["command_sequence"],
                &command["request_id"],
            )
        })
        .collect();
    let expected = [
        ("start", json!(1), json!(null)),
        ("signal", json!(2), json!("k1")),
        ("cancel", json!(3), json!("k2")),
    ];
    assert_eq!(
        shown,
        expected.each_ref().map(|(kind, n, key)| (*kind, n, key))
    );
    server.stop().await;
}

/// Rule: an unknown workflow is `instance_not_found`, an unknown run of a known one `run_not_found`;
/// a run of another workflow is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_exist_is_not_found() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.start("wf", "flow", "q").await;
    let other = client.start("other", "flow", "q").await;
    for id in [
        "none",
        "WF",
        "wf%20",
        "w%2Ff",
        "%F0%9F%9A%80",
        &"x".repeat(500),
    ] {
        client
            .get(&format!("/workflows/{id}"))
            .await
            .refused(404, "instance_not_found");
        client
            .get(&format!("/workflows/{id}/runs"))
            .await
            .refused(404, "instance_not_found");
        for tail in ["", "/history", "/history/export"] {
            let answer = client
                .get(&format!("/workflows/{id}/runs/{other}{tail}"))
                .await;
            answer.refused(404, "instance_not_found");
        }
    }
    for run in [
        "x",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        &other.to_lowercase(),
        &other,
    ] {
        for tail in ["", "/history", "/history/export"] {
            let answer = client.get(&format!("/workflows/wf/runs/{run}{tail}")).await;
            answer.refused(404, "run_not_found");
        }
    }
    server.stop().await;
}

/// Rule: the runs of a workflow, oldest first, with their count.
#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_oldest_first() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    client
        .start_with("wf", json!({"memo": {"m": 1}, "business_key": "b"}))
        .await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        let task = client.poll("workflow", "w", "q", 5).await;
        runs.push(task["run_id"].clone());
        client
            .complete(&task, json!([{"type": "continue_as_new"}]))
            .await
            .expect(200);
    }
    let task = client.poll("workflow", "w", "q", 5).await;
    runs.push(task["run_id"].clone());
    let listed = client.get("/workflows/wf/runs").await.expect(200);
    assert_eq!(listed["workflow_id"], "wf");
    assert_eq!(listed["run_count"], 4);
    let rows = listed["runs"].as_array().unwrap();
    assert_eq!(
        rows.iter()
            .map(|row| row["run_id"].clone())
            .collect::<Vec<_>>(),
        runs
    );
    for (place, row) in rows.iter().enumerate() {
        let last = place == 3;
        assert_eq!(row["run_number"], place + 1);
        assert_eq!(row["is_current_run"], last);
        assert_eq!(row["is_terminal"], !last);
        assert_eq!(
            row["status_bucket"],
            if last { "running" } else { "completed" }
        );
        assert_eq!(row["workflow_type"], "flow");
        assert_eq!(row["task_queue"], "q");
        assert_eq!(row["business_key"], "b");
        assert_eq!(row["memo"], json!({"m": 1}));
        assert_eq!(row["closed_at"].is_null(), last);
        for key in ["compatibility", "compatibility_status", "started_at"] {
            assert!(row.get(key).is_some(), "{key}");
        }
    }
    server.stop().await;
}
