//! Polls: a worker waits for a task of its queues, at most as long as it said.

use std::sync::Arc;
use std::time::Duration;

use super::error::Fault;
use super::given::Before;
use super::unserved::Nothing;
use super::{Engine, cache, claims, given};
use crate::domain::features;
use crate::domain::ids::{AttemptId, Namespace, Part, TaskQueue, WorkerId, part_id};
use crate::domain::routing::{Poller, Profile, TaskKind};
use crate::domain::run::{Activity, ReplayMode, RunState};
use crate::domain::session::Session;
use crate::domain::worker::{Registration, WorkerStatus};
use crate::matching::{Grant, GrantedLease, QueueKey};
use crate::store::{history, ready};

/// The capability of a worker that validates updates.
pub(super) const VALIDATES: &str = "update_validation_tasks";

/// What a worker asks for.
#[derive(Clone, Debug)]
pub struct PollRequest {
    /// Kinds of tasks that it takes; at least one.
    pub kinds: Vec<TaskKind>,
    /// Namespace.
    pub namespace: Namespace,
    /// The worker.
    pub worker_id: WorkerId,
    /// Queues; at least one. The most urgent task of all of them comes first.
    pub queues: Vec<TaskQueue>,
    /// The build that the worker says it runs.
    pub build_id: Option<Arc<str>>,
    /// The worker's name for this poll.
    pub poll_request_id: Option<Arc<str>>,
    /// How long to wait; zero looks once.
    pub wait: Duration,
    /// Bits of history features that its protocol version brings along.
    pub knows: i64,
    /// Whether a worker of its protocol version must have announced that it can own sessions.
    pub announces_sessions: bool,
}

/// What a poll was admitted with.
pub(super) struct Admitted {
    /// Of the worker's registration.
    pub epoch: u64,
    /// Changes to registrations that were known then.
    pub changes: u64,
}

/// How a poll ended.
#[derive(Debug)]
pub enum Polled {
    /// With a task. It is given back unless the grant is marked as delivered.
    Task(Box<Grant>),
    /// Without one: nothing was there at once.
    Empty(Option<Nothing>),
    /// Without one: the time is up.
    TimedOut(Option<Nothing>),
    /// Without one: the server stops.
    Shutdown,
}

