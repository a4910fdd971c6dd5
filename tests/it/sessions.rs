//! Worker sessions: their life over HTTP, every refusal, and the activities that run in them.

use std::collections::BTreeMap;

use leasehold::domain::time::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer, eventually, merged, text};

const VERSIONS: [&str; 2] = ["1.13", "1.20"];

async fn server(version: &str) -> TestServer {
    TestServer::with(|settings| settings.worker_protocol = version.to_owned()).await
}

/// A registration for queue `q` that can own sessions and has the capability `gpu`.
fn registration(client: &Client, worker: &str) -> Value {
    let entry = |supported| json!({"supported": supported, "minimum_protocol_version": "1.18"});
    let portable = client.version == "1.20";
    let capabilities = if portable {
        json!(["gpu", "worker_sessions"])
    } else {
        json!(["gpu"])
    };
    json!({
        "worker_id": worker,
        "task_queue": "q",
        "runtime": "external",
        "supported_workflow_types": ["flow"],
        "supported_activity_types": ["act"],
        "capabilities": capabilities,
        "capability_manifest": {
            "local_activities": entry(false),
            "worker_sessions": entry(portable),
            "sticky_execution": entry(false),
        },
    })
}

async fn join(client: &Client, worker: &str, fields: Value) {
    let body = merged(registration(client, worker), fields);
    client.post("/worker/register", body).await.expect(200);
}

async fn create(client: &Client, worker: &str, session: &str, fields: Value) -> Answer {
    let body = merged(json!({"worker_id": worker, "session_id": session}), fields);
    client.post("/worker/sessions", body).await
}

async fn beat(client: &Client, worker: &str, session: &str, fields: Value) -> Answer {
    let path = format!("/worker/sessions/{session}/heartbeat");
    let body = merged(json!({"worker_id": worker}), fields);
    client.post(&path, body).await
}

async fn close(client: &Client, worker: &str, session: &str) -> Answer {
    let path = format!("/worker/sessions/{session}");
    let body = json!({"worker_id": worker, "reason": "worker_shutdown"});
    let request = client.request(Method::DELETE, &path).json(&body);
    client.send(request).await
}

/// A session as operators see it.
async fn seen(client: &Client, session: &str) -> Value {
    client
        .get(&format!("/worker-sessions/{session}"))
        .await
        .expect(200)["session"]
        .take()
}

async fn until_status(client: &Client, session: &str, status: &str) -> Value {
    eventually(status, 10, async || {
        let seen = seen(client, session).await;
        (seen["status"] == status).then_some(seen)
    })
    .await
}

/// Starts workflow `wf`, and schedules one activity for each of these sessions.
async fn schedule(client: &Client, worker: &str, sessions: &[Value]) -> Value {
    client.start("wf", "flow", "q").await;
    let task = client.poll("workflow", worker, "q", 5).await;
    let commands: Vec<Value> = sessions
        .iter()
        .map(|session| {
            json!({
                "type": "schedule_activity", "activity_type": "act", "worker_session": session,
            })
        })
        .collect();
    client.complete(&task, json!(commands)).await.expect(200);
    task
}

#[track_caller]
fn time(value: &Value, field: &str) -> Timestamp {
    text(value, field).parse().expect("a time")
}

