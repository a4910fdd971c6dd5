//! Activities: scheduled by a command, tried until they end, and the deadlines in between.

mod overdue;

use std::sync::Arc;

use crate::payload::{Codec, Payload};

use super::super::command::{Failure, ScheduleActivity};
use super::super::event::{
    ActivityCancelled, ActivityCompleted, ActivityFailed, ActivityHeartbeatRecorded, ActivityKeys,
    ActivityRetryScheduled, ActivityScheduled, ActivitySnapshot, ActivityStarted, Event, Json,
    Word,
};
use super::super::features;
use super::super::ids::{AttemptId, Part, RunId, Step, TaskId, TaskNo, WorkerId, part_id};
use super::super::lease::Hold;
use super::super::limits::LimitKind;
use super::super::parallel::GroupFields;
use super::super::routing::{Routing, TaskKind};
use super::super::time::Timestamp;
use super::decision::{NewTask, TimerKey, TimerKind};
use super::draft::Draft;
use super::fact::{Digest, Fact, Receipt, ReportKind};
use super::outcome::{Refusal, Reply, Verdict};
use super::state::{Activity, RunState};
use super::status::CloseReason;
use super::workflow_task::within;

pub(super) use overdue::{close_deadline_passed, give_up, overdue, start_deadline_passed};

/// A worker's report on an activity attempt.
#[derive(Clone, Debug)]
pub struct ActivityReport {
    /// The task.
    pub no: TaskNo,
    /// The hand-out.
    pub attempt: u32,
    /// The holder.
    pub owner: WorkerId,
    /// Digest of the request body.
    pub digest: Digest,
    /// How it went.
    pub outcome: ActivityOutcome,
    /// The attempt's last heartbeat.
    pub beat: Option<Beat>,
}

/// How an attempt went.
#[derive(Clone, Debug)]
pub enum ActivityOutcome {
    /// It returned.
    Completed(Payload),
    /// It returned more than a payload may hold.
    TooLarge {
        /// Bytes of the result.
        bytes: u64,
    },
    /// It failed.
    Failed(Failure),
}

/// A heartbeat as the task row keeps it.
#[derive(Clone, Debug)]
pub struct Beat {
    /// When.
    pub at: Timestamp,
    /// What the worker said.
    pub details: Option<Json>,
}

/// An attempt outlived a limit.
#[derive(Clone, Debug)]
pub struct Overdue {
    /// The task.
    pub no: TaskNo,
    /// The hand-out.
    pub attempt: u32,
    /// The holder.
    pub owner: WorkerId,
    /// Which limit.
    pub kind: OverdueKind,
    /// The attempt's last heartbeat.
    pub beat: Option<Beat>,
}

/// A limit of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverdueKind {
    /// From hand-out to outcome.
    StartToClose,
    /// Between heartbeats.
    Heartbeat,
}

impl OverdueKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::StartToClose => "start_to_close",
            Self::Heartbeat => "heartbeat",
        }
    }
}

/// Schedules an activity. Returns its task.
pub(super) fn schedule(draft: &mut Draft<'_>, step: Step, command: ScheduleActivity) -> TaskNo {
    let begun = Arc::clone(&draft.state.begun);
    let run = draft.state.id;
    let no = draft.state.next_task;
    let queue = command.queue.unwrap_or_else(|| begun.queue.clone());
    let id = part_id(run, Part::Activity, no.into());
    draft.emit(ActivityScheduled {
        keys: ActivityKeys {
            activity_execution_id: id.clone(),
            activity_class: Arc::clone(&command.activity_type),
            activity_type: Arc::clone(&command.activity_type),
            sequence: step,
            activity_task_id: TaskId { run, no },
            execution_mode: None,
            local_activity: None,
            group: GroupFields::from(command.path.as_ref()),
        },
        activity: ActivitySnapshot {
            id: id.clone(),
            idempotency_key: id,
            sequence: step,
            kind: Arc::clone(&command.activity_type),
            class: command.activity_type,
            status: "pending".into(),
            payload_codec: Codec::Avro,
            attempt_count: 0,
            retry_policy: command.policy,
            connection: None,
            queue,
            arguments: command.arguments,
            cancellation_policy: command.cancellation.map(|policy| policy.as_str().into()),
            worker_session: command.session,
        },
    });
    let Some(activity) = draft.state.activities.get(&no).cloned() else {
        return no;
    };
    let task = new_task(draft, &activity);
    draft.effects.open(no, task);
    set_start_deadline(draft, &activity);
    if let Some(at) = activity.close_deadline() {
        draft.set_timer(key(TimerKind::ScheduleToClose, no), at);
    }
    no
}

