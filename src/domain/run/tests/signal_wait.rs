//! Waits for signals: applied once, oldest first, timed out, carried to a successor.

use super::kit::*;
use crate::domain::decision::TimerKind;
use crate::domain::run::Resume;

/// Rule: worker plane, Precedence: a signal for whose name a wait is open is applied in the commit
/// that records it, with the signal's own id and its arguments as they were sent.
#[test]
fn a_recorded_signal_is_applied_to_the_open_wait() {
    let mut bench = Bench::after(vec![signal_wait("go", None)]);
    assert_eq!(bench.new_types(), ["SignalWaitOpened"]);
    bench.ok(signal("go"));
    assert_eq!(bench.new_types(), ["SignalReceived", "SignalApplied"]);
    let (received, applied) = (
        bench.payloads("SignalReceived")[0].clone(),
        bench.payloads("SignalApplied")[0].clone(),
    );
    let opened = &bench.payloads("SignalWaitOpened")[0];
    assert_eq!(applied["signal_id"], received["signal_id"]);
    assert_eq!(applied["signal_wait_id"], opened["signal_wait_id"]);
    assert_eq!(applied["sequence"], opened["sequence"]);
    assert_eq!(applied["value"], received["arguments"]);
    assert!(bench.state().signal_waits.is_empty());
    assert!(bench.state().unapplied.is_empty());
    assert!(matches!(
        bench.state().workflow_task.clone().unwrap().resume,
        Resume::SignalWait { step: 1, .. }
    ));
}

/// Rule: worker plane 6.3: a signal that was recorded before its wait is taken when the wait opens;
/// then no timer is set.
#[test]
fn a_wait_takes_a_signal_that_came_before_it() {
    let mut bench = Bench::after(vec![timer(60)]);
    bench.ok(signal("go"));
    bench.step(vec![signal_wait("go", Some(30))]);
    assert_eq!(bench.new_types(), ["SignalWaitOpened", "SignalApplied"]);
    assert_eq!(bench.timers(), [(TimerKind::User, 1, 60)]);
    assert!(
        bench.workflow_task().is_some(),
        "its worker has not seen it"
    );
}

