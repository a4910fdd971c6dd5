//! The crew of a workload: starters, workflow pollers, activity pollers and query pollers, and the
//! book of what was promised and what came of it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::api::{self, ActivityTask, QueryTask, Refused};
use crate::histogram::Histogram;
use crate::http::{Connection, Plane, Target};
use crate::payload::{Blobs, Chance, text_blob};
use crate::shape::{SIGNAL_BYTES, Shape, TIMER_SECONDS, WorkflowTask};

/// Connections that start workflows at a rate.
const RATE_STARTERS: usize = 64;
/// Pause before a refused call is made again.
const AGAIN: Duration = Duration::from_millis(25);
/// How long the last workflows are waited for.
pub const DRAIN: Duration = Duration::from_secs(60);
/// How often workers say that they live.
const ALIVE: Duration = Duration::from_secs(10);
/// Seconds of which completions are counted apart.
const SECONDS: usize = 4_096;

/// How workflows are started.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// So many are open at any time.
    Open(usize),
    /// So many each second, whatever becomes of them.
    Rate(f64),
    /// Nobody starts any.
    Nobody,
}

/// What a crew does.
#[derive(Clone)]
pub struct Plan {
    pub targets: Vec<Target>,
    /// Shapes and their weights.
    pub mix: Vec<(Shape, u64)>,
    /// Shapes that workers take beside those of the mix.
    pub others: Vec<Shape>,
    pub queues: Vec<String>,
    pub pace: Pace,
    pub workflow_pollers: usize,
    pub activity_pollers: usize,
    pub query_pollers: usize,
    pub wait: u64,
    pub payload: usize,
    /// Events of the first page of a task.
    pub page: Option<usize>,
    /// Calls that the server cannot serve just now are made again.
    pub insist: bool,
    /// Finished workflows that are remembered for the check.
    pub keep: usize,
    /// Names begin with it; different for each crew.
    pub name: String,
    pub seed: u64,
}

/// A finished workflow.
#[derive(Clone)]
pub struct Finished {
    pub workflow: String,
    pub run: String,
    pub shape: Shape,
    pub n: u64,
}

enum Stage {
    Waits(usize),
    Done,
}

/// A workflow that was started and has not ended.
struct Flight {
    n: u64,
    scheduled: Instant,
    /// When the work that is next was made.
    mark: Instant,
    counted: bool,
    starter: Option<mpsc::UnboundedSender<Stage>>,
}

/// What is counted.
#[derive(Default)]
pub struct Figures {
    pub started: AtomicU64,
    pub completed: AtomicU64,
    /// Starts that were refused with a hint when to come back.
    pub refused: AtomicU64,
    /// Reports that came too late, where that is to be expected.
    pub late_reports: AtomicU64,
    /// Start to completion.
    pub latency: Histogram,
    pub workflow_wait: Histogram,
    pub activity_wait: Histogram,
    pub start_call: Histogram,
    pub workflow_call: Histogram,
    pub activity_call: Histogram,
    pub signal_call: Histogram,
    pub query_call: Histogram,
    /// How late timers fired.
    pub lateness: Histogram,
    /// Time of a completion for each activity that it schedules.
    pub scheduling: Histogram,
}

/// What the tasks of a crew share.
pub struct Shared {
    pub plan: Plan,
    pub figures: Figures,
    blobs: HashMap<usize, Blobs>,
    flights: Mutex<HashMap<String, Flight>>,
    finished: Mutex<VecDeque<Finished>>,
    errors: Mutex<BTreeMap<Refused, u64>>,
    starting: AtomicBool,
    working: AtomicBool,
    window: AtomicBool,
    next: AtomicU64,
    /// Workflows that ended, whenever they began.
    pub landed: AtomicU64,
    began: Instant,
    /// Completions by second since the crew began.
    seconds: Vec<AtomicU64>,
    /// Runs that wait in a shape that nobody pushes on.
    pub held: Mutex<Vec<(String, String)>>,
}

/// A crew at work.
pub struct Crew {
    pub shared: Arc<Shared>,
    starters: JoinSet<()>,
    workers: JoinSet<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Notes what went wrong.
    pub fn error(&self, refused: Refused) {
        if self.working.load(Relaxed) {
            *lock(&self.errors).entry(refused).or_default() += 1;
        }
    }

    /// What went wrong so far, and how often.
    pub fn errors(&self) -> Vec<(Refused, u64)> {
        lock(&self.errors)
            .iter()
            .map(|(refused, count)| (refused.clone(), *count))
            .collect()
    }

