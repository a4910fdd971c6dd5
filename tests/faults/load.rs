//! A steady load with a ledger: workflows with one activity, started and run over HTTP by clients
//! that try again with the same body, and the check that nothing they were told was lost or doubled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{TOKEN, text};

/// How many there are of each.
#[derive(Clone, Copy)]
pub struct Crew {
    pub starters: u64,
    /// Pause of a starter between two starts.
    pub pace: Duration,
    pub workflow_pollers: usize,
    pub activity_pollers: usize,
}

/// What was promised, and by whom it was heard.
#[derive(Default)]
struct Ledger {
    /// Starts whose answer came: the run that it named.
    acknowledged: BTreeMap<String, String>,
    /// Starts whose answer never came.
    unheard: BTreeSet<String>,
    /// Attempts whose outcome was taken, by attempt id.
    outcomes: BTreeSet<String>,
    /// Attempts that were executed, by activity.
    executions: BTreeMap<String, BTreeSet<String>>,
    /// Answers that are not to be expected.
    surprises: Vec<String>,
    /// Refusals of a server that cannot just now, and how many of them.
    unavailable: BTreeMap<String, u64>,
    lost_connections: u64,
}

struct Shared {
    url: String,
    http: reqwest::Client,
    ledger: Mutex<Ledger>,
    starting: AtomicBool,
    working: AtomicBool,
    polls: AtomicU64,
}

/// A load that runs.
pub struct Load {
    shared: Arc<Shared>,
    starters: JoinSet<()>,
    workers: JoinSet<()>,
}

/// What the check found.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub acknowledged: usize,
    pub lost: Vec<String>,
    pub doubled: Vec<String>,
    pub stuck: Vec<String>,
    /// Starts that nobody heard of, and that happened all the same.
    pub unheard_and_there: usize,
    pub unheard_and_absent: usize,
    pub executions: usize,
    pub outcomes: usize,
}

const QUEUE: &str = "load";
const TYPE: &str = "greet";
const ACTIVITY: &str = "hello";
/// Pause before a request is tried again.
const AGAIN: Duration = Duration::from_millis(30);
/// How long an answer is waited for beyond a poll's own time.
const PATIENCE: Duration = Duration::from_secs(15);

/// What came of one request.
enum Told {
    Answer(StatusCode, Value),
    /// The server said that it cannot just now.
    Later,
    /// The connection broke: nobody knows.
    Nothing,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("the ledger")
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Told {
        let request = self
            .http
            .request(method, format!("{}/api{path}", self.url))
            .bearer_auth(TOKEN)
            .timeout(PATIENCE);
        let request = if path.starts_with("/worker") {
            request.header("X-Durable-Workflow-Protocol-Version", "1.13")
        } else {
            request.header("X-Durable-Workflow-Control-Plane-Version", "2")
        };
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let Ok(response) = request.send().await else {
            self.ledger().lost_connections += 1;
            return Told::Nothing;
        };
        let (status, headers) = (response.status(), response.headers().clone());
        let Ok(answer) = response.json::<Value>().await else {
            self.ledger().lost_connections += 1;
            return Told::Nothing;
        };
        if status.is_server_error() {
            self.check_refusal(path, status, headers.contains_key("retry-after"), &answer);
            return Told::Later;
        }
        Told::Answer(status, answer)
    }

    /// A refusal by a server that cannot just now has to say that trying again is worth it.
    fn check_refusal(&self, path: &str, status: StatusCode, retry_after: bool, answer: &Value) {
        let reason = answer["reason"].as_str().unwrap_or("none").to_owned();
        let right = status == StatusCode::SERVICE_UNAVAILABLE
            && retry_after
            && answer["retryable"] == true
            && answer["retry_after_seconds"].is_u64()
            && ["backend_unavailable", "backend_lock_pressure"].contains(&reason.as_str());
        let mut ledger = self.ledger();
        *ledger.unavailable.entry(reason).or_default() += 1;
        if !right {
            ledger.surprises.push(format!("{path}: {status} {answer}"));
        }
    }

