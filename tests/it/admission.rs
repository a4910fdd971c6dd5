//! Limits on held and handed-out tasks, and room for polls.

use leasehold::config::Settings;
use leasehold::node::Node;
use serde_json::{Value, json};

use crate::support::{Client, TestServer, eventually, settings};

async fn admission(client: &Client, queue: &str, kind: &str) -> Value {
    let body = client
        .get(&format!("/task-queues/{queue}"))
        .await
        .expect(200);
    let listed = client.get("/task-queues").await.expect(200);
    let row = listed["task_queues"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == queue)
        .cloned();
    if let Some(row) = row {
        assert_eq!(
            row["admission"], body["admission"],
            "list and description agree"
        );
    }
    body["admission"][kind].clone()
}

async fn two_queues(change: impl FnOnce(&mut Settings)) -> TestServer {
    let server = TestServer::with(change).await;
    let client = &server.client;
    for queue in ["q", "p"] {
        client.register(queue, queue, &["flow"], &["act"]).await;
        for n in 0..3 {
            client.start(&format!("{queue}{n}"), "flow", queue).await;
        }
    }
    server
}

/// Rule: without limits every key is there, and what is unlimited is null.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_limited_unless_it_is_set() {
    let server = two_queues(|_| {}).await;
    let client = &server.client;
    client.poll("workflow", "q", "q", 5).await;
    assert_eq!(
        admission(client, "q", "workflow_tasks").await,
        json!({
            "status": "accepting",
            "budget_source": "worker_registrations",
            "server_budget_source": null,
            "active_worker_count": 1,
            "configured_slot_count": 100,
            "leased_count": 1,
            "ready_count": 2,
            "available_slot_count": 99,
            "server_max_active_leases_per_queue": null,
            "server_active_lease_count": 1,
            "server_remaining_active_lease_capacity": null,
            "server_max_active_leases_per_namespace": null,
            "server_namespace_active_lease_count": 1,
            "server_remaining_namespace_active_lease_capacity": null,
            "server_max_dispatches_per_minute": null,
            "server_dispatch_count_this_minute": null,
            "server_remaining_dispatch_capacity": null,
            "server_max_dispatches_per_minute_per_namespace": null,
            "server_namespace_dispatch_count_this_minute": null,
            "server_remaining_namespace_dispatch_capacity": null,
            "server_dispatch_budget_group": null,
            "server_max_dispatches_per_minute_per_budget_group": null,
            "server_budget_group_dispatch_count_this_minute": null,
            "server_remaining_budget_group_dispatch_capacity": null,
            "server_lock_required": false,
            "server_lock_supported": true,
        })
    );
    assert_eq!(
        admission(client, "q", "query_tasks").await,
        json!({
            "status": "unavailable",
            "budget_source": "server_settings",
            "max_pending_per_queue": 1024,
            "approximate_pending_count": 0,
            "remaining_pending_capacity": 1024,
            "lock_required": false,
            "lock_supported": true,
        })
    );
    let body = client.get("/task-queues/q").await.expect(200);
    let lease = &body["current_leases"][0];
    assert_eq!(lease["lease_owner"], "q");
    assert_eq!(lease["task_kind"], "workflow");
    assert_eq!(lease["attempt"], 1);
    for key in ["task_id", "workflow_id", "run_id", "lease_expires_at"] {
        assert!(lease[key].is_string(), "{key}");
    }
    server.stop().await;
}

/// Rule: no more tasks of a queue are held than allowed; a poll beyond that ends `throttled`, and the
/// next one gets its task when room is left. Other queues and kinds are not touched.
#[tokio::test(flavor = "multi_thread")]
async fn held_tasks_of_a_queue_are_limited() {
    let server = two_queues(|settings| {
        settings
            .admission
            .workflow_tasks
            .max_active_leases_per_queue = 1;
    })
    .await;
    let client = &server.client;
    let named =
        json!({"worker_id": "q", "task_queue": "q", "timeout_seconds": 5, "poll_request_id": "p1"});
    let path = "/worker/workflow-tasks/poll";
    let task = client.post(path, named.clone()).await.expect(200)["task"].take();
    assert!(task.is_object());
    // A repeated poll finds its lease before any limit is looked at.
    let again = client.post(path, named).await.expect(200)["task"].take();
    assert_eq!(again["task_id"], task["task_id"]);
    for (seconds, status) in [(0, "empty"), (1, "timeout")] {
        let body = client
            .poll_whole("workflow", "q", "q", seconds)
            .await
            .expect(200);
        assert!(body["task"].is_null());
        assert_eq!(body["poll_status"], status);
        assert_eq!(body["reason"], "throttled");
    }
    let shown = admission(client, "q", "workflow_tasks").await;
    assert_eq!(shown["status"], "throttled");
    assert_eq!(shown["server_budget_source"], "server_settings");
    assert_eq!(shown["server_max_active_leases_per_queue"], 1);
    assert_eq!(shown["server_active_lease_count"], 1);
    assert_eq!(shown["server_remaining_active_lease_capacity"], 0);
    assert_eq!(shown["server_lock_required"], true);
    assert!(client.poll("workflow", "p", "p", 5).await.is_object());
    let waits = {
        let client = client.clone();
        tokio::spawn(async move { client.poll("workflow", "q", "q", 30).await })
    };
    eventually("the poll waits", 5, async || {
        (server.node.engine().parked_polls() == 1).then_some(())
    })
    .await;
    let schedule = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    client.complete(&task, schedule).await.expect(200);
    assert!(waits.await.unwrap().is_object());
    assert!(client.poll("activity", "q", "q", 5).await.is_object());
    server.stop().await;
}