    /// Workflows that have not ended.
    pub fn open(&self) -> usize {
        lock(&self.flights).len()
    }

    /// Completions in each second since the crew began.
    pub fn by_second(&self) -> Vec<u64> {
        let until = self.began.elapsed().as_secs() as usize;
        self.seconds
            .iter()
            .take(until.min(SECONDS))
            .map(|count| count.load(Relaxed))
            .collect()
    }

    /// Seconds since the crew began.
    pub fn age(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// The input of number `n`.
    pub fn input(&self, shape: Shape, n: u64) -> &str {
        let bytes = shape.input_bytes(self.plan.payload);
        self.blobs.get(&bytes).map_or("", |blobs| blobs.list(n))
    }

    /// Finished workflows that were remembered.
    pub fn finished(&self) -> Vec<Finished> {
        lock(&self.finished).iter().cloned().collect()
    }

    fn shape(&self, n: u64) -> Shape {
        let all: u64 = self.plan.mix.iter().map(|(_, weight)| weight).sum();
        let mut at = Chance::new(self.plan.seed ^ (n << 1)).next() % all.max(1);
        for (shape, weight) in &self.plan.mix {
            if at < *weight {
                return *shape;
            }
            at -= weight;
        }
        Shape::Simple
    }

    fn takes_off(&self, workflow: &str, flight: Flight) {
        if flight.counted {
            self.figures.started.fetch_add(1, Relaxed);
        }
        lock(&self.flights).insert(workflow.to_owned(), flight);
    }

    fn did_not_take_off(&self, workflow: &str) {
        if let Some(flight) = lock(&self.flights).remove(workflow)
            && flight.counted
        {
            self.figures.started.fetch_sub(1, Relaxed);
        }
    }

    /// Time since the next work of a workflow was made.
    fn waited(&self, workflow: &str) -> Option<Duration> {
        lock(&self.flights)
            .get(workflow)
            .map(|flight| flight.mark.elapsed())
    }

    fn mark(&self, workflow: &str, ahead: Duration) {
        if let Some(flight) = lock(&self.flights).get_mut(workflow) {
            flight.mark = Instant::now() + ahead;
        }
    }

    fn tell(&self, workflow: &str, wait: usize) {
        if let Some(flight) = lock(&self.flights).get(workflow)
            && let Some(starter) = &flight.starter
        {
            let _ = starter.send(Stage::Waits(wait));
        }
    }

    fn lands(&self, workflow: &str, run: &str, shape: Shape) {
        let Some(flight) = lock(&self.flights).remove(workflow) else {
            return;
        };
        self.landed.fetch_add(1, Relaxed);
        if flight.counted && self.window.load(Relaxed) {
            self.figures.completed.fetch_add(1, Relaxed);
            self.figures
                .latency
                .add_duration(flight.scheduled.elapsed());
        }
        let second = self.began.elapsed().as_secs() as usize;
        if let Some(count) = self.seconds.get(second) {
            count.fetch_add(1, Relaxed);
        }
        let mut finished = lock(&self.finished);
        if finished.len() >= self.plan.keep {
            finished.pop_front();
        }
        finished.push_back(Finished {
            workflow: workflow.to_owned(),
            run: run.to_owned(),
            shape,
            n: flight.n,
        });
        if let Some(starter) = flight.starter {
            let _ = starter.send(Stage::Done);
        }
    }

    fn note(&self, histogram: &Histogram, seconds: f64) {
        if self.window.load(Relaxed) {
            histogram.add(seconds);
        }
    }
}

impl Crew {
    /// Registers the workers and puts everybody to work.
    ///
    /// # Errors
    /// A worker cannot register.
    pub async fn start(plan: Plan) -> Result<Self, String> {
        let mut blobs = HashMap::new();
        for (shape, _) in &plan.mix {
            let bytes = shape.input_bytes(plan.payload);
            blobs
                .entry(bytes)
                .or_insert_with(|| Blobs::new(bytes, plan.seed));
        }
        let shared = Arc::new(Shared {
            figures: Figures::default(),
            blobs,
            flights: Mutex::default(),
            finished: Mutex::default(),
            errors: Mutex::default(),
            starting: AtomicBool::new(true),
            working: AtomicBool::new(true),
            window: AtomicBool::new(false),
            next: AtomicU64::new(0),
            landed: AtomicU64::new(0),
            began: Instant::now(),
            seconds: (0..SECONDS).map(|_| AtomicU64::new(0)).collect(),
            held: Mutex::default(),
            plan,
        });
        let mut crew = Self {
            shared,
            starters: JoinSet::new(),
            workers: JoinSet::new(),
        };
        crew.register().await?;
        let plan = &crew.shared.plan;
        let (workflow, activity, query, pace) = (
            plan.workflow_pollers,
            plan.activity_pollers,
            plan.query_pollers,
            plan.pace,
        );
        crew.work(workflow, activity, query);
        match pace {
            Pace::Open(open) => {
                for slot in 0..open {
                    crew.starters
                        .spawn(keep_open(Arc::clone(&crew.shared), slot));
                }
            }
            Pace::Rate(rate) => {
                let ticket = Arc::new(AtomicU64::new(0));
                for slot in 0..RATE_STARTERS {
                    crew.starters.spawn(at_rate(
                        Arc::clone(&crew.shared),
                        slot,
                        rate,
                        Arc::clone(&ticket),
                    ));
                }
            }
            Pace::Nobody => {}
        }
        Ok(crew)
    }

