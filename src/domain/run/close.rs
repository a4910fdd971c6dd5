//! Closings: by the workflow itself, by a caller, by a deadline. The terminal event is the last
//! one, and what is open is dropped with it.

use std::sync::Arc;

use crate::payload::{Codec, Payload};

use super::super::command::Failure;
use super::super::event::{
    Body, CancelRequested, CancellationContext, ClosedFromOutside, Event, Request,
    TerminateRequested, WorkflowCancelled, WorkflowCompleted, WorkflowFailed, WorkflowTerminated,
    WorkflowTimedOut,
};
use super::super::ids::{Part, TaskNo, WorkerId};
use super::super::lease::Hold;
use super::decision::{TaskEffect, TimerKind};
use super::draft::Draft;
use super::fact::{CommandKind, Fact};
use super::outcome::{Refusal, Reply, Verdict};
use super::start::deadline;
use super::state::{CloseFailure, RunState};
use super::status::CloseReason;
use super::steps::invalid;
use super::{activity, cancellation, child, held, timer};

/// A caller's wish to close or archive a run.
#[derive(Clone, Debug)]
pub struct CloseRequest {
    /// Why, in the caller's words.
    pub reason: Option<Arc<str>>,
    /// The caller's key.
    pub request_id: Option<Arc<str>>,
    /// The lease on the open workflow task, if it was looked up.
    pub lease: ObservedLease,
}

/// Who holds the run's open workflow task, as the row showed it. The write is fenced on it, so that
/// a report under the lease that a closing cut off can be told from every other late report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObservedLease {
    /// Nobody has looked.
    Unknown,
    /// The task is ready, or there is none.
    Free,
    /// A worker holds it.
    Held {
        /// The worker.
        owner: WorkerId,
        /// The hand-out.
        attempt: u32,
        /// The lease has not run out.
        live: bool,
        /// Features that the worker knows.
        knows: i64,
    },
}

pub(super) fn cancel(draft: Draft<'_>, request: CloseRequest) -> Result<Verdict, Refusal> {
    from_outside(draft, request, CommandKind::Cancel)
}

pub(super) fn terminate(draft: Draft<'_>, request: CloseRequest) -> Result<Verdict, Refusal> {
    from_outside(draft, request, CommandKind::Terminate)
}

fn from_outside(
    mut draft: Draft<'_>,
    request: CloseRequest,
    kind: CommandKind,
) -> Result<Verdict, Refusal> {
    if let Some(close) = &draft.state.close {
        return Err(Refusal::NotActive(Arc::clone(close)));
    }
    cut_off_holder(&mut draft, &request.lease)?;
    let (n, command) = draft.command(kind, None, request.request_id.as_deref());
    let workflow_instance_id = draft.state.begun.workflow_id.clone();
    let workflow_run_id = draft.state.id;
    let asked = Request {
        workflow_command_id: command.clone(),
        workflow_instance_id: workflow_instance_id.clone(),
        workflow_run_id,
        command_type: kind.as_str().into(),
        reason: request.reason.clone(),
    };
    let cancelled = kind == CommandKind::Cancel;
    draft.emit(if cancelled {
        Body::from(CancelRequested(asked))
    } else {
        Body::from(TerminateRequested(asked))
    });
    let (word, reason) = if cancelled {
        ("cancelled", CloseReason::Cancelled)
    } else {
        ("terminated", CloseReason::Terminated)
    };
    drop_open(&mut draft, Some(&command), reason);
    let (message, class) = words(word, request.reason.as_deref());
    let closed = ClosedFromOutside {
        workflow_command_id: command,
        workflow_instance_id,
        workflow_run_id,
        failure_id: draft.next_part(Part::Failure),
        failure_category: word.into(),
        closed_reason: reason.as_str().into(),
        exception_class: class.into(),
        message,
        reason: request.reason,
    };
    draft.emit(if cancelled {
        Body::from(WorkflowCancelled(closed))
    } else {
        Body::from(WorkflowTerminated(closed))
    });
    child::report_end(&mut draft, None);
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::Closed { command: n },
    ))
}

/// What a closing from outside says about itself: a sentence, and the class of the exception.
pub(super) fn words(word: &str, why: Option<&str>) -> (String, &'static str) {
    let message = match why {
        Some(why) => format!("Workflow {word}: {why}"),
        None => format!("Workflow {word}."),
    };
    let class = if word == "cancelled" {
        "WorkflowCancelled"
    } else {
        "WorkflowTerminated"
    };
    (message, class)
}