fn new_task(draft: &Draft<'_>, activity: &Activity) -> NewTask {
    let begun = &draft.state.begun;
    let policy = activity.policy.as_deref();
    let millis = |seconds: u64| seconds.saturating_mul(1_000);
    let start_to_close_ms = policy.and_then(|p| p.start_to_close_timeout).map(millis);
    NewTask {
        routing: Routing {
            kind: TaskKind::Activity,
            namespace: begun.namespace.clone(),
            queue: activity.queue.clone(),
            task_type: Arc::clone(&activity.activity_type),
            priority: begun.priority,
            fairness_key: begun.fairness_key.clone(),
            fairness_weight: begun.fairness_weight,
            build_id: begun.build_id.clone(),
            needs: activity.session.as_ref().map_or(0, |_| features::SESSIONS),
            session: activity.session.clone(),
            preferred: None,
        },
        available_at: activity.available_at,
        // A lease never ends before its attempt may: SDKs do not renew it by themselves.
        lease_ms: draft
            .settings
            .activity_lease_ms
            .max(start_to_close_ms.unwrap_or(0)),
        start_to_close_ms,
        heartbeat_ms: policy.and_then(|p| p.heartbeat_timeout).map(millis),
        handed_to: None,
    }
}

/// The event that a hand-out puts into history, if the activity is open and the hand-out is news.
pub fn started_event(
    state: &RunState,
    no: TaskNo,
    attempt: u32,
    owner: &WorkerId,
    now: Timestamp,
) -> Option<Event> {
    let activity = state.activities.get(&no).filter(|a| a.started < attempt)?;
    Some(Event {
        sequence: state.next_event,
        recorded_at: now,
        task: None,
        command: None,
        body: ActivityStarted {
            keys: keys(state.id, activity),
            activity_attempt_id: attempt_id(state.id, no, attempt),
            attempt_number: attempt,
            lease_owner: owner.to_string(),
            worker_attempt_id: None,
        }
        .into(),
    })
}

/// A claimed attempt enters the history.
pub(super) fn attempt_started(
    mut draft: Draft<'_>,
    no: TaskNo,
    attempt: u32,
    owner: WorkerId,
) -> Result<Verdict, Refusal> {
    if draft.state.close.is_some() || !show_start(&mut draft, no, attempt, &owner) {
        return Err(Refusal::NothingToDo);
    }
    draft.fence(no, Hold::Live { owner, attempt });
    Ok(Verdict::Commit(Box::new(draft.finish()), Reply::Done))
}

fn show_start(draft: &mut Draft<'_>, no: TaskNo, attempt: u32, owner: &WorkerId) -> bool {
    let event = started_event(&draft.state, no, attempt, owner, draft.now);
    let shown = event.is_some();
    if let Some(event) = event {
        draft.emit(event.body);
    }
    shown
}

