//! Leases that end without a report: the task is handed out again, later each time, or given up.

use std::sync::Arc;

use super::error::Fault;
use super::{Core, claims, runs};
use crate::domain::dispatch::Position;
use crate::domain::ids::TaskId;
use crate::domain::lease::{AfterLoss, after_loss};
use crate::domain::routing::TaskKind;
use crate::domain::run::Input;
use crate::matching::QueueKey;
use crate::store::lease::{self, Lost, TaskRow, Which};

/// What was given back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GivenBack {
    /// Workflow tasks.
    pub workflow: u64,
}

/// Gives tasks back whose holder lost them, and tells whoever waits for such tasks.
pub(super) async fn give_back(
    core: &Arc<Core>,
    rows: Vec<TaskRow>,
    which: Which,
) -> Result<GivenBack, Fault> {
    let mut lost = Vec::new();
    let mut kept = Vec::new();
    for row in rows {
        let Some(owner) = row.owner.clone() else {
            continue;
        };
        core.leases.closed(row.task);
        if row.cancel_requested {
            cancelled_holder_lost(core, row.task, row.attempt, owner);
            continue;
        }
        match after_loss(row.attempt) {
            AfterLoss::Again(delay_ms) => {
                lost.push(Lost {
                    task: row.task,
                    owner,
                    attempt: row.attempt,
                    delay_ms,
                    granted_by: None,
                });
                kept.push(row);
            }
            AfterLoss::GiveUp if which == Which::RunOut => {
                give_up(core, row.task, row.attempt, owner);
            }
            // Its holder says goodbye or is replaced; the lease runs out, and is given up then.
            AfterLoss::GiveUp => {}
        }
    }
    if lost.is_empty() {
        return Ok(GivenBack::default());
    }
    let places = lease::give_back(&core.store.hot, which, &lost).await?;
    let mut given = GivenBack::default();
    for place in places {
        let (Some(row), Some(lost)) = (kept.get(place), lost.get(place)) else {
            continue;
        };
        given.workflow += u64::from(row.kind == TaskKind::Workflow);
        metrics::counter!("dw_leases_lost_total", "kind" => row.kind.as_str()).increment(1);
        let key = QueueKey {
            kind: row.kind,
            namespace: row.namespace.clone(),
            queue: row.queue.clone(),
        };
        if lost.delay_ms == 0 {
            claims::became_ready(core, &key, Position::START);
        } else {
            let delay = std::time::Duration::from_millis(lost.delay_ms + 1);
            core.wakes.set(&key, delay);
        }
    }
    Ok(given)
}

/// The activity was asked to cancel, so nobody else is to run it.
fn cancelled_holder_lost(
    core: &Arc<Core>,
    task: TaskId,
    attempt: u32,
    owner: crate::domain::ids::WorkerId,
) {
    let core = Arc::clone(core);
    core.clone().runtime.spawn(async move {
        let input = Input::CancelledHolderLost {
            no: task.no,
            attempt,
            owner,
        };
        // Refused means that it was reported after all; faults are met again by the next sweep.
        let _ = runs::apply(&core, task.run, input).await;
    });
}

fn give_up(core: &Arc<Core>, task: TaskId, attempt: u32, owner: crate::domain::ids::WorkerId) {
    metrics::counter!("dw_tasks_given_up_total").increment(1);
    tracing::warn!(task = %task, attempt, "task given up: handed out too often without a report");
    let core = Arc::clone(core);
    core.clone().runtime.spawn(async move {
        let input = Input::GiveUp {
            no: task.no,
            attempt,
            owner,
        };
        // Refused means that it was reported or renewed after all; faults are met again by the next sweep.
        let _ = runs::apply(&core, task.run, input).await;
    });
}
