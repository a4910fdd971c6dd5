//! Asks: a caller waits while a worker answers a question about a run. Handed to a waiting poll at
//! once, or taken by one from the table; never recorded, gone when nobody waits any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::error::Fault;
use super::polls::VALIDATES;
use super::reads::{NotFound, ReadError};
use super::{CommandTarget, Core, Engine, again_and_again, cache, claims};
use crate::domain::dispatch::Position;
use crate::domain::event::Json;
use crate::domain::features;
use crate::domain::ids::{Namespace, RunId, TaskId, TaskQueue};
use crate::domain::routing::{Profile, Routing, TaskKind};
use crate::domain::run::{CloseReason, RunState};
use crate::domain::worker::{Registration, WorkerStatus};
use crate::matching::{Grant, GrantedLease, QueueKey, Reserved, WorkerKey};
use crate::payload::Payload;
use crate::store::asks::{self, AskState, NewAsk};
use crate::store::workers;

/// Asks of one queue that may wait for a poll.
const QUEUE_BOUND: u64 = 1_024;
/// How long an open workflow task may take before it is asked without it.
const SETTLE: Duration = Duration::from_secs(3);
/// How long a worker may take to come back before it counts as absent.
const GRACE: Duration = Duration::from_secs(5);
/// Pause between two looks for a worker, or for an answer that another node took.
const LOOK: Duration = Duration::from_millis(250);
/// Pause between two looks for an answer of which no hint came.
const ANSWER_LOOK: Duration = Duration::from_secs(1);
/// Workers of a queue that are looked at.
const WORKERS_READ: i64 = 1_000;
/// Asks that one pass forgets.
const FORGET_BATCH: i64 = 5_000;
/// Numbers that are drawn before the run counts as contended.
const DRAWS: usize = 4;

/// A question to the workers of a run.
#[derive(Clone, Debug)]
pub struct Question {
    /// A query, or whether an update may be accepted.
    pub kind: TaskKind,
    /// The run.
    pub target: CommandTarget,
    /// Name of the query or update.
    pub name: Arc<str>,
    /// Encoded argument list.
    pub arguments: Payload,
    /// How long the caller waits.
    pub timeout: Duration,
}

/// What a worker said.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The query's result.
    Result {
        /// As plain JSON, if the worker gave it.
        json: Option<Json>,
        /// As the SDK encoded it.
        envelope: Option<Payload>,
    },
    /// The update may be accepted.
    Approved,
    /// The query failed, or the update is refused.
    Failed {
        /// Why, as a word.
        reason: String,
        /// Human sentence.
        message: String,
        /// Field → sentences, a JSON object.
        validation_errors: Option<Json>,
    },
}

/// A question that was answered.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The ask.
    pub id: TaskId,
    /// What the worker said.
    pub told: Told,
    /// The run that it was about.
    pub state: Arc<RunState>,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum AskError {
    /// There is no such run.
    NotFound(NotFound),
    /// The run has closed in a way that cannot be asked about.
    NotActive(Arc<RunState>),
    /// The workflow has no query of this name.
    Undeclared {
        /// The run.
        state: Arc<RunState>,
        /// The queries that its workers declared.
        declared: Arc<[Arc<str>]>,
    },
    /// No live worker polls the queue.
    Unavailable(Arc<RunState>),
    /// Live workers poll the queue, and none of them can answer for this run.
    Incompatible(Arc<RunState>),
    /// Too many asks wait on the queue.
    QueueFull(Arc<RunState>),
    /// Nobody took it in time.
    NotClaimed(Arc<RunState>),
    /// It was taken and not answered in time.
    ExecutionTimeout(Arc<RunState>),
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for AskError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<sqlx::Error> for AskError {
    fn from(error: sqlx::Error) -> Self {
        Self::Fault(error.into())
    }
}

impl From<ReadError> for AskError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotFound(what) => Self::NotFound(what),
            ReadError::Fault(fault) => Self::Fault(fault),
        }
    }
}

