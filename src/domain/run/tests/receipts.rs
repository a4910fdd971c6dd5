//! Receipts: a repeated report gets the first answer, anything else under its fence is refused.

use super::kit::*;
use crate::domain::limits::RECEIPTS_KEPT;
use crate::domain::run::{
    ActivityOutcome, ActivityReport, Digest, Input, Refusal, ReportKind, StreamReport, TaskFailure,
};

fn outcome(held: &Held, digest: u64, outcome: ActivityOutcome) -> Input {
    Input::ReportActivity(ActivityReport {
        no: held.no,
        attempt: held.attempt,
        owner: held.owner.clone(),
        digest: Digest(digest),
        outcome,
        beat: None,
    })
}

/// The same completion again gets the first answer, also much later and after the run has closed.
#[test]
fn a_repeated_completion_gets_the_first_answer() {
    let mut bench = Bench::start();
    bench.ok(signal("s"));
    let task = bench.claim(1);
    let input = || task.complete(vec![activity("a"), timer(60)]);
    let first = reported(&bench.ok(input()));
    assert_eq!(first, (ReportKind::Completed, vec![2, 3], Some(3), false));
    let again = (first.0, first.1, first.2, true);
    assert_eq!(reported(&bench.answered(input())), again);
    bench.step(vec![complete_workflow()]);
    assert_eq!(reported(&bench.answered(input())), again);
    bench.ok(archive());
    assert_eq!(reported(&bench.answered(input())), again);
}

/// The completion that closed the run is repeated like any other.
#[test]
fn a_repeat_of_the_closing_completion_gets_the_first_answer() {
    for end in [complete_workflow(), fail_workflow(), continue_as_new()] {
        let mut bench = Bench::start();
        let task = bench.claim(1);
        bench.ok(task.complete(vec![end.clone()]));
        let reply = bench.answered(task.complete(vec![end]));
        assert_eq!(
            reported(&reply),
            (ReportKind::Completed, vec![], None, true)
        );
    }
}

/// A repeated failure does not make the task fail twice.
#[test]
fn a_repeated_failure_gets_the_first_answer() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    let input = || task.fail(TaskFailure::Other("no handler".into()));
    assert_eq!(
        reported(&bench.ok(input())),
        (ReportKind::Failed, vec![], Some(1), false)
    );
    assert_eq!(
        reported(&bench.answered(input())),
        (ReportKind::Failed, vec![], Some(1), true)
    );
    assert_eq!(bench.state().workflow_task.clone().unwrap().failures, 1);
    // The next hand-out is another fence.
    let next = bench.claim(1);
    bench.ok(next.fail(TaskFailure::Other("no handler".into())));
    assert_eq!(bench.state().workflow_task.clone().unwrap().failures, 2);
}

/// The same outcome of an activity again gets the first answer, retry or end.
#[test]
fn a_repeated_outcome_gets_the_first_answer() {
    let mut bench = Bench::after(vec![activity_with("a", Some(policy(2, &[])))]);
    let first = bench.claim(2);
    let busy = || ActivityOutcome::Failed(failure("Busy"));
    assert_eq!(reported(&bench.ok(outcome(&first, 1, busy()))).2, Some(2));
    let again = reported(&bench.answered(outcome(&first, 1, busy())));
    assert_eq!(again, (ReportKind::Failed, vec![], Some(2), true));
    let second = bench.claim(2);
    assert_eq!(
        reported(&bench.ok(outcome(&second, 1, returned()))).2,
        Some(3)
    );
    for _ in 0..2 {
        let again = reported(&bench.answered(outcome(&second, 1, returned())));
        assert_eq!(again, (ReportKind::Completed, vec![], Some(3), true));
        bench.terminate();
    }
}

/// Under a fence that was reported, another body or another kind of report is refused and told what
/// was recorded.
#[test]
fn another_report_under_the_same_fence_is_refused() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    bench.ok(task.complete(vec![activity("a")]));
    let mut other_body = task.report(2);
    other_body.seen = 0;
    for input in [
        Input::CompleteWorkflowTask {
            report: other_body,
            commands: Vec::new(),
            streams: StreamReport::default(),
            keep: None,
        },
        task.fail(TaskFailure::Other("late".into())),
        task.fail(TaskFailure::WaitingForHistory),
    ] {
        match bench.refused(input) {
            Refusal::AlreadyReported(receipt) => {
                assert_eq!((receipt.no, receipt.report), (1, ReportKind::Completed));
            }
            other => panic!("{other:?}"),
        }
    }
    let held = bench.claim(2);
    bench.ok(outcome(&held, 1, returned()));
    for input in [
        outcome(&held, 2, returned()),
        outcome(&held, 1, ActivityOutcome::Failed(failure("Busy"))),
    ] {
        let refusal = bench.refused(input);
        assert!(
            matches!(refusal, Refusal::AlreadyReported(_)),
            "{refusal:?}"
        );
    }
}

/// Another worker's report under a recorded fence is not a repeat.
#[test]
fn a_repeat_comes_from_the_same_worker() {
    let mut bench = Bench::start();
    let mut task = bench.claim(1);
    bench.ok(task.complete(Vec::new()));
    task.owner = "w9".into();
    let refusal = bench.refused(task.complete(Vec::new()));
    assert!(
        matches!(refusal, Refusal::AlreadyReported(_)),
        "{refusal:?}"
    );
}

/// The memory of reports is bounded; the oldest go first.
#[test]
fn the_memory_of_reports_is_bounded() {
    let mut bench = Bench::start();
    let first = bench.claim(1);
    let input = || first.fail(TaskFailure::Other("no handler".into()));
    bench.ok(input());
    for place in 1..RECEIPTS_KEPT {
        bench.now = bench.row(1).visible_at;
        let task = bench.claim(1);
        assert_eq!(task.attempt as usize, place + 1);
        bench.ok(task.fail(TaskFailure::Other("no handler".into())));
    }
    assert_eq!(bench.state().receipts.len(), RECEIPTS_KEPT);
    bench.answered(input());
    bench.now = bench.row(1).visible_at;
    let task = bench.claim(1);
    bench.ok(task.fail(TaskFailure::Other("no handler".into())));
    assert_eq!(bench.state().receipts.len(), RECEIPTS_KEPT);
    // Forgotten, and still without effect: the fence is long gone.
    assert_eq!(bench.lost(input()), Lost::Fence);
}