/// Rule: a new session is 201 `created`, and shows every key of the contract.
/// Rule: a wrong type inside a command is found by its path.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_types_have_their_paths() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let with = |fields| {
        merged(
            json!({"type": "schedule_activity", "activity_type": "a"}),
            fields,
        )
    };
    for (fields, path) in [
        (
            json!({"worker_session": {"session_id": 5}}),
            "worker_session.session_id",
        ),
        (json!({"worker_session": "s"}), "worker_session"),
        (
            json!({"retry_policy": {"backoff_seconds": ["a"]}}),
            "retry_policy.backoff_seconds.0",
        ),
    ] {
        let answer = client.complete(&task, json!([with(fields)])).await;
        answer.invalid(&[&format!("commands.0.{path}")]);
    }
    for (field, value) in [
        ("session_id", json!(5)),
        ("lease_seconds", json!(true)),
        ("requirements.0", json!([1])),
        ("create_if_missing", json!("maybe")),
    ] {
        let key = field.split('.').next().unwrap();
        let answer = create(client, "w", "s", json!({ key: value })).await;
        answer.invalid(&[field]);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_shows_every_key() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        join(client, "w", json!({})).await;
        let mut body = create(client, "w", "s", json!({})).await.expect(201);
        let snapshot = body["session"].clone();
        assert_eq!(snapshot, seen(client, "s").await);
        let fields = body["session"].as_object_mut().unwrap();
        let created = text(&snapshot, "created_at").to_owned();
        for key in ["lease_expires_at", "ttl_expires_at"] {
            assert!(fields.remove(key).unwrap().is_string());
        }
        assert_eq!(
            time(&snapshot, "lease_expires_at"),
            time(&snapshot, "created_at").plus_seconds(120)
        );
        assert_eq!(
            time(&snapshot, "ttl_expires_at"),
            time(&snapshot, "created_at").plus_seconds(1_800)
        );
        let holder = fields["holder"].as_object_mut().unwrap();
        assert!(holder.remove("last_heartbeat_at").unwrap().is_string());
        let expected = json!({
            "session_id": "s", "namespace": "default", "connection": null, "queue": "q",
            "requirements": [], "status": "active", "lease_owner": "w",
            "holder": {
                "worker_id": "w", "task_queue": "q", "status": "active", "is_stale": false,
            },
            "closed_at": null, "failure_reason": null, "lease_seconds": 120, "ttl_seconds": 1800,
            "max_concurrent_activities": 1, "create_if_missing": true,
            "allow_reacquire_after_failure": true, "active_activity_count": 0,
            "last_heartbeat_at": created, "created_at": created, "updated_at": created,
        });
        assert_eq!(body["session"], expected);
        let fields = body.as_object_mut().unwrap();
        for key in ["session", "server_capabilities"] {
            assert!(fields.remove(key).unwrap().is_object());
        }
        assert_eq!(fields.remove("protocol_version"), Some(json!(version)));
        let expected = json!({
            "admitted": true, "outcome": "created", "activity_task_id": null, "status": 201,
            "reason": null,
        });
        assert_eq!(body, expected);
        server.stop().await;
    }
}

/// Rule: the holder reuses, renews and closes: leases move, options are replaced, the TTL stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_reuses_renews_and_closes() {
    let server = TestServer::start().await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    let first = create(client, "w", "s", json!({"connection": "c"}))
        .await
        .expect(201)["session"]
        .take();
    assert_eq!(first["connection"], "c");
    let options = json!({
        "queue": "q", "requirements": ["gpu"], "lease_seconds": 500, "ttl_seconds": 9000,
        "max_concurrent_activities": 3, "create_if_missing": false,
        "allow_reacquire_after_failure": false,
    });
    let mut body = create(client, "w", "s", options.clone()).await.expect(200);
    assert_eq!(body["outcome"], "reused");
    assert_eq!(body["status"], 200);
    let reused = body["session"].take();
    for (key, value) in options.as_object().unwrap() {
        assert_eq!(reused[key], *value, "{key}");
    }
    assert_eq!(reused["connection"], Value::Null);
    assert_eq!(reused["ttl_expires_at"], first["ttl_expires_at"]);
    assert_eq!(reused["created_at"], first["created_at"]);
    assert!(time(&reused, "lease_expires_at") > time(&first, "lease_expires_at"));
    let mut body = beat(client, "w", "s", json!({"lease_seconds": 900}))
        .await
        .expect(200);
    assert_eq!(body["outcome"], "heartbeat_recorded");
    assert_eq!(body["admitted"], true);
    assert_eq!(body["reason"], Value::Null);
    let renewed = body["session"].take();
    assert_eq!(renewed["lease_seconds"], 900);
    assert_eq!(
        time(&renewed, "lease_expires_at"),
        time(&renewed, "last_heartbeat_at").plus_seconds(900)
    );
    assert_eq!(renewed["ttl_expires_at"], first["ttl_expires_at"]);
    let mut body = close(client, "w", "s").await.expect(200);
    assert_eq!(body["outcome"], "closed");
    let closed = body["session"].take();
    assert_eq!(closed["status"], "closed");
    assert_eq!(closed["failure_reason"], Value::Null);
    assert!(closed["closed_at"].is_string());
    // The owner may be named in the query, where a proxy drops the body.
    let again = client
        .delete("/worker/sessions/s?worker_id=w")
        .await
        .expect(200);
    assert_eq!(again["outcome"], "already_closed");
    assert_eq!(again["session"]["closed_at"], closed["closed_at"]);
    let body = client.get("/worker-sessions").await.expect(200);
    assert_eq!(
        body["metrics"],
        json!({"total": 1, "active": 0, "closed": 1, "expired": 0, "failed": 0, "orphaned": 0})
    );
    assert_eq!(body["sessions"], json!([seen(client, "s").await]));
    server.stop().await;
}

#[track_caller]
fn refused(answer: Answer, status: u16, reason: &str) -> Value {
    let body = answer.refused(status, reason);
    assert_eq!(body["admitted"], false);
    assert_eq!(body["status"], status);
    assert!(!text(&body, "error").is_empty());
    body
}

