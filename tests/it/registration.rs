//! Registrations and heartbeats of workers: fields, limits, defaults and what is kept.

use serde_json::{Value, json};

use crate::support::{TestServer, eventually, merged, text};

fn base() -> Value {
    json!({"worker_id": "w", "task_queue": "q"})
}

/// Rule: the answer to a registration, key by key, and the defaults of what was left out.
#[tokio::test(flavor = "multi_thread")]
async fn the_smallest_registration_has_the_defaults() {
    let server = TestServer::start().await;
    let client = &server.client;
    let mut body = client.post("/worker/register", base()).await.expect(200);
    body.as_object_mut().unwrap().remove("server_capabilities");
    let token = body["registration_token"].take();
    assert!(token.as_str().is_some_and(|token| token.len() == 32));
    let expected = json!({
        "protocol_version": "1.13",
        "worker_id": "w",
        "registered": true,
        "namespace": "default",
        "task_queue": "q",
        "task_queues": ["q"],
        "runtime": "external",
        "build_id": null,
        "capabilities": [],
        "capability_manifest": null,
        "status": "active",
        "heartbeat_interval_seconds": 10,
        "registration_token": null,
    });
    assert_eq!(body, expected);
    let worker = client.get("/workers/w").await.expect(200);
    assert_eq!(worker["max_concurrent_workflow_tasks"], 100);
    assert_eq!(worker["max_concurrent_activity_tasks"], 100);
    assert_eq!(worker["max_concurrent_worker_sessions"], 10);
    assert_eq!(worker["supported_workflow_types"], json!([]));
    assert_eq!(worker["supported_activity_types"], json!([]));
    for absent in [
        "sdk_version",
        "build_id",
        "process_metrics",
        "heartbeat_interval_seconds",
    ] {
        assert!(worker[absent].is_null(), "{absent}");
    }
    assert!(worker["task_slots"]["workflow_available"].is_null());
    server.stop().await;
}

/// Rule: a worker id is made by the server when it is left out.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_a_name_is_given_one() {
    let server = TestServer::start().await;
    let mut names = Vec::new();
    for _ in 0..2 {
        let body = server
            .client
            .post("/worker/register", json!({"task_queue": "q"}))
            .await
            .expect(200);
        names.push(text(&body, "worker_id").to_owned());
    }
    assert_eq!(names[0].len(), 26);
    assert_ne!(names[0], names[1]);
    let beat = json!({"worker_id": names[0]});
    server
        .client
        .post("/worker/heartbeat", beat)
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: both spellings of queues and types are read; both at once must agree, and a contradiction
/// is reported on the contract's name.
#[tokio::test(flavor = "multi_thread")]
async fn both_spellings_are_read_and_must_agree() {
    let server = TestServer::start().await;
    let client = &server.client;
    let id = json!({"worker_id": "w"});
    for queues in [
        json!({"task_queues": ["a", "b"]}),
        json!({"task_queues": ["a", "b"], "task_queue": "a"}),
        json!({"task_queues": ["a", "b"], "task_queue": "b"}),
    ] {
        let body = client
            .post("/worker/register", merged(id.clone(), queues))
            .await
            .expect(200);
        assert_eq!(body["task_queues"], json!(["a", "b"]));
        assert_eq!(body["task_queue"], "a");
    }
    let alias = json!({
        "task_queue": "a", "supported_workflow_types": ["x"], "workflow_types": ["x"],
        "supported_activity_types": ["y"], "activity_types": ["y"],
    });
    client
        .post("/worker/register", merged(id.clone(), alias))
        .await
        .expect(200);
    for (fields, wrong) in [
        (
            json!({"task_queues": ["a"], "task_queue": "b"}),
            "task_queues",
        ),
        (
            json!({"task_queue": "a", "workflow_types": ["x"], "supported_workflow_types": ["y"]}),
            "workflow_types",
        ),
        (
            json!({"task_queue": "a", "activity_types": [], "supported_activity_types": ["y"]}),
            "activity_types",
        ),
    ] {
        client
            .post("/worker/register", merged(id.clone(), fields))
            .await
            .invalid(&[wrong]);
    }
    let contract = json!({"task_queues": ["q"], "workflow_types": ["x"], "activity_types": ["y"]});
    client
        .post("/worker/register", merged(id, contract))
        .await
        .expect(200);
    let worker = client.get("/workers/w").await.expect(200);
    assert_eq!(worker["supported_workflow_types"], json!(["x"]));
    assert_eq!(worker["supported_activity_types"], json!(["y"]));
    server.stop().await;
}