/// A worker reported the outcome of an attempt.
pub(super) fn report(mut draft: Draft<'_>, report: ActivityReport) -> Result<Verdict, Refusal> {
    let (no, attempt) = (report.no, report.attempt);
    let kind = match &report.outcome {
        ActivityOutcome::Completed(_) | ActivityOutcome::TooLarge { .. } => ReportKind::Completed,
        ActivityOutcome::Failed(_) => ReportKind::Failed,
    };
    if no == 0 || no >= draft.state.next_task {
        return Err(Refusal::UnknownTask);
    }
    if let Some(receipt) = draft.state.receipt(no, attempt) {
        if RunState::is_repeat(receipt, &report.owner, kind, report.digest) {
            return Ok(Verdict::Answer(Reply::again(receipt)));
        }
        return Err(Refusal::AlreadyReported(Arc::clone(receipt)));
    }
    if let Some(close) = draft.state.close.clone() {
        let by_itself = matches!(
            close.reason,
            CloseReason::Completed | CloseReason::Failed | CloseReason::Continued
        );
        return if by_itself && draft.state.activities.contains_key(&no) {
            Ok(Verdict::Answer(Reply::TooLate(close)))
        } else {
            Err(Refusal::RunClosed(close))
        };
    }
    let Some(activity) = draft.state.activities.get(&no).cloned() else {
        return Err(Refusal::StaleAttempt);
    };
    if is_over(&activity, attempt) {
        return Err(Refusal::StaleAttempt);
    }
    let owner = report.owner.clone();
    draft.fence(no, Hold::Live { owner, attempt });
    show_start(&mut draft, no, attempt, &report.owner);
    show_beat(&mut draft, &activity, attempt, report.beat);
    let retried = match report.outcome {
        ActivityOutcome::Completed(result) => {
            let keys = keys(draft.state.id, &activity);
            let activity_attempt_id = attempt_id(draft.state.id, no, attempt);
            draft.emit(ActivityCompleted {
                keys,
                activity_attempt_id,
                attempt_number: attempt,
                result,
                payload_codec: Codec::Avro,
            });
            false
        }
        ActivityOutcome::TooLarge { bytes } => {
            fail_too_large(&mut draft, &activity, attempt, bytes);
            false
        }
        ActivityOutcome::Failed(failure) => fail(&mut draft, &activity, attempt, failure),
    };
    let next = if retried {
        Some(no)
    } else {
        drop_rows(&mut draft, no);
        draft.wake()
    };
    draft.note(Fact::AttemptReported {
        receipt: Receipt {
            no,
            attempt,
            owner: report.owner,
            report: kind,
            digest: report.digest,
            created: Vec::new(),
            next,
        },
    });
    let reply = Reply::Reported {
        report: kind,
        created: Vec::new(),
        next,
        duplicate: false,
    };
    Ok(Verdict::Commit(Box::new(draft.finish()), reply))
}

fn show_beat(draft: &mut Draft<'_>, activity: &Activity, attempt: u32, beat: Option<Beat>) {
    let Some(beat) = beat else { return };
    let keys = keys(draft.state.id, activity);
    let activity_attempt_id = attempt_id(draft.state.id, activity.no, attempt);
    draft.emit(ActivityHeartbeatRecorded {
        keys,
        activity_attempt_id,
        attempt_number: attempt,
        heartbeat_at: beat.at,
        progress: beat.details,
    });
}

/// Whether the activity was asked to cancel: no further attempt follows.
fn is_asked(draft: &Draft<'_>, no: TaskNo) -> bool {
    let cancellation = &draft.state.cancellation;
    cancellation
        .as_ref()
        .is_some_and(|cancellation| cancellation.activities_asked.contains(&no))
}

/// Whoever ran an activity that was asked to cancel is gone.
pub(super) fn cancelled_holder_lost(
    mut draft: Draft<'_>,
    no: TaskNo,
    attempt: u32,
    owner: WorkerId,
) -> Result<Verdict, Refusal> {
    let Some(activity) = still_open(&draft, no).filter(|_| is_asked(&draft, no)) else {
        return Err(Refusal::NothingToDo);
    };
    draft.fence(no, Hold::Seen { owner, attempt });
    withdraw(&mut draft, &activity);
    draft.wake();
    Ok(Verdict::Commit(Box::new(draft.finish()), Reply::Done))
}

