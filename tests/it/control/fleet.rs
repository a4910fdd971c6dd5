//! Workers and task queues, as operators see them.

use serde_json::{Value, json};

use crate::support::{TestServer, text};

fn ids(body: &Value) -> Vec<&str> {
    body["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|worker| text(worker, "worker_id"))
        .collect()
}

/// Rule: workers of a namespace, by queue and status, with every key.
#[tokio::test(flavor = "multi_thread")]
async fn workers_are_listed() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("a", "q", &["flow"], &["act"]).await;
    let both = json!({"worker_id": "b", "task_queues": ["q", "p"]});
    client.post("/worker/register", both).await.expect(200);
    client.register("c", "p", &[], &[]).await;
    for (query, expected) in [
        ("", &["a", "b", "c"][..]),
        ("?task_queue=q", &["a", "b"]),
        ("?task_queue=p", &["b", "c"]),
        ("?task_queue=none", &[]),
        ("?status=active", &["a", "b", "c"]),
        ("?status=stale", &[]),
        ("?status=draining", &[]),
        ("?task_queue=p&status=active", &["b", "c"]),
    ] {
        let body = client.get(&format!("/workers{query}")).await.expect(200);
        assert_eq!(ids(&body), expected, "{query}");
        assert_eq!(body["namespace"], "default");
        assert_eq!(body["stale_after_seconds"], 60);
    }
    for bad in ["nope", "ACTIVE"] {
        let path = format!("/workers?status={bad}");
        client.get(&path).await.invalid(&["status"]);
    }
    let listed = client.get("/workers?task_queue=q").await.expect(200);
    let described = client.get("/workers/a").await.expect(200);
    assert_eq!(listed["workers"][0], described);
    for key in [
        "worker_id",
        "namespace",
        "task_queue",
        "runtime",
        "sdk_version",
        "build_id",
        "supported_workflow_types",
        "supported_activity_types",
        "workflow_definition_fingerprints",
        "workflow_command_contracts",
        "capabilities",
        "max_concurrent_workflow_tasks",
        "max_concurrent_activity_tasks",
        "task_slots",
        "process_metrics",
        "heartbeat_interval_seconds",
        "status",
        "last_heartbeat_at",
        "registered_at",
        "updated_at",
    ] {
        assert!(described.get(key).is_some(), "{key}");
    }
    assert_eq!(described["status"], "active");
    client
        .get("/workers/none")
        .await
        .refused(404, "worker_not_found");
    server.stop().await;
}

/// Rule: an administrator removes a worker like it would itself, and what it held goes to others.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_removed() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    client.register("v", "q", &["flow"], &[]).await;
    let body = client.delete("/workers/w").await.expect(200);
    assert_eq!(body["worker_id"], "w");
    assert_eq!(body["outcome"], "deregistered");
    assert_eq!(body["recovered_workflow_task_count"], 1);
    client
        .delete("/workers/w")
        .await
        .refused(404, "worker_not_found");
    client
        .get("/workers/w")
        .await
        .refused(404, "worker_not_found");
    assert_eq!(
        client.poll("workflow", "v", "q", 0).await["task_id"],
        task["task_id"]
    );
    server.stop().await;
}

/// Rule: a queue is described with its tasks, its workers and what it takes in; an unknown one with
/// zeros.
#[tokio::test(flavor = "multi_thread")]
async fn queues_are_described() {
    let server = TestServer::start().await;
    let client = &server.client;
    let unknown = client.get("/task-queues/none").await.expect(200);
    assert_eq!(unknown["name"], "none");
    assert_eq!(unknown["stats"]["approximate_backlog_count"], 0);
    assert_eq!(
        unknown["admission"]["workflow_tasks"]["status"],
        "no_active_workers"
    );
    assert_eq!(unknown["pollers"], json!([]));
    assert_eq!(
        client.get("/task-queues").await.expect(200)["task_queues"],
        json!([])
    );
    let register = json!({
        "worker_id": "w", "task_queue": "q", "workflow_types": ["flow"], "activity_types": ["act"],
        "max_concurrent_workflow_tasks": 1, "max_concurrent_activity_tasks": 0,
    });
    client.post("/worker/register", register).await.expect(200);
    client.start("wf", "flow", "q").await;
    client.start("wf2", "flow", "q").await;
    client.start("lonely", "flow", "p").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .complete(
            &task,
            json!([{"type": "schedule_activity", "activity_type": "act"}]),
        )
        .await
        .expect(200);
    client.poll("workflow", "w", "q", 5).await;
    let queue = client.get("/task-queues/q").await.expect(200);
    assert_eq!(queue["namespace"], "default");
    assert_eq!(queue["stats"]["workflow_tasks"]["leased_count"], 1);
    assert_eq!(queue["stats"]["workflow_tasks"]["ready_count"], 0);
    assert_eq!(queue["stats"]["activity_tasks"]["ready_count"], 1);
    assert_eq!(queue["stats"]["approximate_backlog_count"], 1);
    assert!(queue["stats"]["approximate_backlog_age_seconds"].is_number());
    let workflow = &queue["admission"]["workflow_tasks"];
    assert_eq!(workflow["status"], "saturated");
    assert_eq!(workflow["active_worker_count"], 1);
    assert_eq!(workflow["configured_slot_count"], 1);
    assert_eq!(workflow["available_slot_count"], 0);
    assert_eq!(queue["admission"]["activity_tasks"]["status"], "no_slots");
    assert_eq!(queue["pollers"][0]["worker_id"], "w");
    for list in ["pollers", "current_leases"] {
        assert!(queue[list].is_array(), "{list}");
    }
    let listed = client.get("/task-queues").await.expect(200);
    assert_eq!(listed["namespace"], "default");
    let names: Vec<&str> = listed["task_queues"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| text(row, "name"))
        .collect();
    assert_eq!(names, ["p", "q"]);
    assert_eq!(
        listed["task_queues"][0]["admission"]["workflow_tasks"]["status"],
        "no_active_workers"
    );
    assert_eq!(listed["task_queues"][1]["stats"], queue["stats"]);
    server.stop().await;
}
