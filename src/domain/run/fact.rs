//! Facts: what a run must remember that its served history does not say. Written in the journal
//! of the same batch as the events, folded like them, never served.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::payload::Payload;

use super::super::event::Json;
use super::super::ids::{
    Namespace, Part, RunId, Step, TaskNo, TaskQueue, WorkerId, WorkflowId, part_id,
};
use super::super::retry::Policy;
use super::super::time::Timestamp;
use super::stream::{Message, Stream};

/// One fact. The name is the key around it: an inner tag would make serde hold the fact in a buffer,
/// which raw JSON (memo, search attributes) cannot be read from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The run began; always the first fact of a run.
    Begun(Box<Begun>),
    /// A command of the control plane was accepted.
    Command(Command),
    /// A workflow task was opened.
    TaskOpened {
        /// Its number.
        no: TaskNo,
        /// Why it was opened.
        resume: Resume,
    },
    /// A worker reported that it could not process the open workflow task.
    TaskFailed {
        /// The report.
        receipt: Receipt,
        /// The worker cannot replay the run's history.
        blocked: bool,
        /// What the worker said.
        message: Arc<str>,
    },
    /// The open workflow task was reported as done; its worker had seen the events up to `seen`.
    TaskDone {
        /// The report.
        receipt: Receipt,
        /// Last event that the worker saw.
        seen: u64,
    },
    /// An attempt of an activity was reported.
    AttemptReported {
        /// The report.
        receipt: Receipt,
    },
    /// A signal was accepted and waits for the open workflow task to close.
    SignalHeld(Signal),
    /// An update was accepted and waits for the open workflow task to close.
    UpdateHeld(Update),
    /// An operator made the open workflow task ready again.
    TaskRepaired {
        /// Its number.
        no: TaskNo,
    },
    /// The open workflow task was given back until what it waits for has ended.
    TaskReleased {
        /// Its number.
        no: TaskNo,
    },
    /// A child was asked to cancel on behalf of the run's own cancellation.
    ChildAsked {
        /// Its step.
        step: Step,
    },
    /// An activity was asked to cancel on behalf of the run's cancellation.
    ActivityAsked {
        /// Its task.
        no: TaskNo,
    },
    /// A worker has stopped an activity that was cancelled.
    CallbackStopped {
        /// Its task.
        no: TaskNo,
        /// The hand-out.
        attempt: u32,
        /// When.
        at: Timestamp,
    },
    /// A message of a stream was accepted.
    MessageTaken {
        /// The stream.
        stream: Arc<str>,
        /// The message.
        message: Message,
        /// When.
        at: Timestamp,
    },
    /// A message came again with the same content.
    MessageRepeated {
        /// The stream.
        stream: Arc<str>,
        /// The message's name.
        id: Arc<str>,
        /// When.
        at: Timestamp,
    },
    /// Messages of a stream are recorded next.
    MessagesDelivered {
        /// The stream.
        stream: Arc<str>,
        /// Position of the last of them.
        through: u64,
    },
    /// The streams that the workflow waits for now; these and no others.
    StreamsWaited {
        /// Stream, and the position behind which it waits.
        waits: Vec<(Arc<str>, u64)>,
        /// Since when.
        since: Timestamp,
    },
    /// A stream of the run before this one.
    StreamCarried {
        /// The stream.
        stream: Arc<str>,
        /// How it stands.
        carried: Box<Stream>,
    },
    /// The worker that completes this task keeps the run in memory.
    RunKept {
        /// The task.
        task: TaskNo,
        /// The worker.
        worker: Arc<str>,
        /// The epoch of its registration.
        epoch: u64,
        /// Until when.
        until: Timestamp,
    },
    /// The workflow declared types of search attributes.
    TypesDeclared,
    /// The run closed under a workflow task that a worker held.
    ClosedUnderLease {
        /// The task.
        no: TaskNo,
        /// Its holder.
        owner: WorkerId,
        /// Its hand-out.
        attempt: u32,
    },
    /// The closed run is exempt from retention.
    Archived,
}

/// What a run began with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Begun {
    /// Namespace of the run.
    pub namespace: Namespace,
    /// Its workflow.
    pub workflow_id: WorkflowId,
    /// 1 for the first run of the workflow, then one more for each successor.
    pub run_number: u32,
    /// The run that continued as this one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub continued_from: Option<RunId>,
    /// Registered type.
    pub workflow_type: Arc<str>,
    /// Queue of its workflow tasks.
    pub queue: TaskQueue,
    /// Encoded argument list.
    pub input: Payload,
    /// Caller's business key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub business_key: Option<Arc<str>>,
    /// Memo, a JSON object.
    pub memo: Json,
    /// The same as the workflow's SDK encoded it, when it was changed in a run before this one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memo_encoded: Option<Payload>,
    /// Search attributes, a JSON object.
    pub search_attributes: Json,
    /// Seconds for the whole chain of runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub execution_timeout_seconds: Option<u64>,
    /// Seconds for one run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run_timeout_seconds: Option<u64>,
    /// End of the whole chain.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub execution_deadline_at: Option<Timestamp>,
    /// End of this run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run_deadline_at: Option<Timestamp>,
    /// 0 to 9, lower is more urgent.
    pub priority: u8,
    /// Class for fair sharing inside one priority.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fairness_key: Option<Arc<str>>,
    /// Weight of that class.
    pub fairness_weight: u16,
    /// Build that the run is pinned to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub build_id: Option<Arc<str>>,
    /// When.
    pub started_at: Timestamp,
    /// What the workers of this type had declared.
    #[serde(skip_serializing_if = "Contract::is_unknown", default)]
    pub contract: Contract,
    /// The workflow that waits for this one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent: Option<Box<ParentLink>>,
    /// The failed run that this one tries again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_of: Option<RunId>,
}

