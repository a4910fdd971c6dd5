//! What the workflow language added to the core, at the default version and at the newest.

mod cancellation;
mod children;
mod gates;
mod local;
mod metadata;
mod queries;
mod repair;
mod selection;
mod signals;
mod streams;
mod updates;
mod validations;
mod waits;

use serde_json::{Value, json};

use tokio::task::JoinHandle;

use crate::support::{Answer, Client, TestServer, merged, text};

/// The default version of the worker protocol, and the newest.
pub const VERSIONS: [&str; 2] = ["1.13", "1.20"];

/// Capabilities of a worker that can do everything that its protocol version knows.
fn capabilities(version: &str) -> Vec<&'static str> {
    let mut all = vec![
        "query_tasks",
        "update_validation_tasks",
        "workflow_updates",
        "durable_selection",
    ];
    if version == "1.20" {
        all.extend([
            "memo_upserts",
            "message_streams",
            "typed_search_attributes",
            "local_activities",
            "cooperative_cancellation",
        ]);
    }
    all
}

/// A registration of a worker that can do everything that its protocol version knows.
pub fn capable(client: &Client, worker: &str, queue: &str) -> Value {
    let entry =
        |supported: bool| json!({"supported": supported, "minimum_protocol_version": "1.18"});
    json!({
        "worker_id": worker,
        "task_queue": queue,
        "runtime": "external",
        "supported_workflow_types": ["flow"],
        "supported_activity_types": ["act"],
        "capabilities": capabilities(&client.version),
        "capability_manifest": {
            "local_activities": entry(client.version == "1.20"),
            "worker_sessions": entry(false),
            "sticky_execution": entry(false),
        },
    })
}

/// Registers a worker that can do everything, with these fields over the others.
pub async fn register(client: &Client, worker: &str, queue: &str, fields: Value) {
    let body = merged(capable(client, worker, queue), fields);
    client.post("/worker/register", body).await.expect(200);
}

/// A server that advertises this version.
pub async fn server(version: &str) -> TestServer {
    TestServer::with(|settings| settings.worker_protocol = version.to_owned()).await
}

/// Registers worker `w` of queue `q` for everything, starts workflow `wf` and gives its first task.
pub async fn first_task(client: &Client) -> Value {
    register(client, "w", "q", json!({})).await;
    client.start("wf", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    assert!(task.is_object(), "no task");
    task
}

/// Sends a command to a workflow, `update/name` for example, and gives the answer when it comes.
pub fn ask(client: &Client, workflow: &str, command: &str, body: Value) -> JoinHandle<Answer> {
    send(client, &format!("/workflows/{workflow}/{command}"), body)
}

/// Sends a request and gives the answer when it comes.
pub fn send(client: &Client, path: &str, body: Value) -> JoinHandle<Answer> {
    let (client, path) = (client.clone(), path.to_owned());
    tokio::spawn(async move { client.post(&path, body).await })
}

/// Reports on a query task under its own fence: `complete` or `fail`, with these further fields.
pub async fn answer(client: &Client, task: &Value, report: &str, fields: Value) -> Answer {
    let path = format!(
        "/worker/query-tasks/{}/{report}",
        text(task, "query_task_id")
    );
    let fence = json!({
        "lease_owner": task["lease_owner"],
        "query_task_attempt": task["query_task_attempt"],
    });
    client.post(&path, merged(fence, fields)).await
}

/// Reports on an update-validation task under its own fence: `approve` or `reject`, with these further
/// fields.
pub async fn judge(client: &Client, task: &Value, report: &str, fields: Value) -> Answer {
    let path = format!(
        "/worker/update-validation-tasks/{}/{report}",
        text(task, "update_validation_task_id")
    );
    let fence = json!({
        "lease_owner": task["lease_owner"],
        "update_validation_attempt": task["update_validation_attempt"],
    });
    client.post(&path, merged(fence, fields)).await
}
