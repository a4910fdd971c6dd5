//! Sticky execution: what a completion says about the worker's cache, and what the next task shows.

use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer, eventually, merged, text};

async fn server(version: &str) -> TestServer {
    TestServer::with(|settings| settings.worker_protocol = version.to_owned()).await
}

/// Registers a worker of queue `q` that keeps runs in memory.
async fn join(client: &Client, worker: &str, fields: Value) {
    let entry = |supported| json!({"supported": supported, "minimum_protocol_version": "1.18"});
    let body = json!({
        "worker_id": worker,
        "task_queue": "q",
        "runtime": "external",
        "sdk_version": "sdk-1",
        "supported_workflow_types": ["flow"],
        "supported_activity_types": ["act"],
        "capabilities": ["sticky_execution"],
        "capability_manifest": {
            "local_activities": entry(false),
            "worker_sessions": entry(false),
            "sticky_execution": entry(true),
        },
    });
    client
        .post("/worker/register", merged(body, fields))
        .await
        .expect(200);
}

/// What the holder of a task says about its cache.
fn cache(task: &Value, fields: Value) -> Value {
    let cache = json!({
        "worker_id": task["lease_owner"],
        "workflow_id": task["workflow_id"],
        "run_id": task["run_id"],
        "build_id": "sdk-1",
        "ttl_seconds": 300,
    });
    merged(cache, fields)
}

async fn complete(client: &Client, task: &Value, commands: Value, cache: Value) -> Answer {
    let fields = json!({"commands": commands, "sticky_cache": cache});
    client.task(task, "complete", fields).await
}

async fn signal(client: &Client) {
    client
        .post("/workflows/wf/signal/s", json!({}))
        .await
        .expect(202);
}

async fn next(client: &Client, worker: &str) -> Value {
    let task = client.poll("workflow", worker, "q", 5).await;
    assert!(task.is_object(), "no task for {worker}");
    task
}

/// Starts `wf` and gives its first task to `w`.
async fn first(client: &Client) -> Value {
    client.start("wf", "flow", "q").await;
    next(client, "w").await
}

/// Rule: a task says how its holder comes by the run: `cold_replay` when nobody keeps it, a hit for the
/// worker that does, `forced_cold_replay` for another one. A completion that does not say that the run
/// is kept means that it is not. The history is whole and counted in every case.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_says_how_the_run_is_replayed() {
    let server = server("1.20").await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    join(client, "v", json!({})).await;
    let task = first(client).await;
    assert_eq!(task["sticky_replay_mode"], "cold_replay");
    let metrics = json!({"metrics": {"hit": 1, "miss": 2, "eviction": 0, "forced_cold_replay": 3}});
    complete(client, &task, json!([]), cache(&task, metrics))
        .await
        .expect(200);
    signal(client).await;
    let task = next(client, "w").await;
    assert_eq!(task["sticky_replay_mode"], "sticky_hit_expected");
    let events = task["history_events"].as_array().unwrap().len();
    assert_eq!(task["last_history_sequence"], events);
    assert_eq!(task["history_events"][0]["event_type"], "StartAccepted");
    complete(client, &task, json!([]), cache(&task, json!({})))
        .await
        .expect(200);
    signal(client).await;
    let task = next(client, "v").await;
    assert_eq!(task["sticky_replay_mode"], "forced_cold_replay");
    client.complete(&task, json!([])).await.expect(200);
    signal(client).await;
    let task = next(client, "w").await;
    assert_eq!(task["sticky_replay_mode"], "cold_replay");
    // Whoever keeps it last is the one.
    complete(client, &task, json!([]), cache(&task, json!({})))
        .await
        .expect(200);
    signal(client).await;
    let task = next(client, "v").await;
    complete(client, &task, json!([]), cache(&task, json!({})))
        .await
        .expect(200);
    signal(client).await;
    let task = next(client, "v").await;
    assert_eq!(task["sticky_replay_mode"], "sticky_hit_expected");
    server.stop().await;
}

