//! What integration tests share: a database and a server of their own, and a client for it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
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

use super::documented;

/// The token of test servers.
pub const TOKEN: &str = "test-token";

/// A database of its own, cloned from a migrated template.
pub struct TestDb {
    pub options: PgConnectOptions,
    name: String,
}

/// Tables of [`TestDb::contents`]: what reports, commands and registrations write.
const TABLES: [&str; 8] = [
    "workflow_runs",
    "workflow_instances",
    "history_batches",
    "tasks",
    "timers",
    "request_receipts",
    "workers",
    "worker_sessions",
];

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

    /// Runs a statement that sets something up which no request can.
    pub async fn execute(&self, statement: &str) {
        execute(&mut self.connect().await, statement.to_owned()).await;
    }

    /// A digest of everything that is stored, table by table, to see that nothing changed.
    pub async fn contents(&self) -> BTreeMap<&'static str, String> {
        let mut connection = self.connect().await;
        let mut contents = BTreeMap::new();
        for table in TABLES {
            let digest: Option<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
                "select count(*) || ' ' || coalesce(md5(string_agg(t::text, '|' order by t::text)), '') from {table} t"
            )))
            .fetch_one(&mut connection)
            .await
            .expect("the table can be read");
            contents.insert(table, digest.expect("a digest"));
        }
        contents
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

    /// Starts another node on the same database, and a client for it.
    pub async fn other_node(&self) -> (Node, Client) {
        let mut settings = settings();
        settings.worker_protocol.clone_from(&self.client.version);
        let node = Node::start(settings, self.db.options.clone())
            .await
            .unwrap_or_else(|error| panic!("the other node starts: {error}"));
        let client = Client::new(&format!("http://{}", node.address()), &self.client.version);
        (node, client)
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
        assert_eq!(self.status.as_u16(), status, "{:#}", brief(&self.body));
        self.body
    }

    /// Asserts a 422 whose only problems are with these fields, and gives the body.
    #[track_caller]
    pub fn invalid(self, fields: &[&str]) -> Value {
        let body = self.refused(422, "validation_failed");
        let listed = body["errors"].as_object().expect("errors");
        let listed: Vec<&str> = listed.keys().map(String::as_str).collect();
        assert_eq!(listed, fields, "{:#}", brief(&body));
        assert_eq!(body["errors"], body["validation_errors"]);
        body
    }

    /// A header of the answer, empty when it is absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("a text header"))
    }

    /// Asserts status and reason of a refusal and gives the body.
    #[track_caller]
    pub fn refused(self, status: u16, reason: &str) -> Value {
        let body = self.expect(status);
        assert_eq!(body["reason"], reason, "{:#}", brief(&body));
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

    /// A client that sends another worker protocol version.
    pub fn speaking(&self, version: &str) -> Self {
        Self {
            version: version.to_owned(),
            ..self.clone()
        }
    }

    /// Where the server listens.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// A request without any header.
    pub fn bare(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}/api{path}", self.url))
    }

    /// Sends bytes as they are over a connection of their own and reads until the server closes it,
    /// which the request must ask for. Gives status, head and JSON body.
    pub async fn raw(&self, request: impl Into<Vec<u8>>) -> (u16, String, Value) {
        let address = self.url.trim_start_matches("http://").to_owned();
        let request = request.into();
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).expect("the server listens");
            stream
                .set_read_timeout(Some(Duration::from_secs(10)))
                .expect("a timeout");
            // The server may answer and close before it has read everything.
            let _ = stream.write_all(&request);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        })
        .await
        .expect("the exchange ends");
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
        (status.expect("a status"), head.to_ascii_lowercase(), body)
    }

    /// A request with every header that this plane needs.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}/api{path}", self.url))
            .bearer_auth(TOKEN);
        if path == "/worker" || path.starts_with("/worker/") {
            request.header("X-Durable-Workflow-Protocol-Version", &self.version)
        } else {
            request.header("X-Durable-Workflow-Control-Plane-Version", "2")
        }
    }

    /// Sends a request; whatever comes back has to be what the documents say.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let (http, request) = request.build_split();
        let request = request.expect("a request");
        let (method, path) = (request.method().clone(), request.url().path().to_owned());
        let response = http.execute(request).await.expect("the server answers");
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.expect("the answer is text");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        let answer = Answer {
            status,
            headers,
            body,
        };
        documented::check(&method, &path, &answer);
        answer
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
        let entry = json!({"supported": false, "minimum_protocol_version": "1.18"});
        body["capability_manifest"] = json!({
            "local_activities": entry, "worker_sessions": entry, "sticky_execution": entry,
        });
        self.post("/worker/register", body).await.expect(200);
    }

    /// Starts a workflow and gives its run id.
    pub async fn start(&self, workflow: &str, kind: &str, queue: &str) -> String {
        let body = json!({"workflow_id": workflow, "workflow_type": kind, "task_queue": queue});
        let started = self.post("/workflows", body).await.expect(201);
        started["run_id"].as_str().expect("a run id").to_owned()
    }

    /// Starts a workflow of type `flow` on queue `q` with these further fields and gives its run id.
    pub async fn start_with(&self, workflow: &str, fields: Value) -> String {
        let body = json!({"workflow_id": workflow, "workflow_type": "flow", "task_queue": "q"});
        let started = self
            .post("/workflows", merged(body, fields))
            .await
            .expect(201);
        text(&started, "run_id").to_owned()
    }

    /// Registers worker `w` for queue `q`, workflow type `flow` and activity type `act`, starts
    /// workflow `wf` and gives its first workflow task.
    pub async fn first_task(&self) -> Value {
        self.register("w", "q", &["flow"], &["act"]).await;
        self.start("wf", "flow", "q").await;
        let task = self.poll("workflow", "w", "q", 5).await;
        assert!(task.is_object(), "no task");
        task
    }

    /// As [`Client::first_task`], then schedules an activity with these further fields and gives its
    /// first task.
    pub async fn first_activity(&self, fields: Value) -> Value {
        let task = self.first_task().await;
        let command = merged(
            json!({"type": "schedule_activity", "activity_type": "act"}),
            fields,
        );
        self.complete(&task, json!([command])).await.expect(200);
        let activity = self.poll("activity", "w", "q", 5).await;
        assert!(activity.is_object(), "no activity");
        self.started(&activity).await;
        activity
    }

    /// Starts a workflow whose id is also the name of its queue, with a worker of its own, schedules an
    /// activity with these further fields and gives its first task.
    pub async fn activity_of(&self, name: &str, fields: Value) -> Value {
        self.register(name, name, &["flow"], &["act"]).await;
        self.start(name, "flow", name).await;
        let task = self.poll("workflow", name, name, 5).await;
        let command = json!({"type": "schedule_activity", "activity_type": "act"});
        self.complete(&task, json!([merged(command, fields)]))
            .await
            .expect(200);
        self.poll("activity", name, name, 5).await
    }

    /// Waits until the history shows that this attempt of an activity was handed out.
    pub async fn started(&self, activity: &Value) {
        let (workflow, run) = (text(activity, "workflow_id"), text(activity, "run_id"));
        eventually("ActivityStarted", 5, async || {
            let history = self.history(workflow, run).await;
            history
                .iter()
                .find(|event| {
                    event["event_type"] == "ActivityStarted"
                        && event["payload"]["activity_attempt_id"]
                            == activity["activity_attempt_id"]
                })
                .map(|_| ())
        })
        .await;
    }

    /// Polls for a task, at most `seconds`; null when none came.
    pub async fn poll(&self, kind: &str, worker: &str, queue: &str, seconds: u64) -> Value {
        self.poll_whole(kind, worker, queue, seconds)
            .await
            .expect(200)["task"]
            .take()
    }

    /// Polls for a task and gives the whole answer.
    pub async fn poll_whole(&self, kind: &str, worker: &str, queue: &str, seconds: u64) -> Answer {
        let body = json!({"worker_id": worker, "task_queue": queue, "timeout_seconds": seconds});
        self.post(&format!("/worker/{kind}-tasks/poll"), body).await
    }

    /// Reports on a workflow task under its own fence: `complete`, `fail`, `heartbeat` or `history`,
    /// with these further fields.
    pub async fn task(&self, task: &Value, report: &str, fields: Value) -> Answer {
        let path = format!("/worker/workflow-tasks/{}/{report}", text(task, "task_id"));
        let fence = json!({
            "lease_owner": task["lease_owner"],
            "workflow_task_attempt": task["workflow_task_attempt"],
        });
        self.post(&path, merged(fence, fields)).await
    }

    /// Says under the fence of a workflow task that there is nothing to do.
    pub async fn wait_for_history(&self, task: &Value) -> Answer {
        let failure = json!({"message": "nothing to do", "type": "WorkflowTaskWaitingForHistory"});
        self.task(task, "fail", json!({ "failure": failure })).await
    }

    /// Completes a workflow task with these commands.
    pub async fn complete(&self, task: &Value, commands: Value) -> Answer {
        self.task(task, "complete", json!({ "commands": commands }))
            .await
    }

    /// Reports on an activity task under its own fence: `complete`, `fail` or `heartbeat`, with these
    /// further fields.
    pub async fn report(&self, task: &Value, report: &str, fields: Value) -> Answer {
        let path = format!("/worker/activity-tasks/{}/{report}", text(task, "task_id"));
        let fence = json!({
            "lease_owner": task["lease_owner"],
            "activity_attempt_id": task["activity_attempt_id"],
        });
        self.post(&path, merged(fence, fields)).await
    }

    /// Whole history of a run.
    pub async fn history(&self, workflow: &str, run: &str) -> Vec<Value> {
        let path = format!("/workflows/{workflow}/runs/{run}/history?page_size=1000");
        let mut history = self.get(&path).await.expect(200);
        match history["events"].take() {
            Value::Array(events) => events,
            other => panic!("no events: {other}"),
        }
    }

    /// The event types of a run.
    pub async fn events(&self, workflow: &str, run: &str) -> Vec<String> {
        let history = self.history(workflow, run).await;
        history
            .iter()
            .map(|event| text(event, "event_type").to_owned())
            .collect()
    }
}

/// A body without the capabilities, to be shown.
fn brief(body: &Value) -> Value {
    let mut body = body.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.remove("server_capabilities");
    }
    body
}

/// A value as SDKs send it: encoded, in an envelope.
pub fn envelope(value: Value) -> Value {
    let payload = leasehold::payload::Payload::from_json(&value).expect("the value can be encoded");
    json!({"codec": "avro", "blob": payload.blob()})
}

/// An object with the fields of another one over its own.
pub fn merged(mut base: Value, over: Value) -> Value {
    match (&mut base, over) {
        (Value::Object(base), Value::Object(over)) => base.extend(over),
        (_, over) => panic!("not two objects: {over}"),
    }
    base
}

/// The only event of a type.
#[track_caller]
pub fn only<'a>(events: &'a [Value], event_type: &str) -> &'a Value {
    let mut found = events
        .iter()
        .filter(|event| event["event_type"] == event_type);
    match (found.next(), found.next()) {
        (Some(event), None) => event,
        (None, _) => panic!("no {event_type} in {events:#?}"),
        _ => panic!("several {event_type} in {events:#?}"),
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
