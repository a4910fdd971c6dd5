//! Repair, and tasks that are put off: after failures, after blocks, after they were given up.

use super::kit::*;
use crate::domain::run::{Input, ObservedLease, Refusal, Reply, TaskFailure};
use crate::domain::time::Timestamp;

fn repair(bench: &mut Bench) -> Outcome {
    let lease = bench.observe();
    bench.put(Input::Repair(close_request(lease)))
}

fn blocked(bench: &mut Bench) {
    let task = bench.claim(1);
    bench.ok(task.fail(TaskFailure::Blocked("nondeterministic".into())));
}

/// A task that nobody has trouble with needs no repair: nothing is written.
#[test]
fn a_sound_task_needs_no_repair() {
    let mut leased = Bench::start();
    leased.claim(1);
    for mut bench in [Bench::start(), leased, Bench::after(vec![timer(60)])] {
        assert!(matches!(
            repair(&mut bench),
            Outcome::Answered(Reply::Repaired { command: None })
        ));
    }
}

/// Rule: worker plane 8.6 and Precedence: a blocked task is redelivered slowly; a repair makes it
/// ready at once, with one `RepairRequested`, and its failures count anew.
#[test]
fn a_blocked_task_is_made_ready() {
    let mut bench = Bench::start();
    blocked(&mut bench);
    assert!(bench.row(1).visible_at > bench.now);
    let task = bench.state().workflow_task.clone().unwrap();
    assert!(task.blocked);
    assert_eq!(task.last_failure.as_deref(), Some("nondeterministic"));
    assert!(matches!(
        repair(&mut bench),
        Outcome::Committed(Reply::Repaired { command: Some(2) })
    ));
    assert_eq!(bench.new_types(), ["RepairRequested"]);
    let requested = &bench.payloads("RepairRequested")[0];
    assert_eq!(requested["liveness_state"], "workflow_task_ready");
    let task = bench.state().workflow_task.clone().unwrap();
    assert_eq!((task.blocked, task.failures), (false, 0));
    let held = bench.claim(1);
    assert_eq!(held.attempt, 2);
    bench.ok(held.complete(vec![timer(60)]));
}

/// The wait of a task that blocks again and again grows and has a bound.
#[test]
fn a_blocked_task_is_redelivered_ever_more_slowly() {
    let mut bench = Bench::start();
    let mut waits = Vec::new();
    for _ in 0..12 {
        blocked(&mut bench);
        let row = bench.row(1);
        waits.push(row.visible_at.millis_since(bench.now));
        bench.now = row.visible_at;
    }
    assert!(waits.is_sorted(), "{waits:?}");
    assert_eq!(waits.last(), Some(&60_000));
    assert!(waits[0] < 60_000);
    assert_eq!(bench.payloads("RepairRequested").len(), 0);
}

/// A task that was given up waits for a repair until the end of time; signals wait with it.
#[test]
fn a_task_that_was_given_up_waits_for_a_repair() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    bench.now = bench.row(1).lease.clone().unwrap().expires_at;
    bench.ok(task.give_up());
    assert_eq!(bench.row(1).visible_at, Timestamp::from_micros(i64::MAX));
    bench.ok(signal("go"));
    assert_eq!(bench.signals(), [""; 0]);
    assert!(matches!(repair(&mut bench), Outcome::Committed(_)));
    bench.step(vec![timer(60)]);
    assert_eq!(bench.signals(), ["go"]);
}

/// A task in a worker's hands is not taken from it; one in dead hands is.
#[test]
fn a_live_lease_is_left_alone() {
    let mut bench = Bench::start();
    blocked(&mut bench);
    bench.now = bench.row(1).visible_at;
    bench.claim(1);
    assert!(matches!(
        repair(&mut bench),
        Outcome::Answered(Reply::Repaired { command: None })
    ));
    let unlooked = Input::Repair(close_request(ObservedLease::Unknown));
    assert!(matches!(bench.refused(unlooked), Refusal::LeaseNeeded));
    bench.now = bench.row(1).lease.clone().unwrap().expires_at;
    assert!(matches!(repair(&mut bench), Outcome::Committed(_)));
    assert!(bench.row(1).lease.is_none());
}

/// A closed run is not repaired.
#[test]
fn a_closed_run_is_not_repaired() {
    let mut bench = Bench::after(vec![complete_workflow()]);
    assert!(matches!(
        repair(&mut bench),
        Outcome::Refused(Refusal::NotActive(_))
    ));
}