/// Rule: the limit of each field, at the limit and just beyond it.
#[tokio::test(flavor = "multi_thread")]
async fn every_field_has_its_limit() {
    let server = TestServer::start().await;
    let client = &server.client;
    let long = |n: usize| "ä".repeat(n);
    for (fields, wrong) in [
        (json!({"worker_id": long(256)}), "worker_id"),
        (json!({"worker_id": ""}), "worker_id"),
        (json!({"worker_id": "a\nb"}), "worker_id"),
        (json!({"task_queue": long(256)}), "task_queues.0"),
        (json!({"task_queue": ""}), "task_queues.0"),
        (json!({"task_queue": null}), "task_queues"),
        (
            json!({"task_queue": null, "task_queues": []}),
            "task_queues",
        ),
        (
            json!({"task_queue": null, "task_queues": ["q", ""]}),
            "task_queues.1",
        ),
        (json!({"runtime": "cobol"}), "runtime"),
        (json!({"runtime": ""}), "runtime"),
        (json!({"sdk_version": long(65)}), "sdk_version"),
        (json!({"build_id": long(256)}), "build_id"),
        (
            json!({"workflow_types": ["x", long(256)]}),
            "workflow_types.1",
        ),
        (json!({"activity_types": [""]}), "activity_types.0"),
        (json!({"capabilities": ["x", long(256)]}), "capabilities.1"),
        (
            json!({"max_concurrent_workflow_tasks": -1}),
            "max_concurrent_workflow_tasks",
        ),
        (
            json!({"max_concurrent_activity_tasks": -1}),
            "max_concurrent_activity_tasks",
        ),
        (
            json!({"max_concurrent_worker_sessions": 0}),
            "max_concurrent_worker_sessions",
        ),
        (
            json!({"heartbeat_interval_seconds": 0}),
            "heartbeat_interval_seconds",
        ),
        (
            json!({"heartbeat_interval_seconds": 3601}),
            "heartbeat_interval_seconds",
        ),
        (
            json!({"task_slots": {"workflow_available": -1}}),
            "task_slots.workflow_available",
        ),
        (
            json!({"task_slots": {"session_available": 1.5}}),
            "task_slots.session_available",
        ),
        (
            json!({"process_metrics": {"cpu_percent": -0.1}}),
            "process_metrics.cpu_percent",
        ),
        (
            json!({"process_metrics": {"memory_bytes": -1}}),
            "process_metrics.memory_bytes",
        ),
        (
            json!({"process_metrics": {"host": long(256)}}),
            "process_metrics.host",
        ),
        (
            json!({"process_metrics": {"process_started_at": long(65)}}),
            "process_metrics.process_started_at",
        ),
        (
            json!({"workflow_types": ["x"], "workflow_definition_fingerprints": {"x": long(256)}}),
            "workflow_definition_fingerprints.x",
        ),
        (
            json!({"workflow_definition_fingerprints": {"x": 1}}),
            "workflow_definition_fingerprints.x",
        ),
        (json!({"workflow_types": "x"}), "workflow_types"),
        (json!({"capabilities": [1]}), "capabilities.0"),
        (json!({"worker_id": 7}), "worker_id"),
    ] {
        let shown = fields.to_string();
        let answer = client
            .post("/worker/register", merged(base(), fields))
            .await;
        assert_eq!(answer.status, 422, "{shown}: {:#}", answer.body);
        answer.invalid(&[wrong]);
    }
    let both = json!({"max_concurrent_workflow_tasks": 0, "max_concurrent_activity_tasks": 0});
    let both_fields = [
        "max_concurrent_activity_tasks",
        "max_concurrent_workflow_tasks",
    ];
    client
        .post("/worker/register", merged(base(), both))
        .await
        .invalid(&both_fields);
    assert_eq!(
        client.get("/workers").await.expect(200)["workers"],
        json!([])
    );
    let largest = json!({
        "worker_id": long(255), "task_queue": long(255), "runtime": "python", "sdk_version": long(64),
        "build_id": long(255), "workflow_types": [long(255)], "activity_types": [long(255)],
        "capabilities": [long(255)], "max_concurrent_workflow_tasks": 0, "max_concurrent_activity_tasks": 1,
        "max_concurrent_worker_sessions": 1, "heartbeat_interval_seconds": 3600,
        "process_metrics": {"cpu_percent": 0, "host": long(255), "process_started_at": long(64)},
        "workflow_definition_fingerprints": {(long(255)): long(255)},
    });
    let body = client
        .post("/worker/register", merged(base(), largest))
        .await
        .expect(200);
    assert_eq!(body["worker_id"], long(255));
    server.stop().await;
}

