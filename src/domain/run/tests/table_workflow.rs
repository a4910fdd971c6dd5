//! The whole table of reports on workflow tasks: state of the run, task, fence, kind of report.

use super::kit::*;
use crate::domain::ids::TaskNo;
use crate::domain::run::{Input, Refusal, Reply, TaskFailure};

/// One letter for each outcome.
fn letter(outcome: &Outcome) -> char {
    match outcome {
        Outcome::Committed(Reply::Reported {
            duplicate: false, ..
        }) => 'R',
        Outcome::Committed(Reply::TimedOutInstead) => 'I',
        Outcome::Answered(Reply::Reported {
            duplicate: true, ..
        }) => 'D',
        Outcome::Answered(Reply::ClosedMeanwhile(_)) => 'M',
        Outcome::Refused(Refusal::AlreadyReported(_)) => 'A',
        Outcome::Refused(Refusal::TaskNotOpen) => 'O',
        Outcome::Refused(Refusal::UnknownTask) => 'U',
        Outcome::Refused(Refusal::RunClosed(_)) => 'C',
        Outcome::Refused(Refusal::RunTimedOut(_)) => 'T',
        Outcome::Lost(Lost::Fence) => 'L',
        other => panic!("no letter for {other:?}"),
    }
}

fn kinds(held: &Held) -> [Input; 4] {
    [
        held.complete(Vec::new()),
        held.fail(TaskFailure::WaitingForHistory),
        held.fail(TaskFailure::Other("no handler".into())),
        held.fail(TaskFailure::Blocked("nondeterministic".into())),
    ]
}

/// The four fences in columns, each with complete, waiting, failed and blocked: the task's current
/// or last hand-out by `w1`, the one before, one that never was, and the current one by a stranger.
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
            seen: bench.state().last_event(),
        };
        kinds(&held)
            .map(|input| letter(&bench.clone().put(input)))
            .iter()
            .collect::<String>()
    })
    .join(" ")
}

/// Task 1 of a run with a deadline at 1,000 s is in its second hand-out; the first was lost.
fn leased() -> (Bench, Held) {
    let mut bench = Bench::start_with(|request| request.run_timeout_seconds = Some(1_000));
    bench.claim(1);
    bench.lose(1);
    let held = bench.claim(1);
    assert_eq!(held.attempt, 2);
    (bench, held)
}

fn leased_and(then: impl FnOnce(&mut Bench, Held)) -> Bench {
    let (mut bench, held) = leased();
    then(&mut bench, held);
    bench
}

/// Task 1 was completed in its second hand-out, with one activity; that is task 2.
fn completed() -> Bench {
    leased_and(|bench, held| {
        bench.ok(held.complete(vec![activity("a")]));
    })
}

