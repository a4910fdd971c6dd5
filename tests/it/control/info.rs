//! What the server says about itself: health, readiness, discovery, metrics.

use reqwest::Method;
use serde_json::{Value, json};

use super::VERSION;
use crate::support::{TOKEN, TestServer, eventually, text};

/// Rule: health and readiness need neither credential nor version nor namespace.
#[tokio::test(flavor = "multi_thread")]
async fn health_and_readiness_need_nothing() {
    let server = TestServer::start().await;
    let client = &server.client;
    for (path, status, checks) in [
        ("/health", "serving", &["database"][..]),
        (
            "/ready",
            "ready",
            &[
                "database",
                "migrations",
                "default_namespace",
                "cache",
                "auth",
                "workflow_v2",
            ],
        ),
    ] {
        for request in [
            client.bare(Method::GET, path),
            client
                .bare(Method::GET, path)
                .bearer_auth("wrong")
                .header(VERSION, "9")
                .header("X-Namespace", "nowhere"),
        ] {
            let answer = client.send(request).await;
            assert_eq!(answer.header(VERSION), "2", "{path}");
            let body = answer.expect(200);
            assert_eq!(body["status"], status);
            assert!(text(&body, "timestamp").ends_with('Z'));
            assert!(body["topology"].is_object());
            for check in checks {
                assert_eq!(body["checks"][check], true, "{check}");
            }
        }
    }
    server.stop().await;
}

/// Rule: a server whose schema is not the one it needs is alive and not ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_its_schema_is_not_ready() {
    let server = TestServer::start().await;
    let client = &server.client;
    server.db.execute("delete from namespaces").await;
    let body = client
        .send(client.bare(Method::GET, "/health"))
        .await
        .expect(200);
    assert_eq!(body["status"], "serving");
    // The namespaces that a node has seen are believed for as long as it lives; a new node sees none.
    let (other, there) = server.other_node().await;
    let body = there
        .send(there.bare(Method::GET, "/ready"))
        .await
        .expect(503);
    assert_eq!(body["status"], "not_ready");
    assert_eq!(body["checks"]["default_namespace"], false);
    assert_eq!(body["checks"]["database"], true);
    other.stop().await;
    server.stop().await;
}

/// Rule: discovery needs a credential and no version; an unsupported one is refused; any namespace may
/// be named.
#[tokio::test(flavor = "multi_thread")]
async fn discovery_needs_a_credential_only() {
    let server = TestServer::start().await;
    let client = &server.client;
    let get = || client.bare(Method::GET, "/cluster/info");
    client.send(get()).await.refused(401, "unauthorized");
    client
        .send(get().bearer_auth("wrong"))
        .await
        .refused(401, "unauthorized");
    let body = client
        .send(get().bearer_auth(TOKEN).header(VERSION, "1"))
        .await;
    let body = body.refused(400, "unsupported_control_plane_version");
    assert_eq!(body["requested_version"], "1");
    for request in [
        get().bearer_auth(TOKEN),
        get().bearer_auth(TOKEN).header(VERSION, "2"),
        get().bearer_auth(TOKEN).header("X-Namespace", "nowhere"),
        get()
            .bearer_auth(TOKEN)
            .header("X-Durable-Workflow-Protocol-Version", "1.20"),
    ] {
        let answer = client.send(request).await;
        assert_eq!(answer.header(VERSION), "2");
        answer.expect(200);
    }
    server.stop().await;
}

/// Rule: what SDKs read from discovery before they start, and that it is what the server does.
#[tokio::test(flavor = "multi_thread")]
async fn discovery_tells_what_the_sdks_need() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let info = client.get("/cluster/info").await.expect(200);
    for key in [
        "server_id",
        "version",
        "default_namespace",
        "supported_sdk_versions",
        "capabilities",
        "worker_fleet",
        "task_repair",
        "limits",
        "structural_limits",
        "topology",
        "coordination_health",
        "client_compatibility",
        "surface_stability_contract",
        "platform_protocol_specs",
        "platform_conformance_suite",
        "sdk_neutrality_contract",
        "auth_composition_contract",
        "control_plane",
        "worker_protocol",
        "bridge_adapter_outcome_contract",
        "replay_verification_contract",
    ] {
        assert!(!info[key].is_null(), "{key}");
    }
    assert_eq!(info["default_namespace"], "default");
    assert_eq!(info["control_plane"]["version"], "2");
    let contract = &info["control_plane"]["request_contract"];
    assert_eq!(
        contract["schema"],
        "durable-workflow.v2.control-plane-request.contract"
    );
    assert_eq!(contract["version"], 1);
    assert!(contract["operations"]["start"].is_object());
    assert_eq!(info["worker_protocol"]["version"], "1.13");
    let heartbeat = client
        .post("/worker/heartbeat", json!({"worker_id": "w"}))
        .await
        .expect(200);
    assert_eq!(
        info["worker_protocol"]["server_capabilities"],
        heartbeat["server_capabilities"]
    );
    assert_eq!(info["limits"]["max_payload_bytes"], 2_097_152);
    assert_eq!(info["limits"]["max_memo_bytes"], 262_144);
    assert_eq!(
        info["client_compatibility"]["authority"],
        "protocol_manifests"
    );
    assert_eq!(
        info["auth_composition_contract"]["schema"],
        "durable-workflow.v2.auth-composition.contract"
    );
    assert_eq!(info["auth_composition_contract"]["version"], 1);
    assert_eq!(info["capabilities"]["payload_codecs"], json!(["avro"]));
    assert_eq!(info["worker_fleet"]["active_workers"], 1);
    assert_eq!(info["worker_fleet"]["queues"], json!(["q"]));
    assert_eq!(info["topology"]["current_shape"], "standalone_server");
    server.stop().await;
}

/// Rule: an announced compression is served, and none that is not announced.
#[tokio::test(flavor = "multi_thread")]
async fn announced_compression_is_served() {
    let server = TestServer::start().await;
    let client = &server.client;
    let info = client.get("/cluster/info").await.expect(200);
    let announced = info["worker_protocol"]["server_capabilities"]["response_compression"].clone();
    for encoding in ["gzip", "deflate"] {
        let request = client
            .request(Method::GET, "/cluster/info")
            .header("Accept-Encoding", encoding);
        let response = request.send().await.unwrap();
        let served = response
            .headers()
            .get("Content-Encoding")
            .map(|value| value.to_str().unwrap().to_owned());
        let is_announced = announced
            .as_array()
            .unwrap()
            .contains(&Value::from(encoding));
        assert_eq!(
            served.as_deref() == Some(encoding),
            is_announced,
            "{encoding}"
        );
    }
    server.stop().await;
}

/// Rule: metrics need the credential and tell what was done.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_what_was_done() {
    let server = TestServer::start().await;
    let client = &server.client;
    let get = || reqwest::Client::new().get(format!("{}/metrics", server.url));
    let refused = client.send(get()).await;
    refused.refused(401, "unauthorized");
    client.start("wf", "flow", "q").await;
    let metrics = eventually("the start is counted", 5, async || {
        let answer = client.send(get().bearer_auth(TOKEN)).await;
        assert!(answer.header("Content-Type").starts_with("text/plain"));
        let body = answer.expect(200);
        let text = body.as_str().unwrap().to_owned();
        text.contains("dw_commits_total").then_some(text)
    })
    .await;
    for name in ["dw_requests_total", "dw_parked_polls"] {
        assert!(metrics.contains(name), "{name}");
    }
    assert!(!metrics.contains(TOKEN));
    server.stop().await;
}