/// The names that workers declared for a workflow type; `None` when none of them told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contract {
    /// Queries.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queries: Option<Arc<[Arc<str>]>>,
    /// Signals.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub signals: Option<Arc<[Arc<str>]>>,
    /// Updates.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub updates: Option<Arc<[Arc<str>]>>,
    /// Updates with a validator.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub update_validators: Option<Arc<[Arc<str>]>>,
}

impl Contract {
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// What a child knows of its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentLink {
    /// The parent's workflow.
    pub workflow_id: WorkflowId,
    /// The run that made the child.
    pub run: RunId,
    /// Step of the call there.
    pub step: Step,
    /// The child's first run, by which the parent knows it.
    pub first_run: RunId,
    /// Rule for trying again when the child fails.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy: Option<Policy>,
    /// The how-manieth try this run is, from 1.
    pub attempt: u32,
}

impl ParentLink {
    /// The id of the call.
    pub fn call_id(&self) -> String {
        part_id(self.run, Part::Call, self.step.into())
    }
}

/// A command that the control plane accepted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    /// Its number in the run, from 1.
    pub n: u64,
    /// What it asked for.
    pub kind: CommandKind,
    /// Name of the signal, update or stream.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<Arc<str>>,
    /// The caller's key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub request_id: Option<Arc<str>>,
    /// When.
    pub at: Timestamp,
}

/// What a command of the control plane asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandKind {
    /// Start.
    Start,
    /// Signal.
    Signal,
    /// Update.
    Update,
    /// Message of a stream.
    Message,
    /// Cancellation with the workflow's cooperation.
    RequestCancellation,
    /// Cancel.
    Cancel,
    /// Terminate.
    Terminate,
    /// Archive.
    Archive,
    /// Repair.
    Repair,
}

impl CommandKind {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Signal => "signal",
            Self::Update => "update",
            Self::Message => "message",
            Self::RequestCancellation => "request_cancellation",
            Self::Cancel => "cancel",
            Self::Terminate => "terminate",
            Self::Archive => "archive",
            Self::Repair => "repair",
        }
    }
}

/// Why a workflow task was opened, as its worker is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Resume {
    /// The run began.
    Start,
    /// An activity reached its end.
    Activity {
        /// Its task.
        no: TaskNo,
        /// Its step.
        step: u32,
        /// Its type.
        activity_type: Arc<str>,
        /// The event.
        event: Arc<str>,
    },
    /// A timer went off.
    Timer {
        /// Its step.
        step: u32,
    },
    /// A signal was recorded.
    Signal {
        /// The run that accepted it, which is another one when it was moved to a successor.
        run: RunId,
        /// The command that brought it there.
        n: u64,
        /// Its name.
        name: Arc<str>,
    },
    /// An update was recorded; the task carries it and nothing else.
    Update {
        /// Its id.
        id: Arc<str>,
        /// The command that brought it.
        n: u64,
        /// The run that accepted it.
        run: RunId,
        /// Its name.
        name: Arc<str>,
    },
    /// A child reached its end.
    Child {
        /// Its step.
        step: Step,
        /// Its first run.
        run: RunId,
        /// The event.
        event: Arc<str>,
    },
    /// A wait for a condition timed out.
    Condition {
        /// Its step.
        step: Step,
    },
    /// A wait for a signal ended.
    SignalWait {
        /// Its step.
        step: Step,
        /// Name of the signal.
        name: Arc<str>,
        /// The event.
        event: Arc<str>,
    },
    /// Something happened that the closed task had not seen.
    Unseen,
}

/// A signal as it was accepted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Signal {
    /// The command that brought it.
    pub n: u64,
    /// The run that accepted it; its ids stay when it moves to a successor.
    pub run: RunId,
    /// Its name.
    pub name: Arc<str>,
    /// Encoded argument list.
    pub arguments: Payload,
}

impl Signal {
    /// Its id.
    pub fn id(&self) -> String {
        part_id(self.run, Part::Signal, self.n)
    }
}

/// An update as it was accepted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Update {
    /// Its id, which stays when it moves to a successor.
    pub id: Arc<str>,
    /// The command that brought it.
    pub n: u64,
    /// The run that accepted it.
    pub run: RunId,
    /// Its name.
    pub name: Arc<str>,
    /// Encoded argument list.
    pub arguments: Payload,
    /// When it was accepted.
    pub at: Timestamp,
}

/// A worker's report and its outcome, kept so that a repeat gets the first answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The task.
    pub no: TaskNo,
    /// The hand-out that the report named.
    pub attempt: u32,
    /// The holder.
    pub owner: WorkerId,
    /// What was reported.
    pub report: ReportKind,
    /// Digest of the request body.
    pub digest: Digest,
    /// Tasks that the report opened.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub created: Vec<TaskNo>,
    /// The task that carries on, if one was named in the answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<TaskNo>,
}

/// What a worker reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportKind {
    /// `complete`
    Completed,
    /// `fail`
    Failed,
    /// `fail` that means: nothing to do until there is new history.
    Waiting,
}

impl ReportKind {
    /// `outcome` in the answer.
    pub fn outcome(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Waiting => "waiting_for_history",
        }
    }
}

/// 64 bits of a request body's SHA-256: enough to tell a repeat from another report under the
/// same fence, and no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(pub u64);
