//! What integration tests share: a database and a server of their own, and a client for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::config::{Secret, Settings};
use leasehold::managed_pg::testing::TestCluster;
use leasehold::node::Node;
use leasehold::store::migrate;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::sync::OnceCell;

/// The token of test servers.
pub const TOKEN: &str = "test-token";

/// A database of its own, cloned from a migrated template.
pub struct TestDb {
    pub options: PgConnectOptions,
    name: String,
}

static NEXT: AtomicU32 = AtomicU32::new(0);
static TEMPLATE: OnceCell<String> = OnceCell::const_new();

fn cluster() -> &'static TestCluster {
    TestCluster::shared().unwrap_or_else(|error| panic!("no PostgreSQL for tests: {error}"))
}

async fn admin() -> PgConnection {
    PgConnection::connect_with(&cluster().admin_options())
        .await
        .expect("the test database answers")
}

async fn execute(connection: &mut PgConnection, statement: String) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
        .execute(connection)
        .await
        .expect("the statement runs");
}

/// The migrated template, made once per process.
async fn template() -> &'static str {
    TEMPLATE
        .get_or_init(|| async {
            let name = format!("leasehold_template_{}", std::process::id());
            let mut admin = admin().await;
            execute(&mut admin, format!("drop database if exists {name}")).await;
            execute(&mut admin, format!("create database {name}")).await;
            migrate::run(&cluster().admin_options().database(&name))
                .await
                .expect("the schema migrates");
            name
        })
        .await
}

impl TestDb {
    pub async fn new() -> Self {
        let template = template().await;
        let name = format!(
            "leasehold_test_{}_{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let mut admin = admin().await;
        execute(
            &mut admin,
            format!("create database {name} template {template} strategy wal_log"),
        )
        .await;
        Self {
            options: cluster().admin_options().database(&name),
            name,
        }
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect_with(&self.options)
            .await
            .expect("the test database answers")
    }

    /// Drops the database; a failed test keeps its own, to be looked at.
    pub async fn drop(self) {
        let mut admin = admin().await;
        execute(
            &mut admin,
            format!("drop database if exists {} with (force)", self.name),
        )
        .await;
    }
}

/// A server in this process, with a database of its own.
pub struct TestServer {
    pub db: TestDb,
    pub node: Node,
    pub url: String,
    pub client: Client,
}

/// Settings of test servers: a free port, the test token, few connections.
pub fn settings() -> Settings {
    let mut settings = Settings {
        listen: "127.0.0.1:0".to_owned(),
        ..Settings::default()
    };
    settings.auth.token = Some(Secret::new(TOKEN));
    settings.database.read_connections = 4;
    settings.database.hot_connections = 4;
    settings.database.migrate = false;
    settings.http.threads = 1;
    settings
}

impl TestServer {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Starts a server whose settings were changed.
    pub async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        Self::on(TestDb::new().await, change).await
    }

    /// Starts a server on a database that is there already.
    pub async fn on(db: TestDb, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings();
        change(&mut settings);
        let version = settings.worker_protocol.clone();
        let node = Node::start(settings, db.options.clone())
            .await
            .unwrap_or_else(|error| panic!("the server starts: {error}"));
        let url = format!("http://{}", node.address());
        let client = Client::new(&url, &version);
        Self {
            db,
            node,
            url,
            client,
        }
    }

    /// Stops the server and drops its database.
    pub async fn stop(self) {
        self.node.stop().await;
        self.db.drop().await;
    }

    /// Stops the server and keeps its database.
    pub async fn stop_keeping(self) -> TestDb {
        self.node.stop().await;
        self.db
    }
}

/// An answer: its status, headers and body.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Answer {
    /// Asserts the status and gives the body.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{:#}", self.body);
        self.body
    }

    /// Asserts status and reason of a refusal and gives the body.
    #[track_caller]
    pub fn refused(self, status: u16, reason: &str) -> Value {
        let body = self.expect(status);
        assert_eq!(body["reason"], reason, "{body:#}");
        body
    }
}