/// Rule: the cache is over with its time, and with the process that had it: a worker that registered
/// again replays from the beginning, on every node.
#[tokio::test(flavor = "multi_thread")]
async fn a_cache_ends_with_its_time_and_its_process() {
    let server = server("1.20").await;
    let client = &server.client;
    let (node, there) = server.other_node().await;
    join(client, "w", json!({})).await;
    let task = first(client).await;
    // The timer ends after the cache.
    let timer = json!([{"type": "start_timer", "delay_seconds": 2}]);
    let short = json!({"ttl_seconds": 1});
    complete(client, &task, timer, cache(&task, short))
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 10).await;
    assert_eq!(task["sticky_replay_mode"], "forced_cold_replay");
    client.complete(&task, json!([])).await.expect(200);
    for (here, there) in [(client, &there), (&there, client)] {
        signal(here).await;
        let task = next(here, "w").await;
        complete(here, &task, json!([]), cache(&task, json!({})))
            .await
            .expect(200);
        join(there, "w", json!({})).await;
        signal(here).await;
        // This node may end a poll once that it took for the former process's.
        let task = eventually("the new process is given the task", 10, async || {
            let task = here.poll("workflow", "w", "q", 5).await;
            task.is_object().then_some(task)
        })
        .await;
        assert_eq!(task["sticky_replay_mode"], "forced_cold_replay");
        here.complete(&task, json!([])).await.expect(200);
    }
    node.stop().await;
    server.stop().await;
}

/// Rule: a cache is about this worker, workflow, run and build; anything else is 409
/// `sticky_cache_identity_mismatch`, with nothing applied and the lease kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_cache_is_of_this_worker_run_and_build() {
    let server = server("1.20").await;
    let client = &server.client;
    join(client, "w", json!({"build_id": "b1"})).await;
    join(client, "v", json!({})).await;
    let task = first(client).await;
    let before = server.db.contents().await;
    let own = json!({"build_id": "b1"});
    for wrong in [
        json!({"worker_id": "v"}),
        json!({"workflow_id": "other"}),
        json!({"run_id": "other"}),
        json!({"build_id": "b2"}),
        json!({"build_id": "sdk-1"}),
        json!({"build_id": null}),
    ] {
        let claim = cache(&task, merged(own.clone(), wrong.clone()));
        let finish = json!([{"type": "complete_workflow"}]);
        let body = complete(client, &task, finish, claim)
            .await
            .refused(409, "sticky_cache_identity_mismatch");
        assert_eq!(body["task_id"], task["task_id"], "{wrong}");
        assert_eq!(body["workflow_task_attempt"], 1);
        assert_eq!(body["outcome"], "rejected");
        assert_eq!(body["recorded"], false);
    }
    assert_eq!(server.db.contents().await, before);
    complete(client, &task, json!([]), cache(&task, own))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: the fields of `sticky_cache`: all but the metrics are required, the time is 1 to 3600 seconds,
/// and no other keys are taken; null is none.
#[tokio::test(flavor = "multi_thread")]
async fn the_fields_of_a_cache_are_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    let task = first(client).await;
    for (fields, path) in [
        (json!({"ttl_seconds": 0}), "sticky_cache.ttl_seconds"),
        (json!({"ttl_seconds": 3601}), "sticky_cache.ttl_seconds"),
        (json!({"ttl_seconds": "1"}), "sticky_cache"),
        (json!({"ttl_seconds": null}), "sticky_cache"),
        (json!({"worker_id": null}), "sticky_cache"),
        (
            json!({"worker_id": "x".repeat(256)}),
            "sticky_cache.worker_id",
        ),
        (json!({"run_id": 1}), "sticky_cache"),
        (json!({"other": 1}), "sticky_cache"),
        (json!({"metrics": {"hit": -1}}), "sticky_cache"),
    ] {
        complete(client, &task, json!([]), cache(&task, fields))
            .await
            .invalid(&[path]);
    }
    for ttl in [1, 3_600] {
        let claim = cache(&task, json!({"ttl_seconds": ttl, "metrics": null}));
        let wrong = json!([{"type": "no_such_command"}]);
        complete(client, &task, wrong, claim)
            .await
            .invalid(&["commands.0.type"]);
    }
    complete(client, &task, json!([]), Value::Null)
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: `sticky_cache` needs 1.18 and the capability: below, and without it, a conflict that changes
/// nothing. A server that is older knows neither the field nor the mode of a task.
#[tokio::test(flavor = "multi_thread")]
async fn a_cache_needs_its_version_and_its_capability() {
    let server = server("1.20").await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    client.start("wf", "flow", "q").await;
    let older = client.speaking("1.17");
    let task = next(&older, "w").await;
    assert!(task.get("sticky_replay_mode").is_none());
    let before = server.db.contents().await;
    let body = complete(&older, &task, json!([]), cache(&task, json!({})))
        .await
        .refused(409, "portable_worker_affinity_protocol_floor_unavailable");
    assert_eq!(body["requested_version"], "1.17");
    assert_eq!(body["minimum_protocol_version"], "1.18");
    assert_eq!(body["task_id"], task["task_id"]);
    assert_eq!(body["recorded"], false);
    assert!(!text(&body, "remediation").is_empty());
    assert_eq!(server.db.contents().await, before);
    complete(
        &client.speaking("1.18"),
        &task,
        json!([]),
        cache(&task, json!({})),
    )
    .await
    .expect(200);
    client.register("plain", "q", &["flow"], &[]).await;
    signal(client).await;
    let task = next(client, "plain").await;
    let body = complete(client, &task, json!([]), cache(&task, json!({})))
        .await
        .refused(409, "worker_capability_not_supported");
    assert_eq!(body["required_capability"], "sticky_execution");
    assert_eq!(body["outcome"], "rejected");
    client.complete(&task, json!([])).await.expect(200);
    server.stop().await;
}