    /// The same request until the server says something about it.
    async fn insist(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Option<(StatusCode, Value)> {
        while self.working.load(Ordering::SeqCst) {
            if let Told::Answer(status, answer) = self.send(method.clone(), path, body).await {
                return Some((status, answer));
            }
            tokio::time::sleep(AGAIN).await;
        }
        None
    }
}

impl Load {
    pub fn start(url: &str, crew: Crew) -> Self {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .build()
            .expect("a client");
        let shared = Arc::new(Shared {
            url: url.to_owned(),
            http,
            ledger: Mutex::default(),
            starting: AtomicBool::new(true),
            working: AtomicBool::new(true),
            polls: AtomicU64::new(0),
        });
        let mut starters = JoinSet::new();
        for n in 0..crew.starters {
            starters.spawn(starter(Arc::clone(&shared), n, crew.pace));
        }
        let mut workers = JoinSet::new();
        for n in 0..crew.workflow_pollers {
            workers.spawn(worker(Arc::clone(&shared), "workflow", format!("w{n}")));
        }
        for n in 0..crew.activity_pollers {
            workers.spawn(worker(Arc::clone(&shared), "activity", format!("a{n}")));
        }
        Self {
            shared,
            starters,
            workers,
        }
    }

    /// Starts that were acknowledged so far.
    pub fn acknowledged(&self) -> usize {
        self.shared.ledger().acknowledged.len()
    }

    /// Refusals so far, by reason.
    pub fn unavailable(&self) -> BTreeMap<String, u64> {
        self.shared.ledger().unavailable.clone()
    }

    /// Stops starting, lets the workers finish what was started, and holds the server's word against
    /// the ledger. The server has to be there.
    pub async fn settle(mut self, within: Duration) -> Found {
        self.shared.starting.store(false, Ordering::SeqCst);
        while let Some(starter) = self.starters.join_next().await {
            starter.expect("a starter");
        }
        let (acknowledged, unheard) = {
            let ledger = self.shared.ledger();
            (ledger.acknowledged.clone(), ledger.unheard.clone())
        };
        let deadline = Instant::now() + within;
        let mut found = Found {
            acknowledged: acknowledged.len(),
            lost: Vec::new(),
            doubled: Vec::new(),
            stuck: Vec::new(),
            unheard_and_there: 0,
            unheard_and_absent: 0,
            executions: 0,
            outcomes: 0,
        };
        let mut started = BTreeMap::new();
        for (workflow, run) in acknowledged {
            started.insert(workflow, Some(run));
        }
        for workflow in unheard {
            started.entry(workflow).or_insert(None);
        }
        for (workflow, run) in started {
            self.check(&workflow, run, deadline, &mut found).await;
        }
        self.shared.working.store(false, Ordering::SeqCst);
        while let Some(worker) = self.workers.join_next().await {
            worker.expect("a worker");
        }
        let ledger = self.shared.ledger();
        assert_eq!(ledger.surprises, Vec::<String>::new());
        found.executions = ledger.executions.values().map(BTreeSet::len).sum();
        found.outcomes = ledger.outcomes.len();
        println!(
            "load: {} starts acknowledged, {} unheard of ({} of them happened), {} executions, {} polls, \
             {} connections lost, refusals {:?}",
            found.acknowledged,
            found.unheard_and_there + found.unheard_and_absent,
            found.unheard_and_there,
            found.executions,
            self.shared.polls.load(Ordering::SeqCst),
            ledger.lost_connections,
            ledger.unavailable
        );
        found
    }

