//! A run of a workflow: its state, everything that can happen to it, and what it decides.
//!
//! [`decide`] is a function of state, input and time. It reads no clock, does no I/O and changes
//! nothing; a refusal therefore has no effect.

mod activity;
mod archive;
mod attributes;
mod cancellation;
mod child;
mod close;
mod condition;
mod continue_as_new;
pub mod decision;
mod draft;
mod fact;
mod fold;
mod held;
mod local_activity;
mod marker;
mod outcome;
mod repair;
mod replay;
mod selection;
mod signal;
mod start;
mod state;
mod status;
mod steps;
mod sticky;
mod stream;
mod timer;
mod update;
mod weight;
mod workflow_task;

#[cfg(test)]
pub(crate) mod tests;

pub use activity::{ActivityOutcome, ActivityReport, Beat, Overdue, OverdueKind, started_event};
pub(crate) use attributes::is_attribute_name;
pub use attributes::{Attributes, Memo};
pub use cancellation::{Cancellation, CancellationRequest, DeliveryReport, Stopped};
pub use child::{ChildClosed, ChildFailure, ChildOutcome};
pub use close::{CloseRequest, ObservedLease};
pub use fact::{
    Begun, Command, CommandKind, Contract, Digest, Fact, ParentLink, Receipt, ReportKind, Resume,
    Signal, Update,
};
pub use outcome::{Refusal, Reply, Verdict};
pub use replay::{StoredBatch, fold};
pub use signal::InputRequest;
pub use start::{StartRequest, start};
pub use state::{
    Activity, Answered, CancelledActivity, Child, Close, CloseFailure, Condition, Held, RunState,
    SignalWait, Timer, WorkflowTask,
};
pub use status::{CloseReason, Status};
pub use sticky::{Keep, Kept, ReplayMode};
pub use stream::{
    MESSAGE_SIGNAL, Message, MessageRequest, Stream, StreamReport, StreamWait, message_key,
};
pub use update::Rejection;
pub use workflow_task::{TaskFailure, WorkflowTaskReport};

use std::sync::Arc;

use super::command::Command as WorkerCommand;
use super::ids::{TaskNo, WorkerId};
use super::limits::Limits;
use super::time::Timestamp;
use decision::TimerKey;
use draft::Draft;

/// Settings that decisions depend on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Milliseconds of a workflow-task lease.
    pub workflow_task_lease_ms: u64,
    /// Milliseconds of an activity lease, when its attempt has no longer time limit.
    pub activity_lease_ms: u64,
    /// Structural limits.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workflow_task_lease_ms: 30_000,
            activity_lease_ms: 300_000,
            limits: Limits::default(),
        }
    }
}