/// Rule: a limit of the namespace covers all its queues, on all nodes.
#[tokio::test(flavor = "multi_thread")]
async fn held_tasks_of_a_namespace_are_limited() {
    let limit = |settings: &mut Settings| {
        settings
            .admission
            .workflow_tasks
            .max_active_leases_per_namespace = 4;
    };
    let server = two_queues(limit).await;
    let mut settings = settings();
    limit(&mut settings);
    let other = Node::start(settings, server.db.options.clone())
        .await
        .unwrap_or_else(|error| panic!("the other node starts: {error}"));
    let elsewhere = Client::new(
        &format!("http://{}", other.address()),
        &server.client.version,
    );
    let client = &server.client;
    let polls: Vec<_> = (0..12)
        .map(|n| {
            let client = if n % 4 < 2 { client } else { &elsewhere }.clone();
            let queue = if n % 2 == 0 { "q" } else { "p" };
            tokio::spawn(async move { client.poll("workflow", queue, queue, 1).await })
        })
        .collect();
    let mut taken = 0;
    for poll in polls {
        taken += usize::from(poll.await.unwrap().is_object());
    }
    assert_eq!(taken, 4);
    let shown = admission(client, "q", "workflow_tasks").await;
    assert_eq!(shown["server_namespace_active_lease_count"], 4);
    assert_eq!(shown["server_remaining_namespace_active_lease_capacity"], 0);
    other.stop().await;
    server.stop().await;
}

/// Rule: no more tasks are handed out in a minute than allowed, however fast they are completed.
#[tokio::test(flavor = "multi_thread")]
async fn handed_out_tasks_are_limited_per_minute() {
    let server = two_queues(|settings| {
        settings.admission.workflow_tasks.max_dispatches_per_minute = 2;
        settings
            .admission
            .workflow_tasks
            .max_dispatches_per_minute_per_namespace = 3;
    })
    .await;
    let client = &server.client;
    // All counting happens in the minute that the first hand-out began, or the counts would be lower.
    let mut counts = Vec::new();
    for queue in ["q", "p"] {
        let mut taken = 0;
        loop {
            let body = client
                .poll_whole("workflow", queue, queue, 0)
                .await
                .expect(200);
            if body["task"].is_null() {
                assert!(body["reason"] == "throttled" || taken == 3, "{body:#}");
                break;
            }
            taken += 1;
            let done = json!([{"type": "complete_workflow"}]);
            client.complete(&body["task"], done).await.expect(200);
        }
        counts.push(taken);
    }
    // A minute that ended in between leaves more room, never less.
    assert!(counts[0] >= 2 && counts[1] >= 1, "{counts:?}");
    let shown = admission(client, "q", "workflow_tasks").await;
    assert_eq!(shown["server_max_dispatches_per_minute"], 2);
    assert_eq!(shown["server_max_dispatches_per_minute_per_namespace"], 3);
    let count = |key: &str| shown[key].as_u64().unwrap();
    assert!(count("server_dispatch_count_this_minute") <= 2);
    assert!(count("server_namespace_dispatch_count_this_minute") <= 3);
    assert_eq!(
        count("server_remaining_dispatch_capacity"),
        2 - count("server_dispatch_count_this_minute")
    );
    server.stop().await;
}

/// Rule: polls for queries wait in a pool of their own; a full one is said with its name.
#[tokio::test(flavor = "multi_thread")]
async fn polls_for_queries_have_room_of_their_own() {
    let server = TestServer::with(|settings| {
        settings.long_poll.max_parked = 1;
        settings.long_poll.max_parked_queries = 1;
    })
    .await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let mut waiting = Vec::new();
    for kind in ["workflow", "query"] {
        let poller = client.clone();
        waiting.push(tokio::spawn(async move {
            poller.poll_whole(kind, "w", "q", 30).await
        }));
        eventually("the poll waits", 5, async || {
            (server.node.engine().parked_polls() == waiting.len()).then_some(())
        })
        .await;
    }
    for (kind, pool) in [
        ("workflow", "worker"),
        ("activity", "worker"),
        ("query", "query"),
    ] {
        let answer = client.poll_whole(kind, "w", "q", 30).await;
        assert_eq!(answer.header("Retry-After"), "1");
        let body = answer.refused(429, "long_poll_capacity_exhausted");
        assert!(body["task"].is_null());
        assert_eq!(body["poll_status"], "long_poll_capacity_exhausted");
        assert_eq!(body["wait_pool"], pool);
        assert_eq!(body["task_kind"], format!("{kind}_task"));
        assert_eq!(body["task_queue"], "q");
        assert_eq!(body["namespace"], "default");
        assert_eq!(body["retryable"], true);
        assert_eq!(body["retry_after_seconds"], 1);
    }
    client.delete("/workers/w").await.expect(200);
    for poll in waiting {
        poll.await.unwrap().expect(200);
    }
    server.stop().await;
}

