//! Malformed requests at every route of the documents: a 4xx in the right envelope, and no trace.

use leasehold::transport::http::openapi;
use reqwest::{Method, RequestBuilder};
use serde_json::{Map, Value, json};

use crate::language;
use crate::support::{Answer, Client, TOKEN, TestServer, text};

/// One operation of a document, and the fields that its body may have.
struct Operation {
    method: Method,
    path: String,
    fields: Vec<String>,
    has_body: bool,
}

/// Names of the fields of an object's schema, with those of the schemas that it is put together from.
fn fields_of(document: &Value, schema: &Value) -> Vec<String> {
    let schema = match schema["$ref"].as_str() {
        Some(name) => document.pointer(name.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    let own = schema["properties"].as_object().into_iter();
    let mut fields: Vec<String> = own.flat_map(|own| own.keys().cloned()).collect();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        fields.extend(fields_of(document, part));
    }
    fields
}

fn operations() -> Vec<Operation> {
    let mut operations = Vec::new();
    for document in [openapi::worker_plane(), openapi::control_plane()] {
        let document = serde_json::to_value(document).unwrap();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let Ok(method) = method.to_uppercase().parse::<Method>() else {
                    continue;
                };
                let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
                operations.push(Operation {
                    method,
                    path: path.clone(),
                    fields: fields_of(&document, schema),
                    has_body: !operation["requestBody"].is_null(),
                });
            }
        }
    }
    operations
}

/// Values that are wrong for nearly every field.
fn wrong_values() -> Vec<(&'static str, Value)> {
    vec![
        ("true", json!(true)),
        ("zero", json!(0)),
        ("negative", json!(-1)),
        ("huge", json!(u64::MAX)),
        ("float", json!(1e308)),
        ("empty", json!("")),
        ("nul", json!("\u{0}")),
        ("control", json!("\u{1}\u{7f}\n")),
        ("long", json!("x".repeat(5_000))),
        ("list", json!([])),
        ("nested list", json!([[null]])),
        ("object", json!({})),
        ("nested object", json!({"type": {"type": []}})),
    ]
}

/// Bodies that no route takes, whatever it is about.
const BROKEN: [&[u8]; 12] = [
    b"{",
    b"[]",
    b"null",
    b"7",
    b"\"x\"",
    b"{\"worker_id\":\"\xff\xfe\"}",
    b"{} {}",
    b"\x00",
    b"\xef\xbb\xbf{}",
    b"{\"a\":\"\\ud800\"}",
    b"{\"a\":1e999}",
    b"{\"\\u0000\":1}",
];

/// Path segments that name nothing, and must not reach the database as they are.
const SEGMENTS: [&str; 12] = [
    "%00",
    "a%00b",
    "%ff",
    "%F0%9F%9A%80",
    "%2E%2E%2F%2E%2E",
    "%0D%0A",
    "%27%3B--",
    "%25",
    "-1",
    "null",
    "%20",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV-1",
];

const QUERIES: [&str; 17] = [
    "%00=%00",
    "workflow_type=%00",
    "query=%00",
    "query=a%00b",
    "task_queue=%00",
    "status=%00",
    "namespace=%00",
    "next_page_token=%00",
    "page_size=99999999999999999999",
    "page_size=%00",
    "x=%ff&query=%ff",
    "=&&&==",
    "wait_new_event=maybe",
    "namespace=nowhere",
    "status=%27%3B--&workflow_type=%27%3B--&query=%25_%5C",
    "next_page_token=e30&page_size=-1",
    "lease_owner=w&query_task_attempt=some",
];

/// The path of an operation with its parameters filled in.
fn fill(path: &str, mut value: impl FnMut(&str) -> String) -> String {
    let filled: Vec<String> = path
        .trim_start_matches("/api")
        .split('/')
        .map(|segment| {
            match segment
                .strip_prefix('{')
                .and_then(|rest| rest.strip_suffix('}'))
            {
                Some(name) => value(name),
                None => segment.to_owned(),
            }
        })
        .collect();
    filled.join("/")
}