/// Why a poll is refused.
#[derive(Clone, Debug)]
pub enum PollRefused {
    /// The worker is not registered.
    NotRegistered,
    /// A queue is not one that the worker registered for.
    QueueMismatch {
        /// The queues it registered for.
        registered: Vec<TaskQueue>,
        /// The queue it asked for.
        requested: TaskQueue,
    },
    /// The worker registered with another build.
    BuildMismatch {
        /// The build it registered with.
        registered: Arc<str>,
        /// The build it says it runs.
        requested: Arc<str>,
    },
    /// The worker drains.
    Draining(Arc<Registration>),
    /// The registration has been silent for too long, or was replaced while the poll waited.
    Stale,
    /// The worker registered no types of this kind.
    NoCapability,
    /// The worker did not register that it validates updates.
    NoValidation,
    /// Another poll of this id, for these kinds of task, waits or was given a task that is still held.
    KindsConflict(Arc<[TaskKind]>),
    /// A poll of this id was given a task that is still held, of a kind that is not asked for now.
    GivenKindConflict(TaskKind),
    /// The node holds as many polls as it may: of queries, or of other tasks.
    NoCapacity {
        /// Of queries.
        queries: bool,
    },
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for PollRefused {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<given::Refused> for PollRefused {
    fn from(refused: given::Refused) -> Self {
        match refused {
            given::Refused::Bound(kinds) => Self::KindsConflict(kinds),
            given::Refused::Kind(kind) => Self::GivenKindConflict(kind),
            given::Refused::Fault(fault) => Self::Fault(fault),
        }
    }
}

impl Engine {
    /// Waits for a task.
    ///
    /// # Errors
    /// [`PollRefused`].
    pub async fn poll(&self, request: PollRequest) -> Result<Polled, PollRefused> {
        let changes = self.core.known.changes();
        let worker = self
            .worker(&request.namespace, &request.worker_id)
            .await?
            .ok_or(PollRefused::NotRegistered)?;
        let profile = self.admit(&worker, &request)?;
        self.poll_is_life(&worker).await?;
        let keys: Vec<QueueKey> = request
            .queues
            .iter()
            .flat_map(|queue| {
                request.kinds.iter().map(|kind| QueueKey {
                    kind: *kind,
                    namespace: request.namespace.clone(),
                    queue: queue.clone(),
                })
            })
            .collect();
        let poller = Poller {
            owner: request.worker_id.clone(),
            poll_request_id: request.poll_request_id.clone(),
            kinds: request.kinds.as_slice().into(),
        };
        let mut question = match given::before(&self.core, &worker, &keys, &poller).await? {
            Before::Nothing => None,
            Before::Lease(lease) => return Ok(self.given_again(*lease)),
            Before::Unknown(question) => Some(question),
        };
        let waits = request.queues.len() == 1 && !request.wait.is_zero();
        let parks = || waits && self.check_room(&keys).is_ok();
        if let Some(question) = question.take_if(|_| !parks()) {
            let leases = given::elsewhere(&self.core, question).await?;
            if let Some(lease) = given::first(leases, None, &poller)? {
                return Ok(self.given_again(lease));
            }
        }
        let ready = if request.queues.len() > 1 {
            self.ready_queues(&keys, &profile).await?
        } else {
            Vec::new()
        };
        if request.wait.is_zero() {
            let others = keys.iter().filter(|key| !ready.contains(key));
            let order: Vec<QueueKey> = ready.iter().chain(others).cloned().collect();
            return self.look_once(&order, profile, poller).await;
        }
        if !ready.is_empty() {
            let looked = self.look_once(&ready, profile.clone(), poller.clone());
            if let Polled::Task(grant) = looked.await? {
                return Ok(Polled::Task(grant));
            }
        }
        let admitted = Admitted {
            epoch: worker.epoch,
            changes,
        };
        self.wait(&request, admitted, keys, profile, poller, question)
            .await
    }

    pub(super) fn given_again(&self, lease: GrantedLease) -> Polled {
        let grant = Grant::new(lease, self.core.releases.clone());
        Polled::Task(Box::new(grant))
    }

    /// The checks that every poll begins with, in the order of the contract.
    fn admit(
        &self,
        worker: &Arc<Registration>,
        request: &PollRequest,
    ) -> Result<Profile, PollRefused> {
        let said = &worker.description;
        if let Some(other) = request
            .queues
            .iter()
            .find(|queue| !said.queues.contains(queue))
        {
            return Err(PollRefused::QueueMismatch {
                registered: said.queues.clone(),
                requested: other.clone(),
            });
        }
        if let (Some(registered), Some(requested)) = (&said.build_id, &request.build_id)
            && registered != requested
        {
            return Err(PollRefused::BuildMismatch {
                registered: Arc::clone(registered),
                requested: Arc::clone(requested),
            });
        }
        if worker.status == WorkerStatus::Draining {
            return Err(PollRefused::Draining(Arc::clone(worker)));
        }
        if self.is_stale(worker) {
            return Err(PollRefused::Stale);
        }
        let types = match request.kinds.first() {
            Some(TaskKind::Activity) => &said.activity_types,
            _ => &said.workflow_types,
        };
        if types.is_empty() {
            return Err(PollRefused::NoCapability);
        }
        if request.kinds.contains(&TaskKind::UpdateValidation) && !worker.has(VALIDATES) {
            return Err(PollRefused::NoValidation);
        }
        Ok(Profile {
            types: Arc::clone(types),
            build_id: said.build_id.clone(),
            knows: known(worker.knows(), request),
        })
    }

    /// Those of several queues that have a ready task, the most urgent one first: a poll would else be
    /// given everything of the first before anything of the others. Asks are not looked at.
    async fn ready_queues(
        &self,
        keys: &[QueueKey],
        profile: &Profile,
    ) -> Result<Vec<QueueKey>, Fault> {
        let queues: Vec<_> = keys
            .iter()
            .map(|key| claims::place(key, self.core.marks.of(key, profile)))
            .collect();
        let urgent = ready::urgent_first(&self.core.store.hot, &queues).await?;
        let ready = urgent.iter().filter_map(|place| keys.get(*place));
        Ok(ready.cloned().collect())
    }

    async fn look_once(
        &self,
        keys: &[QueueKey],
        profile: Profile,
        poller: Poller,
    ) -> Result<Polled, PollRefused> {
        let core = Arc::clone(&self.core);
        let keys = keys.to_vec();
        let began = std::time::Instant::now();
        // The claim may commit after the caller has gone; its task is then given back.
        self.detached(async move {
            for key in &keys {
                let pollers = std::slice::from_ref(&poller);
                let claimed = claims::claim(&core, key, &profile, pollers).await?;
                if let Some(task) = claimed.into_iter().next() {
                    core.counters.claims(key.kind).increment(1);
                    let grant = claims::grant(&core, key, &poller, task);
                    return Ok(Polled::Task(Box::new(grant)));
                }
            }
            Ok(Polled::Empty(core.nothing(&keys, &profile, began)))
        })
        .await?
    }
}

/// A page of a run's history: events as they are stored, separated by commas, without brackets.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The events.
    pub events: String,
    /// How many.
    pub count: u64,
    /// Last event of the page, when more follow.
    pub next_after: Option<u64>,
}

/// A workflow task as its worker is shown it.
#[derive(Clone, Debug)]
pub struct WorkflowTaskView {
    /// The lease.
    pub lease: GrantedLease,
    /// The run.
    pub state: Arc<RunState>,
    /// Last event that the task shows.
    pub seen: u64,
    /// First page of its history.
    pub page: Page,
    /// How its holder comes by the run's state.
    pub replay_mode: ReplayMode,
}

/// Bits of features of a worker with this word and this poll. Most need either; a cancellation needs
/// both, and so do sessions, from the version on that has workers announce them.
fn known(word: i64, request: &PollRequest) -> i64 {
    const STRICT: i64 = features::CANCELLATION | features::SESSIONS;
    let sessions = if request.announces_sessions {
        word & request.knows
    } else {
        request.knows
    };
    (word | request.knows) & !STRICT
        | word & request.knows & features::CANCELLATION
        | sessions & features::SESSIONS
}

/// An activity task as its worker is shown it.
#[derive(Clone, Debug)]
pub struct ActivityTaskView {
    /// The lease.
    pub lease: GrantedLease,
    /// The run.
    pub state: Arc<RunState>,
    /// The activity.
    pub activity: Arc<Activity>,
    /// The worker session that it runs in.
    pub session: Option<Session>,
}

impl ActivityTaskView {
    /// Id of the activity, the same over all attempts.
    pub fn execution_id(&self) -> String {
        part_id(self.state.id, Part::Activity, self.activity.no.into())
    }