/// Everything that can happen to a run that exists.
#[derive(Clone, Debug)]
pub enum Input {
    /// A worker completed a workflow task.
    CompleteWorkflowTask {
        /// Fence and body.
        report: WorkflowTaskReport,
        /// What it asks for.
        commands: Vec<WorkerCommand>,
        /// What it says about message streams.
        streams: StreamReport,
        /// Whether it keeps the run in memory.
        keep: Option<Keep>,
    },
    /// A worker could not process a workflow task, or has nothing to do.
    FailWorkflowTask {
        /// Fence and body.
        report: WorkflowTaskReport,
        /// What it said.
        failure: TaskFailure,
        /// The code that the worker runs: its build and its definition of the type.
        code: Option<Arc<str>>,
    },
    /// A claimed activity attempt enters the history.
    AttemptStarted {
        /// The task.
        no: TaskNo,
        /// The hand-out.
        attempt: u32,
        /// The holder.
        owner: WorkerId,
    },
    /// A worker reported the outcome of an activity attempt.
    ReportActivity(ActivityReport),
    /// An attempt outlived a limit.
    Overdue(Overdue),
    /// A task was handed out so often that it is given up.
    GiveUp {
        /// The task.
        no: TaskNo,
        /// The last hand-out.
        attempt: u32,
        /// The last holder.
        owner: WorkerId,
    },
    /// Timers came due.
    TimersDue {
        /// Which.
        keys: Vec<TimerKey>,
        /// The lease on the open workflow task, if it was looked up.
        lease: ObservedLease,
    },
    /// A signal arrived.
    Signal(InputRequest),
    /// An update arrived.
    Update(InputRequest),
    /// A caller, or the parent, cancels the run with its cooperation.
    RequestCancellation(CancellationRequest),
    /// A worker delivers a cancellation to the workflow's code.
    DeliverCancellation(DeliveryReport),
    /// A worker has stopped an activity that was cancelled.
    CallbackStopped {
        /// The activity's task.
        no: TaskNo,
        /// The hand-out.
        attempt: u32,
    },
    /// The lease of an activity that was asked to cancel was lost.
    CancelledHolderLost {
        /// The task.
        no: TaskNo,
        /// The hand-out.
        attempt: u32,
        /// The holder.
        owner: WorkerId,
    },
    /// A message of a stream arrived.
    Message(MessageRequest),
    /// A message of a stream arrived again.
    MessageRepeated {
        /// The stream.
        stream: Arc<str>,
        /// The message's name.
        id: Arc<str>,
    },
    /// A validator refused an update.
    RejectUpdate(InputRequest, Rejection),
    /// A child reached its end.
    ChildClosed(ChildClosed),
    /// A caller cancels the run.
    Cancel(CloseRequest),
    /// A caller terminates the run.
    Terminate(CloseRequest),
    /// A caller wants the closed run kept.
    Archive(CloseRequest),
    /// An operator wants the run's task ready at once.
    Repair(CloseRequest),
}

/// What the run does about `input`.
///
/// # Errors
/// A [`Refusal`] says why nothing happens.
pub fn decide(
    state: &RunState,
    input: Input,
    now: Timestamp,
    settings: &Settings,
) -> Result<Verdict, Refusal> {
    let draft = Draft::new(state.clone(), now, settings);
    match input {
        Input::CompleteWorkflowTask {
            report,
            commands,
            streams,
            keep,
        } => workflow_task::complete(draft, report, commands, streams, keep),
        Input::FailWorkflowTask {
            report,
            failure,
            code,
        } => workflow_task::fail(draft, report, failure, code),
        Input::AttemptStarted { no, attempt, owner } => {
            activity::attempt_started(draft, no, attempt, owner)
        }
        Input::ReportActivity(report) => activity::report(draft, report),
        Input::Overdue(overdue) => activity::overdue(draft, overdue),
        Input::GiveUp { no, attempt, owner } => match draft.state.activities.get(&no) {
            Some(_) => activity::give_up(draft, no, attempt, owner),
            None => workflow_task::give_up(draft, no, attempt, owner),
        },
        Input::TimersDue { keys, lease } => timer::due(draft, &keys, &lease),
        Input::Signal(request) => signal::accept(draft, request),
        Input::Update(request) => update::accept(draft, request),
        Input::RequestCancellation(request) => cancellation::request(draft, request),
        Input::DeliverCancellation(report) => cancellation::deliver(draft, report),
        Input::CallbackStopped { no, attempt } => cancellation::stopped(draft, no, attempt),
        Input::CancelledHolderLost { no, attempt, owner } => {
            activity::cancelled_holder_lost(draft, no, attempt, owner)
        }
        Input::Message(request) => stream::accept(draft, request),
        Input::MessageRepeated { stream, id } => stream::repeated(draft, stream, id),
        Input::RejectUpdate(request, rejection) => update::reject(draft, request, rejection),
        Input::ChildClosed(closed) => child::closed(draft, closed),
        Input::Cancel(request) => close::cancel(draft, request),
        Input::Terminate(request) => close::terminate(draft, request),
        Input::Repair(request) => repair::repair(draft, request),
        Input::Archive(request) => archive::archive(draft, request),
    }
}
