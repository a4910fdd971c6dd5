//! Commands: what a workflow task completion asks for. Shapes only; the transport has checked the
//! fields, the run decides what they mean.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::payload::Payload;

use super::event::{Json, SelectionOperationCancelled};
use super::ids::{Step, TaskQueue};
use super::parallel::Path;
use super::retry::Policy;
use super::session;

/// One command of a completion, in the order it was sent.
#[derive(Clone, Debug)]
pub enum Command {
    /// `schedule_activity`
    ScheduleActivity(ScheduleActivity),
    /// `record_local_activity`
    RecordLocalActivity(LocalActivity),
    /// `start_timer`
    StartTimer(StartTimer),
    /// `start_child_workflow`
    StartChild(StartChild),
    /// `open_condition_wait`
    OpenConditionWait(OpenConditionWait),
    /// `open_signal_wait`
    OpenSignalWait(OpenSignalWait),
    /// `record_side_effect`
    RecordSideEffect {
        /// What the side effect gave.
        result: Payload,
    },
    /// `record_version_marker`
    RecordVersionMarker(VersionMarker),
    /// `upsert_search_attributes`
    UpsertSearchAttributes(UpsertSearchAttributes),
    /// `upsert_memo`
    UpsertMemo {
        /// Encoded map; null deletes.
        entries: Payload,
    },
    /// `cancel_selection_operation`
    CancelSelection(SelectionOperationCancelled),
    /// `complete_update` or `fail_update`
    AnswerUpdate {
        /// The update.
        update_id: Arc<str>,
        /// How its handler ended.
        answer: UpdateAnswer,
    },
    /// `complete_workflow`, `fail_workflow` or `continue_as_new`
    End(End),
}

/// How the handler of an update ended.
#[derive(Clone, Debug)]
pub enum UpdateAnswer {
    /// It returned; absent is the encoded null.
    Completed(Option<Payload>),
    /// It failed.
    Failed(Failure),
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
    /// What a cancellation does to it; `None` when the command does not say.
    pub cancellation: Option<CancellationPolicy>,
    /// The worker session that it runs in.
    pub session: Option<Arc<session::Options>>,
    /// Place in parallel groups.
    pub path: Option<Path>,
}

/// `record_local_activity`: an activity that its worker ran inside the workflow task, whole.
#[derive(Clone, Debug)]
pub struct LocalActivity {
    /// Its type.
    pub activity_type: Arc<str>,
    /// Encoded argument list.
    pub arguments: Option<Payload>,
    /// Retry rule and timeouts.
    pub policy: Option<Policy>,
    /// Its attempts, at least one, in order.
    pub attempts: Vec<LocalAttempt>,
    /// How the last attempt ended.
    pub end: LocalEnd,
}

/// One attempt of a local activity.
#[derive(Clone, Debug)]
pub struct LocalAttempt {
    /// The worker's name for it.
    pub worker_attempt_id: Option<Arc<str>>,
    /// What its heartbeats said.
    pub heartbeats: Vec<Option<Json>>,
    /// How it failed, when another attempt followed.
    pub failure: Failure,
    /// Which limit it outlived, when another attempt followed.
    pub timeout_kind: Option<Arc<str>>,
    /// Why another attempt followed.
    pub retry_reason: Option<Arc<str>>,
    /// Seconds before the attempt that followed.
    pub backoff_seconds: u64,
}

/// How a local activity ended.
#[derive(Clone, Debug)]
pub enum LocalEnd {
    /// It returned; absent is the encoded null.
    Completed(Option<Payload>),
    /// It failed.
    Failed(Failure),
    /// It outlived a limit.
    TimedOut {
        /// Which.
        kind: Arc<str>,
        /// Human sentence.
        message: String,
    },
    /// It was cancelled.
    Cancelled {
        /// Human sentence.
        message: String,
    },
}

/// `start_timer`
#[derive(Clone, Debug)]
pub struct StartTimer {
    /// Seconds from now; 0 fires at once.
    pub delay_seconds: u64,
    /// Place in parallel groups.
    pub path: Option<Path>,
}

/// What becomes of a child when its parent closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClosePolicy {
    /// Nothing.
    #[default]
    Abandon,
    /// It is cancelled.
    RequestCancel,
    /// It is asked to clean up and end.
    RequestCancellation,
    /// It is terminated.
    Terminate,
}

impl ClosePolicy {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Abandon => "abandon",
            Self::RequestCancel => "request_cancel",
            Self::RequestCancellation => "request_cancellation",
            Self::Terminate => "terminate",
        }
    }

    /// The policy of this name.
    pub fn from_word(word: &str) -> Option<Self> {
        [
            Self::Abandon,
            Self::RequestCancel,
            Self::RequestCancellation,
            Self::Terminate,
        ]
        .into_iter()
        .find(|policy| policy.as_str() == word)
    }
}

/// What becomes of an operation when a cancellation interrupts the call that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancellationPolicy {
    /// It is asked to end, and not awaited.
    TryCancel,
    /// It is asked to end, and awaited.
    WaitCancellationCompleted,
    /// Nothing.
    Abandon,
}

impl CancellationPolicy {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TryCancel => "try_cancel",
            Self::WaitCancellationCompleted => "wait_cancellation_completed",
            Self::Abandon => "abandon",
        }
    }

    /// The policy of this name.
    pub fn from_word(word: &str) -> Option<Self> {
        [
            Self::TryCancel,
            Self::WaitCancellationCompleted,
            Self::Abandon,
        ]
        .into_iter()
        .find(|policy| policy.as_str() == word)
    }
}

/// `start_child_workflow`
#[derive(Clone, Debug)]
pub struct StartChild {
    /// Registered type.
    pub workflow_type: Arc<str>,
    /// Encoded argument list.
    pub arguments: Option<Payload>,
    /// Queue, when it is not the run's.
    pub queue: Option<TaskQueue>,
    /// What becomes of it when the parent closes.
    pub close_policy: ClosePolicy,
    /// What a cancellation does to it; `None` when the command does not say.
    pub cancellation: Option<CancellationPolicy>,
    /// Retry rule.
    pub policy: Option<Policy>,
    /// Seconds for the whole chain of its runs.
    pub execution_timeout_seconds: Option<u64>,
    /// Seconds for one run.
    pub run_timeout_seconds: Option<u64>,
    /// Place in parallel groups.
    pub path: Option<Path>,
}

/// `open_condition_wait`
#[derive(Clone, Debug)]
pub struct OpenConditionWait {
    /// The author's key.
    pub key: Option<Arc<str>>,
    /// Fingerprint of the condition's code.
    pub fingerprint: Option<Arc<str>>,
    /// The same over all openings of one wait.
    pub occurrence: Option<Arc<str>>,
    /// Seconds to wait at most.
    pub timeout_seconds: Option<u64>,
    /// Place in parallel groups.
    pub path: Option<Path>,
}

/// `open_signal_wait`
#[derive(Clone, Debug)]
pub struct OpenSignalWait {
    /// Name of the signal.
    pub name: Arc<str>,
    /// Seconds to wait at most.
    pub timeout_seconds: Option<u64>,
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

/// `upsert_search_attributes`
#[derive(Clone, Debug)]
pub struct UpsertSearchAttributes {
    /// Name → value; null deletes.
    pub attributes: Map<String, Value>,
    /// Name → declared type; empty when the command declares none.
    pub types: BTreeMap<String, &'static str>,
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
    /// The step whose failure the workflow did not catch, with its activity execution.
    pub failed_step: Option<(Step, String)>,
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