/// Callers of this node that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct Asked(Mutex<HashMap<TaskId, oneshot::Sender<String>>>);

impl Asked {
    fn map(&self) -> MutexGuard<'_, HashMap<TaskId, oneshot::Sender<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the caller, if it waits here.
    pub(super) fn tell(&self, id: TaskId, answer: String) -> bool {
        let caller = self.map().remove(&id);
        caller.is_some_and(|caller| caller.send(answer).is_ok())
    }
}

/// A caller that waits; when it is gone, its ask is withdrawn.
struct Caller {
    core: Arc<Core>,
    id: TaskId,
    answered: bool,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.core.asked.map().remove(&self.id);
        self.core.leases.closed(self.id);
        if !self.answered {
            let (core, id) = (Arc::clone(&self.core), self.id);
            core.clone().runtime.spawn(async move {
                // Left alone it is over at its deadline.
                let _ = asks::withdraw(&core.store.hot, id).await;
            });
        }
    }
}

/// Another node took an answer that may be for a caller here.
pub(super) fn heard_of(core: &Arc<Core>, id: TaskId) {
    if !core.asked.map().contains_key(&id) {
        return;
    }
    let core = Arc::clone(core);
    core.clone().runtime.spawn(async move {
        if let Ok(Some(ask)) = asks::find(&core.store.hot, id).await
            && let Some(answer) = ask.answer
        {
            core.asked.tell(id, answer);
        }
    });
}

/// The worker that was to get an ask is gone.
pub(super) async fn give_back(core: &Arc<Core>, lease: GrantedLease) {
    let owner = &lease.owner;
    let give_back = || asks::give_back(&core.store.hot, lease.task, owner, lease.attempt);
    if let Some((namespace, queue)) = again_and_again(1, give_back).await.flatten() {
        core.leases.closed(lease.task);
        ready(core, lease.kind, namespace, queue);
    }
}

/// A worker's process is gone: what it was asked is asked of another.
pub(super) async fn give_back_all(core: &Arc<Core>, worker: &WorkerKey) -> Result<(), Fault> {
    let given = asks::give_back_all(&core.store.hot, &worker.namespace, &worker.worker).await?;
    for (id, kind, queue) in given {
        core.leases.closed(id);
        ready(core, kind, worker.namespace.clone(), queue);
    }
    Ok(())
}

fn ready(core: &Core, kind: TaskKind, namespace: Namespace, queue: TaskQueue) {
    let key = QueueKey {
        kind,
        namespace,
        queue,
    };
    claims::became_ready(core, &key, Position::START);
}

impl Engine {
    /// Queries that may wait on one queue.
    pub fn max_pending_queries(&self) -> u64 {
        QUEUE_BOUND
    }

