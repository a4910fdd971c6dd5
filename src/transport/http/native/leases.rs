//! Leases on the wire: how a report names one, and how a refusal speaks of it.

use std::sync::Arc;

use actix_web::http::StatusCode;
use serde_json::{Value, json};

use crate::domain::ids::{AttemptId, Namespace, RunId, TaskId, TaskNo, WorkerId};
use crate::domain::run::{Close, CloseReason, Receipt, RunState};
use crate::engine::{Fault, Holder, ReportRefused};
use crate::protocol::reason::Reason;

use super::super::fields::Int;
use super::super::problems::Problems;
use super::answer::Failure;

/// Longest id of a worker.
pub const MAX_ID: usize = 255;

/// How a report names its lease, in both spellings.
#[derive(Clone, Debug, Default)]
pub struct Named<'a> {
    /// The contract's spelling: the holder alone.
    pub worker_id: Option<&'a str>,
    /// The SDKs' spelling: the holder with a fence.
    pub lease_owner: Option<&'a str>,
}

impl Named<'_> {
    /// The holder, and whether the request must name the hand-out as well.
    pub(super) fn holder(&self, problems: &mut Problems) -> (Option<WorkerId>, bool) {
        let owner = problems.agree("worker_id", self.worker_id, self.lease_owner);
        match owner {
            Some(owner) => problems.text("worker_id", owner, MAX_ID),
            None => problems.add("lease_owner", "is required"),
        }
        (owner.map(WorkerId::from), self.lease_owner.is_some())
    }
}

/// A path segment that must be a task of this server; anything else is a task that does not exist.
pub fn task_id(segment: &str) -> Option<TaskId> {
    segment.parse().ok()
}

/// The refusal for a task that does not exist for this caller.
pub fn no_such_task(task_id: &str) -> Failure {
    Failure::new(
        StatusCode::NOT_FOUND,
        Reason::TaskNotFound,
        "There is no such task.",
    )
    .with("task_id", task_id)
}

/// The lease that a report on a workflow task names.
///
/// # Errors
/// A field is missing or wrong (422), or the task cannot exist (404).
pub fn workflow_holder(
    namespace: &Namespace,
    segment: &str,
    named: &Named<'_>,
    attempt: Option<Int>,
) -> Result<Holder, Failure> {
    let mut problems = Problems::default();
    let (owner, fenced) = named.holder(&mut problems);
    match attempt {
        Some(Int(attempt)) => {
            problems.within("workflow_task_attempt", attempt, 1..=i64::from(u32::MAX));
        }
        None if fenced => problems.add("workflow_task_attempt", "is required"),
        None => {}
    }
    problems.into_result()?;
    let attempt = attempt.and_then(|Int(attempt)| u32::try_from(attempt).ok());
    let (Some(task), Some(owner)) = (task_id(segment), owner) else {
        return Err(no_such_task(segment).with("workflow_task_attempt", attempt));
    };
    Ok(Holder {
        namespace: namespace.clone(),
        task,
        owner,
        attempt,
    })
}

/// The lease that a report on an activity task names.
///
/// # Errors
/// A field is missing or wrong (422), task or attempt cannot exist (404), or the attempt is another
/// task's (409).
pub fn activity_holder(
    namespace: &Namespace,
    segment: &str,
    named: &Named<'_>,
    attempt: Option<&str>,
) -> Result<Holder, Failure> {
    let mut problems = Problems::default();
    let (owner, fenced) = named.holder(&mut problems);
    match attempt {
        Some(attempt) => problems.text("activity_attempt_id", attempt, MAX_ID),
        None if fenced => problems.add("activity_attempt_id", "is required"),
        None => {}
    }
    problems.into_result()?;
    let about = |failure: Failure| failure.with("activity_attempt_id", attempt);
    let (Some(task), Some(owner)) = (task_id(segment), owner) else {
        return Err(about(no_such_task(segment)));
    };
    let attempt = match attempt {
        None => None,
        Some(text) => match text.parse::<AttemptId>() {
            Ok(id) if id.task == task => Some(id.attempt),
            Ok(_) => {
                return Err(about(
                    Failure::new(
                        StatusCode::CONFLICT,
                        Reason::TaskMismatch,
                        "The attempt belongs to another task.",
                    )
                    .with("task_id", segment),
                ));
            }
            Err(_) => return Err(about(no_such_attempt(segment))),
        },
    };
    Ok(Holder {
        namespace: namespace.clone(),
        task,
        owner,
        attempt,
    })
}

