//! Bodies of the worker plane: which are read, which are refused and where, and the form of answers.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::support::{Client, TOKEN, TestServer, merged, text};

fn register(client: &Client, media: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
    client
        .request(Method::POST, "/worker/register")
        .header("Content-Type", media)
        .body(body)
}

/// Rule: the two keys of the envelope are first, in this order, on success and on error.
#[tokio::test(flavor = "multi_thread")]
async fn version_and_capabilities_are_the_first_keys_of_every_answer() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let fence = json!({"lease_owner": "w", "workflow_task_attempt": task["workflow_task_attempt"]});
    let path = |report: &str| format!("/worker/workflow-tasks/{}/{report}", text(&task, "task_id"));
    let poll = json!({"worker_id": "w", "task_queue": "q", "timeout_seconds": 0});
    for (path, body) in [
        (
            "/worker/register".to_owned(),
            json!({"worker_id": "v", "task_queue": "q"}),
        ),
        ("/worker/heartbeat".to_owned(), json!({"worker_id": "w"})),
        ("/worker/workflow-tasks/poll".to_owned(), poll.clone()),
        ("/worker/activity-tasks/poll".to_owned(), poll),
        (path("history"), fence.clone()),
        (path("heartbeat"), fence.clone()),
        (path("complete"), merged(fence, json!({"commands": []}))),
        ("/worker/register".to_owned(), json!({})),
        ("/worker/none".to_owned(), json!({})),
    ] {
        let request = client.request(Method::POST, &path).json(&body);
        let answer = request.send().await.unwrap().text().await.unwrap();
        let keys: Vec<&str> = answer
            .splitn(3, "\":")
            .map(|part| part.rsplit('"').next().unwrap())
            .collect();
        assert_eq!(
            keys[..2],
            ["protocol_version", "server_capabilities"],
            "{path}: {answer}"
        );
        let body: Value = serde_json::from_str(&answer).unwrap();
        assert!(body.get("data").is_none(), "{path}");
    }
    server.stop().await;
}

/// Rule: unknown request fields are ignored, at every level that is read.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_are_ignored() {
    let server = TestServer::start().await;
    let client = &server.client;
    let extra = json!({"future_field": {"a": [1, {"b": null}]}, "1": true, "": "x"});
    let body = json!({
        "worker_id": "w", "task_queue": "q", "supported_workflow_types": ["flow"],
        "task_slots": {"workflow_available": 1, "other_available": 3},
        "process_metrics": {"host": "h", "threads": 12},
    });
    client
        .post("/worker/register", merged(body, extra.clone()))
        .await
        .expect(200);
    client.start("wf", "flow", "q").await;
    let poll = json!({"worker_id": "w", "task_queue": "q", "timeout_seconds": 5});
    let polled = client
        .post("/worker/workflow-tasks/poll", merged(poll, extra.clone()))
        .await;
    let task = polled.expect(200)["task"].take();
    client
        .task(&task, "heartbeat", extra.clone())
        .await
        .expect(200);
    client
        .task(&task, "history", extra.clone())
        .await
        .expect(200);
    let timer = merged(
        json!({"type": "start_timer", "delay_seconds": 60}),
        extra.clone(),
    );
    let body = merged(extra, json!({"commands": [timer]}));
    let body = client.task(&task, "complete", body).await.expect(200);
    assert_eq!(body["run_status"], "waiting");
    server.stop().await;
}

/// Rule: JSON media types with parameters and with a `+json` suffix are read; others are refused and
/// told which are.
#[tokio::test(flavor = "multi_thread")]
async fn json_media_types_are_read_and_others_refused() {
    let server = TestServer::start().await;
    let client = &server.client;
    let body = r#"{"worker_id":"w","task_queue":"q"}"#;
    for media in [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "APPLICATION/JSON",
        "application/x+json",
        "application/vnd.durable-workflow.v2+json; q=1",
        " application/json ",
    ] {
        client.send(register(client, media, body)).await.expect(200);
    }
    for media in [
        "",
        "text/plain",
        "text/json",
        "application/xml",
        "application/jsonx",
        "application/+jsonx",
        "application/x-www-form-urlencoded",
        "json",
        "application/octet-stream",
        "text/x+json",
    ] {
        let answer = client.send(register(client, media, body)).await;
        let body = answer.refused(415, "unsupported_media_type");
        assert_eq!(
            body["accepted_content_types"],
            json!(["application/json", "application/*+json"])
        );
    }
    let without = client.request(Method::POST, "/worker/register").body(body);
    client
        .send(without)
        .await
        .refused(415, "unsupported_media_type");
    server.stop().await;
}