    async fn register(&mut self) -> Result<(), String> {
        let plan = &self.shared.plan;
        let mut shapes: Vec<Shape> = Shape::usual().collect();
        shapes.extend(plan.mix.iter().map(|(shape, _)| *shape));
        shapes.extend(&plan.others);
        shapes.dedup();
        let mut connection = Connection::new(&plan.targets[0]);
        for (at, queue) in plan.queues.iter().enumerate() {
            let worker = worker(plan, at);
            api::register(
                &mut connection,
                &worker,
                std::slice::from_ref(queue),
                &shapes,
            )
            .await
            .map_err(|refused| refused.to_string())?;
        }
        let shared = Arc::clone(&self.shared);
        self.workers.spawn(async move {
            loop {
                tokio::time::sleep(ALIVE).await;
                for at in 0..shared.plan.queues.len() {
                    let worker = worker(&shared.plan, at);
                    if let Err(refused) = api::heartbeat(&mut connection, &worker).await
                        && !(shared.plan.insist && refused.may_repeat())
                    {
                        shared.error(refused);
                    }
                }
            }
        });
        Ok(())
    }

    /// More pollers.
    pub fn work(&mut self, workflow: usize, activity: usize, query: usize) {
        let shared = &self.shared;
        for slot in 0..workflow {
            self.workers
                .spawn(poll(Arc::clone(shared), slot, Kind::Workflow));
        }
        for slot in 0..activity {
            self.workers
                .spawn(poll(Arc::clone(shared), slot, Kind::Activity));
        }
        for slot in 0..query {
            self.workers
                .spawn(poll(Arc::clone(shared), slot, Kind::Query));
        }
    }

    /// From now on it counts.
    pub fn open_window(&self) {
        let figures = &self.shared.figures;
        figures.started.store(0, Relaxed);
        figures.completed.store(0, Relaxed);
        figures.refused.store(0, Relaxed);
        for histogram in [
            &figures.latency,
            &figures.workflow_wait,
            &figures.activity_wait,
            &figures.start_call,
            &figures.workflow_call,
            &figures.activity_call,
            &figures.signal_call,
            &figures.query_call,
            &figures.lateness,
            &figures.scheduling,
        ] {
            histogram.clear();
        }
        self.shared.window.store(true, Relaxed);
    }

    /// From now on it no longer counts.
    pub fn close_window(&self) {
        self.shared.window.store(false, Relaxed);
    }

    /// Nobody starts any more.
    pub fn stop_starting(&self) {
        self.shared.starting.store(false, Relaxed);
    }

