//! Routing: where a task waits, what a poll can take, and whether the two fit.

use std::sync::Arc;

use super::ids::{Namespace, TaskQueue, WorkerId};

/// Which plane hands a task out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskKind {
    /// Workflow task.
    Workflow,
    /// Activity task.
    Activity,
}

impl TaskKind {
    /// The number it is stored as.
    pub fn number(self) -> i16 {
        match self {
            Self::Workflow => 0,
            Self::Activity => 1,
        }
    }

    /// The kind that is stored as `number`.
    pub fn from_number(number: i16) -> Option<Self> {
        match number {
            0 => Some(Self::Workflow),
            1 => Some(Self::Activity),
            _ => None,
        }
    }

    /// The word on the wire and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Workflow => "workflow",
            Self::Activity => "activity",
        }
    }
}

/// Where a task waits and who may take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Workflow or activity.
    pub kind: TaskKind,
    /// Namespace.
    pub namespace: Namespace,
    /// Queue.
    pub queue: TaskQueue,
    /// Workflow or activity type.
    pub task_type: Arc<str>,
    /// 0 to 9, lower is more urgent.
    pub priority: u8,
    /// Class for fair sharing.
    pub fairness_key: Option<Arc<str>>,
    /// Weight of that class.
    pub fairness_weight: u16,
    /// Build that the worker must run.
    pub build_id: Option<Arc<str>>,
    /// Bits of history features that the worker must know.
    pub needs: i64,
}

/// What a group of like polls can take.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Profile {
    /// Types that the workers have registered.
    pub types: Arc<[String]>,
    /// Build that they run.
    pub build_id: Option<Arc<str>>,
    /// Bits of history features that they know.
    pub knows: i64,
}

impl Profile {
    /// Whether a worker of this profile, which polls the task's queue, may be given the task. The
    /// claim statement says the same in SQL, and a test holds the two against each other.
    pub fn may_take(&self, routing: &Routing) -> bool {
        self.types.iter().any(|known| **known == *routing.task_type)
            && (routing.build_id.is_none() || routing.build_id == self.build_id)
            && routing.needs & !self.knows == 0
    }
}

/// A waiting poll.
#[derive(Clone, Debug)]
pub struct Poller {
    /// The worker.
    pub owner: WorkerId,
    /// The poll's id, if the worker gave one.
    pub poll_request_id: Option<Arc<str>>,
}
