//! Limits on held and handed-out tasks: claims keep to them, and polls hear why they got nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::dispatch::{self, On};
use super::unserved::Nothing;
use super::{Core, Engine, Fault};
use crate::domain::admission::{Limits, Used};
use crate::domain::dispatch::Position;
use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::list::QueueRow;
use crate::domain::routing::{Poller, Profile, TaskKind};
use crate::matching::QueueKey;
use crate::store::admission;
use crate::store::claim::Claimed;

/// Queues that are remembered as having been at a limit.
const KEPT: usize = 10_000;

/// When queues were last seen at a limit.
#[derive(Debug, Default)]
pub(super) struct Throttled(Mutex<HashMap<QueueKey, Instant>>);

impl Throttled {
    fn map(&self) -> MutexGuard<'_, HashMap<QueueKey, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, key: &QueueKey) {
        let mut map = self.map();
        if map.len() >= KEPT {
            map.clear();
        }
        map.insert(key.clone(), Instant::now());
    }

    fn since(&self, key: &QueueKey, began: Instant) -> bool {
        self.map().get(key).is_some_and(|seen| *seen >= began)
    }
}

impl Core {
    /// What is allowed for a kind of task.
    pub(super) fn limits(&self, kind: TaskKind) -> Limits {
        match kind {
            TaskKind::Workflow => self.settings.workflow_limits,
            TaskKind::Activity => self.settings.activity_limits,
            TaskKind::Query | TaskKind::UpdateValidation => Limits::default(),
        }
    }

    /// Why a poll that waited since `began` found nothing, if something is there.
    pub(super) fn nothing(
        &self,
        keys: &[QueueKey],
        profile: &Profile,
        began: Instant,
    ) -> Option<Nothing> {
        if keys.iter().any(|key| self.throttled.since(key, began)) {
            metrics::counter!("dw_polls_throttled_total").increment(1);
            return Some(Nothing::Throttled);
        }
        keys.iter()
            .find_map(|key| self.unserved.nothing(key, profile))
    }
}

/// Claims what the limits leave room for. Returns with it how many more may be claimed; `None` for any
/// number.
pub(super) async fn claim(
    core: &Core,
    key: &QueueKey,
    profile: &Profile,
    pollers: &[Poller],
) -> Result<(Vec<Claimed>, Option<usize>), Fault> {
    let limits = core.limits(key.kind);
    if !limits.any() {
        let claimed = dispatch::claim(core, key, profile, pollers, On::Any).await?;
        return Ok((claimed, None));
    }
    let claimed = within(core, key, profile, pollers, limits).await;
    if claimed.is_err() {
        // What was claimed is ready again.
        core.marks.lower(key, Position::START);
    }
    claimed.map(|(claimed, left)| (claimed, Some(left)))
}

/// Claims under a lock of what is limited.
async fn within(
    core: &Core,
    key: &QueueKey,
    profile: &Profile,
    pollers: &[Poller],
    limits: Limits,
) -> Result<(Vec<Claimed>, usize), Fault> {
    let (namespace, queue) = (&key.namespace, &key.queue);
    let mut step = core.store.hot.begin().await?;
    admission::lock(&mut step, limits, key.kind, namespace, queue).await?;
    let used = admission::read(&mut step, limits, key.kind, namespace, queue).await?;
    let room = limits.room(used).unwrap_or(u64::MAX);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    let some = &pollers[..pollers.len().min(room)];
    let claimed = if some.is_empty() {
        Vec::new()
    } else {
        dispatch::claim(core, key, profile, some, On::This(&mut step)).await?
    };
    if limits.dispatches() && !claimed.is_empty() {
        admission::count(&mut step, key.kind, namespace, queue, claimed.len()).await?;
    }
    step.commit().await?;
    if room < pollers.len() && claimed.len() == room {
        core.throttled.note(key);
    }
    let left = room.saturating_sub(claimed.len());
    Ok((claimed, left))
}

/// Counts tasks of sessions, which are claimed one by one.
pub(super) async fn count(core: &Core, key: &QueueKey, tasks: usize) -> Result<(), Fault> {
    if !core.limits(key.kind).dispatches() || tasks == 0 {
        return Ok(());
    }
    let mut step = core.store.hot.begin().await?;
    admission::count(&mut step, key.kind, &key.namespace, &key.queue, tasks).await?;
    step.commit().await?;
    Ok(())
}

/// What a queue and its namespace use of the limits of one kind of task.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// What is allowed.
    pub limits: Limits,
    /// What is used.
    pub used: Used,
}

impl Engine {
    /// What workflow tasks and activity tasks of a queue use of their limits.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn admission(
        &self,
        namespace: &Namespace,
        queue: &TaskQueue,
    ) -> Result<[Admission; 2], Fault> {
        let core: &Arc<Core> = &self.core;
        let of = async |kind| {
            Ok::<_, Fault>(Admission {
                limits: core.limits(kind),
                used: admission::look(&core.store.reads, kind, namespace, queue).await?,
            })
        };
        Ok([of(TaskKind::Workflow).await?, of(TaskKind::Activity).await?])
    }

    /// The same for all queues of a namespace, given what waits on them; in their order.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn admissions(
        &self,
        namespace: &Namespace,
        rows: &[QueueRow],
    ) -> Result<Vec<[Admission; 2]>, Fault> {
        let core = &self.core;
        let kinds = [TaskKind::Workflow, TaskKind::Activity];
        let dispatched = if kinds.iter().any(|kind| core.limits(*kind).dispatches()) {
            admission::dispatched(&core.store.reads, namespace).await?
        } else {
            HashMap::new()
        };
        let leased = |row: &QueueRow, kind| match kind {
            TaskKind::Activity => row.activity.leased,
            _ => row.workflow.leased,
        };
        let totals = kinds.map(|kind| -> (u64, u64) {
            let handed_out = dispatched
                .iter()
                .filter(|((of, _), _)| *of == kind.number());
            (
                rows.iter().map(|row| leased(row, kind)).sum(),
                handed_out.map(|(_, count)| count).sum(),
            )
        });
        let of = |row: &QueueRow, kind: TaskKind, (leases, dispatches)| Admission {
            limits: core.limits(kind),
            used: Used {
                leases_of_queue: leased(row, kind),
                leases_of_namespace: leases,
                dispatches_of_queue: dispatched
                    .get(&(kind.number(), row.queue.clone()))
                    .copied()
                    .unwrap_or_default(),
                dispatches_of_namespace: dispatches,
            },
        };
        let [workflow, activity] = totals;
        Ok(rows
            .iter()
            .map(|row| {
                [
                    of(row, TaskKind::Workflow, workflow),
                    of(row, TaskKind::Activity, activity),
                ]
            })
            .collect())
    }

    /// Forgets the counts of minutes that are over.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn forget_old_dispatches(&self) -> Result<(), Fault> {
        let core = &self.core;
        let counted = [TaskKind::Workflow, TaskKind::Activity];
        if counted.iter().any(|kind| core.limits(*kind).dispatches()) {
            admission::forget_old(&core.store.hot).await?;
        }
        Ok(())
    }
}
