//! Namespaces: what belongs to one does not exist in another.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer, envelope, text};

async fn in_namespace(
    client: &Client,
    namespace: &str,
    method: Method,
    path: &str,
    body: Value,
) -> Answer {
    let request = client
        .request(method, path)
        .header("X-Namespace", namespace)
        .json(&body);
    client.send(request).await
}

/// Rule: every object of another namespace answers exactly like one that does not exist.
#[tokio::test(flavor = "multi_thread")]
async fn fc_22_what_belongs_to_another_namespace_does_not_exist() {
    let server = TestServer::start().await;
    server
        .db
        .execute("insert into namespaces (name) values ('second')")
        .await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    let run = text(&activity, "run_id");
    let before = server.db.contents().await;
    let second = async |method: Method, path: &str| {
        in_namespace(client, "second", method, path, json!({})).await
    };
    for path in [
        "/workflows/wf".to_owned(),
        "/workflows/wf/runs".to_owned(),
        format!("/workflows/wf/runs/{run}"),
        format!("/workflows/wf/runs/{run}/history"),
        format!("/workflows/wf/runs/{run}/history/export"),
    ] {
        second(Method::GET, &path)
            .await
            .refused(404, "instance_not_found");
    }
    for command in ["signal/go", "cancel", "terminate", "archive"] {
        second(Method::POST, &format!("/workflows/wf/{command}"))
            .await
            .refused(404, "instance_not_found");
        second(Method::POST, &format!("/workflows/wf/runs/{run}/{command}"))
            .await
            .refused(404, "instance_not_found");
    }
    assert_eq!(
        second(Method::GET, "/workflows").await.expect(200)["workflows"],
        json!([])
    );
    assert_eq!(
        second(Method::GET, "/workers").await.expect(200)["workers"],
        json!([])
    );
    assert_eq!(
        second(Method::GET, "/task-queues").await.expect(200)["task_queues"],
        json!([])
    );
    second(Method::GET, "/workers/w")
        .await
        .refused(404, "worker_not_found");
    second(Method::DELETE, "/workers/w")
        .await
        .refused(404, "worker_not_found");
    let queue = second(Method::GET, "/task-queues/q").await.expect(200);
    assert_eq!(queue["stats"]["activity_tasks"]["leased_count"], 0);
    assert_eq!(server.db.contents().await, before);
    server.stop().await;
}

/// Rule: the same ids live side by side in two namespaces, each with its own worker, task and keys.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_ids_live_side_by_side() {
    let server = TestServer::start().await;
    server
        .db
        .execute("insert into namespaces (name) values ('second')")
        .await;
    let client = &server.client;
    let mut runs = Vec::new();
    for namespace in ["default", "second"] {
        let post = async |path: &str, body: Value| {
            in_namespace(client, namespace, Method::POST, path, body).await
        };
        let register = json!({"worker_id": "w", "task_queue": "q", "workflow_types": ["flow"]});
        post("/worker/register", register).await.expect(200);
        let start = json!({"workflow_id": "wf", "workflow_type": "flow", "task_queue": "q", "input": [namespace]});
        let started = post("/workflows", start).await.expect(201);
        assert_eq!(started["namespace"], namespace);
        runs.push(text(&started, "run_id").to_owned());
        let signalled = post("/workflows/wf/signal/go", json!({"request_id": "k"}))
            .await
            .expect(202);
        assert_eq!(signalled["retained"], false);
    }
    for (namespace, run) in ["default", "second"].into_iter().zip(&runs) {
        let post = async |path: &str, body: Value| {
            in_namespace(client, namespace, Method::POST, path, body).await
        };
        let poll = json!({"worker_id": "w", "task_queue": "q", "timeout_seconds": 5});
        let task = post("/worker/workflow-tasks/poll", poll).await.expect(200)["task"].take();
        assert_eq!(task["run_id"], run.as_str());
        assert_eq!(task["namespace"], namespace);
        assert_eq!(task["arguments"], envelope(json!([namespace])));
        let complete = json!({
            "lease_owner": "w", "workflow_task_attempt": 1,
            "commands": [{"type": "complete_workflow", "result": envelope(json!(namespace))}],
        });
        let path = format!("/worker/workflow-tasks/{}/complete", text(&task, "task_id"));
        post(&path, complete).await.expect(200);
        let described = in_namespace(client, namespace, Method::GET, "/workflows/wf", json!({}))
            .await
            .expect(200);
        assert_eq!(described["output"], namespace);
        assert_eq!(described["namespace"], namespace);
    }
    server.stop().await;
}

/// Rule: a parked poll of one namespace does not take a task of another.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_takes_no_task_of_another_namespace() {
    let server = TestServer::start().await;
    server
        .db
        .execute("insert into namespaces (name) values ('second')")
        .await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let poll = {
        let client = client.clone();
        tokio::spawn(async move { client.poll("workflow", "w", "q", 1).await })
    };
    crate::support::eventually("the poll is parked", 5, async || {
        (server.node.engine().parked_polls() == 1).then_some(())
    })
    .await;
    let start = json!({"workflow_id": "wf", "workflow_type": "flow", "task_queue": "q"});
    in_namespace(client, "second", Method::POST, "/workflows", start)
        .await
        .expect(201);
    assert!(poll.await.unwrap().is_null());
    server.stop().await;
}
