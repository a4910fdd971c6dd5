//! Use cases: load, ask the domain, commit, wake. Knows no transport and writes no SQL.

mod admission;
mod alarms;
mod answers;
mod asks;
mod cache;
mod cancellations;
mod claims;
mod contracts;
mod counters;
mod dispatch;
mod driven;
mod error;
mod executions;
mod flows;
mod given;
mod grouped;
mod hints;
mod in_turn;
mod inputs;
mod late;
mod leases;
mod leases_lost;
mod marks;
mod polls;
mod reads;
mod rechecks;
mod relays;
mod renewals;
mod replays;
mod reports;
mod retention;
mod rollouts;
mod runs;
mod session_claims;
mod sessions;
mod shared_read;
mod starts;
mod streams;
mod sweeps;
mod unserved;
mod waits;
mod workers;
mod write;

pub use admission::Admission;
pub use answers::{AskRefused, AskView};
pub use asks::{Answered, AskError, Question, Told};
pub use cancellations::{
    AttemptLease, AttemptStatus, CancellationAsked, CancellationError, Delivered, DeliveryRefused,
    StopTaken,
};
pub use error::{ApplyError, Fault};
pub use executions::{Accepted, CommandError, CommandTarget, StartError, Started};
pub use hints::Hint;
pub use inputs::{InputCommand, UpdateOutcome};
pub use polls::{ActivityTaskView, Page, PollRefused, PollRequest, Polled, WorkflowTaskView};
pub use reads::{Export, NotFound, ReadError, RunView};
pub use reports::{Heartbeat, Holder, RenewedLease, ReportRefused, Reported, SessionBeat};
pub use retention::{RetentionStep, Walk};
pub use rollouts::{BuildView, RolloutError, RolloutStep};
pub use runs::Applied;
pub use sessions::{SessionError, SessionView};
pub use streams::{MessageError, MessageTaken};
pub use sweeps::Swept;
pub use unserved::{Nothing, QueueDetail};
pub use workers::{DeregisterError, RegisterError};

use std::future::Future;
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use driven::Driven;

use crate::clock::Clock;
use crate::domain::admission::Limits;
use crate::domain::dispatch::Position;
use crate::domain::ids::Namespace;
use crate::domain::run;
use crate::domain::time::Timestamp;
use crate::matching::{GrantedLease, QueueKey, Registry, Releases, Wakes};
use crate::store::lane::Lanes;
use crate::store::{Store, lease, namespaces};

/// Polls that one claim serves at most.
pub const MAX_CLAIM_BATCH: usize = 128;
/// Renewals in one statement at most.
pub const MAX_HEARTBEAT_BATCH: usize = 256;

/// What an operator may set.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What decisions depend on.
    pub run: run::Settings,
    /// Seconds of silence after which a worker counts as gone.
    pub stale_after_seconds: u64,
    /// Polls that this node may hold, those for queries apart.
    pub max_parked_polls: usize,
    /// Polls for queries that this node may hold.
    pub max_parked_queries: usize,
    /// How many workflow tasks may be held and handed out.
    pub workflow_limits: Limits,
    /// How many activity tasks may be held and handed out.
    pub activity_limits: Limits,
    /// Milliseconds that a caller waits for a worker to answer a query.
    pub query_timeout_ms: u64,
    /// Compare every written run with its stored history; costs a read of the history per write.
    pub check_replays: bool,
    /// Seconds between two looks for closed runs whose time is over; 0 for never.
    pub retention_interval_seconds: u64,
    /// Commit lanes.
    pub lanes: usize,
    /// Decisions that one commit writes at most.
    pub commit_batch: usize,
    /// Polls that one claim serves at most.
    pub claim_batch: usize,
    /// Renewals that one statement writes at most.
    pub heartbeat_batch: usize,
    /// Commits give the tasks that they open to polls that wait.
    pub hand_off: bool,
    /// Claims go on where the last one of their queue ended.
    pub low_water_marks: bool,
    /// Name of this node.
    pub node: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            run: run::Settings::default(),
            stale_after_seconds: 60,
            max_parked_polls: 20_000,
            max_parked_queries: 20_000,
            workflow_limits: Limits::default(),
            activity_limits: Limits::default(),
            query_timeout_ms: 30_000,
            check_replays: false,
            retention_interval_seconds: 60,
            lanes: 2,
            commit_batch: crate::store::commit::MAX_BATCH,
            claim_batch: MAX_CLAIM_BATCH,
            heartbeat_batch: MAX_HEARTBEAT_BATCH,
            hand_off: true,
            low_water_marks: true,
            node: "node".to_owned(),
        }
    }
}

