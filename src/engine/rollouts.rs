//! Builds of a queue: drained, resumed, promoted and rolled back by operators, and where new starts go.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Core, Engine, Fault, claims, workers as registrations};
use crate::domain::dispatch::Position;
use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::rollout::{self, Blockage, Build, Cohort, Rollout, Serving, StartRefused};
use crate::domain::routing::TaskKind;
use crate::domain::run::StartRequest;
use crate::domain::worker::WorkerStatus;
use crate::matching::{Ended, QueueKey};
use crate::store::pool::bounded;
use crate::store::{rollouts, workers};

/// Decisions that are kept in memory.
const KEPT: i64 = 50_000;
/// Workers of a queue that are looked at.
const WORKERS_READ: i64 = 10_000;
/// Queues that a list of deployments covers.
const QUEUES_LISTED: i64 = 1_000;

/// What an operator wants of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutStep {
    /// Its workers take nothing more.
    Drain,
    /// They do again.
    Resume,
    /// New starts are pinned to it.
    Promote,
    /// New starts go to the build that was promoted before it.
    RollBack,
}

/// A build and its workers on one queue.
#[derive(Clone, Debug)]
pub struct BuildView {
    /// The queue.
    pub queue: TaskQueue,
    /// What was decided.
    pub rollout: Rollout,
    /// Its workers.
    pub cohort: Cohort,
}

/// Why a step had no effect.
#[derive(Clone, Debug)]
pub enum RolloutError {
    /// This stands against it; at least one.
    Blocked(Vec<Blockage>),
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for RolloutError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<sqlx::Error> for RolloutError {
    fn from(error: sqlx::Error) -> Self {
        Self::Fault(error.into())
    }
}

type QueueName = (Namespace, TaskQueue);

/// All decisions, which are few, so that a start needs to read none. What is doubted is read again
/// before it is believed.
#[derive(Debug, Default)]
pub(super) struct Rollouts(Mutex<Known>);

#[derive(Debug)]
struct Known {
    queues: HashMap<QueueName, Arc<[Rollout]>>,
    doubted: HashSet<QueueName>,
    all_doubted: bool,
    /// Grows with every change that this node hears of: what was read before is not kept after it.
    changes: u64,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            doubted: HashSet::new(),
            all_doubted: true,
            changes: 0,
        }
    }
}

impl Rollouts {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A decision about this queue was changed.
    pub fn doubt(&self, namespace: &Namespace, queue: &TaskQueue) {
        let mut known = self.known();
        known.changes += 1;
        known.doubted.insert((namespace.clone(), queue.clone()));
    }

    /// Any decision may have been changed.
    pub fn doubt_all(&self) {
        let mut known = self.known();
        known.changes += 1;
        known.all_doubted = true;
    }
}

/// Reads all decisions.
pub(super) async fn refresh(core: &Core) -> Result<(), Fault> {
    let changes = core.rollouts.known().changes;
    let all = rollouts::all(&core.store.reads, KEPT).await?;
    let is_all = i64::try_from(all.len()).is_ok_and(|found| found < KEPT);
    let mut queues: HashMap<QueueName, Vec<Rollout>> = HashMap::new();
    for (namespace, queue, rollout) in all {
        queues.entry((namespace, queue)).or_default().push(rollout);
    }
    let mut known = core.rollouts.known();
    if known.changes != changes {
        return Ok(());
    }
    known.queues = queues
        .into_iter()
        .map(|(name, rollouts)| (name, rollouts.into()))
        .collect();
    known.doubted.clear();
    // Of more than are kept, each is read when it is needed.
    known.all_doubted = !is_all;
    Ok(())
}

async fn of_queue(
    core: &Core,
    namespace: &Namespace,
    queue: &TaskQueue,
) -> Result<Arc<[Rollout]>, Fault> {
    let name = (namespace.clone(), queue.clone());
    let changes = {
        let known = core.rollouts.known();
        if !known.all_doubted && !known.doubted.contains(&name) {
            let found = known.queues.get(&name).cloned();
            return Ok(found.unwrap_or_default());
        }
        known.changes
    };
    let read: Arc<[Rollout]> = rollouts::list(&core.store.reads, namespace, queue)
        .await?
        .into();
    let mut known = core.rollouts.known();
    if known.changes == changes && known.doubted.remove(&name) {
        known.queues.insert(name, Arc::clone(&read));
    }
    Ok(read)
}

/// Pins a new start to the build that it is meant for. What stands against it is told apart: a start
/// that finds its workflow there already is not routed at all.
pub(super) async fn route(
    core: &Core,
    request: &mut StartRequest,
) -> Result<Option<StartRefused>, Fault> {
    let known = of_queue(core, &request.namespace, &request.queue).await?;
    let named = request.build_id.clone();
    request.build_id = rollout::pin(&named, &known);
    if !known.iter().any(Rollout::is_draining) {
        return Ok(None);
    }
    let serving = serving(
        core,
        &request.namespace,
        &[request.queue.as_str()],
        &[&request.workflow_type],
    )
    .await?;
    Ok(rollout::admit_start(&named, &known, &serving).err())
}

async fn serving(
    core: &Core,
    namespace: &Namespace,
    queues: &[&str],
    types: &[&str],
) -> Result<Vec<Serving>, Fault> {
    let stale_after = core.settings.stale_after_seconds;
    Ok(rollouts::serving(&core.store.reads, namespace, queues, types, stale_after).await?)
}

