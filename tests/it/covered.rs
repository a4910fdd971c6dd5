//! Every operation of the generated documents is answered with each success that they show, by a
//! server that does what it is asked; all answers are held against the documents on the way.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::documented;
use super::support::{Answer, Client, TestServer, envelope, merged, text};

/// The operations that were answered, each with its status.
#[derive(Clone, Default)]
struct Met(std::sync::Arc<std::sync::Mutex<BTreeSet<(String, String)>>>);

impl Met {
    fn note(&self, operation: &str, status: &str) {
        let mut met = self.0.lock().unwrap();
        met.insert((operation.to_owned(), status.to_owned()));
    }

    fn all(&self) -> BTreeSet<(String, String)> {
        self.0.lock().unwrap().clone()
    }
}

/// A client that notes the operations whose answers it has seen.
#[derive(Clone)]
struct Noting {
    client: Client,
    met: Met,
}

impl Noting {
    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let mut request = self.client.request(method.clone(), path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = self.client.send(request).await;
        let path = path.split('?').next().unwrap();
        if let Some(operation) = documented::operation(&method, &format!("/api{path}"), &answer) {
            self.met.note(&operation, answer.status.as_str());
        }
        answer
    }

    async fn get(&self, path: &str, status: u16) -> Value {
        self.send(Method::GET, path, None).await.expect(status)
    }

    async fn post(&self, path: &str, body: Value, status: u16) -> Value {
        let answer = self.send(Method::POST, path, Some(body)).await;
        answer.expect(status)
    }

    async fn delete(&self, path: &str) -> Value {
        self.send(Method::DELETE, path, None).await.expect(200)
    }

    /// Reports on a task under its own fence.
    async fn report(&self, kind: &str, task: &Value, report: &str, fields: Value) -> Value {
        let (id, attempt) = match kind {
            "workflow" => ("task_id", "workflow_task_attempt"),
            "activity" => ("task_id", "activity_attempt_id"),
            "query" => ("query_task_id", "query_task_attempt"),
            _ => ("update_validation_task_id", "update_validation_attempt"),
        };
        let path = format!("/worker/{kind}-tasks/{}/{report}", text(task, id));
        let fence = json!({"lease_owner": task["lease_owner"], attempt: task[attempt]});
        self.post(&path, merged(fence, fields), 200).await
    }

    async fn poll(&self, kind: &str) -> Value {
        let body = json!({"worker_id": "w", "task_queue": "q", "timeout_seconds": 5});
        let path = format!("/worker/{kind}-tasks/poll");
        let task = self.post(&path, body, 200).await["task"].take();
        assert!(task.is_object(), "no {kind} task");
        task
    }

    /// The next workflow task that carries an update; tasks before it have nothing to do.
    async fn poll_update(&self) -> Value {
        loop {
            let task = self.poll("workflow").await;
            if task["workflow_update_id"].is_string() {
                return task;
            }
            self.report("workflow", &task, "fail", waits()).await;
        }
    }

    /// The next workflow task whose history holds a message; tasks before it have nothing to do.
    async fn poll_message(&self) -> Value {
        loop {
            let task = self.poll("workflow").await;
            let history = task["history_events"].as_array().unwrap();
            if history
                .iter()
                .any(|event| event["payload"]["signal_name"] == "__durable_workflow_message_stream")
            {
                return task;
            }
            self.report("workflow", &task, "fail", waits()).await;
        }
    }

    /// Takes the next update and answers it.
    async fn answer_update(&self) {
        let task = self.poll_update().await;
        let done = json!([{
            "type": "complete_update", "update_id": task["workflow_update_id"],
            "result": envelope(json!(1)),
        }]);
        let done = json!({"commands": done});
        self.report("workflow", &task, "complete", done).await;
    }

    async fn start(&self, workflow: &str, status: u16) -> String {
        let body = json!({
            "workflow_id": workflow, "workflow_type": "flow", "task_queue": "q",
            "duplicate_policy": "use-existing",
        });
        let started = self.post("/workflows", body, status).await;
        text(&started, "run_id").to_owned()
    }

