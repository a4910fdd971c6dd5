//! The order of checks on the worker plane, and the envelope on every kind of refusal.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Client, TOKEN, TestServer, text};

const VERSION: &str = "X-Durable-Workflow-Protocol-Version";

/// What may be wrong with a request, from the first check to the last.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Wrong {
    Media,
    Syntax,
    Credential,
    Version,
    Namespace,
    Field,
}

use Wrong::{Credential, Field, Media, Namespace, Syntax, Version};

/// Sends a registration that is wrong in all of these ways.
async fn register(client: &Client, wrong: &[Wrong]) -> Answer {
    let is = |what| wrong.contains(&what);
    let body = match (is(Syntax), is(Field)) {
        (true, _) => "{\"worker_id\":",
        (false, true) => r#"{"worker_id":"","task_queue":"q"}"#,
        (false, false) => r#"{"worker_id":"w","task_queue":"q"}"#,
    };
    let request = client
        .bare(Method::POST, "/worker/register")
        .header(
            "Content-Type",
            if is(Media) {
                "text/plain"
            } else {
                "application/json"
            },
        )
        .header(
            "X-Namespace",
            if is(Namespace) { "nowhere" } else { "default" },
        )
        .header(VERSION, if is(Version) { "1.14" } else { "1.13" })
        .bearer_auth(if is(Credential) { "wrong" } else { TOKEN })
        .body(body);
    client.send(request).await
}

/// Rule: media type, then syntax, credential, version, namespace, fields; the first failure is the
/// answer, whatever else is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_failed_check_is_the_answer() {
    let server = TestServer::start().await;
    let order = [
        (Media, 415, "unsupported_media_type"),
        (Syntax, 400, "malformed_json"),
        (Credential, 401, "unauthorized"),
        (Version, 400, "unsupported_protocol_version"),
        (Namespace, 404, "namespace_not_found"),
        (Field, 422, "validation_failed"),
    ];
    for (place, (first, status, reason)) in order.iter().enumerate() {
        // Alone, with the next check, and with all later ones.
        let later: Vec<Wrong> = order[place..].iter().map(|(wrong, ..)| *wrong).collect();
        for wrong in [&later[..1], &later[..later.len().min(2)], &later[..]] {
            let answer = register(&server.client, wrong).await;
            assert_eq!(answer.header(VERSION), "1.13", "{first:?}");
            answer.refused(*status, reason);
        }
    }
    register(&server.client, &[]).await.expect(200);
    server.stop().await;
}

/// Rule: the size of the body is checked before everything else.
#[tokio::test(flavor = "multi_thread")]
async fn the_size_of_the_body_comes_first() {
    let server = TestServer::with(|settings| settings.http.max_body_bytes = 1_000).await;
    let request = server
        .client
        .bare(Method::POST, "/worker/register")
        .header("Content-Type", "text/plain")
        .body("{".repeat(1_001));
    let body = server
        .client
        .send(request)
        .await
        .refused(413, "payload_too_large");
    assert_eq!(body["limit"], 1_000);
    server.stop().await;
}

/// Rule: nothing is disclosed about namespaces before the version is accepted: an unknown one and a
/// known one get the same answer, byte for byte.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_before_the_namespace_check_tells_nothing_about_namespaces() {
    let server = TestServer::start().await;
    for (credential, version) in [("wrong", "1.13"), (TOKEN, "1.14"), (TOKEN, "")] {
        let mut answers: Vec<Value> = Vec::new();
        for namespace in ["default", "nowhere", "UPPER", "no such thing!"] {
            let request = server
                .client
                .bare(Method::POST, "/worker/heartbeat")
                .bearer_auth(credential)
                .header(VERSION, version)
                .header("X-Namespace", namespace)
                .json(&json!({"worker_id": "w"}));
            answers.push(server.client.send(request).await.body);
        }
        assert!(!text(&answers[0], "reason").is_empty());
        assert!(
            answers.iter().all(|answer| *answer == answers[0]),
            "{answers:#?}"
        );
    }
    server.stop().await;
}

/// Rule: namespace from the header, else from the query, else the default; trimmed, lower-cased.
#[tokio::test(flavor = "multi_thread")]
async fn the_namespace_comes_from_header_query_or_default() {
    let server = TestServer::start().await;
    server
        .db
        .execute("insert into namespaces (name) values ('second')")
        .await;
    let client = &server.client;
    let register = async |query: &str, header: Option<&str>| {
        let mut request = client.request(Method::POST, &format!("/worker/register{query}"));
        if let Some(header) = header {
            request = request.header("X-Namespace", header);
        }
        let body = json!({"worker_id": "w", "task_queue": "q"});
        client.send(request.json(&body)).await
    };
    for (query, header, namespace) in [
        ("", None, "default"),
        ("", Some(""), "default"),
        ("", Some("second"), "second"),
        ("", Some(" SeConD "), "second"),
        ("?namespace=second", None, "second"),
        ("?namespace=SECOND", None, "second"),
        ("?namespace=second", Some("default"), "default"),
        ("?namespace=nowhere", Some("second"), "second"),
    ] {
        let body = register(query, header).await.expect(200);
        assert_eq!(body["namespace"], namespace, "{query} {header:?}");
    }
    for (query, header) in [("", Some("nowhere")), ("?namespace=nowhere", None)] {
        let body = register(query, header)
            .await
            .refused(404, "namespace_not_found");
        assert_eq!(body["namespace"], "nowhere");
        assert!(!text(&body, "remediation").is_empty());
    }
    for header in ["a/b", "a b", "ä", "'", &"n".repeat(129)] {
        register("", Some(header))
            .await
            .refused(404, "namespace_not_found");
    }
    server.stop().await;
}