/// R recorded, L fence lost, D first answer again, A another report was recorded, O not open,
/// U unknown, C run closed, M closed meanwhile, T run timed out, I timed out instead. (Receipts are
/// by task and hand-out: a report of the same words on an activity's task meets the activity's.)
#[test]
fn every_report_on_a_workflow_task() {
    let third = leased_and(|bench, held| {
        bench.ok(held.fail(TaskFailure::Other("no handler".into())));
        bench.claim(1);
    });
    let next = {
        let mut bench = completed();
        bench.run_activity(2);
        bench.claim(3);
        bench.lose(3);
        bench.claim(3);
        bench
    };
    let expired = |mut bench: Bench| {
        bench.now = bench.row(1).lease.clone().unwrap().expires_at;
        bench
    };
    let cancelled = |mut bench: Bench| {
        assert!(matches!(bench.cancel(), Outcome::Committed(_)));
        bench
    };
    let terminated = |mut bench: Bench| {
        assert!(matches!(bench.terminate(), Outcome::Committed(_)));
        bench
    };
    // A claim shortly before the deadline, so that its lease is live when that passes.
    let late = || {
        let mut bench = Bench::start_with(|request| request.run_timeout_seconds = Some(1_000));
        bench.claim(1);
        bench.lose(1);
        bench.at(999);
        let held = bench.claim(1);
        bench.at(1_000);
        (bench, held)
    };
    let timed_out = |mut bench: Bench| {
        bench.at(1_000);
        assert!(matches!(bench.fire(), Outcome::Committed(_)));
        bench
    };
    let table: Vec<(&str, Bench, TaskNo, u32, &str)> = vec![
        ("leased", leased().0, 1, 2, "RRRR LLLL LLLL LLLL"),
        (
            "lease run out",
            expired(leased().0),
            1,
            2,
            "LLLL LLLL LLLL LLLL",
        ),
        (
            "lost",
            leased_and(|bench, _| bench.lose(1)),
            1,
            2,
            "LLLL LLLL LLLL LLLL",
        ),
        ("failed, leased again", third, 1, 3, "RRRR AADD LLLL LLLL"),
        ("done, none open", completed(), 1, 2, "DAAA OOOO OOOO AAAA"),
        (
            "done, another leased",
            next.clone(),
            1,
            2,
            "DAAA OOOO OOOO AAAA",
        ),
        ("the other one", next.clone(), 3, 2, "RRRR LLLL LLLL LLLL"),
        (
            "an activity's number",
            next.clone(),
            2,
            2,
            "OOOO DAAA OOOO OOOO",
        ),
        ("number 0", leased().0, 0, 2, "UUUU UUUU UUUU UUUU"),
        ("a number to come", leased().0, 2, 2, "UUUU UUUU UUUU UUUU"),
        (
            "ended by itself",
            leased_and(|bench, held| {
                bench.ok(held.complete(vec![complete_workflow()]));
            }),
            1,
            2,
            "DAAA CCCC CCCC AAAA",
        ),
        (
            "continued",
            leased_and(|bench, held| {
                bench.ok(held.complete(vec![continue_as_new()]));
            }),
            1,
            2,
            "DAAA CCCC CCCC AAAA",
        ),
        (
            "cancelled, leased",
            cancelled(leased().0),
            1,
            2,
            "MMMM CCCC CCCC CCCC",
        ),
        (
            "terminated, leased",
            terminated(leased().0),
            1,
            2,
            "MMMM CCCC CCCC CCCC",
        ),
        (
            "cancelled, run out",
            cancelled(expired(leased().0)),
            1,
            2,
            "CCCC CCCC CCCC CCCC",
        ),
        (
            "cancelled, lost",
            cancelled(leased_and(|bench, _| bench.lose(1))),
            1,
            2,
            "CCCC CCCC CCCC CCCC",
        ),
        (
            "cancelled, none open",
            cancelled(completed()),
            1,
            2,
            "DAAA CCCC CCCC AAAA",
        ),
        (
            "cancelled, another leased",
            cancelled(next),
            1,
            2,
            "DAAA CCCC CCCC AAAA",
        ),
        (
            "cancelled, number 0",
            cancelled(leased().0),
            0,
            2,
            "UUUU UUUU UUUU UUUU",
        ),
        (
            "cancelled, no such number",
            cancelled(leased().0),
            9,
            2,
            "UUUU UUUU UUUU UUUU",
        ),
        (
            "timed out, leased",
            timed_out(late().0),
            1,
            2,
            "TTTT CCCC CCCC CCCC",
        ),
        (
            "timed out, run out",
            timed_out(leased().0),
            1,
            2,
            "CCCC CCCC CCCC CCCC",
        ),
        (
            "timed out, none open",
            timed_out(completed()),
            1,
            2,
            "DAAA CCCC CCCC AAAA",
        ),
        (
            "timed out by a report",
            {
                let (mut bench, held) = late();
                bench.ok(held.complete(Vec::new()));
                bench
            },
            1,
            2,
            "TTTT CCCC CCCC CCCC",
        ),
        (
            "past its deadline, leased",
            late().0,
            1,
            2,
            "IIII LLLL LLLL LLLL",
        ),
    ];
    for (situation, bench, no, attempt, expected) in table {
        assert_eq!(row(&bench, no, attempt), expected, "{situation}");
    }
}
