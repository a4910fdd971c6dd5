//! Ready tasks that no live worker may take: found by a slow look at the heads of all queues, told to
//! operators, and to polls that found nothing.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use super::{Engine, Fault};
use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::list::{ClassBacklog, Held, Lone, Waiting};
use crate::domain::routing::Profile;
use crate::domain::worker::{Registration, Shape, WorkerStatus};
use crate::matching::QueueKey;
use crate::store::{waiting, workers};

/// Queues that one look covers.
const QUEUES: i64 = 1_000;
/// Tasks of each queue that one look covers, ready or not.
const DEPTH: i64 = 100;
/// Shapes of workers that one look covers.
const SHAPES: i64 = 10_000;
/// Groups of ready tasks of one queue that an operator is shown.
const GROUPS_SHOWN: i64 = 1_000;
/// Ready tasks of one queue that are counted by priority and fairness key.
const TASKS_COUNTED: i64 = 100_000;
/// Tasks that nobody takes, and held ones, that an operator is shown.
const TASKS_SHOWN: i64 = 50;

/// Why a poll found nothing that it may have although something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// A limit of the queue or its namespace is reached.
    Throttled,
    /// What is ready is pinned to another build, which live workers run.
    CompatibilityBlocked,
    /// No live worker can take what is ready.
    NoCompatibleWorker,
}

/// A group of ready tasks, and whether a live worker may take them.
type Seen = (Waiting, bool);

/// What the last look found, by queue; only groups that not every worker of the queue may take.
#[derive(Debug, Default)]
pub(super) struct Unserved(RwLock<HashMap<QueueKey, Vec<Seen>>>);

impl Unserved {
    fn replace(&self, found: HashMap<QueueKey, Vec<Seen>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Why a poll of this profile gets nothing from a queue, if something waits there.
    pub fn nothing(&self, key: &QueueKey, profile: &Profile) -> Option<Nothing> {
        let found = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let groups = found.get(key)?;
        if groups.iter().any(|(_, is_served)| !is_served) {
            return Some(Nothing::NoCompatibleWorker);
        }
        let pinned_away = |group: &Waiting| {
            profile
                .types
                .iter()
                .any(|known| **known == *group.task_type)
                && group.build_id.is_some()
                && group.build_id != profile.build_id
        };
        groups
            .iter()
            .any(|(group, _)| pinned_away(group))
            .then_some(Nothing::CompatibilityBlocked)
    }
}

/// What waits on a queue and what is held, as an operator looks at it.
#[derive(Clone, Debug)]
pub struct QueueDetail {
    /// Groups of ready tasks, each with whether a live worker may take it.
    pub groups: Vec<Seen>,
    /// Tasks of groups that nobody may take, with their group's place.
    pub lone: Vec<(usize, Lone)>,
    /// Tasks that workers hold.
    pub held: Vec<Held>,
    /// Queries that wait.
    pub queries: u64,
}

impl Engine {
    /// Looks at the heads of all queues for tasks that no live worker may take.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn look_for_unserved(&self) -> Result<(), Fault> {
        let core = &self.core;
        let hot = &core.store.hot;
        let heads = waiting::heads(hot, QUEUES, DEPTH).await?;
        let shapes = if heads.is_empty() {
            Vec::new()
        } else {
            workers::shapes(hot, core.settings.stale_after_seconds, SHAPES).await?
        };
        let mut tasks = 0;
        let mut found: HashMap<QueueKey, Vec<Seen>> = HashMap::new();
        for group in heads {
            let is_served = shapes.iter().any(|shape| group.may_go_to(shape));
            if !is_served {
                tasks += group.tasks;
            } else if group.build_id.is_none() {
                continue;
            }
            let key = QueueKey {
                kind: group.kind,
                namespace: group.namespace.clone(),
                queue: group.queue.clone(),
            };
            found.entry(key).or_default().push((group, is_served));
        }
        metrics::gauge!("dw_unserved_tasks").set(tasks as f64);
        core.unserved.replace(found);
        Ok(())
    }

    /// Queries that wait in a namespace, by queue.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn waiting_queries(
        &self,
        namespace: &Namespace,
    ) -> Result<HashMap<String, u64>, Fault> {
        Ok(waiting::queries(&self.core.store.reads, namespace, None).await?)
    }

    /// What is ready on a queue by priority and fairness key, and whether that is all.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn queue_classes(
        &self,
        namespace: &Namespace,
        queue: &TaskQueue,
    ) -> Result<(Vec<ClassBacklog>, bool), Fault> {
        let reads = &self.core.store.reads;
        Ok(waiting::by_class(reads, namespace, queue, TASKS_COUNTED, GROUPS_SHOWN).await?)
    }

    /// What waits on a queue and what is held, given the workers of the queue.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn queue_detail(
        &self,
        namespace: &Namespace,
        queue: &TaskQueue,
        registered: &[Registration],
    ) -> Result<QueueDetail, Fault> {
        let reads = &self.core.store.reads;
        let shapes: Vec<Shape> = registered
            .iter()
            .filter(|worker| worker.status == WorkerStatus::Active && !self.is_stale(worker))
            .map(Registration::shape)
            .collect();
        let groups: Vec<Seen> = waiting::on_queue(reads, namespace, queue, GROUPS_SHOWN)
            .await?
            .into_iter()
            .map(|group| {
                let is_served = shapes.iter().any(|shape| group.may_go_to(shape));
                (group, is_served)
            })
            .collect();
        let mut lone = Vec::new();
        for (place, (group, is_served)) in groups.iter().enumerate() {
            let room = TASKS_SHOWN - i64::try_from(lone.len()).unwrap_or(TASKS_SHOWN);
            if room <= 0 {
                break;
            }
            if !is_served {
                let tasks = waiting::of_group(reads, group, room).await?;
                lone.extend(tasks.into_iter().map(|task| (place, task)));
            }
        }
        Ok(QueueDetail {
            held: waiting::held(reads, namespace, queue, TASKS_SHOWN).await?,
            queries: waiting::queries(reads, namespace, Some(queue))
                .await?
                .into_values()
                .sum(),
            groups,
            lone,
        })
    }
}