/// Rule: a statement that gave way to locks wrote nothing; a poll or a registration is told so, in the
/// form that SDKs wait on and repeat.
#[tokio::test(flavor = "multi_thread")]
async fn lock_pressure_is_told_apart_from_an_outage() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let mut locks = server.db.connect().await;
    sqlx::raw_sql("begin; lock table tasks in access exclusive mode; lock table workers in access exclusive mode")
        .execute(&mut locks)
        .await
        .unwrap();
    let poll =
        json!({"worker_id": "w", "task_queue": "q", "timeout_seconds": 0, "poll_request_id": "p1"});
    let answer = client
        .post("/worker/workflow-tasks/poll", poll.clone())
        .await;
    assert_eq!(answer.header("Retry-After"), "1");
    let body = answer.refused(503, "backend_lock_pressure");
    assert!(body["task"].is_null());
    assert_eq!(body["poll_status"], "backend_lock_pressure");
    assert_eq!(body["task_kind"], "workflow_task");
    assert_eq!(body["task_queue"], "q");
    assert_eq!(body["namespace"], "default");
    assert_eq!(body["poll_request_id"], "p1");
    assert_eq!(body["retry_same_poll_request_id"], true);
    assert_eq!(body["backend"]["lock_pressure"], true);
    assert_eq!(body["retryable"], true);
    let register = json!({"worker_id": "v", "task_queue": "q", "workflow_types": ["flow"]});
    let body = client
        .post("/worker/register", register)
        .await
        .refused(503, "backend_lock_pressure");
    assert_eq!(body["operation"], "register_worker");
    assert_eq!(body["worker_id"], "v");
    assert_eq!(body["task_queue"], "q");
    assert_eq!(body["registered"], false);
    assert_eq!(body["retryable"], true);
    assert_eq!(body["backend"]["lock_pressure"], true);
    drop(locks);
    eventually("the poll is answered again", 10, async || {
        let answer = client
            .post("/worker/workflow-tasks/poll", poll.clone())
            .await;
        (answer.status == 200).then_some(())
    })
    .await;
    server.stop().await;
}

/// Rule: storage that has no room is told apart from both: the request was not admitted, nothing was
/// written, and the same request is right later on, a poll under the same id.
#[tokio::test(flavor = "multi_thread")]
async fn full_storage_is_told_apart_from_an_outage() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    client.start("held", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    client.start("ready", "flow", "q").await;
    let mut admin = server.db.connect().await;
    sqlx::raw_sql(
        "create function full_disk() returns trigger language plpgsql as
             $$ begin raise exception 'no space left' using errcode = '53100'; end $$;
         create trigger full_disk before insert on history_batches execute function full_disk();
         create trigger full_disk before update on tasks execute function full_disk();",
    )
    .execute(&mut admin)
    .await
    .unwrap();
    let before = server.db.contents().await;
    let start = json!({"workflow_id": "wf", "workflow_type": "flow", "task_queue": "q"});
    let poll =
        json!({"worker_id": "w", "task_queue": "q", "timeout_seconds": 0, "poll_request_id": "p1"});
    let complete = json!([{"type": "complete_workflow"}]);
    let polled = client
        .post("/worker/workflow-tasks/poll", poll.clone())
        .await;
    for answer in [
        client.post("/workflows", start.clone()).await,
        client.complete(&task, complete.clone()).await,
        polled,
    ] {
        assert_eq!(answer.header("Retry-After"), "5");
        let polls = answer.body.get("poll_status").is_some();
        let body = answer.refused(503, "storage_pressure");
        assert_eq!(body["storage_state"], "fenced");
        assert_eq!(body["request_admitted"], false);
        assert_eq!(body["retryable"], true);
        assert_eq!(body["retry_after_seconds"], 5);
        if polls {
            assert_eq!(body["poll_status"], "storage_pressure");
            assert_eq!(body["claim_admitted"], false);
            assert_eq!(body["task"], serde_json::Value::Null);
            assert_eq!(body["poll_request_id"], "p1");
            assert_eq!(body["retry_same_poll_request_id"], true);
        }
    }
    assert_eq!(server.db.contents().await, before);
    sqlx::raw_sql("drop trigger full_disk on history_batches; drop trigger full_disk on tasks")
        .execute(&mut admin)
        .await
        .unwrap();
    client.post("/workflows", start).await.expect(201);
    client.complete(&task, complete).await.expect(200);
    let body = client.post("/worker/workflow-tasks/poll", poll).await;
    assert_eq!(body.expect(200)["task"]["workflow_id"], "ready");
    server.stop().await;
}