    /// Asks the workers of a run and waits for the answer.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn ask(&self, question: Question) -> Result<Answered, AskError> {
        let deadline = Instant::now() + question.timeout;
        let (cached, _) = self
            .find(
                &question.target.namespace,
                &question.target.workflow_id,
                question.target.run.as_deref(),
            )
            .await?;
        let state = cached.state;
        if let Some(close) = &state.close
            && !matches!(
                close.reason,
                CloseReason::Completed | CloseReason::Continued
            )
        {
            return Err(AskError::NotActive(state));
        }
        if question.kind == TaskKind::Query
            && let Some(declared) = self.contract(&state).await?.queries
            && !declared.contains(&question.name)
        {
            return Err(AskError::Undeclared { state, declared });
        }
        self.await_worker(&routing(&question, &state), &state)
            .await?;
        let state = self
            .settled(state.id, deadline.min(Instant::now() + SETTLE))
            .await?;
        let (caller, answer) = self.place(&question, &state, deadline).await?;
        self.await_answer(caller, answer, state, deadline).await
    }

    /// The run once no workflow task of it is open, or at `deadline`: what was accepted before the
    /// question should be seen by it.
    async fn settled(&self, run: RunId, deadline: Instant) -> Result<Arc<RunState>, Fault> {
        let mut woken = false;
        loop {
            let watch = self.core.cache.watch(run);
            let moved = watch.moved();
            tokio::pin!(moved);
            moved.as_mut().enable();
            let cached = if woken {
                cache::newest(&self.core, run).await?
            } else {
                cache::recent(&self.core, run).await?
            };
            let state = cached.ok_or(Fault::Bug)?.state;
            let busy = state
                .workflow_task
                .as_ref()
                .is_some_and(|task| !task.blocked);
            if !busy || Instant::now() >= deadline {
                return Ok(state);
            }
            let next_look = deadline.min(Instant::now() + LOOK);
            tokio::select! {
                () = moved => {}
                () = tokio::time::sleep_until(next_look) => {}
            }
            woken = true;
        }
    }

    /// Waits a moment for a worker that could take the ask.
    async fn await_worker(&self, routing: &Routing, state: &Arc<RunState>) -> Result<(), AskError> {
        let end = Instant::now() + GRACE;
        loop {
            if self.core.registry.has_taker(routing) {
                return Ok(());
            }
            let workers = workers::list(
                &self.core.store.reads,
                &routing.namespace,
                Some(&routing.queue),
                WORKERS_READ,
            )
            .await?;
            let live: Vec<&Registration> = workers
                .iter()
                .filter(|worker| worker.status == WorkerStatus::Active && !self.is_stale(worker))
                .collect();
            if live.iter().any(|worker| can_answer(worker, routing)) {
                return Ok(());
            }
            if Instant::now() >= end {
                let state = Arc::clone(state);
                return Err(if live.is_empty() {
                    AskError::Unavailable(state)
                } else {
                    AskError::Incompatible(state)
                });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Writes the ask, handed to a waiting poll if there is one.
    async fn place(
        &self,
        question: &Question,
        state: &Arc<RunState>,
        deadline: Instant,
    ) -> Result<(Caller, oneshot::Receiver<String>), AskError> {
        let routing = routing(question, state);
        for _ in 0..DRAWS {
            let id = TaskId {
                run: state.id,
                no: draw(),
            };
            let (sender, answer) = oneshot::channel();
            self.core.asked.map().insert(id, sender);
            let mut caller = Caller {
                core: Arc::clone(&self.core),
                id,
                answered: true,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let ask = NewAsk {
                id,
                routing: routing.clone(),
                name: question.name.to_string(),
                arguments: question.arguments.blob().to_string(),
                seen: state.last_event(),
                node: self.core.settings.node.clone(),
                timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
                handed_to: None,
            };
            let engine = self.clone();
            // A poll that is spoken for must hear the end of it, whatever becomes of the caller.
            let placed = self
                .detached(async move { engine.write_ask(ask).await })
                .await??;
            match placed {
                Placed::Waits | Placed::Handed => {
                    caller.answered = false;
                    return Ok((caller, answer));
                }
                Placed::QueueFull => return Err(AskError::QueueFull(Arc::clone(state))),
                Placed::NumberTaken => {}
            }
        }
        Err(Fault::Contended.into())
    }

    async fn write_ask(&self, mut ask: NewAsk) -> Result<Placed, Fault> {
        let core = &self.core;
        let key = QueueKey::from(&ask.routing);
        if let Some(poll) = core.registry.reserve(&ask.routing, false) {
            ask.handed_to = Some(poll.poller().clone());
            return hand_over(core, &key, poll, &ask).await;
        }
        let bound = i64::try_from(QUEUE_BOUND).unwrap_or(i64::MAX);
        if asks::count_ready(&core.store.hot, &ask.routing, bound).await? >= QUEUE_BOUND {
            return Ok(Placed::QueueFull);
        }
        if asks::insert(&core.store.hot, &ask).await?.is_none() {
            return Ok(Placed::NumberTaken);
        }
        claims::became_ready(core, &key, Position::START);
        Ok(Placed::Waits)
    }

    async fn await_answer(
        &self,
        mut caller: Caller,
        mut answer: oneshot::Receiver<String>,
        state: Arc<RunState>,
        deadline: Instant,
    ) -> Result<Answered, AskError> {
        let id = caller.id;
        loop {
            let next_look = deadline.min(Instant::now() + ANSWER_LOOK);
            let text = tokio::select! {
                biased;
                text = &mut answer => text.ok(),
                () = tokio::time::sleep_until(next_look) => None,
            };
            let over = Instant::now() >= deadline;
            let found = match text {
                Some(text) => Some(text),
                None => match asks::find(&self.core.store.hot, caller.id).await? {
                    Some(ask) if ask.answer.is_some() => ask.answer,
                    Some(ask) if over && ask.state == AskState::Leased => {
                        return Err(AskError::ExecutionTimeout(state));
                    }
                    Some(_) if over => return Err(AskError::NotClaimed(state)),
                    Some(_) => None,
                    // The table was emptied by a crash of the database.
                    None => return Err(AskError::NotClaimed(state)),
                },
            };
            if let Some(text) = found {
                caller.answered = true;
                let told = serde_json::from_str(&text).map_err(Fault::from)?;
                return Ok(Answered { id, told, state });
            }
        }
    }

    /// Forgets asks that are long over.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn forget_old_asks(&self) -> Result<u64, Fault> {
        Ok(asks::forget_old(&self.core.store.hot, FORGET_BATCH).await?)
    }
}

enum Placed {
    Handed,
    Waits,
    QueueFull,
    NumberTaken,
}

async fn hand_over(
    core: &Arc<Core>,
    key: &QueueKey,
    poll: Reserved,
    ask: &NewAsk,
) -> Result<Placed, Fault> {
    match asks::insert(&core.store.hot, ask).await {
        Ok(Some((leased_at, lease_expires_at))) => {
            let lease = GrantedLease {
                task: ask.id,
                kind: key.kind,
                owner: poll.poller().owner.clone(),
                attempt: crate::domain::decision::FIRST_ATTEMPT,
                seen: Some(ask.seen),
                leased_at,
                lease_expires_at,
                start_to_close_at: None,
                heartbeat_due_at: None,
            };
            core.leases
                .granted(&lease, poll.poller(), claims::poll_name(key, poll.poller()));
            poll.give(Grant::new(lease, core.releases.clone()));
            Ok(Placed::Handed)
        }
        other => {
            claims::put_back(core, poll);
            match other {
                Err(error) => Err(error.into()),
                Ok(_) => Ok(Placed::NumberTaken),
            }
        }
    }
}

fn routing(question: &Question, state: &RunState) -> Routing {
    let begun = &state.begun;
    Routing {
        kind: question.kind,
        namespace: begun.namespace.clone(),
        queue: begun.queue.clone(),
        task_type: begun.workflow_type.clone(),
        priority: begun.priority,
        fairness_key: None,
        fairness_weight: 1,
        build_id: begun.build_id.clone(),
        needs: state.needs,
        session: None,
        preferred: None,
    }
}

/// A positive number that the run's other asks hardly have.
fn draw() -> u32 {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    u32::try_from(random >> 33).unwrap_or(1).max(1)
}

/// Whether a registered worker can answer. What only a poll's protocol version tells is believed.
fn can_answer(worker: &Registration, routing: &Routing) -> bool {
    let capability = match routing.kind {
        TaskKind::UpdateValidation => VALIDATES,
        _ => "query_tasks",
    };
    let said = &worker.description;
    let profile = Profile {
        types: Arc::clone(&said.workflow_types),
        build_id: said.build_id.clone(),
        knows: worker.knows() | features::OCCURRENCE | features::CANCELLATION,
    };
    said.capabilities.iter().any(|said| said == capability) && profile.may_take(routing)
}
