//! Input that must not hurt, names and rights.

use serde_json::{Value, json};

use crate::support::{Client, TestServer, envelope, text};

/// Rule: payloads are opaque: a zero byte or half a surrogate is kept or refused with its path, never a
/// 5xx, and after a refusal a corrected report is taken.
#[tokio::test(flavor = "multi_thread")]
async fn fc_18_a_zero_byte_is_kept_or_refused() {
    let server = TestServer::start().await;
    let client = &server.client;
    let bodies = [
        r#"{"result": {"a": "x\u0000y"}, FENCE}"#,
        r#"{"result": {"a\u0000": 1}, FENCE}"#,
        r#"{"result": "\ud800", FENCE}"#,
        r#"{"failure": {"message": "x\u0000y"}, FENCE}"#,
        r#"{"failure": {"message": "\ud800"}, FENCE}"#,
    ];
    for (n, body) in bodies.into_iter().enumerate() {
        let id = format!("wf{n}");
        let activity = client.activity_of(&id, json!({})).await;
        let fence = format!(
            r#""lease_owner": "{id}", "activity_attempt_id": "{}""#,
            text(&activity, "activity_attempt_id")
        );
        let report = if body.contains("failure") {
            "fail"
        } else {
            "complete"
        };
        let path = format!(
            "/worker/activity-tasks/{}/{report}",
            text(&activity, "task_id")
        );
        let request = client
            .request(reqwest::Method::POST, &path)
            .header("Content-Type", "application/json")
            .body(body.replace("FENCE", &fence));
        let answer = client.send(request).await;
        let status = answer.status.as_u16();
        assert!([200, 400, 422].contains(&status), "{body}: {status}");
        if status != 200 {
            assert!(answer.body["reason"].is_string());
            client
                .report(&activity, "heartbeat", json!({}))
                .await
                .expect(200);
            client
                .report(&activity, "complete", json!({"result": "ok"}))
                .await
                .expect(200);
        }
        let task = client.poll("workflow", &id, &id, 5).await;
        assert_eq!(task["workflow_id"], id);
    }
    let name = json!({"worker_id": "a\u{0}b", "task_queue": "q"});
    let answer = client.post("/worker/register", name).await;
    answer.refused(422, "validation_failed");
    server.stop().await;
}

