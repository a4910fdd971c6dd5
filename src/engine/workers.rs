//! Workers: registration, heartbeat, deregistration, and what a poll needs to know about its worker.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::Fault;
use super::{Engine, asks, claims, leases_lost};
use crate::domain::dispatch::Position;
use crate::domain::ids::{Namespace, TaskQueue, WorkerId};
use crate::domain::routing::TaskKind;
use crate::domain::worker::{
    self, Beat, Description, Refused, Registration, Standing, WorkerStatus,
};
use crate::matching::{Ended, IdMap, QueueKey, WorkerKey};
use crate::store::{claim, deregistrations, lease, rollouts, workers};

/// How long a registration is believed without hearing of it; other nodes tell of changes.
const BELIEVED: Duration = Duration::from_secs(30);
/// Registrations that are remembered.
const KEPT: usize = 20_000;
/// Leases that one registration or deregistration gives back at a time.
const GIVE_BACK_BATCH: i64 = 500;
/// A poll notes that its worker is alive when it was last heard of this long ago.
const POLL_IS_LIFE_AFTER_MS: u64 = 15_000;

/// Seconds for which a deregistration by token gets its first answer again.
const RECEIPT_SECONDS: u64 = 600;
/// Seconds for which it is known that there was such an answer.
const RECEIPT_KNOWN_SECONDS: u64 = 86_400;
/// Receipts that one sweep forgets.
const FORGET_BATCH: i64 = 1_000;

/// Why a deregistration by token had no effect.
#[derive(Clone, Copy, Debug)]
pub enum DeregisterError {
    /// The worker has registered anew since.
    LostAuthority,
    /// No registration has this token.
    UnknownToken,
    /// It was done long ago.
    ReceiptExpired,
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for DeregisterError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<sqlx::Error> for DeregisterError {
    fn from(error: sqlx::Error) -> Self {
        Self::Fault(error.into())
    }
}

/// Why a worker could not be registered.
#[derive(Clone, Debug)]
pub enum RegisterError {
    /// Its own fault.
    Refused(Refused),
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for RegisterError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Registrations that this node has seen lately, and how often one of them is known to have changed.
/// What was read before a change must not be believed after it.
#[derive(Debug, Default)]
pub(super) struct Known {
    workers: Mutex<IdMap<WorkerKey, (Arc<Registration>, Instant)>>,
    changes: AtomicU64,
}

impl Known {
    fn map(&self) -> MutexGuard<'_, IdMap<WorkerKey, (Arc<Registration>, Instant)>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that grows with every change that this node hears of.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Keeps what was read, unless something has changed since `changes`.
    fn keep(&self, worker: &Arc<Registration>, changes: u64) {
        let mut map = self.map();
        if self.changes() != changes {
            return;
        }
        if map.len() >= KEPT {
            map.clear();
        }
        map.insert(key(worker), (Arc::clone(worker), Instant::now()));
    }

    /// A registration was written by this node.
    pub fn changed(&self, worker: &Arc<Registration>) {
        let mut map = self.map();
        self.changes.fetch_add(1, Ordering::AcqRel);
        map.insert(key(worker), (Arc::clone(worker), Instant::now()));
    }

    pub fn forget(&self, key: &WorkerKey) {
        let mut map = self.map();
        self.changes.fetch_add(1, Ordering::AcqRel);
        map.remove(key);
    }

    pub fn forget_all(&self) {
        let mut map = self.map();
        self.changes.fetch_add(1, Ordering::AcqRel);
        map.clear();
    }

