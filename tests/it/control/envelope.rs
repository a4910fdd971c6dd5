//! Version header, order of checks, and the `control_plane` object on every workflow route.

use reqwest::Method;
use serde_json::{Value, json};

use super::{VERSION, assert_tool_accepts};
use crate::support::{Answer, Client, TOKEN, TestServer, text};

/// Rule: the one version is `2`; anything else is refused, and every answer names it.
#[tokio::test(flavor = "multi_thread")]
async fn only_version_two_is_served() {
    let server = TestServer::start().await;
    let client = &server.client;
    let send = async |versions: &[&str]| {
        let mut request = client.bare(Method::GET, "/workflows").bearer_auth(TOKEN);
        for version in versions {
            request = request.header(VERSION, *version);
        }
        client.send(request).await
    };
    for good in ["2", " 2 "] {
        let answer = send(&[good]).await;
        assert_eq!(answer.header(VERSION), "2");
        answer.expect(200);
    }
    for missing in [&[][..], &[""], &["  "]] {
        let answer = send(missing).await;
        assert_tool_accepts(&answer, "list");
        let body = answer.refused(400, "missing_control_plane_version");
        assert_eq!(body["supported_version"], "2");
        assert!(body["requested_version"].is_null());
        assert!(text(&body, "remediation").contains("X-Durable-Workflow-Control-Plane-Version: 2"));
        assert!(!text(&body, "message").is_empty());
    }
    for other in ["1", "3", "2.0", "02", "v2", "2,2", "1.13"] {
        let answer = send(&[other]).await;
        assert_tool_accepts(&answer, "list");
        let body = answer.refused(400, "unsupported_control_plane_version");
        assert_eq!(body["requested_version"], other);
        assert_eq!(body["supported_version"], "2");
    }
    send(&["2", "2"])
        .await
        .refused(400, "unsupported_control_plane_version");
    server.stop().await;
}

/// Rule: body, credential, version, namespace, fields: the first failed check is the answer, and
/// nothing is disclosed about namespaces before.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_failed_check_is_the_answer() {
    let server = TestServer::with(|settings| settings.http.max_body_bytes = 1_000).await;
    let client = &server.client;
    let send = async |wrong: &[&str]| -> Answer {
        let is = |what| wrong.contains(&what);
        let body = match (is("size"), is("syntax")) {
            (true, _) => "{".repeat(1_001),
            (_, true) => "{".to_owned(),
            _ if is("field") => "{}".to_owned(),
            _ => r#"{"workflow_type":"flow"}"#.to_owned(),
        };
        let request = client
            .bare(Method::POST, "/workflows")
            .header(
                "Content-Type",
                if is("media") {
                    "text/plain"
                } else {
                    "application/json"
                },
            )
            .header(
                "X-Namespace",
                if is("namespace") {
                    "nowhere"
                } else {
                    "default"
                },
            )
            .header(VERSION, if is("version") { "1" } else { "2" })
            .bearer_auth(if is("credential") { "wrong" } else { TOKEN })
            .body(body);
        client.send(request).await
    };
    let order = [
        ("size", 413, "payload_too_large"),
        ("media", 415, "unsupported_media_type"),
        ("syntax", 400, "malformed_json"),
        ("credential", 401, "unauthorized"),
        ("version", 400, "unsupported_control_plane_version"),
        ("namespace", 404, "namespace_not_found"),
        ("field", 422, "validation_failed"),
    ];
    let names: Vec<&str> = order.iter().map(|(name, ..)| *name).collect();
    for (place, (_, status, reason)) in order.iter().enumerate() {
        for wrong in [&names[place..=place], &names[place..]] {
            let answer = send(wrong).await;
            assert_tool_accepts(&answer, "start");
            answer.refused(*status, reason);
        }
    }
    send(&[]).await.expect(201);
    server.stop().await;
}

/// Requests of every workflow route and every outcome that they can have, with their operations.
async fn all_outcomes(client: &Client) -> Vec<(&'static str, Answer)> {
    let mut answers = Vec::new();
    let start = |fields: Value| client.post("/workflows", fields);
    let flow = json!({"workflow_id": "wf", "workflow_type": "flow", "task_queue": "q"});
    answers.push(("start", start(flow.clone()).await));
    answers.push(("start", start(flow.clone()).await));
    answers.push(("start", start(json!({"workflow_id": "wf", "workflow_type": "flow", "duplicate_policy": "use-existing"})).await));
    answers.push((
        "start",
        start(json!({"workflow_id": "wf", "workflow_type": "other"})).await,
    ));
    answers.push(("start", start(json!({})).await));
    let run = text(&answers[0].1.body, "run_id").to_owned();
    for (operation, path) in [
        ("list", "/workflows".to_owned()),
        ("list", "/workflows?page_size=0".to_owned()),
        ("describe", "/workflows/wf".to_owned()),
        ("describe", "/workflows/none".to_owned()),
        ("list_runs", "/workflows/wf/runs".to_owned()),
        ("list_runs", "/workflows/none/runs".to_owned()),
        ("describe_run", format!("/workflows/wf/runs/{run}")),
        ("describe_run", "/workflows/wf/runs/x".to_owned()),
        ("history", format!("/workflows/wf/runs/{run}/history")),
        (
            "history",
            format!("/workflows/wf/runs/{run}/history?page_size=1"),
        ),
        (
            "history",
            format!("/workflows/wf/runs/{run}/history?page_size=x"),
        ),
        (
            "history",
            format!("/workflows/wf/runs/{run}/history?next_page_token=x"),
        ),
        ("history", "/workflows/wf/runs/x/history".to_owned()),
        ("history", "/workflows/none/runs/x/history".to_owned()),
    ] {
        answers.push((operation, client.get(&path).await));
    }
    for (operation, path, body) in [
        (
            "signal",
            "/workflows/wf/signal/go",
            json!({"request_id": "k"}),
        ),
        (
            "signal",
            "/workflows/wf/signal/go",
            json!({"request_id": "k"}),
        ),
        (
            "signal",
            "/workflows/wf/signal/other",
            json!({"request_id": "k"}),
        ),
        ("signal", "/workflows/none/signal/go", json!({})),
        (
            "signal",
            "/workflows/wf/signal/go",
            json!({"request_id": 7}),
        ),
        ("archive", "/workflows/wf/archive", json!({})),
        ("cancel", "/workflows/none/cancel", json!({})),
        ("cancel", "/workflows/wf/cancel", json!({"reason": 7})),
        ("cancel", "/workflows/wf/cancel", json!({"reason": "r"})),
        ("cancel", "/workflows/wf/cancel", json!({})),
        ("terminate", "/workflows/wf/terminate", json!({})),
        ("signal", "/workflows/wf/signal/go", json!({})),
        ("archive", "/workflows/wf/archive", json!({})),
        ("archive", "/workflows/wf/archive", json!({})),
        ("archive", "/workflows/none/archive", json!({})),
    ] {
        answers.push((operation, client.post(path, body).await));
    }
    for (operation, path) in [
        ("signal", format!("/workflows/wf/runs/{run}/signal/go")),
        ("cancel", format!("/workflows/wf/runs/{run}/cancel")),
        ("terminate", format!("/workflows/wf/runs/{run}/terminate")),
        ("archive", format!("/workflows/wf/runs/{run}/archive")),
        ("cancel", "/workflows/wf/runs/x/cancel".to_owned()),
    ] {
        answers.push((operation, client.post(&path, json!({})).await));
    }
    answers.push(("start", start(flow).await));
    answers
}

