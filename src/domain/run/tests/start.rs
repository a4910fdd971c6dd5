//! The start of a run: its first events, its deadlines and its first task.

use super::kit::{Bench, signal};
use crate::domain::decision::TimerKind;
use crate::domain::routing::TaskKind;
use crate::domain::run::Status;

/// `StartAccepted`, then `WorkflowStarted`, come before everything else, and the first task is open.
#[test]
fn a_run_begins_with_two_events_and_a_ready_task() {
    let bench = Bench::start();
    assert_eq!(bench.types(), ["StartAccepted", "WorkflowStarted"]);
    assert_eq!(bench.tasks(), [(1, TaskKind::Workflow)]);
    assert_eq!(bench.state().status(), Status::Pending);
    assert_eq!(bench.timers(), []);
}

/// Deadlines are counted from the start, and each has a timer row.
#[test]
fn deadlines_are_set_at_the_start() {
    let bench = Bench::start_with(|request| {
        request.execution_timeout_seconds = Some(100);
        request.run_timeout_seconds = Some(60);
    });
    assert_eq!(
        bench.timers(),
        [
            (TimerKind::RunDeadline, 0, 60),
            (TimerKind::ExecutionDeadline, 0, 100)
        ]
    );
    let started = &bench.payloads("WorkflowStarted")[0];
    assert_eq!(started["run_deadline_at"], "2026-07-18T00:41:00.000000Z");
    assert_eq!(
        started["execution_deadline_at"],
        "2026-07-18T00:41:40.000000Z"
    );
    assert_eq!(started["run_number"], 1);
}

/// The first task counts from the moment of the start: a signal before any worker came is held.
#[test]
fn a_signal_before_the_first_task_is_claimed_is_held() {
    let mut bench = Bench::start();
    bench.ok(signal("early"));
    assert_eq!(bench.types(), ["StartAccepted", "WorkflowStarted"]);
    assert_eq!(bench.state().held.len(), 1);
    assert_eq!(bench.tasks().len(), 1);
}