    fn recent(&self, key: &WorkerKey) -> Option<Arc<Registration>> {
        self.map()
            .get(key)
            .filter(|(_, seen)| seen.elapsed() < BELIEVED)
            .map(|(worker, _)| Arc::clone(worker))
    }
}

pub(super) fn key(worker: &Registration) -> WorkerKey {
    WorkerKey {
        namespace: worker.namespace.clone(),
        worker: worker.worker_id.clone(),
    }
}

impl Engine {
    /// Registers a worker. Whatever an older process of the same id held is given back, and its open
    /// polls end.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub async fn register_worker(
        &self,
        namespace: Namespace,
        worker_id: WorkerId,
        description: Description,
    ) -> Result<Arc<Registration>, RegisterError> {
        let engine = self.clone();
        self.detached(async move {
            let core = &engine.core;
            let mut transaction = core.store.reads.begin().await.map_err(Fault::from)?;
            rollouts::lock(&mut transaction, &namespace, true)
                .await
                .map_err(Fault::from)?;
            let drains = rollouts::drains(
                &mut transaction,
                &namespace,
                &description.queues,
                &description.build_id,
            )
            .await
            .map_err(Fault::from)?;
            let existing = workers::lock(&mut transaction, &namespace, &worker_id)
                .await
                .map_err(Fault::from)?;
            let registered = worker::register(
                existing.as_ref(),
                namespace,
                worker_id,
                description,
                Standing {
                    status: if drains {
                        WorkerStatus::Draining
                    } else {
                        WorkerStatus::Active
                    },
                    token: uuid::Uuid::new_v4().simple().to_string().into(),
                },
                core.clock.now(),
            );
            let worker = match registered {
                Ok(worker) => worker,
                Err(refused) => {
                    transaction.rollback().await.map_err(Fault::from)?;
                    return Err(RegisterError::Refused(refused));
                }
            };
            workers::write(&mut transaction, &worker)
                .await
                .map_err(Fault::from)?;
            transaction.commit().await.map_err(Fault::from)?;
            let worker = Arc::new(worker);
            core.known.changed(&worker);
            core.contracts.learn(&worker);
            let key = key(&worker);
            core.hints.worker(&key, worker.epoch);
            engine.unblock(&worker).await?;
            if existing.is_some() {
                core.registry
                    .end_worker(&key, worker.epoch, Ended::Superseded);
                engine.give_back_all(&key).await?;
            }
            core.leases.settles(key, worker.epoch);
            Ok(worker)
        })
        .await?
    }

    /// Removes a worker. Returns how many workflow tasks it held, or `None` when it is not known.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn deregister_worker(
        &self,
        namespace: Namespace,
        worker_id: WorkerId,
    ) -> Result<Option<u64>, Fault> {
        let engine = self.clone();
        self.detached(async move {
            let core = &engine.core;
            let key = WorkerKey {
                namespace,
                worker: worker_id,
            };
            let existed = workers::remove(&core.store.reads, &key.namespace, &key.worker).await?;
            core.known.forget(&key);
            core.hints.worker(&key, u64::MAX);
            core.registry.end_worker(&key, u64::MAX, Ended::Superseded);
            if !existed {
                return Ok(None);
            }
            engine.give_back_all(&key).await.map(Some)
        })
        .await?
    }

    /// Removes a worker if the token is its present registration's. Said again with the same token, it
    /// gets the first answer. Returns how many workflow tasks the worker held.
    ///
    /// # Errors
    /// [`DeregisterError`].
    pub async fn deregister_by_token(
        &self,
        namespace: Namespace,
        worker_id: WorkerId,
        token: Arc<str>,
    ) -> Result<u64, DeregisterError> {
        let engine = self.clone();
        self.detached(async move {
            let core = &engine.core;
            let mut step = core.store.reads.begin().await?;
            let existing = workers::lock(&mut step, &namespace, &worker_id).await?;
            let receipt = deregistrations::find(&mut step, &namespace, &worker_id, &token).await?;
            if let Some(receipt) = receipt {
                return if receipt.age_seconds < RECEIPT_SECONDS {
                    Ok(receipt.recovered)
                } else {
                    Err(DeregisterError::ReceiptExpired)
                };
            }
            match existing {
                None => return Err(DeregisterError::UnknownToken),
                Some(worker) if worker.token.as_deref() != Some(&*token) => {
                    return Err(DeregisterError::LostAuthority);
                }
                Some(_) => {}
            }
            let recovered =
                deregistrations::keep(&mut step, &namespace, &worker_id, &token).await?;
            workers::remove_in(&mut step, &namespace, &worker_id).await?;
            step.commit().await?;
            let key = WorkerKey {
                namespace,
                worker: worker_id,
            };
            core.known.forget(&key);
            core.hints.worker(&key, u64::MAX);
            core.registry.end_worker(&key, u64::MAX, Ended::Superseded);
            if let Err(fault) = engine.give_back_all(&key).await {
                // The registration is gone, so that the next look for absent holders finds them.
                tracing::warn!(error = %fault, "tasks of a worker that left wait for the next look");
            }
            Ok(recovered)
        })
        .await?
    }

