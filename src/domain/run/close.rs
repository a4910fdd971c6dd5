//! Closings: by the workflow itself, by a caller, by a deadline. The terminal event is the last
//! one, and what is open is dropped with it.

use std::sync::Arc;

use crate::payload::{Codec, Payload};

use super::super::command::Failure;
use super::super::decision::{TaskEffect, TimerKind};
use super::super::event::{
    Body, CancelRequested, ClosedFromOutside, Request, TerminateRequested, WorkflowCancelled,
    WorkflowCompleted, WorkflowFailed, WorkflowTerminated, WorkflowTimedOut,
};
use super::super::ids::{Part, TaskNo, WorkerId};
use super::super::lease::Hold;
use super::draft::Draft;
use super::fact::{CommandKind, Fact};
use super::outcome::{Refusal, Reply, Verdict};
use super::start::deadline;
use super::state::CloseReason;
use super::{activity, signal, timer};

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
    drop_open(&mut draft, Some(&command));
    let (word, reason, class) = if cancelled {
        ("cancelled", CloseReason::Cancelled, "WorkflowCancelled")
    } else {
        ("terminated", CloseReason::Terminated, "WorkflowTerminated")
    };
    let closed = ClosedFromOutside {
        workflow_command_id: command,
        workflow_instance_id,
        workflow_run_id,
        failure_id: draft.next_part(Part::Failure),
        failure_category: word.into(),
        closed_reason: reason.as_str().into(),
        exception_class: class.into(),
        message: match &request.reason {
            Some(why) => format!("Workflow {word}: {why}"),
            None => format!("Workflow {word}."),
        },
        reason: request.reason,
    };
    draft.emit(if cancelled {
        Body::from(WorkflowCancelled(closed))
    } else {
        Body::from(WorkflowTerminated(closed))
    });
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::Closed { command: n },
    ))
}

/// Fences the closing on the lease that was seen, and remembers its holder.
fn cut_off_holder(draft: &mut Draft<'_>, lease: &ObservedLease) -> Result<(), Refusal> {
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
    drop_open(draft, None);
    let failure_id = draft.next_part(Part::Failure);
    draft.emit(WorkflowTimedOut {
        failure_id,
        timeout_kind: kind.into(),
        failure_category: "timeout".into(),
        message: if whole {
            "Workflow execution timed out.".to_owned()
        } else {
            "Workflow run timed out.".to_owned()
        },
        exception_class: "WorkflowTimedOut".into(),
        execution_deadline_at: begun.execution_deadline_at,
        run_deadline_at: begun.run_deadline_at,
    });
}

/// Drops everything that is open, with an event for each, and records what was held.
fn drop_open(draft: &mut Draft<'_>, command: Option<&str>) {
    drop_rows(draft);
    activity::cancel_all(draft, command);
    timer::cancel_all(draft);
    signal::release_held(draft);
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
    signal::release_held(draft);
    drop_rows(draft);
    draft.emit(WorkflowCompleted {
        output: result.unwrap_or_else(Payload::null),
        payload_codec: Codec::Avro,
    });
}

/// The workflow failed.
pub(super) fn fail(draft: &mut Draft<'_>, failure: Failure) {
    signal::release_held(draft);
    drop_rows(draft);
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
    });
}
