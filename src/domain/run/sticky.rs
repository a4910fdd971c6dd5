//! The sticky cache: a worker that keeps a run in memory is preferred for its next workflow task, and
//! is told whether it may go on from what it keeps.

use std::sync::Arc;

use super::super::ids::{TaskNo, WorkerId};
use super::super::routing::Preferred;
use super::super::time::Timestamp;
use super::draft::Draft;
use super::fact::Fact;
use super::state::RunState;
use super::workflow_task::WorkflowTaskReport;

/// A worker says with a completion that it keeps the run in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Its registration's epoch: another process keeps nothing.
    pub epoch: u64,
    /// For how long.
    pub ttl_seconds: u64,
}

/// Who keeps the run in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The worker.
    pub worker: WorkerId,
    /// The epoch of its registration.
    pub epoch: u64,
    /// Until when.
    pub until: Timestamp,
    /// The task whose completion said so.
    pub task: TaskNo,
}

/// How the holder of a workflow task comes by the run's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayMode {
    /// It keeps the run and may go on from there.
    Hit,
    /// Somebody kept the run, but not this holder, or not any more.
    ForcedCold,
    /// Nobody kept the run.
    Cold,
}

impl ReplayMode {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "sticky_hit_expected",
            Self::ForcedCold => "forced_cold_replay",
            Self::Cold => "cold_replay",
        }
    }
}

impl RunState {
    /// The worker that the next task is best given to.
    pub fn preferred(&self, now: Timestamp) -> Option<Box<Preferred>> {
        let kept = self.kept.as_ref().filter(|kept| now < kept.until)?;
        Some(Box::new(Preferred {
            worker: kept.worker.clone(),
            until: kept.until,
        }))
    }

    /// How a worker, registered with `epoch`, that was given the workflow task at `at` comes by the
    /// run's state.
    pub fn replay_mode(&self, worker: &WorkerId, epoch: u64, at: Timestamp) -> ReplayMode {
        match &self.kept {
            None => ReplayMode::Cold,
            Some(kept) if kept.worker == *worker && kept.epoch == epoch && at < kept.until => {
                ReplayMode::Hit
            }
            Some(_) => ReplayMode::ForcedCold,
        }
    }

    pub(super) fn keep_in_memory(
        &mut self,
        task: TaskNo,
        worker: &Arc<str>,
        epoch: u64,
        until: Timestamp,
    ) {
        self.kept = Some(Arc::new(Kept {
            worker: WorkerId::from(&**worker),
            epoch,
            until,
            task,
        }));
    }

    /// A completion that does not say that the run is kept means that it is not.
    pub(super) fn keep_no_longer(&mut self, task: TaskNo) {
        if self.kept.as_ref().is_some_and(|kept| kept.task != task) {
            self.kept = None;
        }
    }
}

/// The worker that reports keeps the run.
pub(super) fn keep(draft: &mut Draft<'_>, report: &WorkflowTaskReport, keep: Option<Keep>) {
    if let Some(keep) = keep {
        let until = draft.now.plus_seconds(keep.ttl_seconds);
        draft.note(Fact::RunKept {
            task: report.no,
            worker: report.owner.as_str().into(),
            epoch: keep.epoch,
            until,
        });
    }
}