    /// Forgets receipts of deregistrations that ended long ago.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn forget_old_deregistrations(&self) -> Result<u64, Fault> {
        let hot = &self.core.store.hot;
        Ok(deregistrations::forget_old(hot, RECEIPT_KNOWN_SECONDS, FORGET_BATCH).await?)
    }

    /// Lets a worker with other code try the runs whose history the code so far could not replay.
    async fn unblock(&self, worker: &Registration) -> Result<(), Fault> {
        let core = &self.core;
        let said = &worker.description;
        let code: Vec<String> = said
            .workflow_types
            .iter()
            .map(|workflow_type| worker.code_of(workflow_type).to_string())
            .collect();
        let unblocked = claim::unblock(
            &core.store.hot,
            &worker.namespace,
            &said.queues,
            &said.workflow_types,
            &code,
        )
        .await?;
        if unblocked > 0 {
            for queue in &said.queues {
                let key = QueueKey {
                    kind: TaskKind::Workflow,
                    namespace: worker.namespace.clone(),
                    queue: queue.clone(),
                };
                claims::became_ready(core, &key, Position::START);
            }
        }
        Ok(())
    }

    /// Gives back everything that a worker holds; its process is gone. Returns how many of them were
    /// workflow tasks.
    async fn give_back_all(&self, key: &WorkerKey) -> Result<u64, Fault> {
        asks::give_back_all(&self.core, key).await?;
        let mut workflow_tasks = 0;
        loop {
            let held = lease::held_by(
                &self.core.store.hot,
                &key.namespace,
                &key.worker,
                GIVE_BACK_BATCH,
            )
            .await?;
            let found = held.len();
            workflow_tasks += leases_lost::give_back(&self.core, held, lease::Which::Named)
                .await?
                .workflow;
            if i64::try_from(found).unwrap_or(i64::MAX) < GIVE_BACK_BATCH {
                return Ok(workflow_tasks);
            }
        }
    }

    /// Notes that a worker is alive. `None` when it is not registered.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn heartbeat_worker(
        &self,
        namespace: &Namespace,
        worker_id: &WorkerId,
        beat: &Beat,
    ) -> Result<Option<Arc<Registration>>, Fault> {
        let changes = self.core.known.changes();
        let worker = workers::beat(&self.core.store.hot, namespace, worker_id, beat).await?;
        Ok(worker.map(|worker| {
            let worker = Arc::new(worker);
            self.core.known.keep(&worker, changes);
            worker
        }))
    }

    /// A registration, from memory if it is recent and looks alive.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn worker(
        &self,
        namespace: &Namespace,
        worker_id: &WorkerId,
    ) -> Result<Option<Arc<Registration>>, Fault> {
        let key = WorkerKey {
            namespace: namespace.clone(),
            worker: worker_id.clone(),
        };
        if let Some(worker) = self.core.known.recent(&key)
            && !self.is_stale(&worker)
        {
            return Ok(Some(worker));
        }
        self.read_worker(namespace, worker_id).await
    }

    /// A registration as the database has it.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn read_worker(
        &self,
        namespace: &Namespace,
        worker_id: &WorkerId,
    ) -> Result<Option<Arc<Registration>>, Fault> {
        let changes = self.core.known.changes();
        let worker = workers::read(&self.core.store.reads, namespace, worker_id).await?;
        Ok(worker.map(|worker| {
            let worker = Arc::new(worker);
            self.core.known.keep(&worker, changes);
            worker
        }))
    }

    /// Whether a worker has been silent for too long.
    pub fn is_stale(&self, worker: &Registration) -> bool {
        worker.is_stale(
            self.core.clock.now(),
            self.core.settings.stale_after_seconds,
        )
    }

    /// A live worker polls: that counts as being heard of, so that one which only polls stays alive.
    pub(super) async fn poll_is_life(&self, worker: &Registration) -> Result<(), Fault> {
        let silent = self.core.clock.now().millis_since(worker.last_heartbeat_at);
        if silent >= POLL_IS_LIFE_AFTER_MS {
            self.heartbeat_worker(&worker.namespace, &worker.worker_id, &Beat::default())
                .await?;
        }
        Ok(())
    }

    /// Hints were lost: ends the parked polls whose registrations are gone, replaced or draining.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn look_after_polls(&self) -> Result<(), Fault> {
        let core = &self.core;
        let parked = core.registry.workers();
        let keys: Vec<(&str, &str)> = parked
            .iter()
            .map(|key| (key.namespace.as_str(), key.worker.as_str()))
            .collect();
        let mut found: HashMap<WorkerKey, (u64, WorkerStatus)> = HashMap::new();
        for (namespace, worker, epoch, status) in
            workers::standings(&core.store.reads, &keys).await?
        {
            found.insert(WorkerKey { namespace, worker }, (epoch, status));
        }
        for key in &parked {
            match found.get(key) {
                None => core.registry.end_worker(key, u64::MAX, Ended::Superseded),
                Some((_, WorkerStatus::Draining)) => {
                    core.registry.end_worker(key, u64::MAX, Ended::Draining);
                }
                Some((epoch, WorkerStatus::Active)) => {
                    core.registry.end_worker(key, *epoch, Ended::Superseded);
                }
            }
        }
        Ok(())
    }

    /// The workers of a namespace, or of one of its queues.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn list_workers(
        &self,
        namespace: &Namespace,
        queue: Option<&TaskQueue>,
        limit: i64,
    ) -> Result<Vec<Registration>, Fault> {
        Ok(workers::list(&self.core.store.reads, namespace, queue, limit).await?)
    }
}