impl Settings {
    /// The same with batches that can be: with 0 nobody would be served.
    fn within_bounds(mut self) -> Self {
        self.claim_batch = self.claim_batch.clamp(1, MAX_CLAIM_BATCH);
        self.heartbeat_batch = self.heartbeat_batch.clamp(1, MAX_HEARTBEAT_BATCH);
        self
    }
}

/// Everything that use cases share.
pub(crate) struct Core {
    me: Weak<Core>,
    runtime: Handle,
    settings: Settings,
    store: Store,
    lanes: Lanes,
    clock: Clock,
    registry: Arc<Registry>,
    wakes: Wakes,
    hints: hints::Hints,
    alarms: alarms::Alarms,
    firing: Arc<sweeps::Firing>,
    cache: cache::Cache,
    lines: runs::Lines,
    leases: leases::Leases,
    known: workers::Known,
    rollouts: rollouts::Rollouts,
    throttled: admission::Throttled,
    turns: dispatch::Turns,
    late: late::Late,
    marks: marks::Marks,
    questions: given::Questions,
    reads: cache::Reads,
    counters: counters::Counters,
    flows: flows::Flows,
    unserved: unserved::Unserved,
    renewals: renewals::Renewals,
    starts: starts::Starts,
    outbox: relays::Outbox,
    replays: replays::Replays,
    asked: asks::Asked,
    contracts: contracts::Contracts,
    releases: Releases,
    namespaces: RwLock<Arc<[String]>>,
}

/// The handle that transports and maintenance use.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
}

impl Engine {
    /// Starts the engine on the current runtime, which must outlive it.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn start(store: Store, settings: Settings) -> Result<Self, Fault> {
        let settings = settings.within_bounds();
        let now = crate::store::now(&store.reads).await?;
        let (starts, pending_starts) = starts::Starts::new();
        let (releases, dropped) = Releases::new();
        let (outbox, outbox_ends) = relays::Outbox::new();
        let (replays, to_compare) = replays::Replays::new(settings.check_replays);
        let names = namespaces::names(&store.reads).await?;
        let lanes = Lanes::start(&store, settings.lanes, settings.commit_batch);
        let renewals = renewals::start(&store, settings.heartbeat_batch);
        let questions = given::questions(&store);
        let reads = cache::reads(&store);
        let core = Arc::new_cyclic(|me| Core {
            me: Weak::clone(me),
            runtime: Handle::current(),
            hints: hints::Hints::new(settings.node.clone()),
            questions,
            reads,
            marks: marks::Marks::new(settings.low_water_marks),
            settings,
            lanes,
            clock: Clock::new(now),
            registry: Arc::default(),
            counters: counters::Counters::new(),
            wakes: Wakes::default(),
            alarms: alarms::Alarms::default(),
            firing: Arc::default(),
            cache: cache::Cache::default(),
            lines: runs::Lines::default(),
            leases: leases::Leases::default(),
            known: workers::Known::default(),
            rollouts: rollouts::Rollouts::default(),
            throttled: admission::Throttled::default(),
            turns: dispatch::Turns::default(),
            late: late::Late::default(),
            flows: flows::Flows::default(),
            unserved: unserved::Unserved::default(),
            renewals,
            starts,
            outbox,
            replays,
            asked: asks::Asked::default(),
            contracts: contracts::Contracts::default(),
            releases,
            namespaces: RwLock::new(names.into()),
            store,
        });
        rollouts::refresh(&core).await?;
        tokio::spawn(starts::run(Arc::clone(&core), pending_starts));
        tokio::spawn(replays::run(Arc::clone(&core), to_compare));
        tokio::spawn(relays::run(Arc::clone(&core), outbox_ends));
        tokio::spawn(give_back_dropped(Arc::clone(&core), dropped));
        Ok(Self { core })
    }

    /// The clock of the database.
    pub fn clock(&self) -> &Clock {
        &self.core.clock
    }

    /// The settings it was started with.
    pub fn settings(&self) -> &Settings {
        &self.core.settings
    }

    /// Polls that wait on this node.
    pub fn parked_polls(&self) -> usize {
        self.core.registry.parked(false) + self.core.registry.parked(true)
    }

    /// Answers every parked poll and takes no more.
    pub fn end_polls(&self) {
        self.core.registry.close();
    }

    /// Whether the database answers, and its schema is the one that this binary needs.
    pub async fn database_is_ready(&self) -> bool {
        crate::store::is_ready(&self.core.store.reads).await
    }

    /// Runs something to its end, whatever becomes of the caller.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Fault> {
        Driven::new(&self.core.runtime, work).await
    }

    /// Whether a namespace exists. One that is not known is looked up.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn namespace_exists(&self, name: &Namespace) -> Result<bool, Fault> {
        let known = |core: &Core| {
            let names = core
                .namespaces
                .read()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            names.iter().any(|known| known == name.as_str())
        };
        if known(&self.core) {
            return Ok(true);
        }
        let names = namespaces::names(&self.core.store.reads).await?;
        *self
            .core
            .namespaces
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = names.into();
        Ok(known(&self.core))
    }
}