    /// Waits until every workflow has ended; returns how many have not in time.
    pub async fn drain(&mut self, patience: Duration) -> usize {
        self.stop_starting();
        let end = Instant::now() + patience;
        while self.shared.open() > 0 && Instant::now() < end {
            tokio::time::sleep(AGAIN).await;
        }
        let left = self.shared.open();
        // Starters of workflows that never end would be waited for in vain.
        if left == 0 {
            let ended = async { while self.starters.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(patience, ended).await;
        }
        self.starters.shutdown().await;
        left
    }

    /// Everybody goes; connections are dropped.
    pub async fn dismiss(mut self) -> Arc<Shared> {
        self.shared.working.store(false, Relaxed);
        self.shared.starting.store(false, Relaxed);
        self.starters.shutdown().await;
        self.workers.shutdown().await;
        self.shared
    }
}

fn worker(plan: &Plan, queue: usize) -> String {
    format!("{}-w{queue}", plan.name)
}

async fn keep_open(shared: Arc<Shared>, slot: usize) {
    let plan = &shared.plan;
    let mut connection = Connection::new(&plan.targets[slot % plan.targets.len()]);
    let queue = &plan.queues[slot % plan.queues.len()];
    while shared.starting.load(Relaxed) {
        let (sender, mut stages) = mpsc::unbounded_channel();
        let n = shared.next.fetch_add(1, Relaxed);
        let shape = shared.shape(n);
        let workflow = format!("{}-{n}", plan.name);
        let now = Instant::now();
        let begun = start(
            &shared,
            &mut connection,
            (n, shape, &workflow),
            queue,
            now,
            Some(sender),
        );
        if !begun.await {
            continue;
        }
        while let Some(stage) = stages.recv().await {
            let wait = match stage {
                Stage::Done => break,
                Stage::Waits(wait) => wait,
            };
            if matches!(shape, Shape::Held | Shape::Hot(_)) {
                continue;
            }
            push_on(&shared, &mut connection, &workflow, wait).await;
        }
    }
}

/// Sends the signal that a workflow waits for.
async fn push_on(shared: &Shared, connection: &mut Connection, workflow: &str, wait: usize) {
    let blob = text_blob(&Chance::new(wait as u64 + 1).text(SIGNAL_BYTES));
    let (name, request) = (format!("s{wait}"), format!("{workflow}-s{wait}"));
    shared.mark(workflow, Duration::ZERO);
    loop {
        match api::signal(connection, workflow, &name, &blob, &request).await {
            Ok(seconds) => return shared.note(&shared.figures.signal_call, seconds),
            Err(refused) if shared.plan.insist && refused.may_repeat() => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(refused) => return shared.error(refused),
        }
    }
}

async fn start(
    shared: &Shared,
    connection: &mut Connection,
    (n, shape, workflow): (u64, Shape, &str),
    queue: &str,
    scheduled: Instant,
    starter: Option<mpsc::UnboundedSender<Stage>>,
) -> bool {
    let counted = shared.window.load(Relaxed);
    shared.takes_off(
        workflow,
        Flight {
            n,
            scheduled,
            mark: Instant::now(),
            counted,
            starter,
        },
    );
    let mut tried = false;
    loop {
        match api::start(connection, workflow, shape, queue, shared.input(shape, n)).await {
            Ok((_, seconds)) => {
                shared.note(&shared.figures.start_call, seconds);
                return true;
            }
            // An earlier try was faster than its answer.
            Err(refused) if tried && refused.reason == "instance_already_started" => return true,
            Err(refused) if refused.status == 0 && shared.plan.insist => {
                tried = true;
                tokio::time::sleep(AGAIN).await;
            }
            Err(refused) => {
                shared.did_not_take_off(workflow);
                if shared.plan.insist && refused.may_repeat() && refused.hint {
                    shared.figures.refused.fetch_add(1, Relaxed);
                } else {
                    shared.error(refused);
                }
                tokio::time::sleep(AGAIN).await;
                return false;
            }
        }
    }
}

async fn at_rate(shared: Arc<Shared>, slot: usize, rate: f64, ticket: Arc<AtomicU64>) {
    let plan = &shared.plan;
    let mut connection = Connection::new(&plan.targets[slot % plan.targets.len()]);
    loop {
        let n = ticket.fetch_add(1, Relaxed);
        let scheduled = shared.began + Duration::from_secs_f64(n as f64 / rate);
        tokio::time::sleep_until(scheduled.into()).await;
        if !shared.starting.load(Relaxed) {
            return;
        }
        let shape = shared.shape(n);
        let workflow = format!("{}-{n}", plan.name);
        let queue = &plan.queues[(n % plan.queues.len() as u64) as usize];
        start(
            &shared,
            &mut connection,
            (n, shape, &workflow),
            queue,
            scheduled,
            None,
        )
        .await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Workflow,
    Activity,
    Query,
}

async fn poll(shared: Arc<Shared>, slot: usize, kind: Kind) {
    let plan = &shared.plan;
    let mut connection = Connection::new(&plan.targets[slot % plan.targets.len()]);
    let at = slot % plan.queues.len();
    let (worker, queue) = (worker(plan, at), &plan.queues[at]);
    let (name, path) = match kind {
        Kind::Workflow => ("workflow poll", "/api/worker/workflow-tasks/poll"),
        Kind::Activity => ("activity poll", "/api/worker/activity-tasks/poll"),
        Kind::Query => ("query poll", "/api/worker/query-tasks/poll"),
    };
    for n in 0_u64.. {
        let id = format!("{worker}-{path}-{slot}-{n}");
        let body = api::poll_body(&worker, queue, plan.wait, &id, plan.page);
        let polled = api::call(&mut connection, name, Plane::Worker, "POST", path, &body).await;
        let report = match polled {
            Ok(answer) => prepare(&shared, kind, name, &answer),
            Err(refused) => Err(refused),
        };
        match report {
            Ok(Some(report)) => send_report(&shared, &mut connection, report).await,
            Ok(None) => {}
            Err(refused) => {
                if !(plan.insist && refused.may_repeat()) {
                    shared.error(refused);
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// A report that is ready to be sent, and what follows once it was taken.
struct Report {
    call: &'static str,
    kind: Kind,
    path: String,
    body: String,
    workflow: String,
    run: String,
    shape: Shape,
    ends: bool,
    waits: Option<usize>,
    activities: usize,
}

fn prepare(
    shared: &Shared,
    kind: Kind,
    name: &'static str,
    answer: &crate::http::Answer<'_>,
) -> Result<Option<Report>, Refused> {
    let figures = &shared.figures;
    let plain = |call, (path, body), workflow: &str| Report {
        call,
        kind,
        path,
        body,
        workflow: workflow.to_owned(),
        run: String::new(),
        shape: Shape::Simple,
        ends: false,
        waits: None,
        activities: 0,
    };
    match kind {
        Kind::Workflow => {
            let Some(task) = api::task::<WorkflowTask<'_>>(name, answer)? else {
                return Ok(None);
            };
            let shape = Shape::of(task.workflow_type)
                .ok_or_else(|| Refused::wrong(name, format!("type {}", task.workflow_type)))?;
            if let Some(waited) = shared.waited(task.workflow_id) {
                let fired = shape == Shape::Timer && task.total_history_events > 2;
                let histogram = if fired {
                    &figures.lateness
                } else {
                    &figures.workflow_wait
                };
                shared.note(histogram, waited.as_secs_f64());
            }
            let step = shape
                .step(&task)
                .map_err(|wrong| Refused::wrong("order of events", wrong))?;
            let ahead = if step.timer { TIMER_SECONDS } else { 0 };
            shared.mark(task.workflow_id, Duration::from_secs(ahead));
            Ok(Some(Report {
                run: task.run_id.to_owned(),
                shape,
                ends: step.ends,
                waits: step.waits,
                activities: step.activities,
                ..plain(
                    "workflow completion",
                    api::complete_workflow(&task, &step.commands),
                    task.workflow_id,
                )
            }))
        }
        Kind::Activity => {
            let Some(task) = api::task::<ActivityTask<'_>>(name, answer)? else {
                return Ok(None);
            };
            if let Some(waited) = shared.waited(task.workflow_id) {
                shared.note(&figures.activity_wait, waited.as_secs_f64());
            }
            shared.mark(task.workflow_id, Duration::ZERO);
            Ok(Some(plain(
                "activity completion",
                api::complete_activity(&task),
                task.workflow_id,
            )))
        }
        Kind::Query => {
            let Some(task) = api::task::<QueryTask<'_>>(name, answer)? else {
                return Ok(None);
            };
            Ok(Some(plain(
                "query completion",
                api::complete_query(&task),
                "",
            )))
        }
    }
}

async fn send_report(shared: &Shared, connection: &mut Connection, report: Report) {
    let figures = &shared.figures;
    loop {
        let sent = api::call(
            connection,
            report.call,
            Plane::Worker,
            "POST",
            &report.path,
            &report.body,
        )
        .await;
        match sent {
            Ok(answer) => {
                let histogram = match report.kind {
                    Kind::Workflow => &figures.workflow_call,
                    Kind::Activity => &figures.activity_call,
                    Kind::Query => return,
                };
                shared.note(histogram, answer.seconds);
                if report.activities > 1 {
                    let each = answer.seconds / report.activities as f64;
                    shared.note(&figures.scheduling, each);
                }
                break;
            }
            Err(refused) if shared.plan.insist && refused.may_repeat() => {
                tokio::time::sleep(AGAIN).await;
            }
            // The lease ran out while the server was away: the task is handed out again.
            Err(refused) if shared.plan.insist && matches!(refused.status, 404 | 409) => {
                figures.late_reports.fetch_add(1, Relaxed);
                return;
            }
            Err(refused) => return shared.error(refused),
        }
    }
    if report.ends {
        shared.lands(&report.workflow, &report.run, report.shape);
    } else if let Some(wait) = report.waits {
        if matches!(report.shape, Shape::Held | Shape::Hot(_)) {
            lock(&shared.held).push((report.workflow.clone(), report.run.clone()));
        }
        shared.tell(&report.workflow, wait);
    }
}