    /// Asks something that a worker has to answer.
    fn ask(&self, path: &str, body: Value, status: u16) -> tokio::task::JoinHandle<Value> {
        let (own, path) = (self.clone(), path.to_owned());
        tokio::spawn(async move { own.post(&path, body, status).await })
    }
}

/// What a worker says that finds nothing to do.
fn waits() -> Value {
    json!({"failure": {"message": "no", "type": "WorkflowTaskWaitingForHistory"}})
}

fn registration(worker: &str) -> Value {
    let entry = |supported| json!({"supported": supported, "minimum_protocol_version": "1.18"});
    json!({
        "worker_id": worker, "task_queue": "q", "runtime": "external",
        "supported_workflow_types": ["flow"], "supported_activity_types": ["act"],
        "capabilities": [
            "query_tasks", "update_validation_tasks", "workflow_updates", "message_streams",
            "worker_sessions", "cooperative_cancellation",
        ],
        "capability_manifest": {
            "local_activities": entry(false), "worker_sessions": entry(true),
            "sticky_execution": entry(false),
        },
        "workflow_command_contracts": {
            "flow": {"updates": ["change", "checked"], "update_validators": ["checked"]},
        },
    })
}

async fn workers(client: &Noting) {
    client
        .post("/worker/register", registration("w"), 200)
        .await;
    client
        .post("/worker/heartbeat", json!({"worker_id": "w"}), 200)
        .await;
    let gone = client
        .post("/worker/register", registration("v"), 200)
        .await;
    let token = json!({"registration_token": gone["registration_token"]});
    client
        .post("/worker/registrations/v/deregister", token, 200)
        .await;
    for path in ["/worker/registrations/v", "/workers/v"] {
        client
            .post("/worker/register", registration("v"), 200)
            .await;
        client.delete(path).await;
    }
    client.get("/workers", 200).await;
    client.get("/workers/w", 200).await;
    let session = json!({"worker_id": "w", "session_id": "s"});
    client.post("/worker/sessions", session.clone(), 201).await;
    client.post("/worker/sessions", session, 200).await;
    let owner = json!({"worker_id": "w"});
    client
        .post("/worker/sessions/s/heartbeat", owner, 200)
        .await;
    client.get("/worker-sessions", 200).await;
    client.get("/worker-sessions/s", 200).await;
    client.delete("/worker/sessions/s?worker_id=w").await;
}

async fn tasks(client: &Noting) {
    let run = client.start("wf", 201).await;
    client.start("wf", 200).await;
    let task = client.poll("workflow").await;
    client
        .report("workflow", &task, "heartbeat", json!({}))
        .await;
    let page = json!({"next_history_page_token": "MA=="});
    client.report("workflow", &task, "history", page).await;
    client.report("workflow", &task, "fail", waits()).await;
    client.post("/workflows/wf/signal/go", json!({}), 202).await;
    let one_run = format!("/workflows/wf/runs/{run}");
    client
        .post(&format!("{one_run}/signal/go"), json!({}), 202)
        .await;
    let task = client.poll("workflow").await;
    let act = json!({"type": "schedule_activity", "activity_type": "act"});
    let commands = json!({"commands": [act, act]});
    client.report("workflow", &task, "complete", commands).await;
    let activity = client.poll("activity").await;
    client
        .report("activity", &activity, "heartbeat", json!({}))
        .await;
    client
        .report("activity", &activity, "status", json!({}))
        .await;
    client
        .report("activity", &activity, "complete", json!({"result": 1}))
        .await;
    let activity = client.poll("activity").await;
    let failure = json!({"message": "no", "non_retryable": true});
    client.report("activity", &activity, "fail", failure).await;
    let task = client.poll("workflow").await;
    let wait = json!({"commands": [{"type": "open_condition_wait"}]});
    client.report("workflow", &task, "complete", wait).await;
    for path in [
        "/workflows",
        "/workflows/wf",
        "/workflows/wf/runs",
        "/task-queues",
        "/task-queues/q",
        "/task-queues/q/priority-fairness",
    ] {
        client.get(path, 200).await;
    }
    client.get(&one_run, 200).await;
    client.get(&format!("{one_run}/history"), 200).await;
    client.get(&format!("{one_run}/history/export"), 200).await;
    // Nothing has failed, and so nothing is to be repaired: what is left is the answer.
    client.post("/workflows/wf/repair", json!({}), 200).await;
}