/// Rule: worker plane 7.3: inputs are applied once and in the order of their arrival: the oldest
/// signal goes to the oldest wait of its name.
#[test]
fn signals_and_waits_meet_oldest_first() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    for name in ["go", "other", "go"] {
        bench.ok(signal(name));
    }
    bench.ok(task.complete(vec![
        signal_wait("go", None),
        signal_wait("go", None),
        signal_wait("none", None),
    ]));
    let applied: Vec<(u64, String)> = bench
        .payloads("SignalApplied")
        .iter()
        .map(|applied| {
            let id = applied["signal_id"].as_str().unwrap();
            (applied["sequence"].as_u64().unwrap(), id.to_owned())
        })
        .collect();
    let ids: Vec<String> = bench
        .payloads("SignalReceived")
        .iter()
        .map(|received| received["signal_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(applied, [(1, ids[0].clone()), (2, ids[2].clone())]);
    let left: Vec<&str> = bench.state().unapplied.iter().map(|s| &*s.name).collect();
    assert_eq!(left, ["other"]);
    assert_eq!(bench.state().signal_waits.len(), 1);
}

/// A signal of another name leaves the wait as it is, and wakes the workflow.
#[test]
fn another_name_does_not_end_the_wait() {
    let mut bench = Bench::after(vec![signal_wait("go", Some(60))]);
    bench.ok(signal("other"));
    assert_eq!(bench.new_types(), ["SignalReceived"]);
    assert_eq!(bench.timers(), [(TimerKind::SignalTimeout, 1, 60)]);
    assert!(bench.workflow_task().is_some());
}

/// Rule: worker plane 6.3: a limited wait has a timer of kind `signal_timeout`; an applied signal
/// cancels it.
#[test]
fn an_applied_signal_cancels_the_timeout() {
    let mut bench = Bench::after(vec![signal_wait("go", Some(60))]);
    assert_eq!(bench.new_types(), ["SignalWaitOpened", "TimerScheduled"]);
    let scheduled = &bench.payloads("TimerScheduled")[0];
    assert_eq!(scheduled["timer_kind"], "signal_timeout");
    assert_eq!(scheduled["signal_name"], "go");
    bench.ok(signal("go"));
    assert_eq!(
        bench.new_types(),
        ["SignalReceived", "SignalApplied", "TimerCancelled"]
    );
    assert_eq!(bench.timers(), []);
    assert!(matches!(bench.at(60).fire(), Outcome::Refused(_)));
}

/// A wait that times out ends with its timer, and a later signal of the name is kept for the next.
#[test]
fn a_wait_times_out_once() {
    let mut bench = Bench::after(vec![signal_wait("go", Some(60))]);
    bench.at(60).fire();
    assert_eq!(bench.new_types(), ["TimerFired"]);
    assert!(bench.state().signal_waits.is_empty());
    let task = bench.claim(2);
    bench.ok(signal("go"));
    bench.ok(task.complete(vec![side_effect()]));
    assert_eq!(bench.new_types(), ["SideEffectRecorded", "SignalReceived"]);
    bench.step(vec![signal_wait("go", Some(60))]);
    assert_eq!(bench.new_types(), ["SignalWaitOpened", "SignalApplied"]);
}

/// Rule: worker plane 6.3: a wait of 0 seconds without a signal ends in the completion that opens it.
#[test]
fn a_wait_of_no_time_ends_at_once() {
    let bench = Bench::after(vec![signal_wait("go", Some(0))]);
    assert_eq!(
        bench.new_types(),
        ["SignalWaitOpened", "TimerScheduled", "TimerFired"]
    );
    assert_eq!(bench.timers(), []);
    assert!(bench.workflow_task().is_some(), "a task follows at once");
}

/// A signal that is held when the timeout comes due is late: the wait has ended.
#[test]
fn a_timeout_before_the_boundary_wins_over_a_held_signal() {
    let mut bench = Bench::after(vec![signal_wait("go", Some(60)), timer(1)]);
    bench.at(1).fire();
    bench.ok(signal("go"));
    bench.at(60).fire();
    assert_eq!(bench.new_types(), ["TimerFired"]);
    bench.step(Vec::new());
    assert_eq!(bench.new_types(), ["SignalReceived"]);
    assert_eq!(bench.state().unapplied.len(), 1);
}

/// Rule: control plane, signals: what a run did not take moves to its successor, once: a recorded
/// signal of a name that was waited for, then what is held.
#[test]
fn signals_that_no_wait_took_move_to_the_successor() {
    let mut bench = Bench::after(vec![signal_wait("go", None)]);
    for name in ["go", "go", "seen"] {
        bench.ok(signal(name));
    }
    // The first wait took one; the others are recorded when its task closes.
    bench.step(vec![side_effect()]);
    assert_eq!(bench.signals(), ["go", "go", "seen"]);
    let task = bench.claim(bench.workflow_task().unwrap());
    bench.ok(signal("last"));
    bench.ok(task.complete(vec![continue_as_new()]));
    bench.follow();
    assert_eq!(bench.state().held.len(), 2, "`seen` was a handler's");
    bench.step(vec![signal_wait("go", None), signal_wait("go", None)]);
    assert_eq!(bench.signals(), ["go", "last"]);
    assert_eq!(bench.payloads("SignalApplied").len(), 1);
}

/// A run that is closed from outside while a limited wait is open and a signal for it is held: the
/// timer ends once.
#[test]
fn a_closing_ends_the_timer_of_a_wait_once() {
    for terminate in [false, true] {
        let mut bench = Bench::after(vec![signal_wait("go", Some(60)), timer(1)]);
        bench.at(1).fire();
        bench.ok(signal("go"));
        let closed = if terminate {
            bench.terminate()
        } else {
            bench.cancel()
        };
        assert!(matches!(closed, Outcome::Committed(_)));
        let cancelled = bench.payloads("TimerCancelled");
        assert_eq!(cancelled.len(), 1, "{:?}", bench.new_types());
        assert_eq!(bench.signals(), ["go"]);
    }
}

/// What callers sent and no wait has taken counts among the bytes that a state holds, until it is taken.
#[test]
fn what_a_state_holds_is_counted() {
    let mut bench = Bench::after(vec![signal_wait("go", None)]);
    let before = bench.state().held_bytes();
    bench.ok(signal("other"));
    let waiting = bench.state().unapplied[0].arguments.held_bytes();
    assert!(waiting > 0);
    assert_eq!(bench.state().held_bytes(), before + waiting);
}
