//! The crew of a workload: starters, workflow pollers, activity pollers and query pollers, and the
//! book of what was promised and what came of it.

mod pollers;
mod starters;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::api::{self, Refused};
use crate::histogram::Histogram;
use crate::http::{Connection, Target};
use crate::payload::{Blobs, Chance};
use crate::shape::Shape;

use pollers::{Kind, poll};
use starters::{at_rate, keep_open};

/// Starts each second that one connection is there for, and how many connections there are.
const STARTS_EACH: f64 = 4.0;
const MIN_STARTERS: f64 = 64.0;
const MAX_STARTERS: f64 = 1_024.0;
/// Pause before a refused call is made again.
const AGAIN: Duration = Duration::from_millis(25);
/// How long the last workflows are waited for.
pub const DRAIN: Duration = Duration::from_secs(60);
/// The longest lease of a task, with time to spare.
const LEASES: Duration = Duration::from_secs(330);
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
    /// Workflows that are started in all.
    pub limit: u64,
    /// A starter goes on once its workflow waits, and leaves it open.
    pub leave_open: bool,
    /// Where workflows are started, if not where tasks are polled.
    pub started_at: Option<Vec<Target>>,
    /// Activities after which the time is noted, again and again; 0 for never.
    pub milestone: u64,
    /// Workers read the end of the history themselves, from where they stopped.
    pub read_on: bool,
    /// Calls that are refused with a hint when to come back are made again.
    pub insist: bool,
    /// So are calls whose answer is lost, and reports may come too late: the server is killed.
    pub killed: bool,
    /// Finished workflows that are remembered for the check.
    pub keep: usize,
    /// Names begin with it; different for each crew.
    pub name: String,
    pub seed: u64,
}

impl Plan {
    /// As part of a line.
    pub fn json(&self) -> Value {
        let mix: Vec<Value> = self
            .mix
            .iter()
            .map(|(shape, weight)| json!([shape.name(), weight]))
            .collect();
        let (open, rate) = match self.pace {
            Pace::Open(open) => (Some(open), None),
            Pace::Rate(rate) => (None, Some(rate)),
            Pace::Nobody => (None, None),
        };
        json!({
            "nodes": self.targets.len(),
            "mix": mix,
            "queues": self.queues.len(),
            "open": open,
            "rate": rate,
            "workflow_pollers": self.workflow_pollers,
            "activity_pollers": self.activity_pollers,
            "query_pollers": self.query_pollers,
            "wait": self.wait,
            "payload": self.payload,
            "page_size": self.page,
            "seed": self.seed,
        })
    }
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
    /// Workflows that ended in the window, whenever they began: what costs are divided by.
    pub ended: AtomicU64,
    /// Calls that were refused with a hint when to come back.
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
    /// Polls that came back with an activity.
    pub claim_call: Histogram,
    /// Heartbeats of activities.
    pub heartbeat_call: Histogram,
    pub signal_call: Histogram,
    pub query_call: Histogram,
    /// How late timers fired.
    pub lateness: Histogram,
    /// How late the tasks arrived that timers made.
    pub arrival_lateness: Histogram,
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
    /// Activities that were reported.
    pub activities: AtomicU64,
    /// When so many more of them were.
    pub milestones: Mutex<Vec<Instant>>,
    /// Polls of every second poller end without a word when it changes.
    cut: watch::Sender<u64>,
    /// Runs that wait in a shape that nobody pushes on.
    pub held: Mutex<Vec<(String, String)>>,
    /// Where the last page of a run began, when workers read on: its token, and the events before it.
    pub last_pages: Mutex<HashMap<String, (String, usize)>>,
}

/// A crew at work.
pub struct Crew {
    pub shared: Arc<Shared>,
    starters: JoinSet<()>,
    workers: JoinSet<()>,
    workflow_workers: JoinSet<()>,
}

/// The value, whoever panicked with it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Notes what went wrong.
    pub fn error(&self, refused: Refused) {
        if self.working.load(Relaxed) {
            *lock(&self.errors).entry(refused).or_default() += 1;
        }
    }

    /// Whether a refusal belongs to the workload: the call may be made again.
    pub fn bears(&self, refused: &Refused) -> bool {
        let hinted = self.plan.insist && refused.may_repeat() && refused.hint;
        if hinted {
            self.figures.refused.fetch_add(1, Relaxed);
        }
        hinted || (self.plan.killed && refused.status == 0)
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
        if self.window.load(Relaxed) {
            self.figures.ended.fetch_add(1, Relaxed);
        }
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

    /// Adds to a histogram while it counts.
    pub fn note(&self, histogram: &Histogram, seconds: f64) {
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
            activities: AtomicU64::new(0),
            milestones: Mutex::default(),
            cut: watch::Sender::new(0),
            held: Mutex::default(),
            last_pages: Mutex::default(),
            plan,
        });
        let mut crew = Self {
            shared,
            starters: JoinSet::new(),
            workers: JoinSet::new(),
            workflow_workers: JoinSet::new(),
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
            Pace::Rate(rate) => crew.start_at_rate(rate),
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
                        && !shared.bears(&refused)
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
            self.workflow_workers
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

    /// From now on so many workflows are started each second.
    pub fn start_at_rate(&mut self, rate: f64) {
        let (ticket, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let starters = (rate / STARTS_EACH).clamp(MIN_STARTERS, MAX_STARTERS);
        for slot in 0..starters as usize {
            let (shared, ticket) = (Arc::clone(&self.shared), Arc::clone(&ticket));
            self.starters
                .spawn(at_rate(shared, slot, rate, began, ticket));
        }
    }

    /// From now on it counts.
    pub fn open_window(&self) {
        let figures = &self.shared.figures;
        figures.started.store(0, Relaxed);
        figures.completed.store(0, Relaxed);
        figures.ended.store(0, Relaxed);
        figures.refused.store(0, Relaxed);
        for histogram in [
            &figures.latency,
            &figures.workflow_wait,
            &figures.activity_wait,
            &figures.start_call,
            &figures.workflow_call,
            &figures.activity_call,
            &figures.claim_call,
            &figures.heartbeat_call,
            &figures.signal_call,
            &figures.query_call,
            &figures.lateness,
            &figures.arrival_lateness,
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

    /// Nobody polls for workflow tasks any more. Nothing may be under way.
    pub async fn rest_workflows(&mut self) {
        self.workflow_workers.shutdown().await;
    }

    /// Every second poller drops its connection, if it waits for a task.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|round| *round += 1);
    }

    /// Waits until all starters have ended, which only those of a limited number do.
    pub async fn all_started(&mut self) {
        while self.starters.join_next().await.is_some() {}
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

    /// Waits until every workflow has ended, also those whose task is held by nobody until its lease
    /// ends.
    pub async fn drain_within_leases(&mut self) -> usize {
        self.drain(LEASES).await
    }

    /// Everybody goes; connections are dropped.
    pub async fn dismiss(mut self) -> Arc<Shared> {
        self.shared.working.store(false, Relaxed);
        self.shared.starting.store(false, Relaxed);
        self.starters.shutdown().await;
        self.workflow_workers.shutdown().await;
        self.workers.shutdown().await;
        self.shared
    }
}

/// The worker of a queue, by its place in the plan.
pub fn worker(plan: &Plan, queue: usize) -> String {
    format!("{}-w{queue}", plan.name)
}