/// Rule: every refusal of the lifecycle, with its status, its reason and its context; none changes
/// anything.
#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_has_its_status_and_reason() {
    let server = TestServer::with(|settings| settings.workers.stale_after_seconds = 3600).await;
    let client = &server.client;
    for answer in [
        create(client, "w", "s", json!({})).await,
        beat(client, "w", "s", json!({})).await,
    ] {
        refused(answer, 412, "worker_not_registered");
    }
    join(
        client,
        "w",
        json!({"task_queue": null, "task_queues": ["q", "p"], "max_concurrent_worker_sessions": 2}),
    )
    .await;
    join(client, "v", json!({"max_concurrent_worker_sessions": 1})).await;
    refused(
        beat(client, "w", "none", json!({})).await,
        404,
        "session_not_found",
    );
    refused(close(client, "w", "none").await, 404, "session_not_found");
    client
        .get("/worker-sessions/none")
        .await
        .refused(404, "session_not_found");
    let never = json!({"create_if_missing": false});
    refused(
        create(client, "w", "none", never).await,
        409,
        "session_missing",
    );
    let other = json!({"queue": "p"});
    refused(
        create(client, "v", "s", other.clone()).await,
        409,
        "session_queue_mismatch",
    );
    let lacking = json!({"requirements": ["gpu", "disk"]});
    let body = refused(
        create(client, "w", "s", lacking).await,
        409,
        "session_requirements_not_met",
    );
    assert_eq!(body["missing_requirements"], json!(["disk"]));
    create(client, "w", "s", json!({})).await.expect(201);
    let before = seen(client, "s").await;
    refused(
        create(client, "w", "s", other).await,
        409,
        "session_queue_mismatch",
    );
    let body = refused(
        create(client, "v", "s", json!({})).await,
        409,
        "session_owned_by_another_worker",
    );
    for key in [
        "session_id",
        "lease_owner",
        "lease_expires_at",
        "ttl_expires_at",
        "holder",
        "queue",
        "active_activity_count",
    ] {
        assert_eq!(body[key], before[key], "{key}");
    }
    refused(
        beat(client, "v", "s", json!({})).await,
        409,
        "session_owner_mismatch",
    );
    refused(close(client, "v", "s").await, 409, "session_owner_mismatch");
    assert_eq!(seen(client, "s").await, before);
    create(client, "w", "s2", json!({})).await.expect(201);
    let body = refused(
        create(client, "w", "s3", json!({})).await,
        409,
        "worker_session_limit_exceeded",
    );
    assert_eq!(body["max_concurrent_worker_sessions"], 2);
    // What it owns it may use, whatever the limit.
    create(client, "w", "s2", json!({})).await.expect(200);
    close(client, "w", "s2").await.expect(200);
    create(client, "w", "s3", json!({})).await.expect(201);
    for worker in ["w", "v"] {
        let answer = create(client, worker, "s2", json!({})).await;
        refused(answer, 409, "session_closed");
    }
    refused(
        beat(client, "w", "s2", json!({})).await,
        409,
        "session_not_active",
    );
    client.delete("/worker/registrations/w").await.expect(200);
    refused(
        beat(client, "w", "s", json!({})).await,
        412,
        "worker_not_registered",
    );
    server.stop().await;
}

/// Rule: the fields of each verb and their bounds: 422 `invalid_worker_session`.
#[tokio::test(flavor = "multi_thread")]
async fn the_fields_are_checked() {
    let server = TestServer::start().await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    let long = "x".repeat(256);
    let cases = [
        (json!({"worker_id": null}), "worker_id"),
        (json!({"worker_id": ""}), "worker_id"),
        (json!({"worker_id": long}), "worker_id"),
        (json!({"session_id": null}), "session_id"),
        (json!({"session_id": ""}), "session_id"),
        (json!({"session_id": long}), "session_id"),
        (json!({"connection": long}), "connection"),
        (json!({"connection": ""}), "connection"),
        (json!({"queue": long}), "queue"),
        (json!({"queue": ""}), "queue"),
        (json!({"requirements": [""]}), "requirements.0"),
        (json!({"requirements": ["a", long]}), "requirements.1"),
        (json!({"requirements": ["a", "b", "a"]}), "requirements.2"),
        (json!({"lease_seconds": 0}), "lease_seconds"),
        (json!({"ttl_seconds": 0}), "ttl_seconds"),
        (json!({"ttl_seconds": -1}), "ttl_seconds"),
        (
            json!({"max_concurrent_activities": 0}),
            "max_concurrent_activities",
        ),
    ];
    for (fields, wrong) in cases {
        let answer = create(client, "w", "s", fields.clone()).await;
        let body = refused(answer, 422, "invalid_worker_session");
        let listed: Vec<_> = body["errors"].as_object().unwrap().keys().collect();
        assert_eq!(listed, [wrong], "{fields}");
    }
    for answer in [
        beat(client, "w", "s", json!({"lease_seconds": 0})).await,
        beat(client, "", "s", json!({})).await,
        client.delete("/worker/sessions/s").await,
    ] {
        refused(answer, 422, "invalid_worker_session");
    }
    let body = client.get("/worker-sessions").await.expect(200);
    assert_eq!(body["sessions"], json!([]));
    let widest = json!({
        "session_id": "x".repeat(255), "connection": "y".repeat(255), "lease_seconds": 1,
        "ttl_seconds": 1, "max_concurrent_activities": 1, "requirements": [],
    });
    create(client, "w", "s", widest).await.expect(201);
    server.stop().await;
}

