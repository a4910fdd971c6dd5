//! Deadlines of a run and of its whole execution.

use super::kit::*;
use crate::domain::decision::{TimerKey, TimerKind};
use crate::domain::run::{CloseReason, Input, ObservedLease, Refusal, Reply, Status, TaskFailure};

fn with_run_timeout() -> Bench {
    Bench::start_with(|request| request.run_timeout_seconds = Some(100))
}

/// The run fails as timed out, what is open is dropped with an event each, and the terminal event is
/// the last.
#[test]
fn a_run_past_its_deadline_is_closed() {
    let mut bench = with_run_timeout();
    bench.step(vec![activity("a"), timer(500), activity("b")]);
    bench.run_activity(3);
    bench.ok(signal("held"));
    bench.at(99);
    let key = TimerKey {
        kind: TimerKind::RunDeadline,
        no: 0,
    };
    let early = Input::TimersDue {
        keys: vec![key],
        lease: bench.observe(),
    };
    assert!(matches!(bench.refused(early), Refusal::NothingToDo));
    bench.at(100).fire();
    assert_eq!(
        bench.new_types(),
        [
            "ActivityCancelled",
            "TimerCancelled",
            "SignalReceived",
            "WorkflowTimedOut"
        ]
    );
    let close = bench.state().close.clone().unwrap();
    assert_eq!(
        (close.reason, close.reason.status()),
        (CloseReason::TimedOut, Status::Failed)
    );
    assert_eq!(
        bench.payloads("WorkflowTimedOut")[0]["timeout_kind"],
        "run_timeout"
    );
    assert_eq!(bench.tasks(), []);
    assert_eq!(bench.timers(), []);
}

/// The execution deadline has its own name, and wins when both have passed.
#[test]
fn the_execution_deadline_is_named() {
    for run_timeout_seconds in [None, Some(50), Some(100)] {
        let mut bench = Bench::start_with(|request| {
            request.execution_timeout_seconds = Some(100);
            request.run_timeout_seconds = run_timeout_seconds;
        });
        bench.at(100).fire();
        assert_eq!(bench.new_types(), ["WorkflowTimedOut"]);
        assert_eq!(
            bench.payloads("WorkflowTimedOut")[0]["timeout_kind"],
            "execution_timeout"
        );
    }
}

/// While a workflow task is open, its holder is looked up first; the holder is told what happened.
#[test]
fn a_deadline_cuts_off_the_holder() {
    let mut bench = with_run_timeout();
    let at_hundred = |lease| Input::TimersDue {
        keys: vec![TimerKey {
            kind: TimerKind::RunDeadline,
            no: 0,
        }],
        lease,
    };
    bench.at(90);
    let task = bench.claim(1);
    bench.at(100);
    assert!(matches!(
        bench.refused(at_hundred(ObservedLease::Unknown)),
        Refusal::LeaseNeeded
    ));
    assert_eq!(bench.lost(at_hundred(ObservedLease::Free)), Lost::Fence);
    bench.ok(at_hundred(bench.observe()));
    for input in [
        task.complete(Vec::new()),
        task.fail(TaskFailure::WaitingForHistory),
    ] {
        let refusal = bench.refused(input);
        assert!(matches!(refusal, Refusal::RunTimedOut(_)), "{refusal:?}");
    }
    let mut stranger = task;
    stranger.owner = "w9".into();
    let refusal = bench.refused(stranger.complete(Vec::new()));
    assert!(matches!(refusal, Refusal::RunClosed(_)), "{refusal:?}");
}

/// A report that comes after the deadline, but before anybody noticed, times the run out instead;
/// repeated, it is refused for the same reason.
#[test]
fn a_report_after_the_deadline_times_the_run_out() {
    for complete in [true, false] {
        let mut bench = with_run_timeout();
        bench.at(99);
        let task = bench.claim(1);
        bench.ok(signal("held"));
        bench.at(100);
        let input = || {
            if complete {
                task.complete(vec![complete_workflow()])
            } else {
                task.fail(TaskFailure::Other("late".into()))
            }
        };
        let reply = bench.ok(input());
        assert!(matches!(reply, Reply::TimedOutInstead), "{reply:?}");
        assert_eq!(bench.new_types(), ["SignalReceived", "WorkflowTimedOut"]);
        let refusal = bench.refused(input());
        assert!(matches!(refusal, Refusal::RunTimedOut(_)), "{refusal:?}");
    }
}

/// Timers that are due together with the deadline fire before it; the run opens nothing for them.
#[test]
fn what_is_due_with_the_deadline_comes_first() {
    let mut bench = with_run_timeout();
    let mut limited = policy(3, &[]);
    limited.schedule_to_start_timeout = Some(100);
    bench.step(vec![timer(100), activity_with("a", Some(limited))]);
    bench.at(100).fire();
    assert_eq!(
        bench.new_types(),
        [
            "TimerFired",
            "ActivityRetryScheduled",
            "ActivityCancelled",
            "WorkflowTimedOut"
        ]
    );
    assert_eq!(bench.tasks(), []);
    assert_eq!(bench.timers(), []);
}

/// A run that closed in time keeps no deadline.
#[test]
fn a_closed_run_has_no_deadline() {
    let mut bench = with_run_timeout();
    bench.step(vec![complete_workflow()]);
    assert_eq!(bench.timers(), []);
    let key = TimerKey {
        kind: TimerKind::RunDeadline,
        no: 0,
    };
    assert!(!bench.state().expects(key));
}