/// Records a failed attempt: another one follows, or the activity has failed. Returns whether
/// another one follows.
fn fail(draft: &mut Draft<'_>, activity: &Activity, attempt: u32, failure: Failure) -> bool {
    if is_asked(draft, activity.no) {
        cancel(draft, activity, None);
        return false;
    }
    let policy = activity.policy.as_deref();
    let backoff = policy
        .filter(|policy| {
            !failure.non_retryable
                && !policy.is_final(failure.kind.as_deref(), failure.class.as_deref())
        })
        .and_then(|policy| policy.backoff_after(activity.failures + 1));
    if let Some(seconds) = backoff {
        retry(draft, activity, attempt, seconds, "failure", None, &failure);
        return true;
    }
    let keys = keys(draft.state.id, activity);
    let activity_attempt_id = attempt_id(draft.state.id, activity.no, attempt);
    let failure_id = draft.next_part(Part::Failure);
    let exception = exception(&failure);
    draft.emit(ActivityFailed {
        keys,
        activity_attempt_id,
        attempt_number: attempt,
        failure_id,
        failure_category: "activity".into(),
        non_retryable: failure.non_retryable,
        exception_type: failure.kind,
        exception_class: failure.class,
        message: failure.message,
        code: failure.code,
        exception,
        structural_limit_kind: None,
        structural_limit_value: None,
        structural_limit_configured: None,
    });
    false
}

fn fail_too_large(draft: &mut Draft<'_>, activity: &Activity, attempt: u32, bytes: u64) {
    let limit = draft.settings.limits.payload_bytes;
    let message = format!("The activity's result has {bytes} bytes; {limit} are allowed.");
    let failure = Failure {
        message: message.clone(),
        non_retryable: true,
        ..Failure::default()
    };
    let keys = keys(draft.state.id, activity);
    let activity_attempt_id = attempt_id(draft.state.id, activity.no, attempt);
    let failure_id = draft.next_part(Part::Failure);
    draft.emit(ActivityFailed {
        keys,
        activity_attempt_id,
        attempt_number: attempt,
        failure_id,
        failure_category: "structural_limit".into(),
        non_retryable: true,
        exception_type: None,
        exception_class: None,
        message,
        code: None,
        exception: exception(&failure),
        structural_limit_kind: Some(LimitKind::PayloadSize.as_str().into()),
        structural_limit_value: Some(bytes),
        structural_limit_configured: Some(limit),
    });
}

/// The public part of a failure, as replay shows it to workflow code.
pub(super) fn exception(failure: &Failure) -> Json {
    #[derive(serde::Serialize)]
    struct Exception<'a> {
        #[serde(rename = "type")]
        kind: &'a Option<String>,
        message: &'a str,
        code: Option<i64>,
        non_retryable: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        details: &'a Option<Json>,
    }
    let public = Exception {
        kind: &failure.kind,
        message: &failure.message,
        code: failure.code,
        non_retryable: failure.non_retryable,
        details: &failure.details,
    };
    serde_json::value::to_raw_value(&public)
        .map_or_else(|_| super::start::empty_object(), Json::from)
}