    /// Id of the attempt.
    pub fn attempt_id(&self) -> AttemptId {
        AttemptId {
            task: self.lease.task,
            attempt: self.lease.attempt,
        }
    }
}

impl Engine {
    /// What a granted workflow task shows. `None` when the run has closed since.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn workflow_task(
        &self,
        lease: &GrantedLease,
        page_size: u64,
    ) -> Result<Option<WorkflowTaskView>, Fault> {
        let seen = lease.seen.unwrap_or(0);
        let mut cached = cache::recent(&self.core, lease.task.run).await?;
        if cached
            .as_ref()
            .is_none_or(|cached| cached.state.last_event() < seen)
        {
            cached = cache::newest(&self.core, lease.task.run).await?;
        }
        let Some(cached) = cached else {
            return Ok(None);
        };
        if cached
            .state
            .workflow_task
            .as_ref()
            .is_none_or(|task| task.no != lease.task.no)
        {
            return Ok(None);
        }
        let page = self.page(&cached, 1, seen, page_size).await?;
        let namespace = &cached.state.begun.namespace;
        let epoch = match &cached.state.kept {
            // Another process may have registered through another node a moment ago.
            Some(kept) if kept.worker == lease.owner => {
                let worker = self.read_worker(namespace, &lease.owner).await?;
                worker.map_or(0, |worker| worker.epoch)
            }
            _ => 0,
        };
        Ok(Some(WorkflowTaskView {
            replay_mode: cached
                .state
                .replay_mode(&lease.owner, epoch, lease.leased_at),
            lease: lease.clone(),
            state: cached.state,
            seen,
            page,
        }))
    }

