//! Routing: where a task waits, what a poll can take, and whether the two fit.

use std::sync::Arc;

use super::ids::{Namespace, RunId, TaskId, TaskQueue, WorkerId};
use super::session;
use super::time::Timestamp;

/// Which plane hands a task out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskKind {
    /// Workflow task.
    Workflow,
    /// Activity task.
    Activity,
    /// A caller's question to a workflow, answered by a worker and never recorded.
    Query,
    /// A question whether an update may be accepted, likewise.
    UpdateValidation,
}

impl TaskKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [
        Self::Workflow,
        Self::Activity,
        Self::Query,
        Self::UpdateValidation,
    ];

    /// The number it is stored as.
    pub fn number(self) -> i16 {
        match self {
            Self::Workflow => 0,
            Self::Activity => 1,
            Self::Query => 2,
            Self::UpdateValidation => 3,
        }
    }

    /// The kind that is stored as `number`.
    pub fn from_number(number: i16) -> Option<Self> {
        match number {
            0 => Some(Self::Workflow),
            1 => Some(Self::Activity),
            2 => Some(Self::Query),
            3 => Some(Self::UpdateValidation),
            _ => None,
        }
    }

    /// The word on the wire and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Workflow => "workflow",
            Self::Activity => "activity",
            Self::Query => "query",
            Self::UpdateValidation => "update_validation",
        }
    }

    /// The kind whose polls hand it out: a poll for workflow tasks may take update validations too.
    pub fn polled_as(self) -> Self {
        match self {
            Self::UpdateValidation => Self::Workflow,
            kind => kind,
        }
    }

    /// Whether it is a question: kept in a table that a crash empties, and never in the history.
    pub fn is_ask(self) -> bool {
        matches!(self, Self::Query | Self::UpdateValidation)
    }
}

/// The id of an ask as clients see it: its run, a letter for its kind, its number (`01J…-q7`).
pub fn ask_id(kind: TaskKind, id: TaskId) -> String {
    let letter = if kind == TaskKind::UpdateValidation {
        'v'
    } else {
        'q'
    };
    format!("{}-{letter}{}", id.run, id.no)
}

/// The ask of this kind that an id names; one ask has one spelling.
pub fn read_ask_id(kind: TaskKind, text: &str) -> Option<TaskId> {
    let (run, no) = text.split_once('-')?;
    let no = no.get(1..)?.parse().ok()?;
    let run: RunId = run.parse().ok()?;
    let id = TaskId { run, no };
    (ask_id(kind, id) == text).then_some(id)
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
    /// The worker session that it runs in. Who may own that is decided when a worker claims the task.
    pub session: Option<Arc<session::Options>>,
    /// The worker that keeps the run in memory, which is given the task if it waits.
    pub preferred: Option<Box<Preferred>>,
}

/// Who is best given a workflow task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preferred {
    /// The worker.
    pub worker: WorkerId,
    /// Until when it keeps the run.
    pub until: Timestamp,
}

/// Priority of tasks that nobody gave another.
pub const DEFAULT_PRIORITY: u8 = 5;

impl Routing {
    /// Whether its place in the queue may be another than that of its age.
    pub fn is_ordered(&self) -> bool {
        self.priority != DEFAULT_PRIORITY || self.fairness_key.is_some()
    }

    /// Whether claims must look at more than its priority and age.
    pub fn is_ranked(&self) -> bool {
        self.fairness_key.is_some() || self.preferred.is_some()
    }
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
        self.fits(
            &routing.task_type,
            routing.build_id.as_deref(),
            routing.needs,
        )
    }

    /// The same for what routing looks at, one by one.
    pub fn fits(&self, task_type: &str, build_id: Option<&str>, needs: i64) -> bool {
        self.types.iter().any(|known| known == task_type)
            && (build_id.is_none() || build_id == self.build_id.as_deref())
            && needs & !self.knows == 0
    }
}

/// A waiting poll.
#[derive(Clone, Debug)]
pub struct Poller {
    /// The worker.
    pub owner: WorkerId,
    /// The poll's id, if the worker gave one.
    pub poll_request_id: Option<Arc<str>>,
    /// Kinds of task that it takes, in the order of their numbers.
    pub kinds: Arc<[TaskKind]>,
}

impl Poller {
    /// Whether `other` has the same id for other kinds of task. Polls of another plane have ids of
    /// their own.
    pub fn contradicts(&self, other: &Self) -> bool {
        let plane = |poller: &Self| poller.kinds.first().map(|kind| kind.polled_as());
        self.owner == other.owner
            && self.poll_request_id.is_some()
            && self.poll_request_id == other.poll_request_id
            && plane(self) == plane(other)
            && self.kinds != other.kinds
    }
}