/// Rule: below 1.8 the endpoints are refused with the versions, and so is `worker_session` in a
/// command, with nothing applied; from 1.8 on both are served.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_begin_with_their_version() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        join(client, "w", json!({})).await;
        client.start("wf", "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let command = json!([{
            "type": "schedule_activity", "activity_type": "act",
            "worker_session": {"session_id": "s"},
        }]);
        let older = client.speaking("1.7");
        let before = server.db.contents().await;
        for answer in [
            create(&older, "w", "s", json!({})).await,
            beat(&older, "w", "s", json!({})).await,
            close(&older, "w", "s").await,
        ] {
            let body = answer.refused(409, "worker_sessions_unavailable");
            assert_eq!(body["supported_version"], version);
            assert_eq!(body["requested_version"], "1.7");
            assert_eq!(body["minimum_protocol_version"], "1.8");
            assert!(!text(&body, "remediation").is_empty());
        }
        let body = older
            .complete(&task, command.clone())
            .await
            .refused(409, "worker_sessions_unavailable");
        assert_eq!(body["task_id"], task["task_id"]);
        assert_eq!(body["workflow_task_attempt"], 1);
        assert_eq!(body["outcome"], "rejected");
        assert_eq!(body["recorded"], false);
        assert_eq!(body["requested_version"], "1.7");
        assert_eq!(body["minimum_protocol_version"], "1.8");
        assert_eq!(body["command_field"], "worker_session");
        assert_eq!(server.db.contents().await, before);
        let newer = client.speaking("1.8");
        create(&newer, "w", "s", json!({})).await.expect(201);
        beat(&newer, "w", "s", json!({})).await.expect(200);
        newer.complete(&task, command).await.expect(200);
        close(&newer, "w", "s").await.expect(200);
        server.stop().await;
    }
}

/// Rule: from 1.18 on a worker uses `worker_session` only if it registered the capability; older
/// requests have none to register.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_worker_announces_that_it_uses_sessions() {
    let server = server("1.20").await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    client.start("wf", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    let command = json!([{
        "type": "schedule_activity", "activity_type": "act",
        "worker_session": {"session_id": "s"},
    }]);
    for version in ["1.18", "1.20"] {
        let newer = client.speaking(version);
        let body = newer
            .complete(&task, command.clone())
            .await
            .refused(409, "worker_capability_not_supported");
        assert_eq!(body["required_capability"], "worker_sessions");
        assert_eq!(body["minimum_protocol_version"], "1.18");
        assert_eq!(body["recorded"], false);
    }
    client
        .speaking("1.17")
        .complete(&task, command)
        .await
        .expect(200);
    // The same for whom the activity is given to.
    assert!(client.poll("activity", "w", "q", 0).await.is_null());
    let older = client.speaking("1.17");
    assert!(older.poll("activity", "w", "q", 0).await.is_object());
    server.stop().await;
}

/// Rule: a worker whose requests are older than 1.8 is not given an activity of a session, which stays
/// ready for a newer one; activities without one it is given.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_worker_is_not_given_what_runs_in_a_session() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        join(client, "w", json!({})).await;
        let null = Value::Null;
        schedule(client, "w", &[json!({"session_id": "s"}), null]).await;
        let older = client.speaking("1.7");
        let plain = older.poll("activity", "w", "q", 5).await;
        assert!(plain.get("worker_session").is_none());
        assert!(older.poll("activity", "w", "q", 0).await.is_null());
        client
            .get("/worker-sessions/s")
            .await
            .refused(404, "session_not_found");
        let newer = client.speaking(if version == "1.13" { "1.8" } else { "1.18" });
        let task = newer.poll("activity", "w", "q", 5).await;
        assert_eq!(task["attempt"], 1);
        assert_eq!(task["worker_session"]["session_id"], "s");
        server.stop().await;
    }
}

