//! The whole table of what happens to activity attempts: state of run and activity, fence, input.

use super::kit::*;
use crate::domain::ids::TaskNo;
use crate::domain::run::{
    ActivityOutcome, ActivityReport, Digest, Input, OverdueKind, Refusal, Reply,
};

/// One letter for each outcome.
fn letter(outcome: &Outcome) -> char {
    match outcome {
        Outcome::Committed(
            Reply::Reported {
                duplicate: false, ..
            }
            | Reply::Done,
        ) => 'R',
        Outcome::Answered(Reply::Reported {
            duplicate: true, ..
        }) => 'D',
        Outcome::Answered(Reply::TooLate(_)) => 'T',
        Outcome::Refused(Refusal::AlreadyReported(_)) => 'A',
        Outcome::Refused(Refusal::StaleAttempt) => 'S',
        Outcome::Refused(Refusal::UnknownTask) => 'U',
        Outcome::Refused(Refusal::RunClosed(_)) => 'C',
        Outcome::Refused(Refusal::NothingToDo) => '-',
        Outcome::Lost(Lost::Fence) => 'L',
        other => panic!("no letter for {other:?}"),
    }
}

fn busy() -> ActivityOutcome {
    ActivityOutcome::Failed(failure("Busy"))
}

/// Completed, failed and too large, then start shown, limit passed and given up.
fn inputs(held: &Held) -> [Input; 6] {
    [
        held.outcome(returned(), None),
        held.outcome(busy(), None),
        held.outcome(ActivityOutcome::TooLarge { bytes: 1 << 30 }, None),
        held.started(),
        held.overdue(OverdueKind::StartToClose, None),
        held.give_up(),
    ]
}

/// The four fences in columns: the task's current or last hand-out by `w1`, the one before, one that
/// never was, and the current one by a stranger.
fn row(bench: &Bench, no: TaskNo, attempt: u32) -> String {
    [
        (attempt, "w1"),
        (attempt - 1, "w1"),
        (attempt + 7, "w1"),
        (attempt, "w9"),
    ]
    .map(|(attempt, owner)| {
        let held = Held {
            no,
            attempt,
            owner: owner.into(),
            seen: 0,
        };
        inputs(&held)
            .map(|input| letter(&bench.clone().put(input)))
            .iter()
            .collect::<String>()
    })
    .join(" ")
}

/// Activity task 2 may be tried three times, has 5 s for an attempt and 500 s in all, and is in its
/// second hand-out; the first was lost unseen. Task 3 is another activity.
fn leased() -> (Bench, Held) {
    let mut limited = policy(3, &[7]);
    limited.start_to_close_timeout = Some(5);
    limited.schedule_to_close_timeout = Some(500);
    let mut bench = Bench::start_with(|request| request.run_timeout_seconds = Some(800));
    bench.step(vec![activity_with("a", Some(limited)), activity("b")]);
    bench.claim(2);
    bench.lose(2);
    let held = bench.claim(2);
    assert_eq!(held.attempt, 2);
    (bench, held)
}

fn leased_and(then: impl FnOnce(&mut Bench, Held)) -> Bench {
    let (mut bench, held) = leased();
    then(&mut bench, held);
    bench
}

/// The run with its other activity done and the workflow task completed with this command.
fn ended(mut bench: Bench, end: crate::domain::command::Command) -> Bench {
    if bench.workflow_task().is_none() {
        bench.run_activity(3);
    }
    bench.step(vec![end]);
    bench
}

