//! Polls: what is checked before one waits, how long it waits, and how each end of it is answered.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer, merged, text};

const KINDS: [&str; 2] = ["workflow", "activity"];

async fn poll(client: &Client, kind: &str, fields: Value) -> Answer {
    let base = json!({"worker_id": "w", "task_queue": "q", "timeout_seconds": 0});
    client
        .post(&format!("/worker/{kind}-tasks/poll"), merged(base, fields))
        .await
}

/// Rule: the guard's order: registration, queue, build, freshness, capability; the first that fails
/// is the answer.
#[tokio::test(flavor = "multi_thread")]
async fn the_guard_checks_in_the_order_of_the_contract() {
    let server = TestServer::with(|settings| settings.workers.stale_after_seconds = 1).await;
    let client = &server.client;
    let all_wrong = json!({"task_queue": "other", "build_id": "b2"});
    for kind in KINDS {
        let body = poll(client, kind, all_wrong.clone())
            .await
            .refused(412, "worker_not_registered");
        assert_eq!(body["worker_id"], "w");
    }
    let register = json!({"worker_id": "w", "task_queues": ["q", "p"], "build_id": "b1"});
    client.post("/worker/register", register).await.expect(200);
    crate::support::eventually("the worker is stale", 5, async || {
        let body = client.get("/workers?status=stale").await.expect(200);
        body["workers"].get(0).map(|_| ())
    })
    .await;
    for kind in KINDS {
        let body = poll(client, kind, all_wrong.clone())
            .await
            .refused(409, "task_queue_mismatch");
        assert_eq!(body["worker_id"], "w");
        assert_eq!(body["registered_task_queue"], "q");
        assert_eq!(body["registered_task_queues"], json!(["q", "p"]));
        assert_eq!(body["requested_task_queue"], "other");
        let body = poll(client, kind, json!({"build_id": "b2"}))
            .await
            .refused(409, "build_id_mismatch");
        assert_eq!(body["registered_build_id"], "b1");
        assert_eq!(body["requested_build_id"], "b2");
        let body = poll(client, kind, json!({"build_id": "b1"}))
            .await
            .expect(200);
        assert_eq!(body["poll_status"], "stale_worker_registration");
        client
            .post("/worker/heartbeat", json!({"worker_id": "w"}))
            .await
            .expect(200);
        let body = poll(client, kind, json!({"build_id": "b1"}))
            .await
            .expect(200);
        assert!(body["task"].is_null());
        assert_eq!(body["poll_status"], "empty");
        assert_eq!(body["reason"], format!("no_{kind}_capability"));
        crate::support::eventually("the worker is stale again", 5, async || {
            let body = poll(client, kind, json!({})).await.expect(200);
            (body["reason"] == "stale_worker_registration").then_some(())
        })
        .await;
    }
    server.stop().await;
}

/// Rule: a build id of the request is ignored when the registration has none; an empty one is none.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_id_matters_only_when_one_is_registered() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    for build in [json!(null), json!(""), json!("b7")] {
        poll(client, "workflow", json!({"build_id": build}))
            .await
            .expect(200);
    }
    let register =
        json!({"worker_id": "w", "task_queue": "q", "workflow_types": ["flow"], "build_id": "b1"});
    client.post("/worker/register", register).await.expect(200);
    for build in [json!(null), json!(""), json!("b1")] {
        poll(client, "workflow", json!({"build_id": build}))
            .await
            .expect(200);
    }
    server.stop().await;
}