async fn questions(client: &Noting) {
    let one_run = text(&client.get("/workflows/wf", 200).await, "run_id").to_owned();
    let one_run = format!("/workflows/wf/runs/{one_run}");
    for (path, report) in [
        ("/workflows/wf/query/state".to_owned(), "complete"),
        (format!("{one_run}/query/state"), "complete"),
    ] {
        let caller = client.ask(&path, json!({}), 200);
        let task = client.poll("query").await;
        let status = format!(
            "/worker/query-tasks/{}/status?lease_owner=w&query_task_attempt=1",
            text(&task, "query_task_id")
        );
        client.get(&status, 200).await;
        client
            .report("query", &task, report, json!({"result": 1}))
            .await;
        caller.await.unwrap();
    }
    let path = "/workflows/wf/query/state";
    let caller = tokio::spawn({
        let client = client.clone();
        async move { client.send(Method::POST, path, Some(json!({}))).await }
    });
    let task = client.poll("query").await;
    let failure = json!({"failure": {"message": "no", "reason": "query_rejected"}});
    client.report("query", &task, "fail", failure).await;
    assert!(caller.await.unwrap().status.is_client_error());
}

async fn updates(client: &Noting) {
    let run = text(&client.get("/workflows/wf", 200).await, "run_id").to_owned();
    for path in [
        "/workflows/wf/update".to_owned(),
        format!("/workflows/wf/runs/{run}/update"),
    ] {
        client.post(&format!("{path}/change"), json!({}), 202).await;
        client.answer_update().await;
        let body = json!({"wait_for": "completed", "wait_timeout_seconds": 20});
        let caller = client.ask(&format!("{path}/change"), body, 200);
        client.answer_update().await;
        caller.await.unwrap();
    }
    let asked = |key: &str| json!({"request_id": key});
    let caller = client.ask("/workflows/wf/update/checked", asked("a"), 202);
    let task = client.poll("update-validation").await;
    client
        .report("update-validation", &task, "approve", json!({}))
        .await;
    caller.await.unwrap();
    client.answer_update().await;
    let path = "/workflows/wf/update/checked";
    let caller = tokio::spawn({
        let (client, body) = (client.clone(), asked("b"));
        async move { client.send(Method::POST, path, Some(body)).await }
    });
    let task = client.poll("update-validation").await;
    let rejection = json!({"failure": {"message": "no"}});
    client
        .report("update-validation", &task, "reject", rejection)
        .await;
    caller.await.unwrap();
}

async fn streams(client: &Noting) {
    client.post("/workflows/wf/signal/go", json!({}), 202).await;
    let task = client.poll("workflow").await;
    // A message is delivered where it is waited for.
    let fields = json!({
        "commands": [{"type": "open_condition_wait", "condition_key": "message-stream:s:0"}],
        "message_stream_waits": [{"stream_name": "s", "after_position": 0}],
    });
    client.report("workflow", &task, "complete", fields).await;
    let path = "/workflows/wf/message-streams/s/messages";
    client.post(path, json!({"message_id": "m"}), 202).await;
    client.post(path, json!({"message_id": "m"}), 200).await;
    client.get("/workflows/wf/message-streams", 200).await;
    client.get("/workflows/wf/message-streams/s", 200).await;
    let task = client.poll_message().await;
    let fields = json!({
        "commands": [], "message_stream_cursors": [{"stream_name": "s", "through_position": 1}],
    });
    client.report("workflow", &task, "complete", fields).await;
}