/// Rule: a server that advertises less than 1.18 ignores the field.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_ignores_a_cache() {
    let server = server("1.13").await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let task = first(client).await;
    assert!(task.get("sticky_replay_mode").is_none());
    let claim = json!({"worker_id": "somebody", "ttl_seconds": 0, "other": true});
    complete(client, &task, json!([]), claim).await.expect(200);
    signal(client).await;
    let task = next(client, "w").await;
    assert!(task.get("sticky_replay_mode").is_none());
    server.stop().await;
}

fn park(client: &Client, worker: &'static str) -> tokio::task::JoinHandle<Value> {
    let client = client.clone();
    tokio::spawn(async move { client.poll("workflow", worker, "q", 30).await })
}

async fn parked(server: &TestServer, count: usize) {
    eventually("the polls wait", 5, async || {
        (server.node.engine().parked_polls() == count).then_some(())
    })
    .await;
}

/// Rule: the worker that keeps the run is given its next task although another one has waited longer;
/// when it does not wait, others are given the task at once.
#[tokio::test(flavor = "multi_thread")]
async fn the_worker_that_keeps_the_run_is_preferred() {
    let server = server("1.20").await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    join(client, "v", json!({})).await;
    let mut task = first(client).await;
    for _ in 0..5 {
        complete(client, &task, json!([]), cache(&task, json!({})))
            .await
            .expect(200);
        let other = park(client, "v");
        parked(&server, 1).await;
        let keeper = park(client, "w");
        parked(&server, 2).await;
        signal(client).await;
        task = keeper.await.unwrap();
        assert_eq!(task["sticky_replay_mode"], "sticky_hit_expected");
        // Only the other one waits now.
        complete(client, &task, json!([]), cache(&task, json!({})))
            .await
            .expect(200);
        signal(client).await;
        let given = other.await.unwrap();
        assert_eq!(given["lease_owner"], "v");
        assert_eq!(given["sticky_replay_mode"], "forced_cold_replay");
        client.complete(&given, json!([])).await.expect(200);
        signal(client).await;
        task = next(client, "w").await;
    }
    server.stop().await;
}

/// Rule: a hit reads on where it knows: a page token that it remembers is good in every later task of
/// the run, and one that is none is refused as such.
#[tokio::test(flavor = "multi_thread")]
async fn a_remembered_page_token_stays_good() {
    let server = server("1.20").await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    let task = first(client).await;
    complete(client, &task, json!([]), cache(&task, json!({})))
        .await
        .expect(200);
    signal(client).await;
    let task = next(client, "w").await;
    let two = json!({"history_page_size": 2});
    let page = client.task(&task, "history", two).await.expect(200);
    let token = page["next_history_page_token"].clone();
    assert!(token.is_string(), "{page:#}");
    complete(client, &task, json!([]), cache(&task, json!({})))
        .await
        .expect(200);
    signal(client).await;
    let task = next(client, "w").await;
    assert_eq!(task["sticky_replay_mode"], "sticky_hit_expected");
    for (token, from) in [(token, 2), (json!("MA=="), 0)] {
        let fields = json!({"next_history_page_token": token});
        let page = client.task(&task, "history", fields).await.expect(200);
        let read = page["history_events"].as_array().unwrap();
        let all = task["history_events"].as_array().unwrap();
        assert_eq!(read[..], all[from..]);
    }
    let fields = json!({"next_history_page_token": "no token"});
    client
        .task(&task, "history", fields)
        .await
        .refused(400, "invalid_page_token");
    server.stop().await;
}