/// Rule: the fields of a poll: required, limits, both spellings, and contradictions on the contract's
/// name.
#[tokio::test(flavor = "multi_thread")]
async fn the_fields_of_a_poll_are_checked() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let long = "x".repeat(256);
    for (fields, wrong) in [
        (json!({"worker_id": null}), "worker_id"),
        (json!({"worker_id": ""}), "worker_id"),
        (json!({"worker_id": long}), "worker_id"),
        (json!({"task_queue": null}), "task_queues"),
        (json!({"task_queue": ""}), "task_queues.0"),
        (
            json!({"task_queue": null, "task_queues": []}),
            "task_queues",
        ),
        (
            json!({"task_queue": null, "task_queues": ["q", ""]}),
            "task_queues.1",
        ),
        (
            json!({"task_queue": null, "task_queues": vec!["q"; 101]}),
            "task_queues",
        ),
        (json!({"task_queues": ["p"]}), "task_queues"),
        (json!({"build_id": long}), "build_id"),
        (json!({"poll_request_id": long}), "poll_request_id"),
        (json!({"timeout_seconds": -1}), "timeout_seconds"),
        (json!({"timeout_seconds": 61}), "timeout_seconds"),
        (json!({"timeout_seconds": "x"}), "timeout_seconds"),
        (json!({"timeout_seconds": 0.5}), "timeout_seconds"),
        (
            json!({"timeout_seconds": null, "poll_timeout_seconds": -1}),
            "poll_timeout_seconds",
        ),
        (
            json!({"timeout_seconds": 1, "poll_timeout_seconds": 2}),
            "poll_timeout_seconds",
        ),
        (json!({"history_page_size": 0}), "history_page_size"),
        (json!({"history_page_size": 1001}), "history_page_size"),
        (json!({"task_kinds": ["workflow", "other"]}), "task_kinds.1"),
        (json!({"task_kinds": []}), "task_kinds"),
        (
            json!({"task_kinds": ["workflow", "workflow"]}),
            "task_kinds",
        ),
    ] {
        for kind in KINDS {
            let shown = fields.to_string();
            let answer = poll(client, kind, fields.clone()).await;
            assert_eq!(answer.status, 422, "{shown}");
            answer.invalid(&[wrong]);
        }
    }
    for fields in [
        json!({"task_queues": ["q"]}),
        json!({"timeout_seconds": "0"}),
        json!({"timeout_seconds": 0, "poll_timeout_seconds": 0}),
        json!({"timeout_seconds": null, "poll_timeout_seconds": 0}),
        json!({"poll_request_id": "", "history_page_size": 1000, "task_kinds": ["workflow"]}),
        json!({"accept_history_encoding": "gzip, deflate"}),
    ] {
        for kind in KINDS {
            assert_eq!(
                poll(client, kind, fields.clone()).await.expect(200)["poll_status"],
                "empty"
            );
        }
    }
    server.stop().await;
}

/// Rule: 0 seconds look once and are answered at once; a poll that waited ends as `timeout`, after as
/// long as it said.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_is_empty_at_once_and_a_wait_times_out() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    for kind in KINDS {
        let began = Instant::now();
        let mut body = client.poll_whole(kind, "w", "q", 0).await.expect(200);
        assert!(began.elapsed() < Duration::from_millis(900));
        body.as_object_mut().unwrap().remove("server_capabilities");
        let expected = json!({"protocol_version": "1.13", "task": null, "poll_status": "empty", "reason": null});
        assert_eq!(body, expected);
    }
    let waits = KINDS.map(|kind| {
        let client = client.clone();
        tokio::spawn(async move {
            let began = Instant::now();
            let body = client.poll_whole(kind, "w", "q", 1).await.expect(200);
            assert!(began.elapsed() >= Duration::from_secs(1));
            assert!(began.elapsed() < Duration::from_millis(2_500));
            assert!(body["task"].is_null());
            assert_eq!(body["poll_status"], "timeout");
        })
    });
    for wait in waits {
        wait.await.unwrap();
    }
    server.stop().await;
}

/// Rule: the contract's spelling of the wait has no maximum; a long one is cut, not refused. Without
/// one the configured wait holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_above_the_maximum_is_cut_in_the_contracts_spelling() {
    let server = TestServer::with(|settings| settings.long_poll.default_seconds = 1).await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    for (n, seconds) in [61, 3_600, i64::MAX].into_iter().enumerate() {
        client.start(&format!("wf{n}"), "flow", "q").await;
        let fields = json!({"timeout_seconds": null, "poll_timeout_seconds": seconds});
        let body = poll(client, "workflow", fields).await.expect(200);
        assert_eq!(body["task"]["workflow_id"], format!("wf{n}"));
    }
    let began = Instant::now();
    let body = poll(client, "workflow", json!({"timeout_seconds": null}))
        .await
        .expect(200);
    assert_eq!(body["poll_status"], "timeout");
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(body["server_capabilities"]["long_poll_timeout"], 1);
    server.stop().await;
}

/// Rule: beyond the polls that a node holds, another one is told to come back, in a form that SDKs
/// wait on; a probe is not held and goes through.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_tells_polls_to_come_back() {
    let server = TestServer::with(|settings| settings.long_poll.max_parked = 1).await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let held = client.clone();
    let held = tokio::spawn(async move { held.poll_whole("workflow", "w", "q", 60).await });
    crate::support::eventually("the poll is parked", 5, async || {
        (server.node.engine().parked_polls() == 1).then_some(())
    })
    .await;
    for kind in KINDS {
        let answer = client.poll_whole(kind, "w", "q", 5).await;
        assert_eq!(answer.header("Retry-After"), "1");
        let body = answer.refused(429, "long_poll_capacity_exhausted");
        assert!(body["task"].is_null());
        assert_eq!(body["poll_status"], "long_poll_capacity_exhausted");
        assert_eq!(body["namespace"], "default");
        assert_eq!(body["task_queue"], "q");
        assert_eq!(body["task_kind"], format!("{kind}_task"));
        assert_eq!(body["wait_pool"], "worker");
        assert_eq!(body["retryable"], true);
        assert_eq!(body["retry_after_seconds"], 1);
        assert_eq!(
            client.poll_whole(kind, "w", "q", 0).await.expect(200)["poll_status"],
            "empty"
        );
    }
    client.start("wf", "flow", "q").await;
    assert_eq!(held.await.unwrap().expect(200)["task"]["workflow_id"], "wf");
    server.stop().await;
}

