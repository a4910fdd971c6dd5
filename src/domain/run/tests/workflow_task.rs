//! Workflow tasks: one at a time, what follows them, failures, and giving up.

use std::sync::Arc;

use super::kit::*;
use crate::domain::lease::after_loss;
use crate::domain::routing::TaskKind;
use crate::domain::run::{Refusal, ReportKind, Status, TaskFailure};

fn other() -> TaskFailure {
    TaskFailure::Other(Arc::from("no handler"))
}

fn blocked() -> TaskFailure {
    TaskFailure::Blocked(Arc::from("nondeterministic"))
}

/// Waiting for history closes the task without another one, and writes no event.
#[test]
fn waiting_closes_the_task_without_a_follow_up() {
    let mut bench = Bench::after(vec![activity("a"), activity("b")]);
    bench.run_activity(2);
    let task = bench.claim(4);
    let reply = bench.ok(task.fail(TaskFailure::WaitingForHistory));
    assert_eq!(reported(&reply), (ReportKind::Waiting, vec![], None, false));
    assert_eq!(bench.new_types(), [""; 0]);
    assert_eq!(bench.tasks(), [(3, TaskKind::Activity)]);
    assert_eq!(bench.state().status(), Status::Waiting);
}

/// Unless something arrived that its worker had not seen.
#[test]
fn waiting_is_followed_up_when_something_arrived() {
    let mut bench = Bench::after(vec![activity("a"), activity("b")]);
    bench.run_activity(2);
    let task = bench.claim(4);
    bench.run_activity(3);
    let reply = bench.ok(task.fail(TaskFailure::WaitingForHistory));
    assert_eq!(
        reported(&reply),
        (ReportKind::Waiting, vec![5], Some(5), false)
    );

    let mut bench = Bench::after(vec![activity("a")]);
    bench.run_activity(2);
    let task = bench.claim(3);
    bench.ok(signal("s"));
    let reply = bench.ok(task.fail(TaskFailure::WaitingForHistory));
    assert_eq!(bench.new_types(), ["SignalReceived"]);
    assert_eq!(reported(&reply).2, Some(4));
}

/// A task follows if and only if something newer than what the worker saw woke the run.
#[test]
fn a_task_follows_exactly_what_was_not_seen() {
    // Arrived before the claim: seen.
    let mut bench = Bench::after(vec![activity("a"), activity("b")]);
    bench.run_activity(2);
    bench.run_activity(3);
    bench.step(Vec::new());
    assert_eq!(bench.workflow_task(), None);
    // Arrived after the claim, but wakes nobody: a retry, a start, a member of an open group.
    let mut commands = vec![activity("a"), activity_with("b", Some(policy(2, &[])))];
    commands.extend(group(3, vec![activity("c"), activity("d")]));
    let mut bench = Bench::after(commands);
    bench.run_activity(2);
    let task = bench.claim(6);
    bench.fail_activity(3, failure("Busy"));
    let held = bench.claim(3);
    bench.ok(held.started());
    bench.run_activity(4);
    bench.ok(task.complete(Vec::new()));
    assert_eq!(bench.workflow_task(), None);
    // Arrived after the claim and wakes.
    bench.ok(held.outcome(returned(), None));
    let task = bench.claim(bench.workflow_task().unwrap());
    bench.run_activity(5);
    bench.ok(task.complete(Vec::new()));
    assert!(bench.workflow_task().is_some());
}

/// A later delivery of the same task shows more, and what it shows needs no follow-up.
#[test]
fn a_second_delivery_sees_what_came_in_between() {
    let mut bench = Bench::after(vec![activity("a"), activity("b")]);
    bench.run_activity(2);
    bench.claim(4);
    bench.run_activity(3);
    bench.lose(4);
    let again = bench.claim(4);
    assert_eq!(again.attempt, 2);
    bench.ok(again.complete(Vec::new()));
    assert_eq!(bench.workflow_task(), None);
}

/// A failed task stays the run's task: the next hand-out counts on, at once for the first failures,
/// then later each time up to a minute. The workflow does not fail, and no event is written.
#[test]
fn a_failed_task_is_handed_out_again_and_backs_off() {
    let mut bench = Bench::start();
    let mut waits = Vec::new();
    for attempt in 1..=12 {
        let task = bench.claim(1);
        assert_eq!(task.attempt, attempt);
        let reply = bench.ok(task.fail(other()));
        assert_eq!(
            reported(&reply),
            (ReportKind::Failed, vec![], Some(1), false)
        );
        assert_eq!(bench.new_types(), [""; 0]);
        let at = bench.row(1).visible_at;
        waits.push(at.millis_since(bench.now));
        bench.now = at;
    }
    assert_eq!(
        waits,
        [
            0, 0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000
        ]
    );
    let task = bench.state().workflow_task.clone().unwrap();
    assert_eq!((task.failures, task.blocked), (12, false));
    assert_eq!(task.last_failure.as_deref(), Some("no handler"));
    bench.step(vec![activity("a")]);
    bench.run_activity(2);
    assert_eq!(bench.state().workflow_task.clone().unwrap().failures, 0);
}

