//! Limits of an activity that have passed: of one attempt, of its start, of the whole.

use super::super::super::command::Failure;
use super::super::super::event::ActivityTimedOut;
use super::super::super::ids::{Part, TaskNo, WorkerId};
use super::super::super::lease::Hold;
use super::super::decision::TimerKind;
use super::super::draft::Draft;
use super::super::outcome::{Refusal, Reply, Verdict};
use super::super::state::Activity;
use super::{
    Overdue, attempt_id, drop_rows, is_asked, is_over, key, keys, retry, show_beat, show_start,
    still_open, withdraw,
};

/// An attempt outlived its own limit. The write is fenced on that still being so.
pub fn overdue(mut draft: Draft<'_>, overdue: Overdue) -> Result<Verdict, Refusal> {
    let (no, attempt) = (overdue.no, overdue.attempt);
    let Some(activity) = still_open(&draft, no).filter(|a| !is_over(a, attempt)) else {
        return Err(Refusal::NothingToDo);
    };
    let owner = overdue.owner.clone();
    draft.fence(no, Hold::Overdue { owner, attempt });
    show_start(&mut draft, no, attempt, &overdue.owner);
    show_beat(&mut draft, &activity, attempt, overdue.beat);
    time_out_attempt(&mut draft, &activity, attempt, overdue.kind.as_str());
    draft.wake();
    Ok(Verdict::Commit(Box::new(draft.finish()), Reply::Done))
}

/// The activity was handed out too often without an outcome: it is closed as timed out.
pub fn give_up(
    mut draft: Draft<'_>,
    no: TaskNo,
    attempt: u32,
    owner: WorkerId,
) -> Result<Verdict, Refusal> {
    let Some(activity) = still_open(&draft, no).filter(|a| !is_over(a, attempt)) else {
        return Err(Refusal::NothingToDo);
    };
    let holder = owner.clone();
    draft.fence(no, Hold::Overdue { owner, attempt });
    show_start(&mut draft, no, attempt, &holder);
    let message = format!("The activity was handed out {attempt} times and never reported back.");
    end_timed_out(&mut draft, &activity, attempt, "start_to_close", message);
    draft.wake();
    Ok(Verdict::Commit(Box::new(draft.finish()), Reply::Done))
}

/// Nobody took the attempt in time. Returns whether anything was written.
pub fn start_deadline_passed(draft: &mut Draft<'_>, no: TaskNo) -> bool {
    let Some(activity) = still_open(draft, no) else {
        return false;
    };
    if activity.start_deadline().is_none_or(|at| at > draft.now) {
        return false;
    }
    // When several limits have passed, this one counts; it needs no look at the row.
    if close_deadline_passed(draft, no) {
        return true;
    }
    draft.effects.cancel(key(TimerKind::ScheduleToStart, no));
    draft.fence(no, Hold::Free);
    time_out_attempt(draft, &activity, activity.started, "schedule_to_start");
    true
}

/// The activity has no time left. Returns whether anything was written.
pub fn close_deadline_passed(draft: &mut Draft<'_>, no: TaskNo) -> bool {
    let Some(activity) = still_open(draft, no) else {
        return false;
    };
    if activity.close_deadline().is_none_or(|at| at > draft.now) {
        return false;
    }
    end_timed_out(
        draft,
        &activity,
        activity.started,
        SCHEDULE_TO_CLOSE,
        timeout_message(SCHEDULE_TO_CLOSE),
    );
    true
}

fn time_out_attempt(draft: &mut Draft<'_>, activity: &Activity, attempt: u32, kind: &'static str) {
    if is_asked(draft, activity.no) {
        withdraw(draft, activity);
        return;
    }
    let out_of_time = activity.close_deadline().is_some_and(|at| at <= draft.now);
    let kind = if out_of_time { SCHEDULE_TO_CLOSE } else { kind };
    let backoff = activity
        .policy
        .as_deref()
        .filter(|_| !out_of_time)
        .and_then(|policy| policy.backoff_after(activity.failures + 1));
    match backoff {
        Some(seconds) => {
            let failure = Failure {
                message: timeout_message(kind),
                ..Failure::default()
            };
            retry(
                draft,
                activity,
                attempt,
                seconds,
                "timeout",
                Some(kind),
                &failure,
            );
        }
        None => end_timed_out(draft, activity, attempt, kind, timeout_message(kind)),
    }
}

const SCHEDULE_TO_CLOSE: &str = "schedule_to_close";

fn timeout_message(kind: &str) -> String {
    format!("Activity timed out ({kind}).")
}

fn end_timed_out(
    draft: &mut Draft<'_>,
    activity: &Activity,
    attempt: u32,
    kind: &'static str,
    message: String,
) {
    let run = draft.state.id;
    let failure_id = draft.next_part(Part::Failure);
    draft.emit(ActivityTimedOut {
        keys: keys(run, activity),
        activity_attempt_id: (attempt > 0).then(|| attempt_id(run, activity.no, attempt)),
        attempt_number: attempt,
        failure_id,
        failure_category: "timeout".into(),
        timeout_kind: kind.into(),
        message,
        exception_class: "ActivityTimedOut".into(),
        schedule_to_close_deadline_at: activity.close_deadline(),
    });
    drop_rows(draft, activity.no);
}