/// Rule: a server that stops answers the polls it holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_answers_its_polls() {
    let server = TestServer::start().await;
    let client = server.client.clone();
    client.register("w", "q", &["flow"], &[]).await;
    let held = tokio::spawn(async move { client.poll_whole("workflow", "w", "q", 60).await });
    crate::support::eventually("the poll is parked", 5, async || {
        (server.node.engine().parked_polls() == 1).then_some(())
    })
    .await;
    let began = Instant::now();
    server.stop().await;
    let body = held.await.unwrap().expect(200);
    assert!(body["task"].is_null());
    assert_eq!(body["poll_status"], "timeout");
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// Rule: a queue, a type and a build are matched exactly; nobody is given what it cannot run.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_only_to_a_worker_that_can_run_it() {
    let server = TestServer::start().await;
    let client = &server.client;
    let register = async |worker: &str, fields: Value| {
        let base = json!({"worker_id": worker, "task_queue": "q"});
        client
            .post("/worker/register", merged(base, fields))
            .await
            .expect(200);
    };
    register(
        "other-type",
        json!({"workflow_types": ["Flow", "flow2", "flo"]}),
    )
    .await;
    register(
        "other-build",
        json!({"workflow_types": ["flow"], "build_id": "b2"}),
    )
    .await;
    register("no-build", json!({"workflow_types": ["flow"]})).await;
    register(
        "right",
        json!({"workflow_types": ["x", "flow"], "build_id": "b1"}),
    )
    .await;
    client.register("other-queue", "Q", &["flow"], &[]).await;
    client.start_with("wf", json!({"build_id": "b1"})).await;
    for (worker, queue) in [
        ("other-type", "q"),
        ("other-build", "q"),
        ("no-build", "q"),
        ("other-queue", "Q"),
    ] {
        assert!(
            client.poll("workflow", worker, queue, 0).await.is_null(),
            "{worker}"
        );
    }
    let task = client.poll("workflow", "right", "q", 0).await;
    assert_eq!(task["workflow_id"], "wf");
    assert_eq!(task["compatibility"], "b1");
    // A run that is pinned to nothing goes to any build.
    client.start("free", "flow", "q").await;
    assert_eq!(
        client.poll("workflow", "other-build", "q", 0).await["workflow_id"],
        "free"
    );
    server.stop().await;
}

/// Rule: an unfinished registration of types delivers nothing to a worker with an empty list.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_types_gets_nothing() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &[], &["act"]).await;
    client.start("wf", "flow", "q").await;
    let began = Instant::now();
    let body = client
        .poll_whole("workflow", "w", "q", 30)
        .await
        .expect(200);
    assert!(body["task"].is_null());
    assert_eq!(text(&body, "reason"), "no_workflow_capability");
    // It is answered at once: waiting would be in vain.
    assert!(began.elapsed() < Duration::from_secs(5));
    server.stop().await;
}

/// Rule: update validations are for workers that registered for them, over protocol 1.13 or newer; what
/// asks for them otherwise is a conflict, and costs the queue nothing.
#[tokio::test(flavor = "multi_thread")]
async fn update_validations_need_a_capability_and_a_version() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    client.start("wf", "flow", "q").await;
    let refused = async |client: &Client| {
        for (kind, fields) in [
            ("workflow", json!({"task_kinds": ["update_validation"]})),
            (
                "workflow",
                json!({"task_kinds": ["workflow", "update_validation"]}),
            ),
            ("update-validation", json!({})),
        ] {
            let answer = poll(client, kind, fields).await;
            let body = answer.refused(409, "update_validation_capability_not_advertised");
            assert_eq!(body["poll_status"], "unsupported");
            assert!(body["task"].is_null());
            assert_eq!(body["minimum_protocol_version"], "1.13");
        }
    };
    refused(client).await;
    let register = json!({
        "worker_id": "w", "task_queue": "q", "workflow_types": ["flow"],
        "capabilities": ["update_validation_tasks"],
    });
    client.post("/worker/register", register).await.expect(200);
    refused(&client.speaking("1.12")).await;
    let body = poll(client, "update-validation", json!({})).await;
    assert_eq!(body.expect(200)["poll_status"], "empty");
    let kinds = json!({"task_kinds": ["update_validation", "workflow"]});
    let body = poll(client, "workflow", kinds).await.expect(200);
    assert_eq!(body["task"]["task_kind"], "workflow");
    assert_eq!(body["task"]["workflow_id"], "wf");
    server.stop().await;
}
