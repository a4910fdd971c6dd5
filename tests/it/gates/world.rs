//! What a use of a feature happens in: a worker, a queue and a workflow of one name of their own.

use std::pin::Pin;

use serde_json::{Value, json};

use crate::support::{Answer, Client, merged, text};

/// Something that takes its time.
pub type Step<T> = Pin<Box<dyn Future<Output = T>>>;

/// What came of a use.
pub struct Seen {
    pub answer: Answer,
    /// Whether that which the feature is for could be seen.
    pub effect: bool,
}

#[derive(Clone)]
pub struct World {
    /// Name of the worker, its queue and its workflow.
    pub name: String,
    /// Speaks the version that the server advertises.
    pub own: Client,
    /// Speaks the version under test.
    pub client: Client,
    /// Minor that the server advertises.
    pub advertised: u64,
    /// The capability that the worker does not register.
    pub lacks: Option<&'static str>,
    /// How long a poll waits for what has to come.
    pub patience: u64,
}

/// The manifest entries of a registration that lists these capabilities.
pub fn manifest(listed: &[&str]) -> Value {
    let entry = |name: &str| json!({"supported": listed.contains(&name), "minimum_protocol_version": "1.18"});
    json!({
        "local_activities": entry("local_activities"),
        "worker_sessions": entry("worker_sessions"),
        "sticky_execution": entry("sticky_execution"),
    })
}

impl World {
    /// Everything that a worker of the advertised version can do, less one thing.
    fn capabilities(&self, lacks: Option<&str>) -> Vec<&'static str> {
        let all = [
            ("query_tasks", 0),
            ("update_validation_tasks", 0),
            ("durable_selection", 0),
            ("memo_upserts", 14),
            ("message_streams", 15),
            ("typed_search_attributes", 16),
            ("local_activities", 18),
            ("worker_sessions", 18),
            ("sticky_execution", 18),
            ("cooperative_cancellation", 20),
        ];
        all.into_iter()
            .filter(|(name, since)| *since <= self.advertised && lacks != Some(*name))
            .map(|(name, _)| name)
            .collect()
    }

    /// A registration of the worker.
    pub fn registration(&self, lacks: Option<&str>) -> Value {
        let capabilities = self.capabilities(lacks);
        json!({
            "worker_id": self.name,
            "task_queue": self.name,
            "runtime": "external",
            "sdk_version": "sdk-1",
            "supported_workflow_types": ["flow"],
            "supported_activity_types": ["act"],
            "capability_manifest": manifest(&capabilities),
            "capabilities": capabilities,
        })
    }

    /// Registers the worker without what it is to lack.
    pub async fn register(&self) {
        let body = self.registration(self.lacks);
        self.own.post("/worker/register", body).await.expect(200);
    }

    /// A workflow task of the workflow's, in the advertised version.
    pub async fn next(&self) -> Value {
        let task = self.own.poll("workflow", &self.name, &self.name, 5).await;
        assert!(task.is_object(), "no task for {}", self.name);
        task
    }

    /// The first task of the workflow.
    pub async fn task(&self) -> Value {
        self.register().await;
        self.own.start(&self.name, "flow", &self.name).await;
        self.next().await
    }

    /// Completes a task in the advertised version.
    pub async fn complete(&self, task: &Value, commands: Value) {
        self.own.complete(task, commands).await.expect(200);
    }

    /// A run that waits for whatever comes; gives its task as it was.
    pub async fn waiting(&self) -> Value {
        let task = self.task().await;
        self.own.wait_for_history(&task).await.expect(200);
        task
    }

    /// An activity that the worker holds, scheduled with these further fields.
    pub async fn activity(&self, fields: Value) -> Value {
        let task = self.task().await;
        let command = json!({"type": "schedule_activity", "activity_type": "act"});
        self.complete(&task, json!([merged(command, fields)])).await;
        let activity = self.own.poll("activity", &self.name, &self.name, 5).await;
        assert!(activity.is_object(), "no activity for {}", self.name);
        self.own.started(&activity).await;
        activity
    }

    /// Sends a command to the workflow.
    pub async fn tell(&self, command: &str, body: Value) -> Answer {
        let path = format!("/workflows/{}/{command}", self.name);
        self.own.post(&path, body).await
    }

    /// Signals the workflow, so that it has a task.
    pub async fn signal(&self) {
        self.tell("signal/go", json!({})).await.expect(202);
    }

    /// Polls in the version under test.
    pub async fn poll(&self, kind: &str, fields: Value) -> Answer {
        let body = json!({
            "worker_id": self.name, "task_queue": self.name, "timeout_seconds": self.patience,
        });
        let path = format!("/worker/{kind}-tasks/poll");
        self.client.post(&path, merged(body, fields)).await
    }

    /// A poll in the version under test that ought to bring a task.
    pub async fn polled(&self, kind: &str) -> Seen {
        let answer = self.poll(kind, json!({})).await;
        let effect = answer.body["task"].is_object();
        Seen { answer, effect }
    }

    /// Types of the workflow's events.
    pub async fn events(&self, task: &Value) -> Vec<String> {
        self.own.events(&self.name, text(task, "run_id")).await
    }

    /// What came of an answer that ought to leave an event of this type.
    pub async fn recorded(&self, answer: Answer, task: &Value, event: &str) -> Seen {
        let events = self.events(task).await;
        Seen {
            answer,
            effect: events.iter().any(|own| own == event),
        }
    }
}