/// Rule: integers in top-level fields may come as strings of digits.
#[tokio::test(flavor = "multi_thread")]
async fn integers_may_be_strings_of_digits() {
    let server = TestServer::start().await;
    let client = &server.client;
    let fields = json!({"max_concurrent_workflow_tasks": "7", "heartbeat_interval_seconds": "30"});
    client
        .post("/worker/register", merged(base(), fields))
        .await
        .expect(200);
    let worker = client.get("/workers/w").await.expect(200);
    assert_eq!(worker["max_concurrent_workflow_tasks"], 7);
    assert_eq!(worker["heartbeat_interval_seconds"], 30);
    for bad in [json!("x"), json!("1.5"), json!(1.5), json!(true), json!("")] {
        let fields = json!({"max_concurrent_workflow_tasks": bad});
        let answer = client
            .post("/worker/register", merged(base(), fields))
            .await;
        answer.invalid(&["max_concurrent_workflow_tasks"]);
    }
    server.stop().await;
}

/// Rule: every runtime of the contract is known.
#[tokio::test(flavor = "multi_thread")]
async fn every_runtime_is_known() {
    let server = TestServer::start().await;
    for runtime in [
        "php",
        "python",
        "rust",
        "typescript",
        "go",
        "java",
        "external",
    ] {
        let fields = json!({"worker_id": runtime, "runtime": runtime});
        let body = server
            .client
            .post("/worker/register", merged(base(), fields))
            .await
            .expect(200);
        assert_eq!(body["runtime"], runtime);
    }
    server.stop().await;
}

/// Rule: capabilities are echoed as they were sent, known or not; free slots are bounded by the slots;
/// unknown metrics are dropped and none at all count as unknown.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_says_is_kept() {
    let server = TestServer::start().await;
    let client = &server.client;
    let fields = json!({
        "runtime": "rust", "sdk_version": "4.10.2", "build_id": "b1",
        "workflow_types": ["x", "y"], "activity_types": ["z"],
        "capabilities": ["query_tasks", "gpu", "no such thing", "durable_selection"],
        "max_concurrent_workflow_tasks": 4,
        "task_slots": {"workflow_available": 9, "activity_available": 3, "session_available": null},
        "process_metrics": {"cpu_percent": 12.5, "memory_bytes": 4096, "process_id": 7, "host": "h", "threads": 3},
        "workflow_definition_fingerprints": {"x": " f1 ", "y": " ", "other": "f3"},
        "workflow_command_contracts": {"x": {"signals": ["go"]}, "other": {"signals": ["no"]}},
    });
    let body = client
        .post("/worker/register", merged(base(), fields))
        .await
        .expect(200);
    let capabilities = json!(["query_tasks", "gpu", "no such thing", "durable_selection"]);
    assert_eq!(body["capabilities"], capabilities);
    assert_eq!(body["build_id"], "b1");
    let worker = client.get("/workers/w").await.expect(200);
    assert_eq!(worker["capabilities"], capabilities);
    assert_eq!(
        worker["workflow_definition_fingerprints"],
        json!({"x": "f1"})
    );
    assert_eq!(
        worker["workflow_command_contracts"],
        json!({"x": {"signals": ["go"]}})
    );
    let slots = json!({
        "workflow_available": 4, "workflow_capacity": 4, "activity_available": 3, "activity_capacity": 100,
        "session_available": null, "session_capacity": 10,
    });
    assert_eq!(worker["task_slots"], slots);
    let metrics = json!({"cpu_percent": 12.5, "memory_bytes": 4096, "process_id": 7, "host": "h"});
    assert_eq!(worker["process_metrics"], metrics);
    let again = json!({"process_metrics": {"threads": 3}, "build_id": ""});
    let body = client
        .post("/worker/register", merged(base(), again))
        .await
        .expect(200);
    assert!(body["build_id"].is_null());
    let worker = client.get("/workers/w").await.expect(200);
    assert!(worker["process_metrics"].is_null());
    server.stop().await;
}

