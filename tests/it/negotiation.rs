//! Worker protocol versions: which requests are served, and how the others are refused.

use leasehold::transport::http::openapi;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Client, TOKEN, TestServer};

const HEADER: &str = "X-Durable-Workflow-Protocol-Version";
const POLL: &str = "/worker/workflow-tasks/poll";

/// Sends a poll with exactly these version headers.
async fn poll_with(client: &Client, versions: &[&str]) -> Answer {
    let mut request = client
        .bare(Method::POST, POLL)
        .bearer_auth(TOKEN)
        .json(&json!({"worker_id": "w", "task_queue": "q", "timeout_seconds": 0}));
    for version in versions {
        request = request.header(HEADER, *version);
    }
    client.send(request).await
}

/// Asserts that a version was refused with exactly this body, and says so in the advertised version.
#[track_caller]
fn assert_refused(answer: Answer, advertised: &str, expected: Value) {
    assert_eq!(answer.header(HEADER), advertised);
    let mut body = answer.expect(400);
    let capabilities = body.as_object_mut().unwrap().remove("server_capabilities");
    assert!(capabilities.is_some_and(|all| all["long_poll_timeout"] == 30));
    assert_eq!(body, expected);
}

fn unsupported(requested: &str, error: &str, remediation: &str) -> Value {
    json!({
        "protocol_version": "1.13",
        "error": error,
        "message": error,
        "reason": "unsupported_protocol_version",
        "supported_version": "1.13",
        "requested_version": requested,
        "remediation": remediation,
    })
}

const SEND: &str = "Send the header X-Durable-Workflow-Protocol-Version: 1.13";

/// Rule: a missing, empty or blank version is refused as missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_empty_or_blank_version_is_refused_as_missing() {
    let server = TestServer::start().await;
    for versions in [&[][..], &[""], &["   "], &["\t"]] {
        let error = "The request names no worker protocol version.";
        let expected = json!({
            "protocol_version": "1.13",
            "error": error,
            "message": error,
            "reason": "missing_protocol_version",
            "supported_version": "1.13",
            "requested_version": null,
            "remediation": format!("{SEND}."),
        });
        assert_refused(poll_with(&server.client, versions).await, "1.13", expected);
    }
    server.stop().await;
}

/// Rule: a minor above the advertised one is refused; the refusal names the setting that admits it.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_minor_is_refused_and_told_which_setting_admits_it() {
    let server = TestServer::start().await;
    let error = "The newest worker protocol version served here is 1.13.";
    for newer in ["1.14", "1.20"] {
        let remediation = format!(
            "{SEND} or an older 1.N, or start the server with DW_WORKER_PROTOCOL_VERSION={newer} (or \
             --worker-protocol {newer}), which admits this version."
        );
        let answer = poll_with(&server.client, &[newer]).await;
        assert_refused(answer, "1.13", unsupported(newer, error, &remediation));
    }
    // No setting admits what no release of the server knows.
    for unknown in ["1.21", "1.130", "1.99999999999999999999999"] {
        let remediation = format!("{SEND} or an older 1.N.");
        let answer = poll_with(&server.client, &[unknown]).await;
        assert_refused(answer, "1.13", unsupported(unknown, error, &remediation));
    }
    server.stop().await;
}

/// Rule: a version is two groups of digits with a dot between them, after trimming.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_version_is_refused_with_the_value_as_received() {
    let server = TestServer::start().await;
    let error = "a protocol version has the form MAJOR.MINOR, for example 1.13.";
    for malformed in [
        "1",
        "v1.13",
        "1.13.0",
        "1.x",
        "1.",
        ".13",
        "1,13",
        "1.13-beta",
        "1.-1",
        "+1.13",
        "1. 13",
        "1.13, 1.13",
        "0x1.13",
        "latest",
    ] {
        let answer = poll_with(&server.client, &[malformed]).await;
        assert_refused(
            answer,
            "1.13",
            unsupported(malformed, error, &format!("{SEND}.")),
        );
    }
    server.stop().await;
}

/// Rule: another major is refused, whatever its minor.
#[tokio::test(flavor = "multi_thread")]
async fn another_major_is_refused() {
    let server = TestServer::start().await;
    let error = "Only major version 1 of the worker protocol is served here.";
    for other in [
        "0.9",
        "0.13",
        "2.0",
        "2.13",
        "11.3",
        "99999999999999999999.13",
    ] {
        let answer = poll_with(&server.client, &[other]).await;
        assert_refused(
            answer,
            "1.13",
            unsupported(other, error, &format!("{SEND}.")),
        );
    }
    server.stop().await;
}

/// Rule: a request names one version; two headers fail closed even when they agree.
#[tokio::test(flavor = "multi_thread")]
async fn two_version_headers_are_refused() {
    let server = TestServer::start().await;
    for pair in [
        ["1.13", "1.13"],
        ["1.13", "1.14"],
        ["1.14", "1.13"],
        ["1.13", ""],
    ] {
        let answer = poll_with(&server.client, &pair).await;
        answer.refused(400, "unsupported_protocol_version");
    }
    let bytes = reqwest::header::HeaderValue::from_bytes(b"1.13\xff").unwrap();
    let request = server
        .client
        .bare(Method::POST, POLL)
        .bearer_auth(TOKEN)
        .json(&json!({}));
    let answer = server.client.send(request.header(HEADER, bytes)).await;
    answer.refused(400, "unsupported_protocol_version");
    server.stop().await;
}

