//! Decisions that are merged: net effects, and the same outcome as one by one.

use super::kit::*;
use crate::domain::decision::{Decision, Effects, TaskEffect, TimerEffect, TimerKey, TimerKind};
use crate::domain::ids::RunId;
use crate::domain::routing::TaskKind;
use crate::domain::run::{
    ActivityOutcome, Input, ObservedLease, OverdueKind, Refusal, TaskFailure, Verdict, decide,
};

fn decided(bench: &Bench, merged: Option<Decision>, input: Input) -> Result<Decision, Refusal> {
    let state = merged
        .as_ref()
        .map_or(bench.state(), |merged| &merged.write.next);
    match decide(state, input, bench.now, &bench.settings)? {
        Verdict::Commit(decision, _) => Ok(match merged {
            None => *decision,
            Some(merged) => merged.then(*decision),
        }),
        Verdict::Answer(reply) => panic!("nothing to merge: {reply:?}"),
    }
}

fn merged(bench: &Bench, inputs: Vec<Input>) -> Decision {
    inputs
        .into_iter()
        .fold(None, |merged, input| {
            Some(decided(bench, merged, input).unwrap())
        })
        .unwrap()
}

fn commit(bench: &mut Bench, decision: Decision) -> Result<(), Lost> {
    let now = bench.now;
    bench
        .db
        .commit(decision, now, &mut |_: RunId, _, _| None)
        .map(|_| ())
}

/// A task that is opened and closed in one write is never written.
#[test]
fn open_then_close_is_nothing() {
    let mut bench = Bench::after(vec![timer(60)]);
    let decision = merged(&bench, vec![signal("go"), signal("stop")]);
    assert_eq!(decision.write.effects.tasks().len(), 1);
    commit(&mut bench, decision).unwrap();
    assert_eq!(bench.signals(), ["go"]);
    assert_eq!(bench.state().held.len(), 1);

    let bench = Bench::after(vec![activity("a")]);
    let open = bench.row(2).clone();
    let mut effects = Effects::default();
    effects.open(7, open.task.clone());
    effects.again(7, at(5));
    assert!(matches!(&effects.tasks()[&7], TaskEffect::Open(task) if task.available_at == at(5)));
    let mut later = Effects::default();
    later.close(7);
    effects.then(later);
    assert!(effects.tasks().is_empty());
}

/// A task that continues and then closes is closed; a timer has its last effect.
#[test]
fn the_last_effect_counts() {
    let key = TimerKey {
        kind: TimerKind::User,
        no: 1,
    };
    let mut effects = Effects::default();
    effects.again(7, at(5));
    effects.set(key, at(5));
    let mut later = Effects::default();
    later.close(7);
    later.cancel(key);
    effects.then(later);
    assert_eq!(effects.tasks()[&7], TaskEffect::Close);
    assert_eq!(effects.timers()[&key], TimerEffect::Cancel);
    let mut later = Effects::default();
    later.set(key, at(9));
    effects.then(later);
    assert_eq!(effects.timers()[&key], TimerEffect::Set(at(9)));
}

/// Outcomes that arrive together share one task and one version, and leave the same history as one
/// by one.
#[test]
fn outcomes_that_arrive_together_are_one_write() {
    let setup = || {
        let mut bench = Bench::after(vec![activity("a"), activity("b"), timer(60)]);
        let (a, b) = (bench.claim(2), bench.claim_as(3, "w2"));
        let inputs = vec![
            a.started(),
            a.outcome(returned(), None),
            b.outcome(ActivityOutcome::Failed(failure("Busy")), None),
            signal("held"),
        ];
        (bench, inputs)
    };
    let (mut together, inputs) = setup();
    let decision = merged(&together, inputs);
    assert_eq!(decision.fences.len(), 2, "the same fence is checked once");
    commit(&mut together, decision).unwrap();
    let (mut single, inputs) = setup();
    for input in inputs {
        single.ok(input);
    }
    assert_eq!(together.types(), single.types());
    assert_eq!(together.tasks(), single.tasks());
    assert_eq!(together.state().version + 3, single.state().version);
    assert_eq!(together.state().held.len(), 1);
    assert_eq!(together.tasks(), [(4, TaskKind::Workflow)]);
}

/// A completion and the cancel behind it: what the completion opened is never written.
#[test]
fn a_completion_and_a_cancel_leave_nothing_open() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    let cancel = Input::Cancel(close_request(ObservedLease::Unknown));
    let decision = merged(
        &bench,
        vec![task.complete(vec![activity("a"), timer(60)]), cancel],
    );
    assert!(matches!(
        decision.write.effects.tasks()[&1],
        TaskEffect::Close
    ));
    assert_eq!(decision.write.effects.tasks().len(), 1);
    commit(&mut bench, decision).unwrap();
    assert_eq!(bench.tasks(), []);
    assert_eq!(bench.timers(), []);
}

/// A time-out and the outcome of the same attempt: the row can satisfy both fences, since a lease
/// outlives the attempt's limit. Whichever comes first ends the attempt.
#[test]
fn a_time_out_and_an_outcome_of_one_attempt_do_not_merge() {
    let setup = || {
        let mut limited = policy(3, &[]);
        limited.start_to_close_timeout = Some(5);
        let mut bench = Bench::after(vec![activity_with("a", Some(limited))]);
        let held = bench.claim(2);
        bench.at(5);
        (bench, held)
    };
    for outcome in [returned(), ActivityOutcome::Failed(failure("Busy"))] {
        let (bench, held) = setup();
        let first = decided(&bench, None, held.overdue(OverdueKind::StartToClose, None)).unwrap();
        let second = decided(&bench, Some(first), held.outcome(outcome, None));
        assert!(matches!(second, Err(Refusal::StaleAttempt)), "{second:?}");
    }
    let (bench, held) = setup();
    let busy = ActivityOutcome::Failed(failure("Busy"));
    let first = decided(&bench, None, held.outcome(busy, None)).unwrap();
    let second = decided(
        &bench,
        Some(first),
        held.overdue(OverdueKind::StartToClose, None),
    );
    assert!(matches!(second, Err(Refusal::NothingToDo)), "{second:?}");
}

/// A failed task and a cancel that saw its lease: the lease is over, and must be looked up again.
#[test]
fn a_failure_and_a_cancel_under_its_lease_do_not_merge() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    let cancel = Input::Cancel(close_request(bench.observe()));
    let first = decided(
        &bench,
        None,
        task.fail(TaskFailure::Other("no handler".into())),
    )
    .unwrap();
    let second = decided(&bench, Some(first), cancel);
    assert!(matches!(second, Err(Refusal::LeaseNeeded)), "{second:?}");
}

/// A decision on a state that has moved is not written.
#[test]
fn a_decision_on_an_old_state_is_lost() {
    let mut bench = Bench::after(vec![timer(60)]);
    let stale = merged(&bench, vec![signal("one")]);
    bench.ok(signal("two"));
    assert_eq!(commit(&mut bench, stale), Err(Lost::Version));
    assert_eq!(bench.signals(), ["two"]);
}

/// A workflow id is started once.
#[test]
fn a_second_start_of_a_workflow_is_lost() {
    let mut bench = Bench::start();
    let again = crate::domain::run::start(run_id(2), start_request(), bench.now, &bench.settings);
    assert_eq!(commit(&mut bench, again), Err(Lost::Key));
}