/// Rule: an activity's first admission makes its session, and the task shows the session: what was
/// asked for, its owner and its times, and no null.
#[tokio::test(flavor = "multi_thread")]
async fn an_activity_brings_its_session_along() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        join(client, "w", json!({})).await;
        let asked = json!({
            "session_id": "s", "connection": "c", "requirements": ["gpu"], "lease_seconds": 60,
            "ttl_seconds": 600, "max_concurrent_activities": 2,
        });
        let bare = json!({"session_id": "bare"});
        schedule(client, "w", &[asked.clone(), bare]).await;
        let task = client.poll("activity", "w", "q", 5).await;
        let session = seen(client, "s").await;
        assert_eq!(session["lease_owner"], "w");
        assert_eq!(session["active_activity_count"], 1);
        let added = json!({
            "queue": "q", "namespace": "default", "create_if_missing": true,
            "allow_reacquire_after_failure": true, "status": "active", "lease_owner": "w",
            "lease_expires_at": session["lease_expires_at"],
            "ttl_expires_at": session["ttl_expires_at"],
        });
        assert_eq!(task["worker_session"], merged(asked, added));
        let other = client.poll("activity", "w", "q", 5).await;
        let fields = other["worker_session"].as_object().unwrap();
        assert!(fields.get("connection").is_none());
        assert_eq!(fields["lease_seconds"], 120);
        assert_eq!(fields["max_concurrent_activities"], 1);
        // A heartbeat of the activity renews the lease of its session, and never its TTL.
        let body = client
            .report(&task, "heartbeat", json!({}))
            .await
            .expect(200);
        let renewed = &body["worker_session"];
        assert!(time(renewed, "lease_expires_at") > time(&session, "lease_expires_at"));
        assert_eq!(renewed["ttl_expires_at"], session["ttl_expires_at"]);
        let now = seen(client, "s").await;
        assert_eq!(renewed["lease_expires_at"], now["lease_expires_at"]);
        assert_eq!(now["ttl_expires_at"], session["ttl_expires_at"]);
        // The attempt outlives the session.
        close(client, "w", "s").await.expect(200);
        let body = client
            .report(&task, "heartbeat", json!({}))
            .await
            .expect(200);
        assert_eq!(body["heartbeat_recorded"], true);
        assert_eq!(body["worker_session"], Value::Null);
        client
            .report(&task, "complete", json!({}))
            .await
            .expect(200);
        server.stop().await;
    }
}

/// Rule: an activity of a session is given only to a worker that has what the session requires, and
/// only by the owner's claim while the session is owned.
#[tokio::test(flavor = "multi_thread")]
async fn an_activity_goes_to_a_worker_that_may_own_its_session() {
    let server = TestServer::start().await;
    let client = &server.client;
    join(client, "poor", json!({"capabilities": []})).await;
    join(client, "rich", json!({})).await;
    join(client, "other", json!({})).await;
    let asked = json!({
        "session_id": "s", "requirements": ["gpu"], "max_concurrent_activities": 2,
    });
    schedule(client, "poor", &[asked.clone(), asked.clone(), asked]).await;
    assert!(client.poll("activity", "poor", "q", 0).await.is_null());
    let first = client.poll("activity", "rich", "q", 5).await;
    assert!(client.poll("activity", "other", "q", 0).await.is_null());
    let second = client.poll("activity", "rich", "q", 5).await;
    assert_eq!(second["worker_session"]["lease_owner"], "rich");
    // As many as may run in it do; one that ends makes room for a poll that waits.
    assert!(client.poll("activity", "rich", "q", 0).await.is_null());
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.poll("activity", "rich", "q", 30).await })
    };
    eventually("the poll waits", 5, async || {
        (server.node.engine().parked_polls() == 1).then_some(())
    })
    .await;
    client
        .report(&first, "complete", json!({}))
        .await
        .expect(200);
    let third = waiting.await.unwrap();
    assert_eq!(third["worker_session"]["session_id"], "s");
    assert_eq!(seen(client, "s").await["active_activity_count"], 2);
    server.stop().await;
}

/// Rule: an activity's session that its worker may not own, because it owns as many as it may, is left
/// to others; `create_if_missing: false` waits until somebody makes the session.
#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_for_claims() {
    let server = TestServer::start().await;
    let client = &server.client;
    join(client, "w", json!({"max_concurrent_worker_sessions": 1})).await;
    join(client, "v", json!({})).await;
    let sessions = [
        json!({"session_id": "a"}),
        json!({"session_id": "b"}),
        json!({"session_id": "c", "create_if_missing": false}),
    ];
    schedule(client, "w", &sessions).await;
    let first = client.poll("activity", "w", "q", 5).await;
    assert_eq!(first["worker_session"]["session_id"], "a");
    assert!(client.poll("activity", "w", "q", 0).await.is_null());
    let second = client.poll("activity", "v", "q", 5).await;
    assert_eq!(second["worker_session"]["session_id"], "b");
    assert!(client.poll("activity", "v", "q", 0).await.is_null());
    create(client, "v", "c", json!({})).await.expect(201);
    let third = client.poll("activity", "v", "q", 5).await;
    assert_eq!(third["worker_session"]["session_id"], "c");
    server.stop().await;
}