/// A task that cannot be replayed is shown as blocked and comes back slowly; a worker that can
/// replay it heals the run.
#[test]
fn a_blocked_task_comes_back_slowly_and_heals() {
    let mut bench = Bench::start();
    let mut waits = Vec::new();
    for _ in 0..8 {
        let task = bench.claim(1);
        let reply = bench.ok(task.fail(blocked()));
        assert_eq!(reported(&reply), (ReportKind::Failed, vec![], None, false));
        assert!(bench.state().workflow_task.clone().unwrap().blocked);
        let at = bench.row(1).visible_at;
        waits.push(at.millis_since(bench.now));
        bench.now = at;
    }
    assert_eq!(
        waits,
        [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    );
    assert_eq!(bench.state().status(), Status::Pending);
    bench.step(vec![complete_workflow()]);
    assert_eq!(bench.state().status(), Status::Completed);
}

/// What arrives while a task keeps failing is kept for it.
#[test]
fn a_failing_task_sees_what_arrives() {
    let mut bench = Bench::after(vec![activity("a"), activity("b")]);
    bench.run_activity(2);
    let task = bench.claim(4);
    bench.ok(task.fail(other()));
    bench.run_activity(3);
    bench.ok(signal("s"));
    bench.step(Vec::new());
    assert_eq!(bench.signals(), ["s"], "released when the task closed");
    assert_eq!(bench.workflow_task(), Some(5));
}

/// A workflow task handed out too often is parked, out of reach of workers and visible as blocked;
/// the run does not fail for it, and can still be closed.
#[test]
fn a_workflow_task_is_parked_at_the_cap() {
    let mut bench = Bench::start();
    for _ in 1..20 {
        bench.claim(1);
        bench.lose(1);
    }
    let last = bench.claim(1);
    assert_eq!(
        bench.lost(last.give_up()),
        Lost::Fence,
        "its lease is still live"
    );
    bench.now = bench.row(1).lease.clone().unwrap().expires_at;
    bench.ok(last.give_up());
    assert_eq!(bench.new_types(), [""; 0]);
    let task = bench.state().workflow_task.clone().unwrap();
    assert!(task.blocked);
    assert!(
        bench.row(1).visible_at > at(1_000_000_000),
        "nobody gets it"
    );
    bench.ok(signal("s"));
    assert_eq!(bench.state().held.len(), 1);
    assert!(matches!(bench.cancel(), Outcome::Committed(_)));
    assert_eq!(bench.signals(), ["s"]);
}

/// Giving up concerns the open task only.
#[test]
fn a_task_that_was_reported_is_not_given_up() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    bench.ok(task.complete(vec![activity("a")]));
    bench.at(10_000);
    assert!(matches!(
        bench.refused(task.give_up()),
        Refusal::NothingToDo
    ));
}

/// Hand-outs after a loss come later each time; the run does not move for them.
#[test]
fn losses_do_not_move_the_run() {
    let mut bench = Bench::start();
    let version = bench.state().version;
    let mut waits = Vec::new();
    for attempt in 1..=4 {
        assert_eq!(bench.claim(1).attempt, attempt);
        let ends = bench.row(1).lease.clone().unwrap().expires_at;
        bench.lose(1);
        waits.push(bench.now.millis_since(ends));
    }
    assert_eq!(waits, [0, 500, 1_000, 2_000], "{:?}", after_loss(2));
    assert_eq!(bench.state().version, version);
}

/// A workflow task is never open twice, however much happens at once.
#[test]
fn one_workflow_task_at_a_time() {
    let mut bench = Bench::after(vec![activity("a"), activity("b"), timer(5)]);
    bench.run_activity(2);
    bench.ok(signal("s"));
    bench.at(5).fire();
    bench.run_activity(3);
    let open: Vec<_> = bench
        .tasks()
        .into_iter()
        .filter(|(_, kind)| *kind == TaskKind::Workflow)
        .collect();
    assert_eq!(open.len(), 1);
}
