//! Repeats of polls: a worker that has not got an answer asks again under the same id, here or at
//! another node, and is given the same task while it holds it.
//!
//! What this node gave it remembers. What another node gave, or this one before it was started anew, is
//! looked for in the database, unless the worker is known to poll here only. A poll that waits does so meanwhile, so
//! that it can be handed a task in time; what it is given then is given back when something was given before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::Fault;
use super::grouped::Grouped;
use super::{Core, claims};
use crate::domain::ids::{TaskId, TaskQueue};
use crate::domain::routing::{Poller, TaskKind};
use crate::domain::worker::Registration;
use crate::matching::{GrantedLease, QueueKey, WorkerKey};
use crate::store::asks::{self, AskState};
use crate::store::given::{self, Given, Question};
use crate::store::{Store, lease};

/// Questions that one statement answers at most.
const QUESTIONS_AT_ONCE: usize = 256;
/// Questions of one statement from which on the next one waits for more. Where fewer polls come, each is answered
/// at once.
const MANY: usize = 8;
/// Time from the beginning of one statement to that of the next while there are many.
const QUESTIONS_INTERVAL: Duration = Duration::from_millis(8);

/// Questions about repeats. A worker that polls at several nodes asks with every poll.
pub(super) type Questions = Grouped<Question, Vec<Given>>;

/// Starts to answer questions about repeats.
pub(super) fn questions(store: &Store) -> Questions {
    let pool = store.hot.clone();
    Grouped::start(
        QUESTIONS_AT_ONCE,
        |_| None,
        move |questions| {
            let pool = pool.clone();
            async move { Ok(given::to_polls(&pool, &questions).await?) }
        },
        rest,
    )
}

/// Rests after a statement with so many questions that began at this time. Where they filled it, more wait
/// already.
async fn rest(asked: usize, begun: Instant) {
    if (MANY..QUESTIONS_AT_ONCE).contains(&asked) {
        tokio::time::sleep_until((begun + QUESTIONS_INTERVAL).into()).await;
    }
}

/// Why a repeat is refused.
pub(super) enum Refused {
    /// The id stands for a poll for these kinds of task.
    Bound(Arc<[TaskKind]>),
    /// The task that is held under the id is of this kind, which is not asked for now.
    Kind(TaskKind),
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// What a poll of this name was given.
pub(super) enum Before {
    /// Nothing that is still held.
    Nothing,
    /// This lease, which is still held.
    Lease(Box<GrantedLease>),
    /// Only the database can tell.
    Unknown(Question),
}

/// What is known here of what a poll of this name was given.
///
/// # Errors
/// [`Refused`].
pub(super) async fn before(
    core: &Core,
    worker: &Registration,
    keys: &[QueueKey],
    poller: &Poller,
) -> Result<Before, Refused> {
    let Some(poll) = &poller.poll_request_id else {
        return Ok(Before::Nothing);
    };
    if let Some(kinds) = core.registry.contradicted(&worker.namespace, poller) {
        return Err(Refused::Bound(kinds));
    }
    if let Some((lease, first)) = here(core, keys, poller).await? {
        if first.contradicts(poller) {
            return Err(Refused::Bound(first.kinds));
        }
        return Ok(Before::Lease(Box::new(lease)));
    }
    let key = WorkerKey {
        namespace: worker.namespace.clone(),
        worker: worker.worker_id.clone(),
    };
    if core.leases.is_home(&key, worker.epoch) {
        return Ok(Before::Nothing);
    }
    if core.leases.visits(&key, worker.epoch) {
        core.hints.visits(&key);
    }
    let plane = keys.first().map(|key| key.kind.polled_as());
    Ok(Before::Unknown(Question {
        namespace: worker.namespace.clone(),
        queues: keys.iter().map(|key| key.queue.clone()).collect(),
        kinds: TaskKind::ALL
            .into_iter()
            .filter(|kind| Some(kind.polled_as()) == plane)
            .collect(),
        owner: poller.owner.clone(),
        poll: Arc::clone(poll),
    }))
}

/// The lease as this node granted it and as its row has it now, with the poll that it was given to.
async fn here(
    core: &Core,
    keys: &[QueueKey],
    poller: &Poller,
) -> Result<Option<(GrantedLease, Poller)>, Fault> {
    let Some((lease, first)) = keys
        .iter()
        .filter_map(|key| claims::poll_name(key, poller))
        .find_map(|name| core.leases.of_poll(&name))
        .filter(|(lease, _)| !core.releases.is_returning(lease))
    else {
        return Ok(None);
    };
    let is_queue = |queue: &TaskQueue| keys.iter().any(|key| key.queue == *queue);
    if lease.kind.is_ask() {
        let ask = asks::find(&core.store.hot, lease.task).await?;
        return Ok(ask
            .filter(|ask| {
                ask.state == AskState::Leased
                    && !ask.over
                    && ask.attempt == lease.attempt
                    && ask.owner.as_ref() == Some(&lease.owner)
                    && is_queue(&ask.queue)
            })
            .map(|_| (lease, first)));
    }
    let row = lease::read(&core.store.hot, lease.task).await?;
    Ok(row
        .filter(|row| {
            row.live
                && row.attempt == lease.attempt
                && row.owner.as_ref() == Some(&lease.owner)
                && is_queue(&row.queue)
        })
        .map(|row| {
            let lease = GrantedLease {
                lease_expires_at: row.lease_expires_at.unwrap_or(lease.lease_expires_at),
                start_to_close_at: row.start_to_close_at,
                heartbeat_due_at: row.heartbeat_due_at,
                ..lease
            };
            (lease, first)
        }))
}

/// The leases that the database has for a poll, of any kind that polls of this one may be given, but for those
/// that are on their way back.
///
/// # Errors
/// [`Fault`].
pub(super) async fn elsewhere(core: &Core, question: Question) -> Result<Vec<GrantedLease>, Fault> {
    let owner = question.owner.clone();
    let given = core.questions.ask(question).await?;
    let lease = |given: Given| GrantedLease {
        task: given.task,
        kind: given.kind,
        owner: owner.clone(),
        attempt: given.attempt,
        seen: given.seen,
        leased_at: given.leased_at,
        lease_expires_at: given.lease_expires_at,
        start_to_close_at: given.start_to_close_at,
        heartbeat_due_at: given.heartbeat_due_at,
    };
    let leases = given.into_iter().map(lease);
    Ok(leases
        .filter(|lease| !core.releases.is_returning(lease))
        .collect())
}

/// The lease that a poll is told of those that the database has for it: the first that it was given, unless that is
/// `own`, which it is being given now. So two polls of one id choose the same one.
///
/// # Errors
/// [`Refused::Kind`].
pub(super) fn first(
    leases: Vec<GrantedLease>,
    own: Option<TaskId>,
    poller: &Poller,
) -> Result<Option<GrantedLease>, Refused> {
    let by_time = |lease: &GrantedLease| (lease.leased_at, lease.task);
    match leases.into_iter().min_by_key(by_time) {
        Some(lease) if Some(lease.task) == own => Ok(None),
        Some(lease) if !poller.kinds.contains(&lease.kind) => Err(Refused::Kind(lease.kind)),
        first => Ok(first),
    }
}
