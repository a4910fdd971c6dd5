//! The calls of the public protocol that the workloads make.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::{Answer, Connection, Plane, Target};
use crate::shape::{Event, Shape, WorkflowTask};

/// Tasks that one worker may hold: the tool's pollers are the bound.
const CONCURRENT: u32 = 1_000_000;
/// Events of a page of history when all of it is read.
const PAGE: usize = 1_000;
/// Events of one activity: a page of a worker that reads on.
pub const CYCLE: usize = 3;
/// Pages of a history that are read at most.
const MAX_PAGES: usize = 1_000;

/// Why a call did not do what it was for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refused {
    /// The call.
    pub call: &'static str,
    /// Status of the answer; 0 when the connection broke.
    pub status: u16,
    /// The reason, or what is wrong.
    pub reason: String,
    /// It says when to come back.
    pub hint: bool,
}

impl Refused {
    /// The server cannot just now: the same call may be made again.
    pub fn may_repeat(&self) -> bool {
        matches!(self.status, 429 | 503)
    }

    /// What is wrong with an answer.
    pub fn wrong(call: &'static str, reason: impl std::fmt::Display) -> Self {
        Self {
            call,
            status: 200,
            reason: reason.to_string(),
            hint: false,
        }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} {}", self.call, self.status, self.reason)
    }
}

#[derive(Deserialize)]
struct Problem {
    reason: Option<String>,
    retry_after_seconds: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Poll<'a> {
    #[serde(borrow)]
    task: Option<&'a RawValue>,
}

/// An activity task, as far as a worker needs it.
#[derive(Deserialize)]
pub struct ActivityTask<'a> {
    pub task_id: &'a str,
    pub workflow_id: &'a str,
    pub activity_attempt_id: &'a str,
    pub activity_type: &'a str,
    pub lease_owner: &'a str,
    #[serde(borrow)]
    pub arguments: Option<&'a RawValue>,
}

/// A query task, as far as a worker needs it.
#[derive(Deserialize)]
pub struct QueryTask<'a> {
    pub query_task_id: &'a str,
    pub query_task_attempt: u64,
    pub lease_owner: &'a str,
    #[serde(borrow)]
    pub workflow_arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Started<'a> {
    run_id: &'a str,
}

#[derive(Deserialize)]
struct HistoryPage<'a> {
    #[serde(borrow)]
    events: Vec<Event<'a>>,
    next_page_token: Option<&'a str>,
}

#[derive(Deserialize)]
struct TaskPage<'a> {
    #[serde(borrow)]
    history_events: Vec<Event<'a>>,
    next_history_page_token: Option<&'a str>,
}

/// Sends and takes only a success.
///
/// # Errors
/// [`Refused`] says what came instead.
pub async fn call<'a>(
    connection: &'a mut Connection,
    name: &'static str,
    plane: Plane,
    method: &str,
    path: &str,
    body: &str,
) -> Result<Answer<'a>, Refused> {
    match connection.send(plane, method, path, body.as_bytes()).await {
        Ok(answer) if (200..300).contains(&answer.status) => Ok(answer),
        Ok(answer) => {
            let problem = serde_json::from_slice::<Problem>(answer.body).ok();
            let body_hint = problem
                .as_ref()
                .is_some_and(|problem| problem.retry_after_seconds.is_some());
            Err(Refused {
                call: name,
                status: answer.status,
                reason: problem
                    .and_then(|problem| problem.reason)
                    .unwrap_or_else(|| "no reason".to_owned()),
                hint: answer.retry_hint || body_hint,
            })
        }
        Err(error) => Err(Refused {
            call: name,
            status: 0,
            reason: error.kind().to_string(),
            hint: false,
        }),
    }
}

/// Reads an answer.
///
/// # Errors
/// It is not what it must be.
pub fn read<'a, T: Deserialize<'a>>(
    name: &'static str,
    answer: &'a Answer<'_>,
) -> Result<T, Refused> {
    serde_json::from_slice(answer.body).map_err(|error| Refused::wrong(name, error))
}

/// Registers a worker.
///
/// # Errors
/// It was refused.
pub async fn register(
    connection: &mut Connection,
    worker: &str,
    queues: &[String],
    shapes: &[Shape],
) -> Result<(), Refused> {
    let types: Vec<String> = shapes.iter().map(|shape| shape.name()).collect();
    let body = serde_json::json!({
        "worker_id": worker,
        "task_queues": queues,
        "runtime": "external",
        "supported_workflow_types": types,
        "supported_activity_types": ["echo", "short"],
        "capabilities": ["query_tasks"],
        "max_concurrent_workflow_tasks": CONCURRENT,
        "max_concurrent_activity_tasks": CONCURRENT,
    });
    call(
        connection,
        "register",
        Plane::Worker,
        "POST",
        "/api/worker/register",
        &body.to_string(),
    )
    .await
    .map(|_| ())
}