/// Rule: every answer of the plane carries version and capabilities, every error both `error` and
/// `message`, whatever its status.
#[tokio::test(flavor = "multi_thread")]
async fn fc_20_every_refusal_has_the_envelope() {
    let server = TestServer::with(|settings| settings.http.max_body_bytes = 10_000).await;
    let client = &server.client;
    let task = client.first_task().await;
    let path = format!("/worker/workflow-tasks/{}/complete", text(&task, "task_id"));
    let json = |body: Value| client.request(Method::POST, "/worker/register").json(&body);
    let other = json!({"lease_owner": "x", "workflow_task_attempt": 1, "commands": []});
    let poll = json!({"worker_id": "none", "task_queue": "q", "timeout_seconds": 0});
    let requests = [
        (
            400,
            "malformed_json",
            client
                .request(Method::POST, "/worker/register")
                .header("Content-Type", "application/json")
                .body("{"),
        ),
        (
            400,
            "missing_protocol_version",
            client
                .bare(Method::POST, "/worker/register")
                .bearer_auth(TOKEN),
        ),
        (
            401,
            "unauthorized",
            client
                .bare(Method::POST, "/worker/register")
                .header(VERSION, "1.13"),
        ),
        (
            404,
            "namespace_not_found",
            json(json!({})).header("X-Namespace", "nowhere"),
        ),
        (
            404,
            "not_found",
            client.request(Method::POST, "/worker/none"),
        ),
        (
            404,
            "task_not_found",
            client
                .request(Method::POST, "/worker/workflow-tasks/x/complete")
                .json(&other),
        ),
        (
            404,
            "worker_not_found",
            client.request(Method::DELETE, "/worker/registrations/none"),
        ),
        (
            405,
            "method_not_allowed",
            client.request(Method::GET, "/worker/register"),
        ),
        (
            409,
            "lease_owner_mismatch",
            client.request(Method::POST, &path).json(&other),
        ),
        (
            412,
            "worker_not_registered",
            client
                .request(Method::POST, "/worker/activity-tasks/poll")
                .json(&poll),
        ),
        (
            413,
            "payload_too_large",
            json(json!({"x": "x".repeat(10_000)})),
        ),
        (
            415,
            "unsupported_media_type",
            client.request(Method::POST, "/worker/register").body("{}"),
        ),
        (422, "validation_failed", json(json!({}))),
    ];
    let mut capabilities = None;
    for (status, reason, request) in requests {
        let answer = client.send(request).await;
        assert_eq!(answer.header(VERSION), "1.13", "{reason}");
        assert_eq!(
            answer.header("Content-Type"),
            "application/json",
            "{reason}"
        );
        let body = answer.refused(status, reason);
        assert_eq!(body["protocol_version"], "1.13", "{reason}");
        assert_eq!(text(&body, "error"), text(&body, "message"), "{reason}");
        assert!(!text(&body, "error").is_empty(), "{reason}");
        let said = &body["server_capabilities"];
        assert!(
            said["supported_workflow_task_commands"].is_array(),
            "{reason}"
        );
        assert_eq!(
            capabilities.get_or_insert_with(|| said.clone()),
            said,
            "{reason}"
        );
    }
    server.stop().await;
}

/// Rule: 405 names the methods that the path takes; an unknown path is 404.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_method_is_told_the_right_ones() {
    let server = TestServer::start().await;
    let client = &server.client;
    for (method, path, allowed) in [
        (Method::GET, "/worker/register", "POST"),
        (Method::DELETE, "/worker/workflow-tasks/poll", "POST"),
        (Method::PUT, "/worker/activity-tasks/x/heartbeat", "POST"),
        (Method::POST, "/worker/registrations/w", "DELETE"),
    ] {
        let answer = client.send(client.request(method, path)).await;
        assert_eq!(answer.header("Allow"), allowed, "{path}");
        answer.refused(405, "method_not_allowed");
    }
    for path in [
        "/worker",
        "/worker/",
        "/worker/tasks",
        "/worker/register/",
        "/worker/registrations/",
    ] {
        let answer = client.send(client.request(Method::POST, path)).await;
        assert_eq!(answer.header("Allow"), "", "{path}");
        answer.refused(404, "not_found");
    }
    server.stop().await;
}

/// Rule: a bearer token, compared whole; its scheme in any letter case, one header.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_token_opens_the_gate() {
    let server = TestServer::start().await;
    let send = async |headers: &[&str]| {
        let mut request = server
            .client
            .bare(Method::POST, "/worker/heartbeat")
            .header(VERSION, "1.13");
        for header in headers {
            request = request.header("Authorization", *header);
        }
        server
            .client
            .send(request.json(&json!({"worker_id": "w"})))
            .await
    };
    let right = format!("Bearer {TOKEN}");
    let longer = format!("Bearer {TOKEN}x");
    let basic = format!("Basic {TOKEN}");
    for refused in [
        &[][..],
        &[""],
        &["Bearer"],
        &["Bearer "],
        &[TOKEN],
        &[&longer],
        &[&basic],
        &["Bearer test"],
        &[&right, &right],
    ] {
        send(refused).await.refused(401, "unauthorized");
    }
    for admitted in [
        right.clone(),
        format!("bearer {TOKEN}"),
        format!("BEARER  {TOKEN} "),
    ] {
        send(&[&admitted])
            .await
            .refused(404, "worker_not_registered");
    }
    server.stop().await;
}