/// Rule: a lease that is not renewed ends the session; another worker reacquires it with a new lease
/// and a new TTL, and what ran in it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_can_be_reacquired() {
    let server = TestServer::start().await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    join(client, "v", json!({})).await;
    let asked = json!({"session_id": "s", "lease_seconds": 1});
    schedule(client, "w", &[asked.clone(), asked]).await;
    let running = client.poll("activity", "w", "q", 5).await;
    let first = seen(client, "s").await;
    let lost = until_status(client, "s", "expired").await;
    assert_eq!(lost["failure_reason"], "lease_expired");
    assert_eq!(lost["lease_owner"], "w");
    refused(
        beat(client, "w", "s", json!({})).await,
        409,
        "session_not_active",
    );
    let body = client
        .report(&running, "heartbeat", json!({}))
        .await
        .expect(200);
    assert_eq!(body["heartbeat_recorded"], true);
    assert_eq!(body["worker_session"], Value::Null);
    let mut body = create(client, "v", "s", json!({"lease_seconds": 300}))
        .await
        .expect(200);
    assert_eq!(body["outcome"], "reacquired");
    let taken = body["session"].take();
    assert_eq!(taken["lease_owner"], "v");
    assert_eq!(taken["status"], "active");
    assert_eq!(taken["failure_reason"], Value::Null);
    assert_eq!(taken["created_at"], first["created_at"]);
    assert!(time(&taken, "ttl_expires_at") > time(&first, "ttl_expires_at"));
    assert_eq!(taken["active_activity_count"], 1);
    refused(close(client, "w", "s").await, 409, "session_owner_mismatch");
    client
        .report(&running, "complete", json!({}))
        .await
        .expect(200);
    assert!(client.poll("activity", "w", "q", 0).await.is_null());
    let next = client.poll("activity", "v", "q", 5).await;
    assert_eq!(next["worker_session"]["lease_owner"], "v");
    server.stop().await;
}

/// Rule: an activity reacquires a lost session although an attempt of its former owner still runs.
#[tokio::test(flavor = "multi_thread")]
async fn what_runs_elsewhere_keeps_nobody_from_a_lost_session() {
    let server = TestServer::start().await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    join(client, "v", json!({})).await;
    let asked = json!({"session_id": "s", "lease_seconds": 1});
    schedule(client, "w", &[asked.clone(), asked]).await;
    client.poll("activity", "w", "q", 5).await;
    until_status(client, "s", "expired").await;
    let next = client.poll("activity", "v", "q", 5).await;
    assert_eq!(next["worker_session"]["lease_owner"], "v");
    server.stop().await;
}

/// Rule: the TTL ends a session for good, whatever is renewed; its last owner may still close it.
#[tokio::test(flavor = "multi_thread")]
async fn the_ttl_ends_a_session_for_good() {
    let server = TestServer::start().await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    let first = create(client, "w", "s", json!({"ttl_seconds": 1}))
        .await
        .expect(201)["session"]
        .take();
    let lost = eventually("the TTL ends", 10, async || {
        let answer = beat(client, "w", "s", json!({"lease_seconds": 100})).await;
        match answer.status.as_u16() {
            200 => {
                let end = &answer.body["session"]["ttl_expires_at"];
                assert_eq!(*end, first["ttl_expires_at"]);
                None
            }
            _ => Some(refused(answer, 409, "session_not_active")),
        }
    })
    .await;
    assert_eq!(lost["failure_reason"], "ttl_expired");
    assert_eq!(seen(client, "s").await["status"], "expired");
    let answer = create(client, "w", "s", json!({})).await;
    refused(answer, 409, "session_reacquire_disallowed");
    let body = close(client, "w", "s").await.expect(200);
    assert_eq!(body["outcome"], "closed");
    server.stop().await;
}

/// Rule: a session may say that it is lost with its first owner.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_may_forbid_to_be_reacquired() {
    let server = TestServer::start().await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    let once = json!({"lease_seconds": 1, "allow_reacquire_after_failure": false});
    create(client, "w", "stored", once.clone())
        .await
        .expect(201);
    create(client, "w", "asked", json!({"lease_seconds": 1}))
        .await
        .expect(201);
    until_status(client, "asked", "expired").await;
    for (session, fields) in [("stored", json!({})), ("asked", once)] {
        let answer = create(client, "w", session, fields).await;
        refused(answer, 409, "session_reacquire_disallowed");
    }
    create(client, "w", "asked", json!({})).await.expect(200);
    server.stop().await;
}