/// Says that a worker lives.
///
/// # Errors
/// It was refused.
pub async fn heartbeat(connection: &mut Connection, worker: &str) -> Result<(), Refused> {
    let body = format!(r#"{{"worker_id":"{worker}"}}"#);
    call(
        connection,
        "heartbeat",
        Plane::Worker,
        "POST",
        "/api/worker/heartbeat",
        &body,
    )
    .await
    .map(|_| ())
}

/// The body of a poll.
pub fn poll_body(worker: &str, queue: &str, wait: u64, id: &str, page: Option<usize>) -> String {
    let mut body = format!(
        r#"{{"worker_id":"{worker}","task_queue":"{queue}","timeout_seconds":{wait},"poll_request_id":"{id}""#
    );
    if let Some(page) = page {
        let _ = write!(body, r#","history_page_size":{page}"#);
    }
    body.push('}');
    body
}

/// The task of a poll's answer.
///
/// # Errors
/// The answer is not one of a poll.
pub fn task<'a, T: Deserialize<'a>>(
    name: &'static str,
    answer: &'a Answer<'_>,
) -> Result<Option<T>, Refused> {
    let poll: Poll<'a> = read(name, answer)?;
    poll.task
        .map(|task| serde_json::from_str(task.get()).map_err(|error| Refused::wrong(name, error)))
        .transpose()
}

/// The path and body of a workflow task's completion.
pub fn complete_workflow(task: &WorkflowTask<'_>, commands: &str) -> (String, String) {
    (
        format!("/api/worker/workflow-tasks/{}/complete", task.task_id),
        format!(
            r#"{{"lease_owner":"{}","workflow_task_attempt":{},"commands":{commands}}}"#,
            task.lease_owner, task.workflow_task_attempt
        ),
    )
}

/// Reading the history of a task on from somewhere.
pub struct ReadOn {
    path: String,
    holder: String,
    /// Where the next page begins.
    pub token: String,
    /// Events before it.
    pub after: usize,
}

impl ReadOn {
    /// What the first page left out, if it left anything out.
    pub fn rest(task: &WorkflowTask<'_>) -> Option<Self> {
        let token = task.next_history_page_token?;
        Some(Self::from(
            task,
            token.to_owned(),
            task.history_events.len(),
        ))
    }

    /// From the last page that an earlier task of the run was read to, as a worker does that keeps the
    /// run in memory.
    pub fn again(task: &WorkflowTask<'_>, (token, after): (String, usize)) -> Self {
        Self::from(task, token, after)
    }

    fn from(task: &WorkflowTask<'_>, token: String, after: usize) -> Self {
        Self {
            path: format!("/api/worker/workflow-tasks/{}/history", task.task_id),
            holder: format!(
                r#""lease_owner":"{}","workflow_task_attempt":{}"#,
                task.lease_owner, task.workflow_task_attempt
            ),
            token,
            after,
        }
    }
}

/// Reads a task's history to its end; returns where its last page begins.
///
/// # Errors
/// A page was refused, or holds other events than it must.
pub async fn read_on(
    connection: &mut Connection,
    mut from: ReadOn,
    shape: Shape,
    page: Option<usize>,
) -> Result<(String, usize), Refused> {
    const NAME: &str = "history page";
    let size = page.map_or_else(String::new, |page| {
        format!(r#","history_page_size":{page}"#)
    });
    for _ in 0..MAX_PAGES {
        let body = format!(
            r#"{{{},"next_history_page_token":"{}"{size}}}"#,
            from.holder, from.token
        );
        let answer = call(connection, NAME, Plane::Worker, "POST", &from.path, &body).await?;
        let page: TaskPage<'_> = read(NAME, &answer)?;
        shape
            .check_page(from.after, &page.history_events)
            .map_err(|wrong| Refused::wrong("order of events", wrong))?;
        match page.next_history_page_token {
            None => return Ok((from.token, from.after)),
            Some(token) => token.clone_into(&mut from.token),
        }
        from.after += page.history_events.len();
    }
    Err(Refused::wrong(NAME, "it does not end"))
}

/// The path and body of an activity's completion.
pub fn complete_activity(task: &ActivityTask<'_>) -> (String, String) {
    let arguments = task.arguments.map_or("null", RawValue::get);
    let result = Shape::activity_result(task.activity_type, arguments);
    (
        format!("/api/worker/activity-tasks/{}/complete", task.task_id),
        format!(
            r#"{{"lease_owner":"{}","activity_attempt_id":"{}","result":{result}}}"#,
            task.lease_owner, task.activity_attempt_id
        ),
    )
}

/// The path and body of a query's answer: the input of the workflow.
pub fn complete_query(task: &QueryTask<'_>) -> (String, String) {
    let arguments = task.workflow_arguments.map_or("null", RawValue::get);
    (
        format!("/api/worker/query-tasks/{}/complete", task.query_task_id),
        format!(
            r#"{{"lease_owner":"{}","query_task_attempt":{},"result_envelope":{arguments}}}"#,
            task.lease_owner, task.query_task_attempt
        ),
    )
}

/// Starts a workflow and returns its run.
///
/// # Errors
/// It was refused.
pub async fn start(
    connection: &mut Connection,
    workflow: &str,
    shape: Shape,
    queue: &str,
    blob: &str,
) -> Result<(String, f64), Refused> {
    let body = format!(
        r#"{{"workflow_id":"{workflow}","workflow_type":"{}","task_queue":"{queue}","input":{{"codec":"avro","blob":"{blob}"}}}}"#,
        shape.name()
    );
    let answer = call(
        connection,
        "start",
        Plane::Control,
        "POST",
        "/api/workflows",
        &body,
    )
    .await?;
    let started: Started<'_> = read("start", &answer)?;
    Ok((started.run_id.to_owned(), answer.seconds))
}

/// Sends a signal.
///
/// # Errors
/// It was refused.
pub async fn signal(
    connection: &mut Connection,
    workflow: &str,
    name: &str,
    blob: &str,
    request: &str,
) -> Result<f64, Refused> {
    let path = format!("/api/workflows/{workflow}/signal/{name}");
    let body =
        format!(r#"{{"input":{{"codec":"avro","blob":"{blob}"}},"request_id":"{request}"}}"#);
    call(connection, "signal", Plane::Control, "POST", &path, &body)
        .await
        .map(|answer| answer.seconds)
}

/// Reads a whole history: the types of its events, and the last event's payload.
///
/// # Errors
/// A page was refused, or there are too many.
pub async fn history(
    connection: &mut Connection,
    workflow: &str,
    run: &str,
) -> Result<(Vec<String>, String), Refused> {
    let (mut types, mut last) = (Vec::new(), String::new());
    let mut path = format!("/api/workflows/{workflow}/runs/{run}/history?page_size={PAGE}");
    let base = path.clone();
    for _ in 0..MAX_PAGES {
        let answer = call(connection, "history", Plane::Control, "GET", &path, "").await?;
        let page: HistoryPage<'_> = read("history", &answer)?;
        types.extend(page.events.iter().map(|event| event.event_type.to_owned()));
        if let Some(event) = page.events.last() {
            event.payload.get().clone_into(&mut last);
        }
        match page.next_page_token {
            None => return Ok((types, last)),
            Some(token) => path = format!("{base}&next_page_token={}", escaped(token)),
        }
    }
    Err(Refused::wrong("history", "it does not end"))
}

/// A token as part of a query string.
pub fn escaped(token: &str) -> String {
    token
        .replace('%', "%25")
        .replace('+', "%2B")
        .replace('/', "%2F")
        .replace('=', "%3D")
}

/// The namespace to use: made if it is not there; the default one if this server makes none.
///
/// # Errors
/// The server is not there or refuses both.
pub async fn namespace(
    url: &str,
    wanted: &str,
    token: Option<&str>,
) -> Result<(Target, String), String> {
    for name in [wanted, "default"] {
        let target = Target::new(url, name, token)?;
        let mut connection = Connection::new(&target);
        let body = format!(r#"{{"name":"{name}"}}"#);
        // It may be there already, or not be made by a server that knows no such call.
        let made = call(
            &mut connection,
            "namespace",
            Plane::Control,
            "POST",
            "/api/namespaces",
            &body,
        )
        .await;
        if let Err(refused) = &made
            && refused.status == 0
        {
            return Err(format!("{url}: {refused}"));
        }
        let probe = call(
            &mut connection,
            "list",
            Plane::Control,
            "GET",
            "/api/workflows/no-such-workflow",
            "",
        )
        .await;
        match probe {
            Err(refused) if refused.reason == "namespace_not_found" => {}
            Err(refused) if refused.status == 404 => return Ok((target, name.to_owned())),
            Err(refused) => return Err(format!("{url}: {refused}")),
            Ok(_) => return Ok((target, name.to_owned())),
        }
    }
    Err(format!(
        "{url}: there is neither a namespace {wanted} nor the default one"
    ))
}
