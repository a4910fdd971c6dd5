//! The order of hand-outs over HTTP: priority, fairness keys, kept runs, and what operators see of it.

use serde_json::{Value, json};

use crate::support::{Client, TestServer, eventually, merged, text};

/// Starts runs of these names, one after the other.
async fn start(client: &Client, name: &str, count: usize, fields: Value) {
    for n in 0..count {
        client
            .start_with(&format!("{name}{n}"), fields.clone())
            .await;
    }
}

async fn stats(client: &Client) -> (Value, Value) {
    let queue = client.get("/task-queues/q").await.expect(200);
    let stats = &queue["stats"];
    (
        stats["tasks_added_last_minute"].clone(),
        stats["tasks_dispatched_last_minute"].clone(),
    )
}

/// Rule: a backlog is handed out by priority; inside one priority the tasks of each fairness key, and
/// those without one, take turns by weight, the longest waiting first in each.
#[tokio::test(flavor = "multi_thread")]
async fn classes_take_turns_by_weight() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    start(client, "a", 4, json!({"fairness_key": "a"})).await;
    start(
        client,
        "b",
        4,
        json!({"fairness_key": "b", "fairness_weight": 2}),
    )
    .await;
    start(client, "p", 4, json!({})).await;
    start(
        client,
        "late",
        1,
        json!({"fairness_key": "a", "priority": 7}),
    )
    .await;
    start(client, "urgent", 1, json!({"priority": 1})).await;
    let view = client
        .get("/task-queues/q/priority-fairness")
        .await
        .expect(200);
    assert_eq!(view["task_queue"], "q");
    assert_eq!(view["is_complete"], true);
    let row = |priority, key: Value, weight, count| {
        json!({
            "task_kind": "workflow", "priority": priority, "fairness_key": key,
            "fairness_class": key.as_str().unwrap_or("__default__"), "fairness_weight": weight,
            "ready_count": count,
        })
    };
    let mut backlog = view["backlog"].clone();
    for row in backlog.as_array_mut().unwrap() {
        let age = row
            .as_object_mut()
            .unwrap()
            .remove("oldest_ready_age_seconds");
        assert!(age.unwrap().is_u64());
    }
    assert_eq!(
        backlog,
        json!([
            row(1, Value::Null, 1, 1),
            row(5, Value::Null, 1, 4),
            row(5, json!("a"), 1, 4),
            row(5, json!("b"), 2, 4),
            row(7, json!("a"), 1, 1),
        ])
    );
    assert_eq!(stats(client).await, (json!(14), json!(0)));
    let mut order = Vec::new();
    for n in 0..14 {
        // Polls that wait and polls that look once are served alike.
        let task = client.poll("workflow", "w", "q", 5 * (n % 2)).await;
        order.push(text(&task, "workflow_id").to_owned());
    }
    assert_eq!(
        order,
        [
            "urgent0", "a0", "b0", "p0", "b1", "a1", "b2", "p1", "b3", "a2", "p2", "a3", "p3",
            "late0"
        ]
    );
    let view = client
        .get("/task-queues/q/priority-fairness")
        .await
        .expect(200);
    assert_eq!(view["backlog"], json!([]));
    assert_eq!(stats(client).await, (json!(14), json!(14)));
    // A queue without keys is served by age again.
    start(client, "x", 3, json!({})).await;
    for n in 0..3 {
        let task = client.poll("workflow", "w", "q", 5).await;
        assert_eq!(task["workflow_id"], format!("x{n}"));
    }
    server.stop().await;
}

/// Rule: where a limit is set, claims keep to the limit and to the order.
#[tokio::test(flavor = "multi_thread")]
async fn a_limited_queue_keeps_to_the_order() {
    let server = TestServer::with(|settings| {
        settings
            .admission
            .workflow_tasks
            .max_active_leases_per_queue = 3;
    })
    .await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    start(client, "a", 3, json!({"fairness_key": "a"})).await;
    start(client, "b", 3, json!({"fairness_key": "b"})).await;
    for name in ["a0", "b0", "a1"] {
        let task = client.poll("workflow", "w", "q", 0).await;
        assert_eq!(task["workflow_id"], name);
    }
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    server.stop().await;
}