struct Attempt {
    label: String,
    plane: Plane,
    request: RequestBuilder,
}

#[derive(Clone, Copy, PartialEq)]
enum Plane {
    Worker,
    Control,
    Metrics,
}

#[track_caller]
fn assert_in_order(attempt: &str, plane: Plane, answer: &Answer, may_succeed: bool) {
    let status = answer.status.as_u16();
    assert!(
        status < 500,
        "{attempt}: {status} {}",
        answer.body["reason"]
    );
    assert!(
        may_succeed || status >= 400,
        "{attempt}: {status} {:#}",
        answer.body
    );
    if plane == Plane::Metrics && status == 200 {
        return;
    }
    let body = answer
        .body
        .as_object()
        .unwrap_or_else(|| panic!("{attempt}: {status} {:?}", answer.body));
    match plane {
        Plane::Worker => {
            assert_eq!(
                answer.header("X-Durable-Workflow-Protocol-Version"),
                "1.13",
                "{attempt}"
            );
            assert_eq!(body["protocol_version"], "1.13", "{attempt}");
            assert!(body["server_capabilities"].is_object(), "{attempt}");
        }
        Plane::Control => assert_eq!(answer.header(crate::control::VERSION), "2", "{attempt}"),
        Plane::Metrics => {}
    }
    if status >= 400 {
        assert!(
            body["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{attempt}: {body:?}"
        );
        assert!(
            body["reason"].as_str().is_some_and(|text| !text.is_empty()),
            "{attempt}: {body:?}"
        );
    }
}

/// Sends requests, some at a time, and checks each answer.
async fn send_all(client: &Client, attempts: Vec<Attempt>, may_succeed: bool) -> usize {
    let count = attempts.len();
    let mut waiting = attempts.into_iter();
    loop {
        let group: Vec<_> = waiting.by_ref().take(8).collect();
        if group.is_empty() {
            return count;
        }
        let sends = group.into_iter().map(|attempt| async move {
            let answer = client.send(attempt.request).await;
            assert_in_order(&attempt.label, attempt.plane, &answer, may_succeed);
        });
        futures_util::future::join_all(sends).await;
    }
}

fn plane(path: &str) -> Plane {
    if path.starts_with("/api/worker/") {
        Plane::Worker
    } else if path == "/metrics" {
        Plane::Metrics
    } else {
        Plane::Control
    }
}

/// A request to an operation with every header that its plane needs.
fn request(server: &TestServer, method: &Method, path: &str, plane: Plane) -> RequestBuilder {
    match plane {
        // It lies outside of the planes.
        Plane::Metrics => reqwest::Client::new()
            .request(method.clone(), format!("{}{path}", server.url))
            .bearer_auth(TOKEN),
        _ => server.client.request(method.clone(), path),
    }
}

fn with_body(request: RequestBuilder, body: impl Into<reqwest::Body>) -> RequestBuilder {
    request
        .header("Content-Type", "application/json")
        .body(body)
}

/// Rule: a caller's mistake is a 4xx, never a 5xx, in the envelope of its plane, and leaves history,
/// tasks and everything else as they were: with real ids in the path and bodies that are wrong.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_bodies_for_real_objects_change_nothing() {
    let server = TestServer::with(|settings| settings.queries.timeout_seconds = 55).await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    let contract =
        json!({"queries": ["ask"], "updates": ["change"], "update_validators": ["change"]});
    let fields = json!({"workflow_command_contracts": {"flow": contract}});
    language::register(client, "v", "asked", fields).await;
    client
        .start_with("asked", json!({"task_queue": "asked"}))
        .await;
    let first = client.poll("workflow", "v", "asked", 5).await;
    client.wait_for_history(&first).await.expect(200);
    let asks = language::ask(client, "asked", "query/ask", json!({}));
    let query = client.poll("query", "v", "asked", 5).await;
    let change = json!({"request_id": "k"});
    let changes = language::ask(client, "asked", "update/change", change);
    let validation = client.poll("update-validation", "v", "asked", 5).await;
    client.start("other", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    let session = json!({"worker_id": "w", "session_id": "s"});
    client.post("/worker/sessions", session).await.expect(201);
    let real = |path: &str, name: &str| match name {
        "taskId" if path.contains("workflow-tasks") => text(&task, "task_id").to_owned(),
        "taskId" => text(&activity, "task_id").to_owned(),
        "workflowId" => "wf".to_owned(),
        "runId" => text(&activity, "run_id").to_owned(),
        "deployment" => "default%2Fq%40none".to_owned(),
        "workerId" => "w".to_owned(),
        "sessionId" => "s".to_owned(),
        "taskQueue" => "q".to_owned(),
        "queryTaskId" => text(&query, "query_task_id").to_owned(),
        "updateValidationTaskId" => text(&validation, "update_id").to_owned(),
        "signalName" | "queryName" | "updateName" | "streamName" => "go".to_owned(),
        other => panic!("no value for {other}"),
    };
    let mut before = server.db.contents().await;
    let mut sent = 0;
    let mut operations = operations();
    operations.retain(|operation| operation.method == Method::POST);
    // A validation does not wait for long.
    let validates = |operation: &Operation| operation.path.contains("{updateValidationTaskId}");
    operations.sort_by_key(|operation| !validates(operation));
    let mut changes = Some(changes);
    for operation in operations {
        if !validates(&operation)
            && let Some(changes) = changes.take()
        {
            assert_eq!(server.db.contents().await, before);
            language::judge(client, &validation, "approve", json!({}))
                .await
                .expect(200);
            let body = changes.await.unwrap().expect(202);
            assert_eq!(body["update_status"], "accepted");
            before = server.db.contents().await;
        }
        let plane = plane(&operation.path);
        let path = fill(&operation.path, |name| real(&operation.path, name));
        let request = || request(&server, &operation.method, &path, plane);
        let mut attempts = Vec::new();
        let mut add = |label: String, request| {
            attempts.push(Attempt {
                label: format!("{path}: {label}"),
                plane,
                request,
            });
        };
        assert_ne!(operation.fields.is_empty(), operation.has_body, "{path}");
        for (label, value) in wrong_values() {
            let body: Map<String, Value> = operation
                .fields
                .iter()
                .map(|field| (field.clone(), value.clone()))
                .collect();
            add(
                format!("all {label}"),
                with_body(request(), Value::from(body).to_string()),
            );
        }
        for broken in BROKEN {
            add(format!("{broken:?}"), with_body(request(), broken));
        }
        add(
            "text".to_owned(),
            request().header("Content-Type", "text/plain").body("{}"),
        );
        add("no type".to_owned(), request().body("{}"));
        add(
            "gzip".to_owned(),
            with_body(request(), "{}").header("Content-Encoding", "gzip"),
        );
        add(
            "too large".to_owned(),
            with_body(request(), format!("{{\"x\":\"{}\"}}", "x".repeat(3 << 20))),
        );
        add(
            "deep".to_owned(),
            with_body(
                request(),
                format!("{{\"x\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000)),
            ),
        );
        add(
            "nowhere".to_owned(),
            with_body(request(), "{}").header("X-Namespace", "nowhere"),
        );
        add(
            "bad namespace".to_owned(),
            with_body(request(), "{}").header("X-Namespace", "a b"),
        );
        add(
            "two namespaces".to_owned(),
            with_body(request(), "{}")
                .header("X-Namespace", "default")
                .header("X-Namespace", "default"),
        );
        for (name, value) in [
            ("Authorization", "Bearer x"),
            ("X-Durable-Workflow-Protocol-Version", "9"),
            (crate::control::VERSION, "9"),
        ] {
            // A second value of a header that must be there once.
            if name == "Authorization" || (plane == Plane::Worker) == name.contains("Protocol") {
                add(
                    format!("two {name}"),
                    with_body(request(), "{}").header(name, value),
                );
            }
        }
        sent += send_all(client, attempts, false).await;
    }
    assert!(sent > 600, "{sent}");
    assert_eq!(server.db.contents().await, before);
    language::answer(client, &query, "complete", json!({"result": 7}))
        .await
        .expect(200);
    assert_eq!(asks.await.unwrap().expect(200)["result"], 7);
    client
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: the same for paths and queries that name nothing, at every route and with every method.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_paths_and_queries_change_nothing() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.first_activity(json!({})).await;
    let before = server.db.contents().await;
    let mut sent = 0;
    for operation in operations() {
        let plane = plane(&operation.path);
        let mut attempts = Vec::new();
        let mut add = |path: String, request: RequestBuilder| {
            attempts.push(Attempt {
                label: format!("{} {path}", operation.method),
                plane,
                request,
            });
        };
        let whole = |path: &str| {
            let request = request(&server, &operation.method, path, plane);
            if operation.method == Method::POST {
                with_body(request, "{}")
            } else {
                request
            }
        };
        if operation.path.contains('{') {
            let long = "x".repeat(4_000);
            for segment in SEGMENTS.into_iter().chain([long.as_str()]) {
                let path = fill(&operation.path, |_| segment.to_owned());
                let request = whole(&path);
                add(path, request);
            }
        }
        // Of a reading route; a write with nothing but a wrong query may be right.
        if operation.method == Method::GET {
            for query in QUERIES {
                let path = format!("{}?{query}", fill(&operation.path, |_| "x".to_owned()));
                let request = whole(&path);
                add(path, request);
            }
        }
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::PATCH,
            Method::OPTIONS,
        ] {
            if method != operation.method && operation.path != "/metrics" {
                let path = fill(&operation.path, |_| "x".to_owned());
                let request = request(&server, &method, &path, plane);
                add(path, request);
            }
        }
        sent += send_all(client, attempts, true).await;
    }
    assert!(sent > 400, "{sent}");
    assert_eq!(server.db.contents().await, before);
    server.stop().await;
}

/// Rule: each field alone, wrong in one way, at the routes whose bodies are richest.
#[tokio::test(flavor = "multi_thread")]
async fn each_field_alone_is_refused_by_its_path() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let before = server.db.contents().await;
    let complete = format!(
        "/api/worker/workflow-tasks/{}/complete",
        text(&task, "task_id")
    );
    let bases = [
        (
            "/api/worker/register",
            json!({"worker_id": "v", "task_queue": "q"}),
        ),
        (
            "/api/worker/workflow-tasks/poll",
            json!({"worker_id": "v", "task_queue": "q", "timeout_seconds": 0}),
        ),
        ("/api/workflows", json!({"workflow_type": ""})),
        (
            complete.as_str(),
            json!({"lease_owner": "x", "workflow_task_attempt": 1, "commands": []}),
        ),
    ];
    let mut sent = 0;
    for (path, base) in bases {
        let known = operations();
        let operation = known
            .iter()
            .find(|operation| {
                operation.method == Method::POST
                    && fill(&operation.path, |_| text(&task, "task_id").to_owned())
                        == path.trim_start_matches("/api")
            })
            .unwrap_or_else(|| panic!("no {path}"));
        let mut attempts = Vec::new();
        for field in &operation.fields {
            for (label, value) in wrong_values() {
                let mut body = base.clone();
                body[field] = value;
                // Nothing is registered: a name of its own would be.
                if path.ends_with("register") && field != "task_queue" {
                    body["task_queues"] = json!([""]);
                }
                let request = request(
                    &server,
                    &Method::POST,
                    path.trim_start_matches("/api"),
                    plane(path),
                );
                attempts.push(Attempt {
                    label: format!("{path} {field} {label}"),
                    plane: plane(path),
                    request: with_body(request, body.to_string()),
                });
            }
        }
        sent += send_all(client, attempts, false).await;
    }
    assert!(sent > 500, "{sent}");
    assert_eq!(server.db.contents().await, before);
    server.stop().await;
}
