//! Timers of the workflow, and timer rows that come due.

use super::kit::*;
use crate::domain::decision::{TimerKey, TimerKind};
use crate::domain::run::{Input, ObservedLease, Refusal};

fn due(kind: TimerKind, no: u32) -> Input {
    Input::TimersDue {
        keys: vec![TimerKey { kind, no }],
        lease: ObservedLease::Unknown,
    }
}

/// A timer goes off at its time, not before, and wakes the workflow in the same commit.
#[test]
fn a_timer_fires_when_it_is_due() {
    let mut bench = Bench::after(vec![timer(30)]);
    assert_eq!(bench.timers(), [(TimerKind::User, 1, 30)]);
    bench.at(29);
    assert!(matches!(
        bench.refused(due(TimerKind::User, 1)),
        Refusal::NothingToDo
    ));
    bench.at(30).fire();
    assert_eq!(bench.new_types(), ["TimerFired"]);
    assert_eq!(bench.timers(), []);
    assert!(bench.workflow_task().is_some());
    assert!(matches!(
        bench.refused(due(TimerKind::User, 1)),
        Refusal::NothingToDo
    ));
}

/// A plain timer has no `timer_kind`, and its delay is the authored one.
#[test]
fn a_plain_timer_has_no_kind() {
    let mut bench = Bench::after(vec![timer(30)]);
    bench.at(30).fire();
    for event_type in ["TimerScheduled", "TimerFired"] {
        let payload = &bench.payloads(event_type)[0];
        assert!(payload.get("timer_kind").is_none());
        assert_eq!(payload["delay_seconds"], 30);
        assert_eq!(payload["fire_at"], "2026-07-18T00:40:30.000000Z");
        assert_eq!(payload["sequence"], 1);
    }
}

/// A timer without delay fires in the completion that sets it: no row, and a task follows.
#[test]
fn a_timer_without_delay_fires_at_once() {
    let bench = Bench::after(vec![timer(0), side_effect()]);
    assert_eq!(
        bench.new_types(),
        ["TimerScheduled", "SideEffectRecorded", "TimerFired"]
    );
    assert_eq!(bench.timers(), []);
    assert!(bench.workflow_task().is_some());
}

/// Timers that are due together fire in one commit and open one task.
#[test]
fn timers_fire_together() {
    let mut bench = Bench::after(vec![timer(10), timer(20), timer(30)]);
    bench.at(25).fire();
    assert_eq!(bench.new_types(), ["TimerFired", "TimerFired"]);
    assert_eq!(bench.timers(), [(TimerKind::User, 3, 30)]);
    assert_eq!(bench.tasks().len(), 1);
}

/// A timer that fires while the workflow task is out is seen by the task that follows.
#[test]
fn a_timer_during_a_task_is_followed_up() {
    let mut bench = Bench::after(vec![timer(10), activity("a")]);
    bench.run_activity(2);
    let task = bench.claim(3);
    bench.at(10).fire();
    assert_eq!(bench.workflow_task(), Some(3));
    bench.ok(task.complete(Vec::new()));
    assert_eq!(bench.workflow_task(), Some(4));
}

/// A row whose matter is settled has nothing to do, whatever its kind.
#[test]
fn rows_without_a_matter_do_nothing() {
    let mut bench = Bench::after(vec![activity("a")]);
    bench.at(1_000_000);
    for (kind, no) in [
        (TimerKind::User, 1),
        (TimerKind::ScheduleToStart, 2),
        (TimerKind::ScheduleToClose, 2),
        (TimerKind::ScheduleToStart, 9),
        (TimerKind::RunDeadline, 0),
        (TimerKind::ExecutionDeadline, 0),
    ] {
        assert!(
            matches!(bench.refused(due(kind, no)), Refusal::NothingToDo),
            "{kind:?}"
        );
        assert!(!bench.state().expects(TimerKey { kind, no }));
    }
}

/// A timer of a closed run records nothing.
#[test]
fn a_closed_run_fires_no_timer() {
    let mut bench = Bench::after(vec![timer(10), complete_workflow()]);
    bench.at(10);
    assert!(matches!(
        bench.refused(due(TimerKind::User, 1)),
        Refusal::NothingToDo
    ));
}