/// Rule: a session whose owner is not registered any more, or silent for too long, is orphaned and can
/// be reacquired.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_its_owner_is_orphaned() {
    let server = TestServer::with(|settings| settings.workers.stale_after_seconds = 2).await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    join(client, "u", json!({})).await;
    create(client, "w", "left", json!({})).await.expect(201);
    create(client, "u", "silent", json!({})).await.expect(201);
    client.delete("/worker/registrations/w").await.expect(200);
    let lost = seen(client, "left").await;
    assert_eq!(lost["status"], "orphaned");
    assert_eq!(lost["failure_reason"], "worker_heartbeat_stale");
    assert_eq!(lost["holder"], Value::Null);
    let lost = until_status(client, "silent", "orphaned").await;
    assert_eq!(lost["holder"]["is_stale"], true);
    assert_eq!(lost["holder"]["worker_id"], "u");
    let answer = create(client, "u", "silent", json!({})).await;
    refused(answer, 412, "worker_not_registered");
    join(client, "v", json!({})).await;
    for session in ["left", "silent"] {
        let body = create(client, "v", session, json!({})).await.expect(200);
        assert_eq!(body["outcome"], "reacquired");
        assert_eq!(body["session"]["lease_owner"], "v");
    }
    server.stop().await;
}

/// Rule: a session belongs to its namespace.
#[tokio::test(flavor = "multi_thread")]
async fn namespaces_have_sessions_of_their_own() {
    let server = TestServer::start().await;
    server
        .db
        .execute("insert into namespaces (name) values ('other')")
        .await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    create(client, "w", "s", json!({})).await.expect(201);
    let there = |method, path: &str, body: Value| {
        let request = client.request(method, path).header("X-Namespace", "other");
        client.send(request.json(&body))
    };
    let body = merged(registration(client, "v"), json!({}));
    there(Method::POST, "/worker/register", body)
        .await
        .expect(200);
    let named = json!({"worker_id": "v"});
    for (method, path) in [
        (Method::POST, "/worker/sessions/s/heartbeat"),
        (Method::DELETE, "/worker/sessions/s"),
    ] {
        let answer = there(method, path, named.clone()).await;
        refused(answer, 404, "session_not_found");
    }
    let body = json!({"worker_id": "v", "session_id": "s"});
    let made = there(Method::POST, "/worker/sessions", body).await;
    assert_eq!(made.expect(201)["session"]["namespace"], "other");
    assert_eq!(seen(client, "s").await["lease_owner"], "w");
    server.stop().await;
}

/// Rule: however many workers ask for a session at once, on two nodes, one becomes its owner, and a
/// worker never owns more than it may.
#[tokio::test(flavor = "multi_thread")]
async fn many_creates_make_one_owner() {
    const WORKERS: usize = 6;
    let server = TestServer::start().await;
    let (node, there) = server.other_node().await;
    let clients = [server.client.clone(), there];
    let names: Vec<String> = (0..WORKERS).map(|n| format!("w{n}")).collect();
    for name in &names {
        join(
            &clients[0],
            name,
            json!({"max_concurrent_worker_sessions": 4}),
        )
        .await;
    }
    let mut owned: BTreeMap<String, u32> = BTreeMap::new();
    for round in 0..20 {
        let session = format!("s{round}");
        let creates = names.iter().enumerate().map(|(n, name)| {
            let client = &clients[(n + round) % 2];
            create(client, name, &session, json!({}))
        });
        let answers = futures_util::future::join_all(creates).await;
        let mut owner = None;
        for (name, answer) in names.iter().zip(answers) {
            if answer.status == 201 {
                assert_eq!(answer.body["session"]["lease_owner"], **name);
                assert_eq!(owner.replace(name.clone()), None, "two owners");
                *owned.entry(name.clone()).or_default() += 1;
            } else {
                let reason = text(&answer.body, "reason").to_owned();
                assert!(
                    [
                        "session_owned_by_another_worker",
                        "worker_session_limit_exceeded"
                    ]
                    .contains(&reason.as_str()),
                    "{reason}"
                );
            }
        }
        let owner = owner.expect("an owner");
        assert_eq!(seen(&clients[1], &session).await["lease_owner"], *owner);
    }
    assert!(owned.values().all(|count| *count <= 4), "{owned:?}");
    // One worker, many sessions at once.
    join(
        &clients[0],
        "w",
        json!({"max_concurrent_worker_sessions": 3}),
    )
    .await;
    let ids: Vec<String> = (0..12).map(|n| format!("own{n}")).collect();
    let creates = ids
        .iter()
        .enumerate()
        .map(|(n, session)| create(&clients[n % 2], "w", session, json!({})));
    let answers = futures_util::future::join_all(creates).await;
    let made = answers.iter().filter(|answer| answer.status == 201);
    assert_eq!(made.count(), 3);
    for answer in answers.into_iter().filter(|answer| answer.status != 201) {
        refused(answer, 409, "worker_session_limit_exceeded");
    }
    node.stop().await;
    server.stop().await;
}