/// Rule: depth is limited before the value is built: up to 50 levels are taken, whatever is deeper is
/// taken or refused with a reason, and the server stays.
#[tokio::test(flavor = "multi_thread")]
async fn fc_19_deep_values_do_not_hurt() {
    let server = TestServer::start().await;
    let client = &server.client;
    let nested = |open: &str, close: &str, depth: usize| {
        format!("{}1{}", open.repeat(depth), close.repeat(depth))
    };
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        for depth in [50, 100, 128, 1_000, 100_000] {
            let value = nested(open, close, depth);
            let id = format!("wf-{}-{depth}", open.len());
            let activity = client.activity_of(&id, json!({})).await;
            let fence = format!(
                r#""lease_owner": "{id}", "activity_attempt_id": "{}""#,
                text(&activity, "activity_attempt_id")
            );
            let task = text(&activity, "task_id");
            for (path, body) in [
                (
                    format!("/worker/activity-tasks/{task}/heartbeat"),
                    format!(r#"{{"progress": {value}, {fence}}}"#),
                ),
                (
                    format!("/worker/activity-tasks/{task}/complete"),
                    value.clone(),
                ),
                (
                    format!("/worker/workflow-tasks/{task}/complete"),
                    format!(r#"{{"commands": {value}, "worker_id": "w"}}"#),
                ),
                (
                    format!("/worker/activity-tasks/{task}/complete"),
                    format!(r#"{{"result": {value}, {fence}}}"#),
                ),
            ] {
                let is_result = body.contains("\"result\"");
                let request = client
                    .request(reqwest::Method::POST, &path)
                    .header("Content-Type", "application/json")
                    .body(body);
                let answer = client.send(request).await;
                let status = answer.status.as_u16();
                assert!(
                    [200, 400, 404, 413, 422].contains(&status),
                    "{path} {depth}: {status}"
                );
                if status != 200 {
                    assert!(answer.body["reason"].is_string(), "{:#}", answer.body);
                }
                if is_result && depth == 50 {
                    assert_eq!(status, 200, "{:#}", answer.body["error"]);
                }
                if is_result && depth >= 1_000 {
                    assert_ne!(status, 200, "{depth}");
                }
            }
        }
    }
    let wide = format!("[{}]", vec!["[]"; 300_000].join(","));
    let request = client
        .request(reqwest::Method::POST, "/worker/register")
        .header("Content-Type", "application/json")
        .body(wide);
    let answer = client.send(request).await;
    assert!(answer.status.is_client_error());
    client
        .send(client.bare(reqwest::Method::GET, "/ready"))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: a batch applies fully or not at all, and has a maximum: a wrong command at its end refuses the
/// whole with its index.
#[tokio::test(flavor = "multi_thread")]
async fn fc_21_many_commands_apply_as_a_whole() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let effect = json!({"type": "record_side_effect", "result": envelope(json!(1))});
    for count in [1, 10, 100, 500, 1_000] {
        let id = format!("wf{count}");
        let run = client.start(&id, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let mut commands = vec![effect.clone(); count - 1];
        commands.push(json!({"type": "record_side_effect"}));
        let before = server.db.contents().await;
        let path = format!("commands.{}.result", count - 1);
        client
            .complete(&task, json!(commands))
            .await
            .invalid(&[&path]);
        assert_eq!(server.db.contents().await, before);
        let commands = vec![effect.clone(); count];
        let answer = client.complete(&task, json!(commands)).await;
        if answer.status == 422 {
            // The documented maximum.
            assert!(count > 500, "{count}: {:#}", answer.body["error"]);
            assert!(answer.body["reason"].is_string());
            assert_eq!(server.db.contents().await, before);
            client
                .complete(&task, json!([{"type": "complete_workflow"}]))
                .await
                .expect(200);
        } else {
            answer.expect(200);
            let events = client.events(&id, &run).await;
            let recorded = events.iter().filter(|kind| *kind == "SideEffectRecorded");
            // What the list shows at once, without the two events of the start.
            assert_eq!(recorded.count(), count.min(998));
        }
    }
    client.start("over", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    let answer = client.complete(&task, json!(vec![effect; 1_001])).await;
    assert_eq!(answer.status, 422);
    assert!(answer.body["reason"].is_string());
    server.stop().await;
}

/// Rule: the namespace is resolved once: two different headers are refused, and a field of the body
/// widens nothing.
#[tokio::test(flavor = "multi_thread")]
async fn fc_23_the_header_alone_names_the_namespace() {
    let server = TestServer::start().await;
    server
        .db
        .execute("insert into namespaces (name) values ('second')")
        .await;
    let client = &server.client;
    let task = client.first_task().await;
    let path = format!("/worker/workflow-tasks/{}/complete", text(&task, "task_id"));
    let body = json!({
        "namespace": "default", "lease_owner": "w", "workflow_task_attempt": 1,
        "commands": [{"type": "complete_workflow"}],
    });
    let before = server.db.contents().await;
    let request = client
        .request(reqwest::Method::POST, &path)
        .header("X-Namespace", "second")
        .json(&body);
    client.send(request).await.refused(404, "task_not_found");
    let request = client
        .request(reqwest::Method::POST, &format!("{path}?namespace=default"))
        .header("X-Namespace", "second")
        .json(&body);
    client.send(request).await.refused(404, "task_not_found");
    for names in [["default", "second"], ["second", "default"]] {
        let mut request = client.request(reqwest::Method::POST, &path).json(&body);
        for name in names {
            request = request.header("X-Namespace", name);
        }
        // It names none.
        client
            .send(request)
            .await
            .refused(404, "namespace_not_found");
    }
    assert_eq!(server.db.contents().await, before);
    client.post(&path, body).await.expect(200);
    server.stop().await;
}

async fn register_build(client: &Client, worker: &str, build: Value) {
    let body = json!({
        "worker_id": worker, "task_queue": "q", "build_id": build,
        "supported_workflow_types": ["flow"], "supported_activity_types": ["act"],
    });
    client.post("/worker/register", body).await.expect(200);
}

/// Rule: routing is decided from the stored registration: tasks of a pinned run go to workers that
/// registered its build and to nobody else, whatever a poll says.
#[tokio::test(flavor = "multi_thread")]
async fn fc_24_a_pinned_task_goes_to_its_build() {
    let server = TestServer::start().await;
    let client = &server.client;
    register_build(client, "w1", json!("b1")).await;
    register_build(client, "w0", Value::Null).await;
    register_build(client, "w2", json!("b2")).await;
    client.start_with("wf", json!({"build_id": "b1"})).await;
    let poll = async |worker: &str, kind: &str, build: Value| {
        let body = json!({
            "worker_id": worker, "task_queue": "q", "build_id": build, "timeout_seconds": 0,
        });
        client
            .post(&format!("/worker/{kind}-tasks/poll"), body)
            .await
    };
    let strangers = async |kind: &str| {
        for build in [Value::Null, json!("b2"), json!("b1")] {
            let body = poll("w0", kind, build.clone()).await.expect(200);
            assert_eq!(body["task"], Value::Null, "{kind} {build}");
            let answer = poll("w2", kind, build.clone()).await;
            if build == "b1" {
                answer.refused(409, "build_id_mismatch");
            } else {
                assert_eq!(answer.expect(200)["task"], Value::Null);
            }
        }
    };
    strangers("workflow").await;
    let task = poll("w1", "workflow", json!("b1")).await.expect(200)["task"].take();
    assert_eq!(task["workflow_id"], "wf");
    let act = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    client.complete(&task, act).await.expect(200);
    let activity = poll("w1", "activity", Value::Null).await.expect(200)["task"].take();
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    strangers("workflow").await;
    let task = poll("w1", "workflow", Value::Null).await.expect(200)["task"].take();
    assert_eq!(task["workflow_task_attempt"], 1);
    server.stop().await;
}