/// R recorded, L fence lost, D first answer again, A another report was recorded, S stale attempt,
/// U unknown, C run closed, T too late to matter, - nothing to do. (Hand-outs count from 1, so that 0
/// is over before it began. Receipts are by task and hand-out, whatever the kind of task.)
#[test]
fn everything_that_happens_to_an_attempt() {
    let shown = || {
        leased_and(|bench, held| {
            bench.ok(held.started());
        })
    };
    let slow = || leased_and(|bench, _| bench.now = bench.now.plus_seconds(5));
    let expired =
        || leased_and(|bench, _| bench.now = bench.row(2).lease.clone().unwrap().expires_at);
    let failed = || {
        leased_and(|bench, held| {
            bench.ok(held.outcome(busy(), None));
        })
    };
    let timed_out = || {
        leased_and(|bench, held| {
            bench.now = bench.now.plus_seconds(5);
            bench.ok(held.overdue(OverdueKind::StartToClose, None));
        })
    };
    let done = || {
        leased_and(|bench, held| {
            bench.ok(held.outcome(returned(), None));
        })
    };
    let out_of_time = || {
        leased_and(|bench, _| {
            bench.at(500);
            assert!(matches!(bench.fire(), Outcome::Committed(_)));
        })
    };
    let cancelled = |mut bench: Bench| {
        assert!(matches!(bench.cancel(), Outcome::Committed(_)));
        bench
    };
    let past_run_deadline = |mut bench: Bench| {
        bench.at(800);
        assert!(matches!(bench.fire(), Outcome::Committed(_)));
        bench
    };
    let all = |cell: &str| [cell; 4].join(" ");
    let table: Vec<(&str, Bench, TaskNo, u32, String)> = vec![
        (
            "never handed out",
            leased().0,
            3,
            1,
            "LLLLLL SSS--- LLLLLL LLLLLL".into(),
        ),
        (
            "leased",
            leased().0,
            2,
            2,
            "RRRRLL LLLLLL LLLLLL LLLLLL".into(),
        ),
        (
            "leased, start shown",
            shown(),
            2,
            2,
            "RRR-LL SSS--- LLLLLL LLL-LL".into(),
        ),
        (
            "past its limit, lease live",
            slow(),
            2,
            2,
            "RRRRRR LLLLLL LLLLLL LLLLLL".into(),
        ),
        (
            "lease run out",
            expired(),
            2,
            2,
            "LLLLRR LLLLLL LLLLLL LLLLLL".into(),
        ),
        (
            "lost",
            leased_and(|bench, _| bench.lose(2)),
            2,
            2,
            all("LLLLLL"),
        ),
        (
            "failed, to be tried again",
            failed(),
            2,
            2,
            "ADA--- SSS--- LLLLLL AAA---".into(),
        ),
        (
            "timed out, to be tried again",
            timed_out(),
            2,
            2,
            "SSS--- SSS--- LLLLLL SSS---".into(),
        ),
        (
            "completed",
            done(),
            2,
            2,
            "DAD--- SSS--- SSS--- AAA---".into(),
        ),
        ("out of time", out_of_time(), 2, 2, all("SSS---")),
        ("number 0", leased().0, 0, 2, all("UUU---")),
        ("a number to come", leased().0, 4, 2, all("UUU---")),
        (
            "a workflow task's number",
            leased().0,
            1,
            2,
            "SSS--- DAD--- SSS--- SSS---".into(),
        ),
        (
            "run completed, leased",
            ended(leased().0, complete_workflow()),
            2,
            2,
            all("TTT---"),
        ),
        (
            "run failed, leased",
            ended(leased().0, fail_workflow()),
            2,
            2,
            all("TTT---"),
        ),
        (
            "run continued, leased",
            ended(leased().0, continue_as_new()),
            2,
            2,
            all("TTT---"),
        ),
        (
            "run completed, to be tried again",
            ended(failed(), complete_workflow()),
            2,
            2,
            "ADA--- TTT--- TTT--- AAA---".into(),
        ),
        (
            "run completed, done before",
            ended(done(), complete_workflow()),
            2,
            2,
            "DAD--- CCC--- CCC--- AAA---".into(),
        ),
        (
            "run cancelled, leased",
            cancelled(leased().0),
            2,
            2,
            all("CCC---"),
        ),
        (
            "run cancelled, done before",
            cancelled(done()),
            2,
            2,
            "DAD--- CCC--- CCC--- AAA---".into(),
        ),
        (
            "run cancelled, number 0",
            cancelled(leased().0),
            0,
            2,
            all("UUU---"),
        ),
        (
            "run timed out, leased",
            past_run_deadline(shown()),
            2,
            2,
            all("CCC---"),
        ),
        (
            "run timed out, done before",
            past_run_deadline(done()),
            2,
            2,
            "DAD--- CCC--- CCC--- AAA---".into(),
        ),
    ];
    for (situation, bench, no, attempt, expected) in table {
        assert_eq!(row(&bench, no, attempt), expected, "{situation}");
    }
}

/// The same fence with another body is not a repeat, whatever was recorded.
#[test]
fn another_body_under_a_recorded_fence() {
    for recorded in [returned(), busy()] {
        let (mut bench, held) = leased();
        bench.ok(held.outcome(recorded, None));
        for outcome in [returned(), busy(), ActivityOutcome::TooLarge { bytes: 1 }] {
            let refusal = bench.refused(Input::ReportActivity(ActivityReport {
                no: held.no,
                attempt: held.attempt,
                owner: held.owner.clone(),
                digest: Digest(2),
                outcome,
                beat: None,
            }));
            assert!(
                matches!(refusal, Refusal::AlreadyReported(_)),
                "{refusal:?}"
            );
        }
    }
}
