//! What the server announces is what it does: every switch against the route or form that it is about.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Client, TestServer, envelope};

/// Whether a route is served, whatever it says to a request about nothing. A route of a feature that
/// is newer than the advertised version says so.
async fn is_served(client: &Client, method: Method, path: &str) -> bool {
    let answer = client
        .send(
            client
                .request(method, path)
                .json(&json!({"message_id": "m"})),
        )
        .await;
    !matches!(
        answer.body["reason"].as_str(),
        Some(
            "not_found"
                | "method_not_allowed"
                | "cooperative_cancellation_not_supported"
                | "message_stream_not_supported"
        )
    )
}

/// Rule: an optional feature is announced exactly when its routes are there, at the default version
/// and at the newest.
#[tokio::test(flavor = "multi_thread")]
async fn features_are_announced_exactly_when_they_are_served() {
    for version in ["1.13", "1.20"] {
        let server =
            TestServer::with(|settings| settings.worker_protocol = version.to_owned()).await;
        let client = &server.client;
        let info = client.get("/cluster/info").await.expect(200);
        let worker = &info["worker_protocol"]["server_capabilities"];
        let cluster = &info["capabilities"];
        for (switch, method, path) in [
            (
                &worker["query_tasks"],
                Method::POST,
                "/worker/query-tasks/poll",
            ),
            (
                &worker["update_validation_tasks"],
                Method::POST,
                "/worker/update-validation-tasks/poll",
            ),
            (
                &worker["worker_sessions"]["supported"],
                Method::POST,
                "/worker/sessions",
            ),
            (
                &worker["activity_lease_renewal"],
                Method::POST,
                "/worker/activity-tasks/x/renew-lease",
            ),
            (
                &worker["worker_deregistration_fencing"]["supported"],
                Method::POST,
                "/worker/registrations/x/deregister",
            ),
            (
                &worker["cooperative_cancellation"],
                Method::POST,
                "/workflows/x/request-cancellation",
            ),
            (
                &worker["message_streams"]["supported"],
                Method::POST,
                "/workflows/x/message-streams/s/messages",
            ),
            (
                &worker["runtime_external_payload_transport"],
                Method::POST,
                "/external-payloads/v1",
            ),
            (
                &cluster["workflow_tasks"],
                Method::POST,
                "/worker/workflow-tasks/poll",
            ),
            (
                &cluster["activity_tasks"],
                Method::POST,
                "/worker/activity-tasks/poll",
            ),
            (&cluster["signals"], Method::POST, "/workflows/x/signal/s"),
            (&cluster["queries"], Method::POST, "/workflows/x/query/q"),
            (&cluster["updates"], Method::POST, "/workflows/x/update/u"),
            (&cluster["schedules"], Method::GET, "/schedules"),
            (
                &cluster["history_export"],
                Method::GET,
                "/workflows/x/runs/r/history/export",
            ),
        ] {
            let announced = match switch {
                Value::Bool(on) => *on,
                // An object is the manifest of a feature that is on.
                Value::Object(_) => true,
                other => panic!("{path}: {other}"),
            };
            assert_eq!(
                is_served(client, method, path).await,
                announced,
                "{path} at {version}"
            );
        }
        // A list of verbs has all three of them, or is not there.
        let sessions = worker["worker_sessions"]["supported"] == true;
        let verbs = worker["worker_session_verbs"]
            .as_array()
            .map_or(0, Vec::len);
        assert_eq!(verbs, if sessions { 3 } else { 0 });
        assert_eq!(worker.get("worker_session_verbs").is_some(), sessions);
        server.stop().await;
    }
}

/// Rule: history is compressed only where that is announced and asked for, from the announced number
/// of events on; the plain form is there otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn history_compression_is_served_as_announced() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let effect = json!({"type": "record_side_effect", "result": envelope(json!("x"))});
    client
        .complete(&task, json!(vec![effect; 60]))
        .await
        .expect(200);
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    for encoding in [
        None,
        Some("gzip"),
        Some("deflate"),
        Some("br"),
        Some("br, deflate"),
    ] {
        let body = json!({
            "worker_id": "w", "task_queue": "q", "poll_request_id": "same", "timeout_seconds": 5,
            "accept_history_encoding": encoding,
        });
        let mut answer = client
            .post("/worker/workflow-tasks/poll", body)
            .await
            .expect(200);
        let announced =
            answer["server_capabilities"]["history_compression"]["supported_encodings"].take();
        let task = answer["task"].take();
        let asked = encoding.unwrap_or_default();
        let served = announced.as_array().is_some_and(|announced| {
            announced
                .iter()
                .any(|name| asked.split(", ").any(|asked| *name == asked))
        });
        assert_eq!(
            task["history_events_encoding"].is_string(),
            served,
            "{asked}"
        );
        assert_eq!(
            task["history_events_compressed"].is_string(),
            served,
            "{asked}"
        );
        let plain = task["history_events"].as_array().unwrap().len();
        assert_eq!(plain, if served { 0 } else { 63 }, "{asked}");
    }
    server.stop().await;
}

/// Rule: every switch is a real boolean, so that clients need not tell a missing one from a false one.
#[tokio::test(flavor = "multi_thread")]
async fn switches_are_booleans() {
    let server = TestServer::start().await;
    let info = server.client.get("/cluster/info").await.expect(200);
    let worker = &info["worker_protocol"]["server_capabilities"];
    for switch in [
        "workflow_task_poll_request_idempotency",
        "poll_status",
        "query_tasks",
        "query_task_poll_request_idempotency",
        "update_validation_tasks",
        "activity_retry_policy",
        "activity_timeouts",
        "child_workflow_retry_policy",
        "child_workflow_timeouts",
        "parent_close_policy",
        "non_retryable_failures",
        "cooperative_cancellation",
        "activity_cancellation_acknowledgement",
        "prepared_local_activities",
        "prepared_local_activity_groups",
        "query_task_authority",
        "activity_lease_renewal",
        "nexus_cooperative_cancellation",
    ] {
        assert!(worker[switch].is_boolean(), "{switch}: {}", worker[switch]);
    }
    for object in [
        "workflow_memo_updates",
        "message_streams",
        "typed_search_attributes",
        "condition_wait_occurrence_identity",
        "local_activities",
        "sticky_execution",
        "worker_sessions",
        "worker_deregistration_fencing",
        "observability_context",
        "synchronous_update_validation",
        "worker_status",
    ] {
        assert!(
            worker[object]["supported"].is_boolean(),
            "{object}: {}",
            worker[object]
        );
    }
    for number in [
        "long_poll_timeout",
        "history_page_size_default",
        "history_page_size_max",
    ] {
        assert!(
            worker[number].as_u64().is_some_and(|number| number > 0),
            "{number}"
        );
    }
    assert_eq!(worker["worker_status"]["stale_after_seconds"], 60);
    assert_eq!(worker["worker_status"]["heartbeat_interval_seconds"], 10);
    server.stop().await;
}