async fn closings(client: &Noting) {
    let run = client.start("gentle", 201).await;
    let task = client.poll("workflow").await;
    let act = json!({"commands": [{"type": "schedule_activity", "activity_type": "act"}]});
    client.report("workflow", &task, "complete", act).await;
    let activity = client.poll("activity").await;
    client.client.started(&activity).await;
    for path in [
        "/workflows/gentle".to_owned(),
        format!("/workflows/gentle/runs/{run}"),
    ] {
        let path = format!("{path}/request-cancellation");
        let answer = client.send(Method::POST, &path, Some(json!({}))).await;
        assert!(answer.status.is_success(), "{}", answer.status);
    }
    let task = client.poll("workflow").await;
    let id = task["cancellation_request"]["request_id"].clone();
    let delivery = json!({"request_id": id, "sequence": 1, "call_kind": "activity"});
    client
        .report("workflow", &task, "deliver-cancellation", delivery)
        .await;
    let receipt = json!({"request_id": id});
    client
        .report("activity", &activity, "acknowledge-cancellation", receipt)
        .await;
    let run = client.start("gentler", 201).await;
    let path = format!("/workflows/gentler/runs/{run}/request-cancellation");
    client.post(&path, json!({}), 202).await;
    client
        .post("/workflows/gentler/request-cancellation", json!({}), 200)
        .await;

    for command in ["cancel", "terminate"] {
        for with_run in [false, true] {
            let workflow = format!("{command}-{with_run}");
            let run = client.start(&workflow, 201).await;
            let whole = format!("/workflows/{workflow}");
            let one_run = format!("{whole}/runs/{run}");
            let path = if with_run { &one_run } else { &whole };
            client
                .post(&format!("{path}/{command}"), json!({}), 200)
                .await;
            client
                .post(&format!("{path}/archive"), json!({}), 200)
                .await;
        }
    }
}

async fn rollouts(client: &Noting) {
    let build = merged(
        registration("b"),
        json!({"task_queue": "r", "build_id": "b1"}),
    );
    client.post("/worker/register", build, 200).await;
    client.get("/task-queues/r/build-ids", 200).await;
    for verb in ["drain", "resume", "promote"] {
        let path = format!("/task-queues/r/build-ids/{verb}");
        client.post(&path, json!({"build_id": "b1"}), 200).await;
    }
    client.get("/deployments", 200).await;
    let other = merged(
        registration("c"),
        json!({"task_queue": "r", "build_id": "b2"}),
    );
    client.post("/worker/register", other, 200).await;
    let path = |build: &str| format!("/deployments/default%2Fr%40{build}");
    client.get(&path("b1"), 200).await;
    for (build, verb) in [
        ("b1", "drain"),
        ("b1", "resume"),
        ("b1", "promote"),
        ("b2", "promote"),
        ("b2", "rollback"),
    ] {
        let path = format!("{}/{verb}", path(build));
        client.post(&path, json!({}), 200).await;
    }
}

async fn discovery(client: &Noting) {
    for path in [
        "/health",
        "/ready",
        "/cluster/info",
        "/openapi/worker-plane.json",
    ] {
        client.get(path, 200).await;
    }
}

/// Rule: the generated documents show no success that the server never gives.
#[tokio::test(flavor = "multi_thread")]
async fn every_documented_success_is_given() {
    let server = TestServer::with(|settings| settings.worker_protocol = "1.20".to_owned()).await;
    let client = Noting {
        client: server.client.clone(),
        met: Met::default(),
    };
    workers(&client).await;
    tasks(&client).await;
    questions(&client).await;
    updates(&client).await;
    streams(&client).await;
    closings(&client).await;
    rollouts(&client).await;
    discovery(&client).await;
    let met = client.met.all();
    let missed: Vec<_> = documented::successes("1.20")
        .into_iter()
        .filter(|one| !met.contains(one))
        .collect();
    assert_eq!(missed, [], "documented, and not given");
    server.stop().await;
}