impl Engine {
    /// Takes a step on a build. Taken again, it changes nothing.
    ///
    /// # Errors
    /// [`RolloutError`].
    pub async fn roll_out(
        &self,
        namespace: Namespace,
        queue: TaskQueue,
        build: Build,
        step: RolloutStep,
    ) -> Result<Rollout, RolloutError> {
        let engine = self.clone();
        self.detached(async move { engine.step(&namespace, &queue, build, step).await })
            .await?
    }

    async fn step(
        &self,
        namespace: &Namespace,
        queue: &TaskQueue,
        build: Build,
        step: RolloutStep,
    ) -> Result<Rollout, RolloutError> {
        let core = &self.core;
        let mut transaction = core.store.reads.begin().await?;
        rollouts::lock(&mut transaction, namespace, false).await?;
        let known = rollouts::read(&mut transaction, namespace, queue).await?;
        let existing = known.iter().find(|rollout| rollout.build_id == build);
        if step == RolloutStep::Promote {
            let list = workers::list(&mut *transaction, namespace, Some(queue), WORKERS_READ);
            let cohorts = rollout::cohorts(&bounded(list).await?, |worker| self.is_stale(worker));
            let unreplayable =
                rollouts::unreplayable(&mut transaction, namespace, queue, &build).await?;
            let blockages = rollout::blockages(existing, cohorts.get(&build), unreplayable);
            if !blockages.is_empty() {
                return Err(RolloutError::Blocked(blockages));
            }
        }
        let at = core.clock.now();
        let mut decided = existing
            .cloned()
            .unwrap_or_else(|| Rollout::new(build.clone(), at));
        let was_selected = decided.selected;
        match step {
            RolloutStep::Drain => decided.drain(at),
            RolloutStep::Resume => decided.resume(),
            RolloutStep::Promote => decided.promote(at),
            RolloutStep::RollBack => decided.roll_back(at),
        }
        rollouts::write(&mut transaction, namespace, queue, &decided).await?;
        if step == RolloutStep::RollBack
            && was_selected
            && let Some(before) = rollout::before(&known, &build)
        {
            let mut before = before.clone();
            before.promote(at);
            rollouts::write(&mut transaction, namespace, queue, &before).await?;
        }
        let changed = workers::stamp(&mut transaction, namespace, queue, build.as_deref()).await?;
        transaction.commit().await?;
        core.rollouts.doubt(namespace, queue);
        core.hints.rollouts(namespace, queue);
        for worker in changed {
            let worker = Arc::new(worker);
            let key = registrations::key(&worker);
            core.known.changed(&worker);
            if worker.status == WorkerStatus::Draining {
                core.hints.drained(&key);
                core.registry.end_worker(&key, u64::MAX, Ended::Draining);
            } else {
                // Ends no poll: other nodes only forget that it drained.
                core.hints.worker(&key, 0);
            }
        }
        if step == RolloutStep::Resume {
            for kind in [TaskKind::Workflow, TaskKind::Activity] {
                let key = QueueKey {
                    kind,
                    namespace: namespace.clone(),
                    queue: queue.clone(),
                };
                claims::became_ready(core, &key, Position::START);
            }
        }
        Ok(decided)
    }

    /// The builds of a queue, with their workers: those that have some, and those that were decided
    /// about.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn builds(
        &self,
        namespace: &Namespace,
        queue: &TaskQueue,
    ) -> Result<Vec<BuildView>, Fault> {
        let reads = &self.core.store.reads;
        let mut known: HashMap<Build, Rollout> = rollouts::list(reads, namespace, queue)
            .await?
            .into_iter()
            .map(|rollout| (rollout.build_id.clone(), rollout))
            .collect();
        let registered = workers::list(reads, namespace, Some(queue), WORKERS_READ).await?;
        let mut cohorts = rollout::cohorts(&registered, |worker| self.is_stale(worker));
        for build in known.keys() {
            cohorts.entry(build.clone()).or_default();
        }
        let now = self.core.clock.now();
        Ok(cohorts
            .into_iter()
            .map(|(build, cohort)| {
                let first = cohort.first_seen_at.unwrap_or(now);
                let mut rollout = known
                    .remove(&build)
                    .unwrap_or_else(|| Rollout::new(build, first));
                rollout.first_seen_at = rollout.first_seen_at.min(first);
                BuildView {
                    queue: queue.clone(),
                    rollout,
                    cohort,
                }
            })
            .collect())
    }

    /// The builds of all queues of a namespace.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn all_builds(&self, namespace: &Namespace) -> Result<Vec<BuildView>, Fault> {
        let reads = &self.core.store.reads;
        let mut queues = rollouts::queues(reads, namespace, QUEUES_LISTED).await?;
        for worker in workers::list(reads, namespace, None, WORKERS_READ).await? {
            queues.extend(worker.description.queues);
        }
        queues.sort_unstable();
        queues.dedup();
        let mut views = Vec::new();
        for queue in &queues {
            views.extend(self.builds(namespace, queue).await?);
        }
        Ok(views)
    }

    /// Reads what is decided about all builds.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn refresh_rollouts(&self) -> Result<(), Fault> {
        refresh(&self.core).await
    }

    /// How many workers run these types on these queues, by build.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn serving(
        &self,
        namespace: &Namespace,
        queues: &[&str],
        types: &[&str],
    ) -> Result<Vec<Serving>, Fault> {
        serving(&self.core, namespace, queues, types).await
    }
}
