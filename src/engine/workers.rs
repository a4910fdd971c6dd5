//! Workers: registration, heartbeat, deregistration, and what a poll needs to know about its worker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::Fault;
use super::{Engine, asks, claims, leases_lost};
use crate::domain::ids::{Namespace, TaskQueue, WorkerId};
use crate::domain::routing::TaskKind;
use crate::domain::worker::{self, Beat, Description, Refused, Registration};
use crate::matching::{Ended, QueueKey, WorkerKey};
use crate::store::{claim, lease, workers};

/// How long a registration is believed without hearing of it; other nodes tell of changes.
const BELIEVED: Duration = Duration::from_secs(30);
/// Registrations that are remembered.
const KEPT: usize = 20_000;
/// Leases that one registration or deregistration gives back at a time.
const GIVE_BACK_BATCH: i64 = 500;
/// A poll notes that its worker is alive when it was last heard of this long ago.
const POLL_IS_LIFE_AFTER_MS: u64 = 15_000;

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

/// Registrations that this node has seen lately.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<WorkerKey, (Arc<Registration>, Instant)>>);

impl Known {
    fn map(&self) -> MutexGuard<'_, HashMap<WorkerKey, (Arc<Registration>, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, worker: &Arc<Registration>) {
        let mut map = self.map();
        if map.len() >= KEPT {
            map.clear();
        }
        map.insert(key(worker), (Arc::clone(worker), Instant::now()));
    }

    pub fn forget(&self, key: &WorkerKey) {
        self.map().remove(key);
    }

    pub fn forget_all(&self) {
        self.map().clear();
    }

    /// Whether a registration is known that came after the one of this epoch.
    pub fn newer(&self, key: &WorkerKey, epoch: u64) -> bool {
        let map = self.map();
        map.get(key).is_some_and(|(worker, _)| worker.epoch > epoch)
    }

    fn recent(&self, key: &WorkerKey) -> Option<Arc<Registration>> {
        self.map()
            .get(key)
            .filter(|(_, seen)| seen.elapsed() < BELIEVED)
            .map(|(worker, _)| Arc::clone(worker))
    }
}

fn key(worker: &Registration) -> WorkerKey {
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
            let existing = workers::lock(&mut transaction, &namespace, &worker_id)
                .await
                .map_err(Fault::from)?;
            let registered = worker::register(
                existing.as_ref(),
                namespace,
                worker_id,
                description,
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
            core.known.keep(&worker);
            core.contracts.learn(&worker);
            let key = key(&worker);
            core.hints.worker(&key, worker.epoch);
            engine.unblock(&worker).await?;
            if existing.is_some() {
                core.registry
                    .end_worker(&key, worker.epoch, Ended::Superseded);
                engine.give_back_all(&key).await?;
            }
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
                core.hints.ready(&key);
                claims::ready(core, &key);
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
        let worker = workers::beat(&self.core.store.hot, namespace, worker_id, beat).await?;
        Ok(worker.map(|worker| {
            let worker = Arc::new(worker);
            self.core.known.keep(&worker);
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
        let worker = workers::read(&self.core.store.reads, namespace, worker_id).await?;
        Ok(worker.map(|worker| {
            let worker = Arc::new(worker);
            self.core.known.keep(&worker);
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
