//! Structural limits: what exceeds one is refused whole, and the lease stays in place.

use super::kit::*;
use crate::domain::command::Command;
use crate::domain::limits::{LimitKind, Limits, MAX_HISTORY_EVENTS};
use crate::domain::run::{Refusal, Settings};

fn limited(change: impl FnOnce(&mut Limits)) -> Bench {
    let mut settings = Settings::default();
    change(&mut settings.limits);
    Bench::with(settings, |_| {})
}

fn refused(bench: &mut Bench, commands: Vec<Command>) -> (LimitKind, u64, u64) {
    let task = bench.claim(bench.workflow_task().unwrap());
    let before = format!("{:?}", bench.stored());
    let refusal = bench.refused(task.complete(commands));
    assert_eq!(
        before,
        format!("{:?}", bench.stored()),
        "a refusal changes nothing"
    );
    // The lease is in place: the same worker may send less.
    bench.ok(task.complete(Vec::new()));
    match refusal {
        Refusal::Limit {
            kind,
            current,
            configured,
        } => (kind, current, configured),
        other => panic!("{other:?}"),
    }
}

#[test]
fn open_activities_are_limited() {
    let mut bench = limited(|limits| limits.pending_activities = 2);
    let three = vec![activity("a"), activity("b"), activity("c")];
    assert_eq!(
        refused(&mut bench, three),
        (LimitKind::PendingActivities, 3, 2)
    );
    bench.ok(signal("s"));
    bench.step(vec![activity("a"), activity("b")]);
    bench.run_activity(3);
    assert_eq!(
        refused(&mut bench, vec![activity("c"), activity("d")]),
        (LimitKind::PendingActivities, 3, 2)
    );
}

#[test]
fn open_timers_are_limited() {
    let mut bench = limited(|limits| limits.pending_timers = 1);
    assert_eq!(
        refused(&mut bench, vec![timer(5), timer(6)]),
        (LimitKind::PendingTimers, 2, 1)
    );
}

#[test]
fn commands_of_a_completion_are_limited() {
    let mut bench = limited(|limits| limits.command_batch = 2);
    let three = vec![side_effect(), side_effect(), complete_workflow()];
    assert_eq!(refused(&mut bench, three), (LimitKind::CommandBatch, 3, 2));
}

#[test]
fn events_of_a_completion_are_limited() {
    let mut bench = limited(|limits| limits.events_per_transaction = 3);
    let four = vec![timer(0), timer(0)];
    assert_eq!(
        refused(&mut bench, four),
        (LimitKind::HistoryTransaction, 4, 3)
    );
    bench.ok(signal("s"));
    let four = vec![
        side_effect(),
        side_effect(),
        side_effect(),
        complete_workflow(),
    ];
    assert_eq!(
        refused(&mut bench, four),
        (LimitKind::HistoryTransaction, 4, 3)
    );
}

/// Signals that were held are not the completion's events: however many wait, a task can be closed
/// and a run can end.
#[test]
fn held_signals_are_not_counted_against_a_completion() {
    for commands in [
        vec![],
        vec![complete_workflow()],
        vec![fail_workflow()],
        vec![continue_as_new()],
    ] {
        let mut bench = limited(|limits| limits.events_per_transaction = 2);
        for _ in 0..5 {
            bench.ok(signal("s"));
        }
        bench.step(commands);
    }
}

#[test]
fn waiting_signals_are_limited() {
    let mut bench = limited(|limits| limits.pending_signals = 2);
    bench.ok(signal("one"));
    bench.ok(signal("two"));
    match bench.refused(signal("three")) {
        Refusal::Limit {
            kind,
            current,
            configured,
        } => {
            assert_eq!(
                (kind, current, configured),
                (LimitKind::PendingSignals, 3, 2)
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.state().held.len(), 2);
    bench.step(Vec::new());
    bench.ok(signal("three"));
}

/// 0 switches a limit off.
#[test]
fn zero_is_no_limit() {
    let mut bench = limited(|limits| {
        limits.pending_activities = 0;
        limits.pending_timers = 0;
        limits.pending_signals = 0;
        limits.command_batch = 0;
        limits.events_per_transaction = 0;
    });
    bench.ok(signal("s"));
    bench.step(vec![activity("a"), timer(5), side_effect()]);
}

/// A full history takes no more commands, but the workflow can still end or go on as another run,
/// and a task with nothing to add can be closed.
#[test]
fn a_full_history_takes_only_an_end() {
    let full = |more: u64| {
        let mut bench = Bench::start();
        let stored = bench.db.runs.get_mut(&bench.run).unwrap();
        stored.state.next_event = MAX_HISTORY_EVENTS + more + 1;
        let task = bench.claim(1);
        (bench, task)
    };
    let decide = |bench: &Bench, input| {
        crate::domain::run::decide(bench.state(), input, bench.now, &bench.settings)
    };
    for more in [0, 1] {
        let (bench, task) = full(more);
        match decide(&bench, task.complete(vec![side_effect()])) {
            Err(Refusal::Limit { kind, .. }) => assert_eq!(kind, LimitKind::HistoryEvents),
            other => panic!("{other:?}"),
        }
    }
    for commands in [
        vec![],
        vec![complete_workflow()],
        vec![side_effect(), continue_as_new()],
    ] {
        let (bench, task) = full(1);
        assert!(decide(&bench, task.complete(commands)).is_ok());
    }
}