/// Rule: a heartbeat says that the worker is alive, changes the slots that it names and no others,
/// and does not move the worker to other queues.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_changes_only_what_it_names() {
    let server = TestServer::start().await;
    let client = &server.client;
    let fields = json!({"task_slots": {"workflow_available": 5, "activity_available": 6}, "process_metrics": {"host": "a"}});
    client
        .post("/worker/register", merged(base(), fields))
        .await
        .expect(200);
    let before = client.get("/workers/w").await.expect(200);
    let beat = json!({
        "worker_id": "w", "task_queues": ["other"], "task_slots": {"workflow_available": 2},
        "heartbeat_interval_seconds": 20,
    });
    let mut body = client.post("/worker/heartbeat", beat).await.expect(200);
    body.as_object_mut().unwrap().remove("server_capabilities");
    let expected = json!({
        "protocol_version": "1.13",
        "worker_id": "w",
        "acknowledged": true,
        "status": "active",
        "heartbeat_interval_seconds": 10,
        "stale_after_seconds": 60,
    });
    assert_eq!(body, expected);
    let after = client.get("/workers/w").await.expect(200);
    assert_eq!(after["task_queues"], json!(["q"]));
    assert_eq!(after["task_slots"]["workflow_available"], 2);
    assert_eq!(after["task_slots"]["activity_available"], 6);
    assert_eq!(after["process_metrics"], json!({"host": "a"}));
    assert_eq!(after["heartbeat_interval_seconds"], 20);
    assert_eq!(after["registered_at"], before["registered_at"]);
    assert!(text(&after, "last_heartbeat_at") > text(&before, "last_heartbeat_at"));
    let contract = json!({"worker_id": "w", "active_slots": 3});
    client.post("/worker/heartbeat", contract).await.expect(200);
    let after = client.get("/workers/w").await.expect(200);
    assert_eq!(after["task_slots"]["activity_available"], 6);
    server.stop().await;
}

/// Rule: the limits of a heartbeat's fields; 404 for a worker that is not registered.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_is_checked_like_a_registration() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.post("/worker/register", base()).await.expect(200);
    let id = json!({"worker_id": "w"});
    for (fields, wrong) in [
        (json!({"worker_id": null}), "worker_id"),
        (json!({"worker_id": ""}), "worker_id"),
        (json!({"active_slots": -1}), "active_slots"),
        (
            json!({"task_slots": {"activity_available": -1}}),
            "task_slots.activity_available",
        ),
        (
            json!({"process_metrics": {"cpu_percent": -1}}),
            "process_metrics.cpu_percent",
        ),
        (
            json!({"heartbeat_interval_seconds": 0}),
            "heartbeat_interval_seconds",
        ),
        (
            json!({"heartbeat_interval_seconds": 3601}),
            "heartbeat_interval_seconds",
        ),
        (json!({"task_queues": "q"}), "task_queues"),
    ] {
        client
            .post("/worker/heartbeat", merged(id.clone(), fields))
            .await
            .invalid(&[wrong]);
    }
    let body = client
        .post("/worker/heartbeat", json!({"worker_id": "none"}))
        .await;
    let body = body.refused(404, "worker_not_registered");
    assert_eq!(body["worker_id"], "none");
    server.stop().await;
}

/// Rule: a worker that was silent for longer than the one threshold is stale for polls and listings
/// alike, and its next heartbeat makes it fresh.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_worker_is_stale_until_it_is_heard_of() {
    let server = TestServer::with(|settings| settings.workers.stale_after_seconds = 1).await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let listed = async |path: &str| {
        let body = client.get(path).await.expect(200);
        assert_eq!(body["stale_after_seconds"], 1);
        body["workers"].as_array().unwrap().len()
    };
    eventually("the worker is stale", 5, async || {
        (listed("/workers?status=stale").await == 1).then_some(())
    })
    .await;
    assert_eq!(listed("/workers").await, 0);
    for kind in ["workflow", "activity"] {
        let body = client.poll_whole(kind, "w", "q", 0).await.expect(200);
        assert!(body["task"].is_null());
        assert_eq!(body["poll_status"], "stale_worker_registration");
        assert_eq!(body["reason"], "stale_worker_registration");
    }
    let body = client
        .post("/worker/heartbeat", json!({"worker_id": "w"}))
        .await
        .expect(200);
    assert_eq!(body["stale_after_seconds"], 1);
    assert_eq!(
        client.poll_whole("workflow", "w", "q", 0).await.expect(200)["poll_status"],
        "empty"
    );
    server.stop().await;
}