fn no_such_attempt(task_id: &str) -> Failure {
    Failure::new(
        StatusCode::NOT_FOUND,
        Reason::AttemptNotFound,
        "The task has no such attempt.",
    )
    .with("task_id", task_id)
}

/// `stop_reason` and its kin for a run that is closed.
pub fn closed(state: &RunState, close: &Close) -> Value {
    let stop = match close.reason {
        CloseReason::Cancelled => Reason::RunCancelled,
        CloseReason::Terminated => Reason::RunTerminated,
        CloseReason::Completed => Reason::RunCompleted,
        CloseReason::Failed => Reason::RunFailed,
        CloseReason::Continued | CloseReason::TimedOut => Reason::RunClosed,
    };
    let requested = matches!(
        close.reason,
        CloseReason::Cancelled | CloseReason::Terminated
    );
    json!({
        "stop_reason": stop.as_str(),
        "cancel_requested": requested,
        "can_continue": false,
        "run_id": state.id,
        "run_status": state.status().as_str(),
        "run_closed_reason": close.reason.as_str(),
        "run_closed_at": close.at,
        "task_status": "cancelled",
    })
}

/// Task ids of a run.
pub fn task_ids(run: RunId, tasks: &[TaskNo]) -> Vec<String> {
    tasks
        .iter()
        .map(|no| TaskId { run, no: *no }.to_string())
        .collect()
}

fn conflict(reason: Reason, sentence: &str) -> Failure {
    Failure::new(StatusCode::CONFLICT, reason, sentence)
}

/// The refusal of a report on a workflow task. `outcome` is what the report wanted.
pub fn workflow_refusal(refused: ReportRefused, holder: &Holder, outcome: &'static str) -> Failure {
    let failure = match refused {
        ReportRefused::TaskNotFound | ReportRefused::AttemptNotFound => {
            no_such_task(&holder.task.to_string())
        }
        ReportRefused::NotLeased { .. } => {
            conflict(Reason::TaskNotLeased, "Nobody holds the task.").with("task_status", "ready")
        }
        ReportRefused::LeaseExpired { owner, at } => {
            conflict(Reason::LeaseExpired, "The lease has run out.")
                .with("task_status", "leased")
                .with("lease_owner", owner.as_str())
                .with("lease_expires_at", at.to_string())
        }
        ReportRefused::OwnerMismatch { owner } => {
            conflict(Reason::LeaseOwnerMismatch, "Another worker holds the task.")
                .with("lease_owner", owner.as_str())
        }
        ReportRefused::AttemptMismatch { current } => conflict(
            Reason::WorkflowTaskAttemptMismatch,
            "The attempt is not the current one.",
        )
        .with("current_attempt", current),
        ReportRefused::StaleRegistration {
            owner,
            lease_expires_at,
        } => conflict(
            Reason::StaleWorkerRegistration,
            "The worker's registration is gone or has been silent for too long.",
        )
        .with("lease_owner", owner.as_str())
        .with(
            "lease_expires_at",
            lease_expires_at.map(|at| at.to_string()),
        ),
        ReportRefused::StaleAttempt => conflict(
            Reason::WorkflowTaskAttemptMismatch,
            "The attempt is not the current one.",
        ),
        ReportRefused::AlreadyReported(receipt) => already(&receipt, Reason::TaskNotLeased),
        ReportRefused::RunClosed(state, close) => conflict(Reason::RunClosed, "The run is closed.")
            .with_all(closed(&state, &close))
            .with("lease_owner", Value::Null)
            .with("lease_expires_at", Value::Null),
        ReportRefused::RunTimedOut(state) => {
            conflict(Reason::RunTimedOut, "The run has timed out.")
                .with("run_id", state.id.to_string())
                .with("run_status", state.status().as_str())
        }
        ReportRefused::InvalidCommands(state, why) => conflict(Reason::InvalidCommands, &why)
            .with("run_id", state.id.to_string())
            .with("run_status", state.status().as_str()),
        ReportRefused::InvalidStreams { field, why } => Failure::from(Problems::of(&field, why)),
        ReportRefused::InvalidMemo(why) => {
            let listed = json!({"entries": [why]});
            Failure::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                Reason::WorkflowMemoValidationFailed,
                why,
            )
            .with("errors", listed.clone())
            .with("validation_errors", listed)
        }
        ReportRefused::Limit {
            kind,
            current,
            configured,
        } => {
            return limit(kind.as_str(), current, configured)
                .with("task_id", holder.task.to_string())
                .with("workflow_task_attempt", holder.attempt);
        }
        ReportRefused::Fault(fault) => {
            let mut failure = Failure::from(fault);
            if outcome == "completed" && matches!(fault, Fault::Busy | Fault::Contended) {
                failure = failure.with("outcome", "deferred").with("recorded", false);
            }
            return failure
                .with("worker_id", holder.owner.as_str())
                .with("task_queue", Value::Null)
                .with("task_id", holder.task.to_string())
                .with("lease_owner", holder.owner.as_str())
                .with("workflow_task_attempt", holder.attempt);
        }
    };
    failure
        .with("task_id", holder.task.to_string())
        .with("workflow_task_attempt", holder.attempt)
        .with("outcome", outcome)
        .with("recorded", false)
}