/// A client of both planes.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    /// Sent as the worker protocol version.
    pub version: String,
}

impl Client {
    pub fn new(url: &str, version: &str) -> Self {
        Self {
            http: reqwest::Client::new(),
            url: url.to_owned(),
            version: version.to_owned(),
        }
    }

    /// A request with every header that this plane needs.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}/api{path}", self.url))
            .bearer_auth(TOKEN);
        if path.starts_with("/worker") {
            request.header("X-Durable-Workflow-Protocol-Version", &self.version)
        } else {
            request.header("X-Durable-Workflow-Control-Plane-Version", "2")
        }
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.expect("the server answers");
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.expect("the answer is text");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer {
            status,
            headers,
            body,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body))
            .await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Registers a worker for one queue, with these types, in the SDKs' spelling.
    pub async fn register(
        &self,
        worker: &str,
        queue: &str,
        workflows: &[&str],
        activities: &[&str],
    ) {
        let mut body = json!({
            "worker_id": worker,
            "task_queue": queue,
            "runtime": "external",
            "supported_workflow_types": workflows,
            "supported_activity_types": activities,
        });
        body["capability_manifest"] = json!({});
        self.post("/worker/register", body).await.expect(200);
    }

    /// Starts a workflow and gives its run id.
    pub async fn start(&self, workflow: &str, kind: &str, queue: &str) -> String {
        let body = json!({"workflow_id": workflow, "workflow_type": kind, "task_queue": queue});
        let started = self.post("/workflows", body).await.expect(201);
        started["run_id"].as_str().expect("a run id").to_owned()
    }

    /// Polls for a task, at most `seconds`; null when none came.
    pub async fn poll(&self, kind: &str, worker: &str, queue: &str, seconds: u64) -> Value {
        let body = json!({"worker_id": worker, "task_queue": queue, "timeout_seconds": seconds});
        let polled = self.post(&format!("/worker/{kind}-tasks/poll"), body).await;
        polled.expect(200)["task"].take()
    }

    /// Completes a workflow task with these commands.
    pub async fn complete(&self, task: &Value, commands: Value) -> Answer {
        let path = format!("/worker/workflow-tasks/{}/complete", text(task, "task_id"));
        let body = json!({
            "lease_owner": task["lease_owner"],
            "workflow_task_attempt": task["workflow_task_attempt"],
            "commands": commands,
        });
        self.post(&path, body).await
    }

    /// Reports on an activity task: `complete`, `fail` or `heartbeat`, with these further fields.
    pub async fn report(&self, task: &Value, report: &str, fields: Value) -> Answer {
        let path = format!("/worker/activity-tasks/{}/{report}", text(task, "task_id"));
        let mut body = json!({
            "lease_owner": task["lease_owner"],
            "activity_attempt_id": task["activity_attempt_id"],
        });
        if let (Some(body), Value::Object(fields)) = (body.as_object_mut(), fields) {
            body.extend(fields);
        }
        self.post(&path, body).await
    }

    /// The event types of a run.
    pub async fn events(&self, workflow: &str, run: &str) -> Vec<String> {
        let history = self
            .get(&format!(
                "/workflows/{workflow}/runs/{run}/history?page_size=1000"
            ))
            .await
            .expect(200);
        let events = history["events"].as_array().expect("events");
        events
            .iter()
            .map(|event| text(event, "event_type").to_owned())
            .collect()
    }
}

/// A text field that must be there.
#[track_caller]
pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field]
        .as_str()
        .unwrap_or_else(|| panic!("no text {field} in {value:#}"))
}

/// Waits until `probe` gives something, at most `seconds`.
pub async fn eventually<T>(
    what: &str,
    seconds: u64,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(
            Instant::now() < deadline,
            "{what} did not happen within {seconds} s"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