/// Rule: one claim for many waiting polls keeps to the same shares, also on a node that has not seen the
/// tasks come.
#[tokio::test(flavor = "multi_thread")]
async fn another_node_keeps_to_the_order() {
    let server = TestServer::start().await;
    let client = &server.client;
    let (node, there) = server.other_node().await;
    client.register("w", "q", &["flow"], &[]).await;
    start(client, "p", 6, json!({})).await;
    start(client, "a", 6, json!({"fairness_key": "a", "priority": 2})).await;
    start(client, "b", 6, json!({"fairness_key": "b", "priority": 2})).await;
    let mut order = Vec::new();
    for _ in 0..18 {
        let task = there.poll("workflow", "w", "q", 5).await;
        order.push(text(&task, "workflow_id")[..1].to_owned());
    }
    assert_eq!(order[..12].concat(), "abababababab");
    assert_eq!(order[12..].concat(), "pppppp");
    // Each node counts what it did, and sees what the other one said.
    for one in [client, &there] {
        eventually("both nodes see the same counts", 20, async || {
            (stats(one).await == (json!(18), json!(18))).then_some(())
        })
        .await;
    }
    node.stop().await;
    server.stop().await;
}

/// Rule: fields of an activity's task are those of its run.
#[tokio::test(flavor = "multi_thread")]
async fn activities_are_in_the_class_of_their_run() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let fields = json!({"fairness_key": "tenant", "fairness_weight": 9, "priority": 3});
    start(client, "wf", 1, fields).await;
    let task = client.poll("workflow", "w", "q", 5).await;
    let command = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    client.complete(&task, command).await.expect(200);
    let view = client
        .get("/task-queues/q/priority-fairness")
        .await
        .expect(200);
    let row = &view["backlog"][0];
    assert_eq!(row["task_kind"], "activity");
    assert_eq!(row["fairness_key"], "tenant");
    assert_eq!(row["fairness_weight"], 9);
    assert_eq!(row["priority"], 3);
    let task = client.poll("activity", "w", "q", 0).await;
    assert_eq!(task["activity_type"], "act");
    server.stop().await;
}

/// Rule: claims go on where the last one of their queue ended, and a task before that of which nobody told
/// is found by a look from the start, which is due every few seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_nobody_told_of_is_found() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    start(client, "first", 1, json!({})).await;
    let first = client.poll("workflow", "w", "q", 5).await;
    assert_eq!(first["workflow_id"], "first0");
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    start(client, "silent", 1, json!({})).await;
    let older = "update tasks set visible_at = now() - interval '1 h' where state = 0";
    server.db.execute(older).await;
    let found = client.poll("workflow", "w", "q", 20).await;
    assert_eq!(found["workflow_id"], "silent0");
    server.stop().await;
}

/// Rule: a worker that keeps a run is given its task from a backlog too, before a task that became ready
/// a moment earlier; not before one that has waited longer. Others are given it at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_run_is_preferred_in_a_backlog() {
    let server = TestServer::with(|settings| {
        settings.worker_protocol = "1.20".to_owned();
        // Tasks are made older below without a word to the server.
        settings.database.low_water_marks = false;
    })
    .await;
    let client = &server.client;
    let entry = |supported| json!({"supported": supported, "minimum_protocol_version": "1.18"});
    for worker in ["w", "v"] {
        let body = json!({
            "worker_id": worker, "task_queue": "q", "runtime": "external", "sdk_version": "sdk-1",
            "supported_workflow_types": ["flow"], "capabilities": ["sticky_execution"],
            "capability_manifest": {
                "local_activities": entry(false), "worker_sessions": entry(false),
                "sticky_execution": entry(true),
            },
        });
        client.post("/worker/register", body).await.expect(200);
    }
    start(client, "kept", 1, json!({})).await;
    let mut task = client.poll("workflow", "w", "q", 5).await;
    for (n, (poller, older_by, is_hit)) in [
        ("w", "100 ms", true),
        ("w", "10 s", false),
        ("v", "100 ms", false),
    ]
    .into_iter()
    .enumerate()
    {
        let cache = json!({
            "worker_id": "w", "workflow_id": "kept0", "run_id": task["run_id"], "build_id": "sdk-1",
            "ttl_seconds": 300,
        });
        let completion = json!({"commands": [], "sticky_cache": cache});
        client.task(&task, "complete", completion).await.expect(200);
        let other = format!("other{n}");
        let run = client.start_with(&other, json!({})).await;
        client
            .post("/workflows/kept0/signal/s", json!({}))
            .await
            .expect(202);
        let ready = format!(
            "update tasks set visible_at = now() - case when run_id = '{run}' then interval '{older_by}' else interval '0 s' end"
        );
        server.db.execute(&ready).await;
        let first = client.poll("workflow", poller, "q", 5).await;
        let second = client.poll("workflow", "w", "q", 5).await;
        let (kept, older) = if is_hit {
            (&first, &second)
        } else {
            (&second, &first)
        };
        assert_eq!(kept["workflow_id"], "kept0", "{poller} {older_by}");
        assert_eq!(older["workflow_id"], other);
        assert_eq!(kept["sticky_replay_mode"], "sticky_hit_expected");
        task = merged(kept.clone(), json!({}));
    }
    server.stop().await;
}