/// Rule: request bodies are plain; a compressed one is refused, not misread.
#[tokio::test(flavor = "multi_thread")]
async fn encoded_bodies_are_refused() {
    let server = TestServer::start().await;
    let client = &server.client;
    let plain = r#"{"worker_id":"w","task_queue":"q"}"#;
    // gzip of "{}", so that nothing but the header is at stake.
    let gzip =
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\xae\x05\x00\x43\xbf\xa6\xa3\x02\x00\x00\x00";
    for encoding in ["gzip", "deflate", "br", "gzip, identity", "zstd"] {
        let request = register(client, "application/json", gzip.to_vec())
            .header("Content-Encoding", encoding);
        client
            .send(request)
            .await
            .refused(415, "unsupported_media_type");
    }
    let request =
        register(client, "application/json", plain).header("Content-Encoding", "identity");
    client.send(request).await.expect(200);
    server.stop().await;
}

/// Rule: a request without a body needs no content type, and counts as an empty object.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_body_needs_no_content_type() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &[], &[]).await;
    let body = client.delete("/worker/registrations/w").await.expect(200);
    assert_eq!(body["outcome"], "deregistered");
    let request = client.request(Method::POST, "/worker/register");
    client.send(request).await.invalid(&["task_queues"]);
    for body in ["", " \r\n\t "] {
        let request = register(client, "application/json", body);
        client.send(request).await.invalid(&["task_queues"]);
    }
    // A body of a DELETE is checked like every other.
    let request = client
        .request(Method::DELETE, "/worker/registrations/w")
        .body("{}");
    client
        .send(request)
        .await
        .refused(415, "unsupported_media_type");
    server.stop().await;
}

/// Rule: malformed JSON is told apart from JSON with wrong fields.
#[tokio::test(flavor = "multi_thread")]
async fn broken_json_is_malformed_wherever_it_breaks() {
    let server = TestServer::start().await;
    let client = &server.client;
    let deep = format!(
        r#"{{"worker_id":"w","task_queue":"q","x":{}{}}}"#,
        "[".repeat(5_000),
        "]".repeat(5_000)
    );
    let huge = r#"{"worker_id":"w","task_queue":"q","x":1e999}"#;
    let broken: [&[u8]; 13] = [
        b"{",
        b"}",
        b"nul",
        b"{\"worker_id\":\"w\",}",
        b"{'worker_id':1}",
        b"{} {}",
        b"{\"a\":1}x",
        b"{\"worker_id\":\"\xff\"}",
        b"{\"x\":\"\\ud800\"}",
        b"{\"x\":\"\t\"}",
        b"{\"x\":01}",
        deep.as_bytes(),
        huge.as_bytes(),
    ];
    for body in broken {
        let answer = client
            .send(register(client, "application/json", body.to_vec()))
            .await;
        let body = answer.refused(400, "malformed_json");
        assert!(!text(&body, "json_error").is_empty());
    }
    let answer = client
        .send(register(client, "application/json", deep))
        .await;
    let body = answer.refused(400, "malformed_json");
    assert_eq!(body["error"], "The body is nested deeper than 100 levels.");
    for other in ["[]", "null", "1", "\"text\"", "[{\"worker_id\":\"w\"}]"] {
        let answer = client
            .send(register(client, "application/json", other))
            .await;
        answer.invalid(&["body"]);
    }
    server.stop().await;
}

/// Rule: a repeated key of one field is a mistake of the caller, not of the server: it is answered
/// with a 4xx, and one that is not read is ignored.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_keys_are_no_server_error() {
    let server = TestServer::start().await;
    let client = &server.client;
    let twice = r#"{"worker_id":"a","worker_id":"b","task_queue":"q"}"#;
    let body = client
        .send(register(client, "application/json", twice))
        .await
        .invalid(&["body"]);
    assert!(text(&body, "message").contains("worker_id"));
    let ignored = r#"{"worker_id":"a","task_queue":"q","x":1,"x":2}"#;
    client
        .send(register(client, "application/json", ignored))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: NUL cannot be stored and is refused with the path of the field, read or not.