/// Fences the closing on the lease that was seen, and remembers its holder.
pub(super) fn cut_off_holder(draft: &mut Draft<'_>, lease: &ObservedLease) -> Result<(), Refusal> {
    let Some(task) = &draft.state.workflow_task else {
        return Ok(());
    };
    let no = task.no;
    match lease {
        ObservedLease::Unknown => return Err(Refusal::LeaseNeeded),
        ObservedLease::Free => draft.fence(no, Hold::Free),
        ObservedLease::Held {
            owner,
            attempt,
            live,
            ..
        } => {
            // A hand-out that was reported is over, although its row may say otherwise: a decision
            // that is merged with the report is fenced on the row before both.
            if draft.state.receipt(no, *attempt).is_some() {
                return Err(Refusal::LeaseNeeded);
            }
            let (holder, attempt) = (owner.clone(), *attempt);
            draft.fence(
                no,
                if *live {
                    Hold::Live {
                        owner: holder,
                        attempt,
                    }
                } else {
                    Hold::Seen {
                        owner: holder,
                        attempt,
                    }
                },
            );
            if *live {
                draft.note(Fact::ClosedUnderLease {
                    no,
                    owner: owner.clone(),
                    attempt,
                });
            }
        }
    }
    Ok(())
}

/// Closes the run as cancelled under the request of a cooperative cancellation.
pub(super) fn cancel_cooperatively(draft: &mut Draft<'_>, context: &CancellationContext) {
    drop_open(draft, None, CloseReason::Cancelled);
    let (message, class) = words("cancelled", context.reason.as_deref());
    let closed = ClosedFromOutside {
        workflow_command_id: context.request_id.to_string(),
        workflow_instance_id: draft.state.begun.workflow_id.clone(),
        workflow_run_id: draft.state.id,
        failure_id: draft.next_part(Part::Failure),
        failure_category: "cancelled".into(),
        closed_reason: CloseReason::Cancelled.as_str().into(),
        exception_class: class.into(),
        message,
        reason: context.reason.clone(),
    };
    draft.emit(WorkflowCancelled(closed));
    child::report_end(draft, None);
}

/// The run or execution deadline came due. Returns whether the run was closed.
pub(super) fn deadline_passed(
    draft: &mut Draft<'_>,
    lease: &ObservedLease,
) -> Result<bool, Refusal> {
    if !is_past_deadline(draft) {
        return Ok(false);
    }
    cut_off_holder(draft, lease)?;
    time_out(draft);
    Ok(true)
}

/// Whether the run has outlived one of its deadlines.
pub(super) fn is_past_deadline(draft: &Draft<'_>) -> bool {
    let begun = &draft.state.begun;
    [begun.run_deadline_at, begun.execution_deadline_at]
        .into_iter()
        .flatten()
        .any(|at| at <= draft.now)
}

/// A worker reported after the deadline: its lease was live until now.
pub(super) fn time_out_under(draft: &mut Draft<'_>, no: TaskNo, owner: WorkerId, attempt: u32) {
    draft.note(Fact::ClosedUnderLease { no, owner, attempt });
    time_out(draft);
}

fn time_out(draft: &mut Draft<'_>) {
    let begun = Arc::clone(&draft.state.begun);
    let whole = begun
        .execution_deadline_at
        .is_some_and(|at| at <= draft.now);
    let kind = if whole {
        "execution_timeout"
    } else {
        "run_timeout"
    };
    drop_open(draft, None, CloseReason::TimedOut);
    let message = if whole {
        "Workflow execution timed out."
    } else {
        "Workflow run timed out."
    };
    let next = child::next_try(
        draft,
        &Failure {
            message: message.to_owned(),
            class: Some("WorkflowTimedOut".to_owned()),
            ..Failure::default()
        },
    );
    let failure_id = draft.next_part(Part::Failure);
    draft.emit(WorkflowTimedOut {
        failure_id,
        timeout_kind: kind.into(),
        failure_category: "timeout".into(),
        message: message.to_owned(),
        exception_class: "WorkflowTimedOut".into(),
        execution_deadline_at: begun.execution_deadline_at,
        run_deadline_at: begun.run_deadline_at,
        retried_as_run_id: next.as_ref().map(|next| next.run),
    });
    child::report_end(draft, next);
}

/// Drops everything that is open, with an event for each, and records what was held.
fn drop_open(draft: &mut Draft<'_>, command: Option<&str>, reason: CloseReason) {
    draft.closing();
    drop_rows(draft);
    activity::cancel_all(draft, command);
    timer::cancel_all(draft);
    wind_up(draft, reason);
}

/// What every closing but continue-as-new does before the terminal event.
fn wind_up(draft: &mut Draft<'_>, reason: CloseReason) {
    draft.closing();
    held::wind_up(draft, reason.as_str());
    child::apply_close_policies(draft);
}