/// Rule: while workers of two nodes claim, renew and create at once, all activities that run in a
/// session run on its owner, and never more of them than may.
#[tokio::test(flavor = "multi_thread")]
async fn claims_and_creates_race_for_sessions() {
    const SESSIONS: usize = 4;
    const EACH: usize = 4;
    let server = TestServer::start().await;
    let (node, there) = server.other_node().await;
    let clients = [server.client.clone(), there];
    let names = ["a", "b", "c", "d"];
    for name in names {
        join(&clients[0], name, json!({})).await;
    }
    let session = |n: usize| json!({"session_id": format!("s{n}"), "max_concurrent_activities": 2});
    let all: Vec<Value> = (0..SESSIONS * EACH)
        .map(|n| session(n % SESSIONS))
        .collect();
    schedule(&clients[0], "a", &all).await;
    let done = std::sync::atomic::AtomicUsize::new(0);
    let work = |n: usize| {
        let (client, name, done) = (&clients[n % 2], names[n % 4], &done);
        async move {
            let mut tries = 0;
            while done.load(std::sync::atomic::Ordering::Relaxed) < SESSIONS * EACH {
                tries += 1;
                assert!(tries < 2_000, "the activities are not handed out");
                let answer = create(
                    client,
                    name,
                    &format!("s{}", tries % SESSIONS),
                    json!({
                        "max_concurrent_activities": 2,
                    }),
                )
                .await;
                assert!(answer.status.is_success() || answer.status == 409);
                let task = client.poll("activity", name, "q", 0).await;
                if task.is_null() {
                    continue;
                }
                let id = text(&task["worker_session"], "session_id").to_owned();
                let seen = seen(client, &id).await;
                assert_eq!(seen["lease_owner"], *name, "{id} runs elsewhere");
                assert!(seen["active_activity_count"].as_u64().unwrap() <= 2);
                let body = client
                    .report(&task, "complete", json!({}))
                    .await
                    .expect(200);
                assert_eq!(body["recorded"], true);
                done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    };
    futures_util::future::join_all((0..8).map(work)).await;
    node.stop().await;
    server.stop().await;
}

/// Rule: a request holds one connection at most: a refusal whose holder must be looked up does not
/// wait for a second one.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_needs_one_connection() {
    let server = TestServer::with(|settings| settings.database.read_connections = 1).await;
    let (node, there) = server.other_node().await;
    join(&there, "holder", json!({})).await;
    create(&there, "holder", "s", json!({})).await.expect(201);
    let client = &server.client;
    join(client, "w", json!({})).await;
    let body = refused(
        create(client, "w", "s", json!({})).await,
        409,
        "session_owned_by_another_worker",
    );
    assert_eq!(body["holder"]["worker_id"], "holder");
    let answer = close(client, "w", "s").await;
    let body = refused(answer, 409, "session_owner_mismatch");
    assert_eq!(body["lease_owner"], "holder");
    node.stop().await;
    server.stop().await;
}

/// Rule: what waits for a session that is full, closed or another worker's does not keep other
/// activities of the queue from being handed out, however many they are.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_takes_nobody_stands_in_nobodys_way() {
    const MANY: usize = 80;
    let server = TestServer::start().await;
    let client = &server.client;
    join(client, "w", json!({})).await;
    join(client, "v", json!({})).await;
    create(client, "w", "closed", json!({})).await.expect(201);
    close(client, "w", "closed").await.expect(200);
    create(client, "w", "over", json!({"ttl_seconds": 1}))
        .await
        .expect(201);
    until_status(client, "over", "expired").await;
    let mut sessions = Vec::new();
    for asked in [
        json!({"session_id": "full"}),
        json!({"session_id": "closed"}),
        json!({"session_id": "over"}),
        json!({"session_id": "missing", "create_if_missing": false}),
        json!({"session_id": "elsewhere", "requirements": ["disk"]}),
    ] {
        sessions.extend(std::iter::repeat_n(asked, MANY));
    }
    sessions.push(json!({"session_id": "free", "requirements": ["gpu"]}));
    schedule(client, "w", &sessions).await;
    let first = client.poll("activity", "w", "q", 5).await;
    assert_eq!(first["worker_session"]["session_id"], "full");
    let task = client.poll("activity", "v", "q", 5).await;
    assert_eq!(task["worker_session"]["session_id"], "free");
    for worker in ["w", "v"] {
        assert!(client.poll("activity", worker, "q", 0).await.is_null());
    }
    server.stop().await;
}