/// Pause before leases are given back that could not be just now.
const GIVE_BACK_AGAIN: Duration = Duration::from_millis(500);
/// Tries to give leases back before they are left to run out.
const GIVE_BACK_TRIES: u32 = 120;

/// Gives leases back whose answer nobody received.
async fn give_back_dropped(core: Arc<Core>, mut dropped: mpsc::Receiver<GrantedLease>) {
    const BATCH: usize = 256;
    let mut leases = Vec::new();
    while dropped.recv_many(&mut leases, BATCH).await > 0 {
        for ask in leases.extract_if(.., |lease| lease.kind.is_ask()) {
            asks::give_back(&core, ask).await;
        }
        give_back(&core, &leases, None).await;
        leases.clear();
    }
}

/// Gives so many leases back as soon as the database takes it. `None` when they are left to run out.
async fn again_and_again<T, F>(leases: usize, give_back: impl Fn() -> F) -> Option<T>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    for _ in 0..GIVE_BACK_TRIES {
        match give_back().await {
            Ok(given_back) => return Some(given_back),
            Err(error) => {
                tracing::warn!(error = %error, leases, "leases could not be given back");
                tokio::time::sleep(GIVE_BACK_AGAIN).await;
            }
        }
    }
    None
}

/// Gives leases back that nobody holds, however long the database takes to come back, and tells
/// whoever waits for such tasks.
async fn give_back(core: &Arc<Core>, leases: &[GrantedLease], granted_by: Option<Timestamp>) {
    let lost: Vec<_> = leases
        .iter()
        .map(|lease| lease::Lost {
            task: lease.task,
            owner: lease.owner.clone(),
            attempt: lease.attempt,
            delay_ms: 0,
            granted_by,
        })
        .collect();
    if granted_by.is_none() {
        for lease in leases {
            core.leases.closed(lease.task);
        }
    }
    let given_back = again_and_again(lost.len(), || {
        lease::give_back(&core.store.hot, lease::Which::Named, &lost)
    })
    .await;
    let places = given_back.unwrap_or_default();
    metrics::counter!("dw_polls_abandoned_total").increment(places.len() as u64);
    for place in places {
        let Some(lease) = leases.get(place) else {
            continue;
        };
        if let Some(key) = queue_of(core, lease).await {
            claims::became_ready(core, &key, Position::START);
        }
    }
}

async fn queue_of(core: &Arc<Core>, lease: &GrantedLease) -> Option<QueueKey> {
    let row = lease::read(&core.store.hot, lease.task).await.ok()??;
    Some(QueueKey {
        kind: row.kind,
        namespace: row.namespace,
        queue: row.queue,
    })
}