/// Removes the rows of everything that is open.
pub(super) fn drop_rows(draft: &mut Draft<'_>) {
    if let Some(task) = &draft.state.workflow_task {
        let no = task.no;
        draft.effects.close(no);
    }
    let tasks: Vec<TaskNo> = draft.state.activities.keys().copied().collect();
    for no in tasks {
        activity::drop_rows(draft, no);
    }
    timer::drop_rows(draft);
    if draft.state.cancellation.is_some() {
        draft.effects.cancel(cancellation::deadline_row());
    }
    let begun = Arc::clone(&draft.state.begun);
    if begun.run_deadline_at.is_some() {
        draft.effects.cancel(deadline(TimerKind::RunDeadline));
    }
    if begun.execution_deadline_at.is_some() {
        draft.effects.cancel(deadline(TimerKind::ExecutionDeadline));
    }
    debug_assert!(
        draft
            .effects
            .tasks()
            .values()
            .all(|effect| !matches!(effect, TaskEffect::Open(_))),
        "a closing run opens no task"
    );
}

/// The workflow returned.
pub(super) fn complete(draft: &mut Draft<'_>, result: Option<Payload>) {
    wind_up(draft, CloseReason::Completed);
    drop_rows(draft);
    draft.emit(WorkflowCompleted {
        output: result.unwrap_or_else(Payload::null),
        payload_codec: Codec::Avro,
    });
    child::report_end(draft, None);
}

/// The workflow failed.
pub(super) fn fail(draft: &mut Draft<'_>, failure: Failure) -> Result<(), Refusal> {
    if let Some((step, _)) = &failure.failed_step
        && *step >= draft.state.next_step
    {
        return Err(invalid(&format!("the failed step {step} does not exist")));
    }
    if cancellation::ends_cleanup(&draft.state, &failure)
        && let Some(cancellation) = draft.state.cancellation.clone()
    {
        cancel_cooperatively(draft, &cancellation.context);
        return Ok(());
    }
    wind_up(draft, CloseReason::Failed);
    drop_rows(draft);
    let next = child::next_try(draft, &failure);
    let failure_id = draft.next_part(Part::Failure);
    let source_id = draft.state.id.to_string();
    draft.emit(WorkflowFailed {
        failure_id,
        source_kind: "workflow_run".into(),
        source_id,
        failure_category: "application".into(),
        non_retryable: failure.non_retryable,
        exception_type: failure.kind,
        exception_class: failure.class,
        message: failure.message,
        exception: failure.exception,
        failed_step_sequence: failure.failed_step.as_ref().map(|(step, _)| *step),
        failed_activity_execution_id: failure.failed_step.map(|(_, activity)| activity),
        retried_as_run_id: next.as_ref().map(|next| next.run),
    });
    child::report_end(draft, next);
    Ok(())
}

impl RunState {
    pub(super) fn apply_end(&mut self, event: &Event) {
        match &event.body {
            Body::WorkflowCompleted(end) => self.end(event, CloseReason::Completed, |close| {
                close.output = Some(end.output.clone());
            }),
            Body::WorkflowFailed(end) => self.end(event, CloseReason::Failed, |close| {
                close.continued_to = end.retried_as_run_id;
                close.failure = Some(CloseFailure {
                    message: end.message.as_str().into(),
                    kind: end.exception_type.as_deref().map(Arc::from),
                    class: end.exception_class.as_deref().map(Arc::from),
                    category: end.failure_category.as_ref().into(),
                    non_retryable: end.non_retryable,
                    exception: end.exception.clone(),
                });
            }),
            Body::WorkflowCancelled(end) => self.end(event, CloseReason::Cancelled, |close| {
                close.detail.clone_from(&end.0.reason);
            }),
            Body::WorkflowTerminated(end) => self.end(event, CloseReason::Terminated, |close| {
                close.detail.clone_from(&end.0.reason);
            }),
            Body::WorkflowTimedOut(end) => self.end(event, CloseReason::TimedOut, |close| {
                close.continued_to = end.retried_as_run_id;
                close.detail = Some(end.timeout_kind.as_ref().into());
                close.failure = Some(CloseFailure {
                    message: end.message.as_str().into(),
                    kind: None,
                    class: Some(end.exception_class.as_ref().into()),
                    category: end.failure_category.as_ref().into(),
                    non_retryable: false,
                    exception: None,
                });
            }),
            Body::WorkflowContinuedAsNew(end) => {
                self.next_step = end.sequence + 1;
                self.end(event, CloseReason::Continued, |close| {
                    close.continued_to = Some(end.continued_to_run_id);
                });
            }
            _ => {}
        }
    }
}
