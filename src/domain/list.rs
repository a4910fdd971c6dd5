//! What lists show: runs page by page, and what waits on a queue.

use super::ids::{RunId, WorkflowId};
use super::run::Status;
use super::time::Timestamp;

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