/// Rule: minors compare as numbers (1.9 is older than 1.13), leading zeros are only spelling, and
/// every answer names the advertised version, never the request's.
#[tokio::test(flavor = "multi_thread")]
async fn every_version_up_to_the_default_is_served_and_answered_with_the_advertised_one() {
    let server = TestServer::start().await;
    let mut accepted: Vec<String> = (0..=13).map(|minor| format!("1.{minor}")).collect();
    accepted.extend(["01.013", "1.09", " 1.13 "].map(str::to_owned));
    for version in accepted {
        let answer = poll_with(&server.client, &[&version]).await;
        assert_eq!(answer.header(HEADER), "1.13", "{version}");
        let body = answer.refused(412, "worker_not_registered");
        assert_eq!(body["protocol_version"], "1.13", "{version}");
    }
    let info = server.client.get("/cluster/info").await.expect(200);
    assert_eq!(info["worker_protocol"]["version"], "1.13");
    server.stop().await;
}

/// Rule: the advertised version is a setting, and with it the accepted set.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_set_to_the_newest_version_serves_all_before_it() {
    let server = TestServer::with(|settings| settings.worker_protocol = "1.20".to_owned()).await;
    for minor in 0..=20 {
        let answer = poll_with(&server.client, &[&format!("1.{minor}")]).await;
        assert_eq!(answer.header(HEADER), "1.20");
        let body = answer.refused(412, "worker_not_registered");
        assert_eq!(body["protocol_version"], "1.20");
    }
    let answer = poll_with(&server.client, &["1.21"]).await;
    assert_eq!(answer.header(HEADER), "1.20");
    let body = answer.refused(400, "unsupported_protocol_version");
    assert_eq!(body["supported_version"], "1.20");
    let info = server.client.get("/cluster/info").await.expect(200);
    assert_eq!(info["worker_protocol"]["version"], "1.20");
    server.stop().await;
}

/// Rule: the version is checked on every request below `/api/worker`, known route or not.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_of_the_plane_checks_the_version() {
    let server = TestServer::start().await;
    let client = &server.client;
    let document = serde_json::to_value(openapi::worker_plane()).unwrap();
    let mut routes: Vec<(Method, String)> = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.trim_start_matches("/api");
        let path = path
            .split('/')
            .map(|segment| {
                if segment.starts_with('{') {
                    "x"
                } else {
                    segment
                }
            })
            .collect::<Vec<_>>()
            .join("/");
        for method in item.as_object().unwrap().keys() {
            routes.push((method.to_uppercase().parse().unwrap(), path.clone()));
        }
    }
    assert!(routes.len() >= 12, "{routes:?}");
    for unknown in ["/worker", "/worker/", "/worker/none", "/worker/register/x"] {
        routes.push((Method::POST, unknown.to_owned()));
        routes.push((Method::GET, unknown.to_owned()));
    }
    for (method, path) in routes {
        for version in [None, Some("1.14")] {
            let mut request = client.bare(method.clone(), &path).bearer_auth(TOKEN);
            if let Some(version) = version {
                request = request.header(HEADER, version);
            }
            let answer = client.send(request).await;
            assert_eq!(answer.header(HEADER), "1.13", "{method} {path}");
            let reason = version.map_or(
                "missing_protocol_version",
                |_| "unsupported_protocol_version",
            );
            answer.refused(400, reason);
        }
    }
    server.stop().await;
}

/// Rule: a refused version reaches no handler and touches no worker state.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_version_changes_nothing() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    client.start("other", "flow", "q").await;
    let workflow = client.poll("workflow", "w", "q", 5).await;
    client.start("ready", "flow", "q").await;
    let before = server.db.contents().await;
    for version in ["", "1.14", "2.0", "x"] {
        let old = client.speaking(version);
        let register = json!({"worker_id": "w", "task_queue": "other"});
        old.post("/worker/register", register).await.expect(400);
        old.delete("/worker/registrations/w").await.expect(400);
        let beat = json!({"worker_id": "w", "task_slots": {"workflow_available": 1}});
        old.post("/worker/heartbeat", beat).await.expect(400);
        old.poll_whole("workflow", "w", "q", 0).await.expect(400);
        old.complete(&workflow, json!([{"type": "complete_workflow"}]))
            .await
            .expect(400);
        old.task(&workflow, "heartbeat", json!({}))
            .await
            .expect(400);
        old.wait_for_history(&workflow).await.expect(400);
        old.report(&activity, "complete", json!({"result": 1}))
            .await
            .expect(400);
        old.report(&activity, "heartbeat", json!({"details": {"x": 1}}))
            .await
            .expect(400);
    }
    assert_eq!(server.db.contents().await, before);
    client
        .complete(&workflow, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    client
        .report(&activity, "complete", json!({"result": 1}))
        .await
        .expect(200);
    server.stop().await;
}