#[tokio::test(flavor = "multi_thread")]
async fn nul_in_text_is_refused_by_its_path() {
    let server = TestServer::start().await;
    let client = &server.client;
    for (body, fields) in [
        (
            r#"{"worker_id":"a\u0000","task_queue":"q"}"#,
            &["worker_id"][..],
        ),
        (
            r#"{"worker_id":"a","task_queues":["q","\u0000"]}"#,
            &["task_queues.1"],
        ),
        (
            r#"{"worker_id":"a","task_queue":"q","x":{"y":[{"z":"\u0000"}]}}"#,
            &["x.y.0.z"],
        ),
        (
            r#"{"worker_id":"a","task_queue":"q","x":{"\u0000":1}}"#,
            &["body"],
        ),
        (
            r#"{"worker_id":"\u0000","task_queue":"\u0000"}"#,
            &["task_queue", "worker_id"],
        ),
    ] {
        client
            .send(register(client, "application/json", body))
            .await
            .invalid(fields);
    }
    let answer = client.delete("/worker/registrations/a%00b").await;
    answer.invalid(&["path"]);
    let answer = client.get("/workflows?query=a%00b&workflow_type=%00").await;
    answer.invalid(&["query", "workflow_type"]);
    let escaped = r#"{"worker_id":"a\\u0000","task_queue":"q"}"#;
    let body = client
        .send(register(client, "application/json", escaped))
        .await
        .expect(200);
    assert_eq!(body["worker_id"], "a\\u0000");
    server.stop().await;
}

/// Rule: the bound holds for an announced length, without waiting for the body.
#[tokio::test(flavor = "multi_thread")]
async fn an_announced_length_above_the_bound_is_refused_at_once() {
    let server = TestServer::with(|settings| settings.http.max_body_bytes = 1_000).await;
    let head = format!(
        "POST /api/worker/register HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: 1001\r\n\r\n{{"
    );
    let (status, head, body) = server.client.raw(head).await;
    assert_eq!(status, 413, "{head} {body}");
    assert_eq!(body["reason"], "payload_too_large");
    assert_eq!(body["limit"], 1_000);
    assert!(
        head.contains("x-durable-workflow-protocol-version: 1.13"),
        "{head}"
    );
    server.stop().await;
}

/// Rule: the bound holds while reading, for a body that announces no length.
#[tokio::test(flavor = "multi_thread")]
async fn a_chunked_body_above_the_bound_is_refused() {
    let server = TestServer::with(|settings| settings.http.max_body_bytes = 1_000).await;
    let head = format!(
        "POST /api/worker/register HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\
         x-durable-workflow-protocol-version: 1.13\r\n\
         content-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let padded = |bytes: usize| {
        let body = r#"{"worker_id":"w","task_queue":"q"}"#;
        let body = format!("{body}{}", " ".repeat(bytes - body.len()));
        let mut request = head.clone();
        for chunk in body.as_bytes().chunks(100) {
            let chunk = std::str::from_utf8(chunk).unwrap();
            request.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len()));
        }
        request + "0\r\n\r\n"
    };
    let (status, _, body) = server.client.raw(padded(1_000)).await;
    assert_eq!(status, 200, "{body}");
    let (status, _, body) = server.client.raw(padded(1_001)).await;
    assert_eq!(status, 413, "{body}");
    assert_eq!(body["reason"], "payload_too_large");
    server.stop().await;
}

/// Rule: the default bound is 3 MiB, so that a payload of the largest size fits into a request.
#[tokio::test(flavor = "multi_thread")]
async fn the_default_bound_leaves_room_for_the_largest_payload() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    let blob = "A".repeat(2_097_152);
    let result = json!({"result": {"codec": "avro", "blob": blob}});
    client
        .report(&activity, "complete", result)
        .await
        .expect(200);
    let body = json!({"worker_id": "w", "task_queue": "q", "x": "x".repeat(3 << 20)});
    let body = client
        .post("/worker/register", body)
        .await
        .refused(413, "payload_too_large");
    assert_eq!(body["limit"], 3 << 20);
    server.stop().await;
}

/// Rule: an id for the request is taken over when it is well formed, and made otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_has_a_request_id() {
    let server = TestServer::start().await;
    let client = &server.client;
    let send = async |id: &str| {
        let request = client
            .request(Method::POST, "/worker/none")
            .header("X-Request-Id", id);
        client.send(request).await.header("X-Request-Id").to_owned()
    };
    assert_eq!(send("caller:1.a_b-c").await, "caller:1.a_b-c");
    for bad in ["", "a b", "a/b", &"x".repeat(129)] {
        let made = send(bad).await;
        assert!(made != bad && made.len() >= 26, "{made}");
    }
    server.stop().await;
}
