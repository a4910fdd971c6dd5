//! What lists show: runs page by page, and what waits on a queue.

use std::sync::Arc;

use super::features;
use super::ids::{Namespace, RunId, TaskId, TaskQueue, WorkerId, WorkflowId};
use super::routing::{Profile, TaskKind};
use super::run::Status;
use super::time::Timestamp;
use super::worker::Shape;

/// A run as lists show it.
#[derive(Clone, Debug)]
pub struct RunRow {
    /// The run.
    pub run: RunId,
    /// Its workflow.
    pub workflow_id: WorkflowId,
    /// Its place among the runs of the workflow.
    pub run_number: u32,
    /// The workflow id stands for this run.
    pub is_current: bool,
    /// Registered type.
    pub workflow_type: String,
    /// Queue.
    pub queue: String,
    /// Caller's business key.
    pub business_key: Option<String>,
    /// Build that it is pinned to.
    pub build_id: Option<String>,
    /// Status.
    pub status: Status,
    /// When it began.
    pub started_at: Timestamp,
    /// When it closed.
    pub closed_at: Option<Timestamp>,
    /// Memo, a JSON object.
    pub memo: String,
    /// Search attributes, a JSON object.
    pub search_attributes: String,
}

/// Which runs to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this type.
    pub workflow_type: Option<String>,
    /// With one of these statuses; empty means any.
    pub statuses: Vec<Status>,
    /// Whose workflow id or business key contains this text, in any letter case.
    pub text: Option<String>,
}

/// Where a page begins: right after this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// When that run began.
    pub started_at: Timestamp,
    /// That run.
    pub run: RunId,
}

/// What waits on a queue, for one kind of task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Tasks that may be handed out.
    pub ready: u64,
    /// Tasks that workers hold.
    pub leased: u64,
    /// Seconds that the oldest ready task has waited.
    pub age_seconds: u64,
}

/// What waits on one queue.
#[derive(Clone, Debug, Default)]
pub struct QueueRow {
    /// Its name.
    pub queue: String,
    /// Workflow tasks.
    pub workflow: Backlog,
    /// Activity tasks.
    pub activity: Backlog,
}

/// Tasks that came to a queue and left it in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Tasks that were opened.
    pub added: u64,
    /// Tasks that were handed out, each time.
    pub dispatched: u64,
}

impl Flow {
    /// Counts another one in.
    pub fn add(&mut self, other: Self) {
        self.added += other.added;
        self.dispatched += other.dispatched;
    }
}

/// Ready tasks of one kind, priority and fairness key.
#[derive(Clone, Debug)]
pub struct ClassBacklog {
    /// Workflow or activity.
    pub kind: TaskKind,
    /// 0 to 9, lower is more urgent.
    pub priority: u8,
    /// The key; `None` for tasks without one.
    pub fairness_key: Option<String>,
    /// Weight of the class, as the task says it that has waited longest.
    pub weight: u16,
    /// How many are ready.
    pub tasks: u64,
    /// Seconds that the oldest has waited.
    pub age_seconds: u64,
}

/// Ready tasks that the same workers may take.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Namespace.
    pub namespace: Namespace,
    /// Queue.
    pub queue: TaskQueue,
    /// Workflow or activity.
    pub kind: TaskKind,
    /// Workflow or activity type.
    pub task_type: Arc<str>,
    /// Build that the worker must run.
    pub build_id: Option<Arc<str>>,
    /// Bits of history features that the worker must know.
    pub needs: i64,
    /// How many are ready.
    pub tasks: u64,
    /// How many wait for code that can replay their history.
    pub blocked: u64,
    /// Seconds that the oldest has waited.
    pub age_seconds: u64,
}

impl Waiting {
    /// Whether a live worker of this shape may take these tasks. What only a poll's protocol version
    /// tells is believed.
    pub fn may_go_to(&self, worker: &Shape) -> bool {
        let by_version = features::OCCURRENCE | features::CANCELLATION | features::SESSIONS;
        let profile = Profile {
            types: Arc::clone(match self.kind {
                TaskKind::Activity => &worker.activity_types,
                _ => &worker.workflow_types,
            }),
            build_id: worker.build_id.clone(),
            knows: worker.knows() | by_version,
        };
        self.namespace == worker.namespace
            && worker.queues.contains(&self.queue)
            && profile.fits(&self.task_type, self.build_id.as_deref(), self.needs)
    }
}

/// A ready task that no worker may take.
#[derive(Clone, Debug)]
pub struct Lone {
    /// The task.
    pub task: TaskId,
    /// Its workflow.
    pub workflow_id: WorkflowId,
    /// Since when it is ready.
    pub since: Option<Timestamp>,
}

/// A task that a worker holds.
#[derive(Clone, Debug)]
pub struct Held {
    /// The task.
    pub task: TaskId,
    /// Workflow or activity.
    pub kind: TaskKind,
    /// Workflow or activity type.
    pub task_type: Arc<str>,
    /// Its workflow.
    pub workflow_id: WorkflowId,
    /// The worker.
    pub owner: WorkerId,
    /// End of the lease.
    pub lease_expires_at: Timestamp,
    /// The hand-out.
    pub attempt: u32,
}
