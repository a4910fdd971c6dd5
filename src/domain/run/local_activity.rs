//! Local activities: run by the worker inside its workflow task and told as a whole, recorded as an
//! ordinary activity would be, without a task of their own.

use std::sync::Arc;

use crate::payload::{Codec, Payload};

use super::super::command::{Failure, LocalActivity, LocalAttempt, LocalEnd};
use super::super::event::{
    ActivityCancelled, ActivityCompleted, ActivityFailed, ActivityHeartbeatRecorded, ActivityKeys,
    ActivityRetryScheduled, ActivityScheduled, ActivitySnapshot, ActivityStarted, ActivityTimedOut,
};
use super::super::ids::{AttemptId, Part, TaskId, part_id};
use super::super::parallel::GroupFields;
use super::draft::Draft;

/// `record_local_activity`; `holder` is the worker that ran it.
pub(super) fn record(draft: &mut Draft<'_>, command: LocalActivity, holder: &str) {
    let run = draft.state.id;
    let task = TaskId {
        run,
        no: draft.state.next_task,
    };
    let id = part_id(run, Part::Activity, task.no.into());
    let sequence = draft.state.next_step;
    let keys = ActivityKeys {
        activity_execution_id: id.clone(),
        activity_class: Arc::clone(&command.activity_type),
        activity_type: Arc::clone(&command.activity_type),
        sequence,
        activity_task_id: task,
        execution_mode: Some("local".into()),
        local_activity: Some(true),
        group: GroupFields::default(),
    };
    let max_attempts = command.policy.as_ref().map_or(1, |p| p.max_attempts);
    draft.emit(ActivityScheduled {
        keys: keys.clone(),
        activity: ActivitySnapshot {
            id: id.clone(),
            idempotency_key: id,
            sequence,
            kind: Arc::clone(&command.activity_type),
            class: Arc::clone(&command.activity_type),
            status: "pending".into(),
            payload_codec: Codec::Avro,
            attempt_count: 0,
            retry_policy: command.policy,
            connection: None,
            queue: draft.state.begun.queue.clone(),
            arguments: command.arguments,
            worker_session: None,
            cancellation_policy: None,
        },
    });
    let count = command.attempts.len();
    let mut last = 0;
    for (attempt, told) in (1u32..).zip(command.attempts) {
        last = attempt;
        let activity_attempt_id = AttemptId { task, attempt }.to_string();
        draft.emit(ActivityStarted {
            keys: keys.clone(),
            activity_attempt_id: activity_attempt_id.clone(),
            attempt_number: attempt,
            lease_owner: holder.to_owned(),
            worker_attempt_id: told.worker_attempt_id.clone(),
        });
        for progress in &told.heartbeats {
            draft.emit(ActivityHeartbeatRecorded {
                keys: keys.clone(),
                activity_attempt_id: activity_attempt_id.clone(),
                attempt_number: attempt,
                heartbeat_at: draft.now,
                progress: progress.clone(),
            });
        }
        if (attempt as usize) < count {
            retry(draft, &keys, attempt, max_attempts, told);
        }
    }
    end(draft, keys, last, command.end);
}

fn retry(
    draft: &mut Draft<'_>,
    keys: &ActivityKeys,
    attempt: u32,
    max_attempts: u32,
    told: LocalAttempt,
) {
    let task = keys.activity_task_id;
    draft.emit(ActivityRetryScheduled {
        keys: keys.clone(),
        retry_task_id: task,
        retry_of_task_id: task,
        retry_available_at: draft.now,
        retry_backoff_seconds: told.backoff_seconds,
        retry_after_attempt_id: Some(AttemptId { task, attempt }.to_string()),
        retry_after_attempt: attempt,
        retry_reason: match told.retry_reason {
            Some(reason) => reason.to_string().into(),
            None if told.timeout_kind.is_some() => "timeout".into(),
            None => "failure".into(),
        },
        max_attempts,
        timeout_kind: told.timeout_kind.map(|kind| kind.to_string().into()),
        exception_type: told.failure.kind,
        exception_class: told.failure.class,
        message: told.failure.message,
        code: told.failure.code,
    });
}

fn end(draft: &mut Draft<'_>, keys: ActivityKeys, attempt: u32, end: LocalEnd) {
    let task = keys.activity_task_id;
    let activity_attempt_id = AttemptId { task, attempt }.to_string();
    let failure_id = draft.next_part(Part::Failure);
    match end {
        LocalEnd::Completed(result) => draft.emit(ActivityCompleted {
            keys,
            activity_attempt_id,
            attempt_number: attempt,
            result: result.unwrap_or_else(Payload::null),
            payload_codec: Codec::Avro,
        }),
        LocalEnd::Failed(failure) => {
            let exception = super::activity::exception(&failure);
            let Failure {
                message,
                kind,
                class,
                code,
                non_retryable,
                ..
            } = failure;
            draft.emit(ActivityFailed {
                keys,
                activity_attempt_id,
                attempt_number: attempt,
                failure_id,
                failure_category: "activity".into(),
                non_retryable,
                exception_type: kind,
                exception_class: class,
                message,
                code,
                exception,
                structural_limit_kind: None,
                structural_limit_value: None,
                structural_limit_configured: None,
            });
        }
        LocalEnd::TimedOut { kind, message } => draft.emit(ActivityTimedOut {
            keys,
            activity_attempt_id: Some(activity_attempt_id),
            attempt_number: attempt,
            failure_id,
            failure_category: "timeout".into(),
            timeout_kind: kind.to_string().into(),
            message,
            exception_class: "ActivityTimedOut".into(),
            schedule_to_close_deadline_at: None,
        }),
        LocalEnd::Cancelled { message } => draft.emit(ActivityCancelled {
            keys,
            workflow_command_id: None,
            activity_attempt_id: Some(activity_attempt_id),
            attempt_number: attempt,
            cancelled_at: draft.now,
            message: Some(message),
        }),
    }
}