/// Rule: the object is there, whole and true, whatever the outcome of whatever operation.
#[tokio::test(flavor = "multi_thread")]
async fn every_outcome_of_every_operation_has_the_object() {
    let server = TestServer::start().await;
    let client = &server.client;
    let answers = all_outcomes(client).await;
    let statuses: Vec<u16> = answers
        .iter()
        .map(|(_, answer)| answer.status.as_u16())
        .collect();
    for status in [200, 201, 202, 400, 404, 409, 422] {
        assert!(statuses.contains(&status), "no {status} in {statuses:?}");
    }
    for (operation, answer) in &answers {
        assert_tool_accepts(answer, operation);
        if answer.status.as_u16() >= 400 {
            assert!(!text(&answer.body, "message").is_empty());
            assert!(!text(&answer.body, "reason").is_empty());
        }
    }
    server.stop().await;
}

/// Rule: the same for refusals that no handler sees.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_before_the_handler_have_the_object() {
    let server = TestServer::start().await;
    let client = &server.client;
    for (operation, method, path) in [
        ("list", Method::GET, "/workflows"),
        ("start", Method::POST, "/workflows"),
        ("describe", Method::GET, "/workflows/wf"),
        ("list_runs", Method::GET, "/workflows/wf/runs"),
        ("describe_run", Method::GET, "/workflows/wf/runs/r"),
        ("history", Method::GET, "/workflows/wf/runs/r/history"),
        ("signal", Method::POST, "/workflows/wf/signal/go"),
        ("signal", Method::POST, "/workflows/wf/runs/r/signal/go"),
        ("cancel", Method::POST, "/workflows/wf/cancel"),
        ("terminate", Method::POST, "/workflows/wf/runs/r/terminate"),
        ("archive", Method::POST, "/workflows/wf/archive"),
    ] {
        let request = || client.request(method.clone(), path);
        let bare = || client.bare(method.clone(), path);
        for (request, status) in [
            (bare().header(VERSION, "2"), 401),
            (bare().bearer_auth(TOKEN), 400),
            (request().header("X-Namespace", "nowhere"), 404),
            (request().body("x"), 415),
            (
                request()
                    .header("Content-Type", "application/json")
                    .body("{"),
                400,
            ),
            (
                request()
                    .header("Content-Type", "application/json")
                    .body("[]"),
                422,
            ),
        ] {
            let answer = client.send(request).await;
            assert_eq!(answer.status, status, "{path}: {:#}", answer.body);
            assert_tool_accepts(&answer, operation);
        }
        let other = if method == Method::GET {
            Method::DELETE
        } else {
            Method::PUT
        };
        let answer = client.send(client.request(other, path)).await;
        assert!(!answer.header("Allow").is_empty());
        assert_eq!(answer.status, 405, "{path}");
        assert_eq!(answer.header(VERSION), "2");
        assert_eq!(answer.body["reason"], "method_not_allowed");
    }
    server.stop().await;
}

/// Rule: unknown routes are 404 in the same shape; other routes of the plane carry no object.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_routes_are_not_found() {
    let server = TestServer::start().await;
    let client = &server.client;
    for path in [
        "",
        "/",
        "/none",
        "/workflowsx",
        "/workers/",
        "/task-queues/a/b/c",
        "/cluster",
        "/health/x",
    ] {
        for method in [Method::GET, Method::POST] {
            let answer = client.send(client.request(method, path)).await;
            assert_eq!(answer.header(VERSION), "2", "{path}");
            let body = answer.refused(404, "not_found");
            assert!(body.get("control_plane").is_none(), "{path}");
        }
    }
    for path in ["/workers", "/task-queues", "/workers/none"] {
        let answer = client.get(path).await;
        assert_eq!(answer.header(VERSION), "2");
        assert!(answer.body.get("control_plane").is_none());
    }
    let answer = client.delete("/task-queues").await;
    assert_eq!(answer.header("Allow"), "GET");
    answer.refused(405, "method_not_allowed");
    server.stop().await;
}