    /// What a granted activity task shows. `None` when the activity has ended since.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn activity_task(
        &self,
        lease: &GrantedLease,
    ) -> Result<Option<ActivityTaskView>, Fault> {
        let find = |cached: &cache::Cached| cached.state.activities.get(&lease.task.no).cloned();
        let mut cached = cache::recent(&self.core, lease.task.run).await?;
        if cached.as_ref().and_then(find).is_none() {
            cached = cache::newest(&self.core, lease.task.run).await?;
        }
        let Some((cached, activity)) = cached.and_then(|cached| {
            let activity = find(&cached)?;
            Some((cached, activity))
        }) else {
            return Ok(None);
        };
        let session = match &activity.session {
            None => None,
            Some(asked) => {
                let namespace = &cached.state.begun.namespace;
                let view = self.session(namespace, &asked.session_id).await?;
                view.map(|view| view.session)
            }
        };
        Ok(Some(ActivityTaskView {
            lease: lease.clone(),
            state: cached.state,
            activity,
            session,
        }))
    }

    /// The events `from..=to` of a run, at most `size` of them and as many as fit into a page, from
    /// memory when they are there.
    pub(super) async fn page(
        &self,
        cached: &cache::Cached,
        from: u64,
        to: u64,
        size: u64,
    ) -> Result<Page, Fault> {
        if from > to {
            return Ok(Page::default());
        }
        let last = to.min(from.saturating_add(size.max(1) - 1));
        let (events, count) = match &cached.history {
            Some(known) if cached.state.last_event() >= last => {
                let texts = known.batches.iter().filter(|(_, end, _)| *end >= from);
                let room = texts.map(|(.., text)| text.len() + 1).sum::<usize>();
                let mut events = String::with_capacity(room.min(history::PAGE_BYTES));
                let mut count = 0;
                for (first, end, text) in &known.batches {
                    count += history::append(&mut events, *first, *end, text, from, last)?;
                }
                (events, count)
            }
            _ => history::range(&self.core.store.reads, cached.state.id, from, last).await?,
        };
        let last = (from + count).saturating_sub(1);
        Ok(Page {
            events,
            count,
            next_after: (count > 0 && last < to).then_some(last),
        })
    }

    /// The events of a run up to `to`, for what is not paged: all of it in memory, once.
    pub(super) async fn whole(&self, cached: &cache::Cached, to: u64) -> Result<Page, Fault> {
        let mut whole = self.page(cached, 1, to, to).await?;
        while let Some(after) = whole.next_after.take() {
            let more = self.page(cached, after + 1, to, to).await?;
            if more.count > 0 {
                whole.events.push(',');
            }
            whole.events.push_str(&more.events);
            whole.count += more.count;
            whole.next_after = more.next_after;
        }
        Ok(whole)
    }
}