/// The refusal of a completion that would break a structural limit.
pub fn limit(kind: &str, current: u64, configured: u64) -> Failure {
    Failure::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        Reason::StructuralLimitExceeded,
        format!("{kind} would come to {current}; {configured} are allowed."),
    )
    .with("outcome", "rejected")
    .with("recorded", false)
    .with("limit_kind", kind)
    .with("current_value", current)
    .with("configured_limit", configured)
}

fn already(receipt: &Arc<Receipt>, reason: Reason) -> Failure {
    conflict(reason, "Another report was recorded for this attempt.")
        .with("recorded_outcome", receipt.report.outcome())
        .with("lease_owner", receipt.owner.as_str())
}

/// The refusal of a report on an activity task. `outcome` is what the report wanted.
pub fn activity_refusal(refused: ReportRefused, holder: &Holder, outcome: &'static str) -> Failure {
    let attempt_id = holder.attempt.map(|attempt| {
        AttemptId {
            task: holder.task,
            attempt,
        }
        .to_string()
    });
    let stale = || conflict(Reason::StaleAttempt, "The attempt is over or superseded.");
    let failure = match refused {
        ReportRefused::TaskNotFound => no_such_task(&holder.task.to_string()),
        ReportRefused::AttemptNotFound => no_such_attempt(&holder.task.to_string()),
        ReportRefused::OwnerMismatch { owner } => conflict(
            Reason::LeaseOwnerMismatch,
            "Another worker holds this attempt.",
        )
        .with("lease_owner", owner.as_str()),
        ReportRefused::AlreadyReported(receipt) => already(&receipt, Reason::StaleAttempt)
            .with("activity_status", receipt.report.outcome())
            .with("attempt_status", receipt.report.outcome())
            .with("task_status", "completed"),
        ReportRefused::RunClosed(state, close) => {
            let reason = match close.reason {
                CloseReason::Cancelled => Reason::RunCancelled,
                CloseReason::Terminated => Reason::RunTerminated,
                _ => Reason::RunClosed,
            };
            return conflict(reason, "The run is closed; the report changes nothing.")
                .with_all(closed(&state, &close))
                .with("cancel_requested", true)
                .with("activity_status", "cancelled")
                .with("attempt_status", "cancelled")
                .with("lease_owner", holder.owner.as_str())
                .with("lease_expires_at", Value::Null)
                .with("task_id", holder.task.to_string())
                .with("activity_attempt_id", attempt_id)
                .with("outcome", "ignored")
                .with("recorded", false);
        }
        ReportRefused::Limit {
            kind,
            current,
            configured,
        } => limit(kind.as_str(), current, configured),
        ReportRefused::Fault(fault) => {
            return Failure::from(fault)
                .with("worker_id", holder.owner.as_str())
                .with("task_queue", Value::Null)
                .with("task_id", holder.task.to_string())
                .with("lease_owner", holder.owner.as_str())
                .with("activity_attempt_id", attempt_id);
        }
        ReportRefused::NotLeased { .. }
        | ReportRefused::LeaseExpired { .. }
        | ReportRefused::AttemptMismatch { .. }
        | ReportRefused::StaleRegistration { .. }
        | ReportRefused::StaleAttempt
        | ReportRefused::RunTimedOut(_)
        | ReportRefused::InvalidMemo(_)
        | ReportRefused::InvalidStreams { .. }
        | ReportRefused::InvalidCommands(..) => stale(),
    };
    failure
        .with("task_id", holder.task.to_string())
        .with("activity_attempt_id", attempt_id)
        .with("outcome", outcome)
        .with("recorded", false)
}
