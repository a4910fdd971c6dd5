//! The four time limits of an activity, and the attempts after them.

use super::kit::*;
use crate::domain::decision::TimerKind;
use crate::domain::retry::Policy;
use crate::domain::run::{ActivityOutcome, Beat, OverdueKind, Refusal};

fn bench(max_attempts: u32, change: impl FnOnce(&mut Policy)) -> Bench {
    let mut policy = policy(max_attempts, &[2]);
    change(&mut policy);
    Bench::after(vec![activity_with("a", Some(policy))])
}

fn timed_out(bench: &Bench) -> serde_json::Value {
    bench.payloads("ActivityTimedOut")[0]["timeout_kind"].clone()
}

/// schedule_to_start: nobody took the attempt in time.
#[test]
fn an_attempt_that_nobody_takes_times_out() {
    let mut bench = bench(1, |policy| policy.schedule_to_start_timeout = Some(5));
    assert_eq!(bench.timers(), [(TimerKind::ScheduleToStart, 2, 5)]);
    bench.at(4);
    let early = crate::domain::run::Input::TimersDue {
        keys: bench.stored().timers.keys().copied().collect(),
        lease: bench.observe(),
    };
    assert!(matches!(bench.refused(early), Refusal::NothingToDo));
    bench.at(5).fire();
    assert_eq!(
        bench.new_types(),
        ["ActivityTimedOut"],
        "it was never started"
    );
    assert_eq!(timed_out(&bench), "schedule_to_start");
    assert_eq!(bench.timers(), []);
    assert!(bench.workflow_task().is_some());
}

/// The limit is set anew for each retry, counted from when that may be handed out.
#[test]
fn schedule_to_start_is_counted_from_each_retrys_availability() {
    let mut bench = bench(3, |policy| policy.schedule_to_start_timeout = Some(5));
    bench.at(5).fire();
    assert_eq!(bench.new_types(), ["ActivityRetryScheduled"]);
    let retry = &bench.payloads("ActivityRetryScheduled")[0];
    assert_eq!(retry["timeout_kind"], "schedule_to_start");
    assert_eq!(retry["retry_reason"], "timeout");
    assert_eq!(bench.row(2).visible_at, at(7));
    assert_eq!(bench.timers(), [(TimerKind::ScheduleToStart, 2, 12)]);
    bench.at(8);
    bench.fail_activity(2, failure("Busy"));
    assert_eq!(bench.timers(), [(TimerKind::ScheduleToStart, 2, 15)]);
    bench.at(15).fire();
    assert_eq!(
        bench.new_types(),
        ["ActivityTimedOut"],
        "all three attempts are spent"
    );
}

/// An attempt that was taken in time is not touched by the limit.
#[test]
fn a_taken_attempt_has_met_schedule_to_start() {
    let mut bench = bench(1, |policy| policy.schedule_to_start_timeout = Some(5));
    let held = bench.claim(2);
    bench.at(5);
    assert!(matches!(bench.fire(), Outcome::Lost(Lost::Fence)));
    bench.ok(held.outcome(returned(), None));
    assert_eq!(bench.timers(), []);
}

/// start_to_close: the attempt took too long; another follows while attempts are left.
#[test]
fn a_slow_attempt_times_out_and_is_tried_again() {
    let mut bench = bench(2, |policy| policy.start_to_close_timeout = Some(5));
    let held = bench.claim(2);
    bench.at(4);
    assert_eq!(
        bench.lost(held.overdue(OverdueKind::StartToClose, None)),
        Lost::Fence
    );
    bench.at(5);
    bench.ok(held.overdue(OverdueKind::StartToClose, None));
    assert_eq!(
        bench.new_types(),
        ["ActivityStarted", "ActivityRetryScheduled"]
    );
    assert_eq!(
        bench.payloads("ActivityRetryScheduled")[0]["timeout_kind"],
        "start_to_close"
    );
    assert_eq!(bench.row(2).visible_at, at(7));
    bench.at(7);
    let held = bench.claim(2);
    bench.at(12);
    bench.ok(held.overdue(OverdueKind::StartToClose, None));
    assert_eq!(bench.new_types(), ["ActivityStarted", "ActivityTimedOut"]);
    assert_eq!(timed_out(&bench), "start_to_close");
    assert_eq!(bench.payloads("ActivityTimedOut")[0]["attempt_number"], 2);
    assert!(bench.workflow_task().is_some());
}