fn retry(
    draft: &mut Draft<'_>,
    activity: &Activity,
    attempt: u32,
    backoff: u64,
    reason: &'static str,
    timeout: Option<&'static str>,
    failure: &Failure,
) {
    let run = draft.state.id;
    let no = activity.no;
    let available_at = draft.now.plus_seconds(backoff);
    draft.emit(ActivityRetryScheduled {
        keys: keys(run, activity),
        retry_task_id: TaskId { run, no },
        retry_of_task_id: TaskId { run, no },
        retry_available_at: available_at,
        retry_backoff_seconds: backoff,
        retry_after_attempt_id: (attempt > 0).then(|| attempt_id(run, no, attempt)),
        retry_after_attempt: attempt,
        retry_reason: reason.into(),
        max_attempts: activity
            .policy
            .as_ref()
            .map_or(1, |policy| policy.max_attempts),
        timeout_kind: timeout.map(Word::from),
        exception_type: failure.kind.clone(),
        exception_class: failure.class.clone(),
        message: failure.message.clone(),
        code: failure.code,
    });
    draft.effects.again(no, available_at);
    if let Some(activity) = draft.state.activities.get(&no).cloned() {
        set_start_deadline(draft, &activity);
    }
}

/// Whether history shows that this hand-out has ended. The fence on the row does not say so in a
/// decision that is merged with the one that ended it: a lease outlives its attempt's time limit, so
/// one row can satisfy the fences of both.
fn is_over(activity: &Activity, attempt: u32) -> bool {
    attempt < activity.started || attempt <= activity.ended
}

fn still_open(draft: &Draft<'_>, no: TaskNo) -> Option<Arc<Activity>> {
    if draft.state.close.is_some() {
        return None;
    }
    draft.state.activities.get(&no).cloned()
}

/// Drops every open activity, with an event each.
pub(super) fn cancel_all(draft: &mut Draft<'_>, command: Option<&str>) {
    let open: Vec<_> = draft.state.activities.values().cloned().collect();
    for activity in open {
        cancel(draft, &activity, command);
    }
}

/// Drops an activity that nobody waits for any more. A worker that runs it learns so from its next heartbeat.
pub(super) fn withdraw(draft: &mut Draft<'_>, activity: &Activity) {
    cancel(draft, activity, None);
    drop_rows(draft, activity.no);
}

fn cancel(draft: &mut Draft<'_>, activity: &Activity, command: Option<&str>) {
    let run = draft.state.id;
    let cancelled_at = draft.now;
    draft.emit(ActivityCancelled {
        keys: keys(run, activity),
        workflow_command_id: command.map(str::to_owned),
        activity_attempt_id: (activity.started > 0)
            .then(|| attempt_id(run, activity.no, activity.started)),
        attempt_number: activity.started,
        cancelled_at,
        message: None,
    });
}

/// Removes the rows of an activity.
pub(super) fn drop_rows(draft: &mut Draft<'_>, no: TaskNo) {
    draft.effects.close(no);
    draft.effects.cancel(key(TimerKind::ScheduleToStart, no));
    draft.effects.cancel(key(TimerKind::ScheduleToClose, no));
}

fn set_start_deadline(draft: &mut Draft<'_>, activity: &Activity) {
    if let Some(at) = activity.start_deadline() {
        draft.set_timer(key(TimerKind::ScheduleToStart, activity.no), at);
    }
}

fn key(kind: TimerKind, no: TaskNo) -> TimerKey {
    TimerKey { kind, no }
}

fn keys(run: RunId, activity: &Activity) -> ActivityKeys {
    ActivityKeys {
        activity_execution_id: part_id(run, Part::Activity, activity.no.into()),
        activity_class: Arc::clone(&activity.activity_type),
        activity_type: Arc::clone(&activity.activity_type),
        sequence: activity.step,
        activity_task_id: TaskId {
            run,
            no: activity.no,
        },
        execution_mode: None,
        local_activity: None,
        group: GroupFields::from(activity.path.as_ref()),
    }
}

fn attempt_id(run: RunId, no: TaskNo, attempt: u32) -> String {
    let task = TaskId { run, no };
    AttemptId { task, attempt }.to_string()
}

/// Whether another activity fits.
pub(super) fn check_limit(draft: &Draft<'_>) -> Result<(), Refusal> {
    within(
        draft.state.activities.len() as u64 + 1,
        draft.settings.limits.pending_activities,
        LimitKind::PendingActivities,
    )
}
