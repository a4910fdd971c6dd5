//! Commands: what a workflow task completion asks for. Shapes only; the transport has checked the
//! fields, the run decides what they mean.

use std::sync::Arc;

use crate::payload::Payload;

use super::event::Json;
use super::ids::TaskQueue;
use super::parallel::Path;
use super::retry::Policy;

/// One command of a completion, in the order it was sent.
#[derive(Clone, Debug)]
pub enum Command {
    /// `schedule_activity`
    ScheduleActivity(ScheduleActivity),
    /// `start_timer`
    StartTimer(StartTimer),
    /// `record_side_effect`
    RecordSideEffect {
        /// What the side effect gave.
        result: Payload,
    },
    /// `record_version_marker`
    RecordVersionMarker(VersionMarker),
    /// `complete_workflow`, `fail_workflow` or `continue_as_new`
    End(End),
}

/// A command that closes the run; at most one in a completion.
#[derive(Clone, Debug)]
pub enum End {
    /// `complete_workflow`
    Complete {
        /// The workflow's result; absent is the encoded null.
        result: Option<Payload>,
    },
    /// `fail_workflow`
    Fail(Failure),
    /// `continue_as_new`
    ContinueAsNew(ContinueAsNew),
}

/// `schedule_activity`
#[derive(Clone, Debug)]
pub struct ScheduleActivity {
    /// The type that a worker must have registered.
    pub activity_type: Arc<str>,
    /// Encoded argument list.
    pub arguments: Option<Payload>,
    /// Queue, when it is not the run's.
    pub queue: Option<TaskQueue>,
    /// Retry rule and timeouts; `None` when the command names none.
    pub policy: Option<Policy>,
    /// Place in parallel groups.
    pub path: Option<Path>,
}

/// `start_timer`
#[derive(Clone, Debug)]
pub struct StartTimer {
    /// Seconds from now; 0 fires at once.
    pub delay_seconds: u64,
    /// Place in parallel groups.
    pub path: Option<Path>,
}

/// `record_version_marker`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionMarker {
    /// Name of the change.
    pub change_id: String,
    /// Chosen version.
    pub version: i64,
    /// Oldest version that the code still supports.
    pub min_supported: i64,
    /// Newest version that the code supports.
    pub max_supported: i64,
}

/// How a workflow or an activity failed, as its worker told it.
#[derive(Clone, Debug, Default)]
pub struct Failure {
    /// Human sentence.
    pub message: String,
    /// The SDK's error type.
    pub kind: Option<String>,
    /// The language's class.
    pub class: Option<String>,
    /// Numeric code.
    pub code: Option<i64>,
    /// Never try again.
    pub non_retryable: bool,
    /// The structured exception, as sent: one JSON object.
    pub exception: Option<Json>,
    /// Details for the caller, as sent: any JSON.
    pub details: Option<Json>,
}

/// `continue_as_new`
#[derive(Clone, Debug)]
pub struct ContinueAsNew {
    /// Input of the next run; absent repeats this run's.
    pub arguments: Option<Payload>,
    /// Type of the next run; absent repeats this run's.
    pub workflow_type: Option<Arc<str>>,
    /// Queue of the next run; absent repeats this run's.
    pub queue: Option<TaskQueue>,
}