/// heartbeat: a silent attempt times out; each heartbeat starts the limit anew, and the last one is
/// recorded with the time-out.
#[test]
fn a_silent_attempt_times_out() {
    let mut bench = bench(2, |policy| policy.heartbeat_timeout = Some(5));
    let held = bench.claim(2);
    bench.at(4);
    let beat = Beat {
        at: bench.now,
        details: Some(json("\"half\"")),
    };
    bench.db.beat(bench.run, 2, beat.clone(), bench.now);
    bench.at(8);
    assert_eq!(
        bench.lost(held.overdue(OverdueKind::Heartbeat, Some(beat.clone()))),
        Lost::Fence
    );
    bench.at(9);
    bench.ok(held.overdue(OverdueKind::Heartbeat, Some(beat)));
    assert_eq!(
        bench.new_types(),
        [
            "ActivityStarted",
            "ActivityHeartbeatRecorded",
            "ActivityRetryScheduled"
        ]
    );
    assert_eq!(
        bench.payloads("ActivityRetryScheduled")[0]["timeout_kind"],
        "heartbeat"
    );
    bench.at(11);
    let held = bench.claim(2);
    bench.at(16);
    bench.ok(held.overdue(OverdueKind::Heartbeat, None));
    assert_eq!(bench.new_types(), ["ActivityStarted", "ActivityTimedOut"]);
    assert_eq!(timed_out(&bench), "heartbeat");
}

/// schedule_to_close ends the activity at once, attempts left or not, waiting or running.
#[test]
fn schedule_to_close_ends_the_activity() {
    for claimed in [false, true] {
        let mut bench = bench(9, |policy| policy.schedule_to_close_timeout = Some(5));
        let held = claimed.then(|| bench.claim(2));
        bench.at(5).fire();
        assert_eq!(bench.new_types(), ["ActivityTimedOut"]);
        assert_eq!(timed_out(&bench), "schedule_to_close");
        assert_eq!(bench.timers(), []);
        if let Some(held) = held {
            let refusal = bench.refused(held.outcome(returned(), None));
            assert!(matches!(refusal, Refusal::StaleAttempt));
        }
    }
}

/// It is counted from the scheduling and never extended: not by a retry, a time-out or a heartbeat.
#[test]
fn schedule_to_close_is_never_extended() {
    let mut bench = bench(9, |policy| {
        policy.schedule_to_close_timeout = Some(30);
        policy.schedule_to_start_timeout = Some(10);
    });
    let close = (TimerKind::ScheduleToClose, 2, 30);
    assert!(bench.timers().contains(&close));
    bench.at(1);
    bench.fail_activity(2, failure("Busy"));
    assert!(bench.timers().contains(&close));
    bench.at(13).fire();
    assert_eq!(bench.new_types(), ["ActivityRetryScheduled"]);
    assert!(bench.timers().contains(&close));
    bench.at(16);
    bench.claim(2);
    bench.at(29);
    let beat = Beat {
        at: bench.now,
        details: None,
    };
    bench.db.beat(bench.run, 2, beat, bench.now);
    bench.at(30).fire();
    assert_eq!(bench.new_types(), ["ActivityTimedOut"]);
    assert_eq!(timed_out(&bench), "schedule_to_close");
}

/// When several limits have passed, schedule_to_close is the one that counts.
#[test]
fn schedule_to_close_counts_before_the_others() {
    let mut waiting = bench(9, |policy| {
        policy.schedule_to_close_timeout = Some(5);
        policy.schedule_to_start_timeout = Some(5);
    });
    waiting.at(5).fire();
    assert_eq!(waiting.new_types(), ["ActivityTimedOut"]);
    assert_eq!(timed_out(&waiting), "schedule_to_close");

    let mut running = bench(9, |policy| {
        policy.schedule_to_close_timeout = Some(5);
        policy.start_to_close_timeout = Some(5);
    });
    let held = running.claim(2);
    running.at(5);
    running.ok(held.overdue(OverdueKind::StartToClose, None));
    assert_eq!(running.new_types(), ["ActivityStarted", "ActivityTimedOut"]);
    assert_eq!(timed_out(&running), "schedule_to_close");
    assert_eq!(running.timers(), []);
}

/// Time-outs and failures spend the same attempts.
#[test]
fn time_outs_and_failures_spend_the_same_attempts() {
    let mut bench = bench(2, |policy| policy.start_to_close_timeout = Some(5));
    let held = bench.claim(2);
    bench.ok(held.outcome(ActivityOutcome::Failed(failure("Busy")), None));
    bench.at(2);
    let held = bench.claim(2);
    bench.at(7);
    bench.ok(held.overdue(OverdueKind::StartToClose, None));
    assert_eq!(bench.new_types(), ["ActivityStarted", "ActivityTimedOut"]);
}

/// A lease never ends before its attempt's start-to-close limit, since SDKs do not renew it.
#[test]
fn a_lease_is_as_long_as_its_attempt() {
    let mut bench = bench(1, |policy| policy.start_to_close_timeout = Some(1_000));
    bench.claim(2);
    assert_eq!(bench.row(2).lease.clone().unwrap().expires_at, at(1_000));
    let mut bench = Bench::after(vec![activity("a")]);
    bench.claim(2);
    assert_eq!(bench.row(2).lease.clone().unwrap().expires_at, at(300));
}