    /// One workflow, as the control plane shows it. `run` is the one that was acknowledged.
    async fn check(
        &self,
        workflow: &str,
        run: Option<String>,
        deadline: Instant,
        found: &mut Found,
    ) {
        let described = loop {
            let path = format!("/workflows/{workflow}");
            let (status, described) = self.get(&path).await;
            if status == StatusCode::NOT_FOUND {
                match run {
                    Some(run) => found.lost.push(format!("{workflow} {run}")),
                    None => found.unheard_and_absent += 1,
                }
                return;
            }
            assert_eq!(status, StatusCode::OK, "{described:#}");
            if described["is_terminal"] == true {
                break described;
            }
            if Instant::now() > deadline {
                found.stuck.push(format!("{workflow}: {described}"));
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let there = text(&described, "run_id").to_owned();
        match &run {
            Some(run) if *run != there => found
                .lost
                .push(format!("{workflow} {run}, there is {there}")),
            Some(_) => {}
            None => found.unheard_and_there += 1,
        }
        if described["status"] != "completed" {
            found
                .lost
                .push(format!("{workflow} is {}", described["status"]));
        }
        let (_, runs) = self.get(&format!("/workflows/{workflow}/runs")).await;
        if runs["runs"].as_array().expect("runs").len() != 1 {
            found.doubled.push(format!("{workflow} has several runs"));
        }
        let path = format!("/workflows/{workflow}/runs/{there}/history?page_size=1000");
        let (_, history) = self.get(&path).await;
        self.check_history(
            workflow,
            history["events"].as_array().expect("events"),
            found,
        );
    }

    /// Every step once, in a dense sequence, with the outcome that its worker was told was taken.
    fn check_history(&self, workflow: &str, events: &[Value], found: &mut Found) {
        let sequences: Vec<u64> = events
            .iter()
            .filter_map(|event| event["sequence"].as_u64())
            .collect();
        if sequences != (1..=events.len() as u64).collect::<Vec<_>>() {
            found
                .lost
                .push(format!("{workflow} has gaps: {sequences:?}"));
        }
        let of = |kind: &str| -> Vec<&Value> {
            events
                .iter()
                .filter(|event| event["event_type"] == kind)
                .collect()
        };
        for kind in [
            "WorkflowStarted",
            "ActivityScheduled",
            "ActivityCompleted",
            "WorkflowCompleted",
        ] {
            match of(kind).len() {
                1 => {}
                0 => found.lost.push(format!("{workflow} has no {kind}")),
                _ => found.doubled.push(format!("{workflow} has several {kind}")),
            }
        }
        if events
            .last()
            .is_none_or(|last| last["event_type"] != "WorkflowCompleted")
        {
            found
                .doubled
                .push(format!("{workflow} goes on after its end"));
        }
        let ledger = self.shared.ledger();
        for completed in of("ActivityCompleted") {
            let activity = text(&completed["payload"], "activity_execution_id");
            let attempt = text(&completed["payload"], "activity_attempt_id");
            let executed = ledger.executions.get(activity);
            if executed.is_none_or(|attempts| !attempts.contains(attempt)) {
                found
                    .doubled
                    .push(format!("{workflow}: {attempt} was never executed"));
            }
            // Of all attempts of this activity the one whose outcome counts is the only one that was
            // told so.
            for other in executed.into_iter().flatten() {
                if other != attempt && ledger.outcomes.contains(other) {
                    found.lost.push(format!(
                        "{workflow}: the outcome of {other} was taken and is not there"
                    ));
                }
            }
        }
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.shared
            .insist(Method::GET, path, None)
            .await
            .expect("an answer")
    }
}

async fn starter(shared: Arc<Shared>, me: u64, pace: Duration) {
    let mut ticks = tokio::time::interval(pace);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for n in 0_u64.. {
        ticks.tick().await;
        if !shared.starting.load(Ordering::SeqCst) {
            return;
        }
        let workflow = format!("load-{me}-{n}");
        let body = json!({"workflow_id": workflow, "workflow_type": TYPE, "task_queue": QUEUE, "input": [n]});
        // Every third start is not tried again, so that some remain of which nobody has heard.
        let told = shared.send(Method::POST, "/workflows", Some(&body)).await;
        let told = match told {
            Told::Answer(status, answer) => Some((status, answer)),
            Told::Nothing if n % 3 == 0 => None,
            Told::Later | Told::Nothing => {
                shared.insist(Method::POST, "/workflows", Some(&body)).await
            }
        };
        let mut ledger = shared.ledger();
        match told {
            Some((StatusCode::CREATED | StatusCode::OK, answer)) => {
                ledger
                    .acknowledged
                    .insert(workflow, text(&answer, "run_id").to_owned());
            }
            // An earlier try of the same start was faster than its answer.
            Some((StatusCode::CONFLICT, answer))
                if answer["reason"] == "instance_already_started" =>
            {
                ledger.unheard.insert(workflow);
            }
            Some((status, answer)) => ledger.surprises.push(format!("start: {status} {answer}")),
            None => {
                ledger.unheard.insert(workflow);
            }
        }
    }
}

async fn worker(shared: Arc<Shared>, kind: &'static str, name: String) {
    let register = json!({
        "worker_id": name,
        "task_queue": QUEUE,
        "runtime": "external",
        "supported_workflow_types": if kind == "workflow" { vec![TYPE] } else { Vec::new() },
        "supported_activity_types": if kind == "activity" { vec![ACTIVITY] } else { Vec::new() },
        "capability_manifest": {},
    });
    let mut registered = false;
    for n in 0_u64.. {
        if !registered {
            let Some((status, answer)) = shared
                .insist(Method::POST, "/worker/register", Some(&register))
                .await
            else {
                return;
            };
            registered = status.is_success();
            if !registered {
                shared
                    .ledger()
                    .surprises
                    .push(format!("register: {status} {answer}"));
                return;
            }
        }
        let poll = json!({
            "worker_id": name,
            "task_queue": QUEUE,
            "timeout_seconds": 2,
            "poll_request_id": format!("{name}-{n}"),
        });
        let path = format!("/worker/{kind}-tasks/poll");
        let Some((status, mut answer)) = shared.insist(Method::POST, &path, Some(&poll)).await
        else {
            return;
        };
        shared.polls.fetch_add(1, Ordering::SeqCst);
        if status != StatusCode::OK {
            shared
                .ledger()
                .surprises
                .push(format!("poll: {status} {answer}"));
            continue;
        }
        registered = answer["poll_status"] != "stale_worker_registration";
        let task = answer["task"].take();
        if task.is_null() {
            continue;
        }
        if kind == "workflow" {
            advance(&shared, &task).await;
        } else {
            execute(&shared, &task).await;
        }
    }
}

/// Schedules the activity, or finishes once it is done.
async fn advance(shared: &Shared, task: &Value) {
    let events = task["history_events"].as_array().expect("events");
    let done = events
        .iter()
        .find(|event| event["event_type"] == "ActivityCompleted");
    let scheduled = events
        .iter()
        .any(|event| event["event_type"] == "ActivityScheduled");
    let commands = match done {
        Some(done) => json!([{"type": "complete_workflow", "result": done["payload"]["result"]}]),
        None if scheduled => json!([]),
        None => json!([{"type": "schedule_activity", "activity_type": ACTIVITY}]),
    };
    let body = json!({
        "lease_owner": task["lease_owner"],
        "workflow_task_attempt": task["workflow_task_attempt"],
        "commands": commands,
    });
    let path = format!("/worker/workflow-tasks/{}/complete", text(task, "task_id"));
    report(shared, &path, &body).await;
}

async fn execute(shared: &Shared, task: &Value) {
    let attempt = text(task, "activity_attempt_id").to_owned();
    let activity = text(task, "activity_execution_id").to_owned();
    let fresh = {
        let mut ledger = shared.ledger();
        ledger
            .executions
            .entry(activity)
            .or_default()
            .insert(attempt.clone())
    };
    let body = json!({
        "lease_owner": task["lease_owner"],
        "activity_attempt_id": attempt,
        "result": {"attempt": attempt},
    });
    let path = format!("/worker/activity-tasks/{}/complete", text(task, "task_id"));
    let recorded = report(shared, &path, &body).await;
    let mut ledger = shared.ledger();
    if !fresh {
        ledger
            .surprises
            .push(format!("{attempt} was handed out twice"));
    }
    if recorded {
        ledger.outcomes.insert(attempt);
    }
}

/// Reports until the server takes it or says that it is too late. Returns whether it was taken.
async fn report(shared: &Shared, path: &str, body: &Value) -> bool {
    let Some((status, answer)) = shared.insist(Method::POST, path, Some(body)).await else {
        return false;
    };
    match status {
        StatusCode::OK => answer["recorded"] == true,
        // The lease ran out while the server was away.
        StatusCode::CONFLICT => false,
        _ => {
            shared
                .ledger()
                .surprises
                .push(format!("{path}: {status} {answer}"));
            false
        }
    }
}
