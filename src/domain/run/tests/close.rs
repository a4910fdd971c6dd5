//! Closings from outside: order of events, what is dropped, the lease that is cut off, archiving.

use super::kit::*;
use crate::domain::run::{
    ActivityOutcome, CloseReason, Input, ObservedLease, Refusal, Reply, Status, TaskFailure,
};

/// A run with an activity that waits, one that runs, a timer, and a held signal.
fn busy() -> Bench {
    let mut limited = policy(3, &[]);
    limited.schedule_to_start_timeout = Some(600);
    limited.schedule_to_close_timeout = Some(900);
    let mut bench = Bench::with(Default::default(), |request| {
        request.run_timeout_seconds = Some(5_000);
        request.execution_timeout_seconds = Some(6_000);
    });
    bench.step(vec![
        activity_with("waits", Some(limited)),
        activity("runs"),
        timer(60),
        activity("ends"),
    ]);
    let held = bench.claim_as(3, "w2");
    bench.ok(held.started());
    bench.run_activity(4);
    bench.ok(signal("held"));
    bench
}

/// The request, then what is cancelled, then held signals, then the terminal event; nothing is left.
#[test]
fn a_closing_from_outside_has_its_order_and_drops_everything() {
    for cancel in [true, false] {
        let mut bench = busy();
        let reply = match if cancel {
            bench.cancel()
        } else {
            bench.terminate()
        } {
            Outcome::Committed(reply) => reply,
            other => panic!("{other:?}"),
        };
        assert!(matches!(reply, Reply::Closed { command: 3 }));
        let (asked, last, status) = if cancel {
            ("CancelRequested", "WorkflowCancelled", Status::Cancelled)
        } else {
            (
                "TerminateRequested",
                "WorkflowTerminated",
                Status::Terminated,
            )
        };
        assert_eq!(
            bench.new_types(),
            [
                asked,
                "ActivityCancelled",
                "ActivityCancelled",
                "TimerCancelled",
                "SignalReceived",
                last
            ]
        );
        assert_eq!(bench.state().status(), status);
        assert_eq!(bench.tasks(), []);
        assert_eq!(bench.timers(), []);
        let attempts: Vec<_> = bench
            .payloads("ActivityCancelled")
            .iter()
            .map(|cancelled| cancelled["attempt_number"].as_u64().unwrap())
            .collect();
        assert_eq!(attempts, [0, 1]);
        let closed = &bench.payloads(last)[0];
        assert_eq!(closed["reason"], "no longer wanted");
        assert_eq!(
            closed["closed_reason"],
            if cancel { "cancelled" } else { "terminated" }
        );
    }
}

/// A closed run is not closed again.
#[test]
fn a_closed_run_cannot_be_closed_again() {
    let mut bench = Bench::start();
    bench.cancel();
    for input in [
        Input::Cancel(close_request(ObservedLease::Free)),
        Input::Terminate(close_request(ObservedLease::Unknown)),
    ] {
        match bench.refused(input) {
            Refusal::NotActive(close) => assert_eq!(close.reason, CloseReason::Cancelled),
            other => panic!("{other:?}"),
        }
    }
}

/// Whether a worker holds the task decides what its late report is told, so that is looked up first.
/// A run without an open workflow task needs no look.
#[test]
fn a_closing_needs_to_know_who_holds_the_task() {
    let mut bench = Bench::start();
    let unknown = || Input::Cancel(close_request(ObservedLease::Unknown));
    assert!(matches!(bench.refused(unknown()), Refusal::LeaseNeeded));
    let mut bench = Bench::after(vec![timer(60)]);
    bench.ok(unknown());
    assert_eq!(bench.state().status(), Status::Cancelled);
}

/// The closing is fenced on what was seen: a task that changed hands in between refuses it.
#[test]
fn a_closing_is_fenced_on_the_lease_that_was_seen() {
    let mut bench = Bench::start();
    let free = bench.observe();
    let task = bench.claim(1);
    assert_eq!(bench.lost(Input::Cancel(close_request(free))), Lost::Fence);
    let held = bench.observe();
    bench.lose(1);
    assert_eq!(
        bench.lost(Input::Cancel(close_request(held.clone()))),
        Lost::Fence
    );
    bench.claim_as(1, "w2");
    assert_eq!(bench.lost(Input::Cancel(close_request(held))), Lost::Fence);
    assert!(matches!(bench.cancel(), Outcome::Committed(_)));
    let refusal = bench.refused(task.complete(Vec::new()));
    assert!(
        matches!(refusal, Refusal::RunClosed(_)),
        "the first holder was not live at the close"
    );
}

/// A lease that was seen live must be live when the run closes: its holder is told that it was.
#[test]
fn a_lease_that_ran_out_before_the_close_was_not_live() {
    let mut bench = Bench::start();
    bench.claim(1);
    let seen = bench.observe();
    bench.now = bench.row(1).lease.clone().unwrap().expires_at;
    assert_eq!(bench.lost(Input::Cancel(close_request(seen))), Lost::Fence);
}

/// A lease whose failure has been reported is over, whatever was seen before.
#[test]
fn a_reported_lease_is_over() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    let seen = bench.observe();
    bench.ok(task.fail(TaskFailure::Other("no handler".into())));
    let refusal = bench.refused(Input::Cancel(close_request(seen)));
    assert!(matches!(refusal, Refusal::LeaseNeeded));
}

/// A completion or failure under the lease that was live at the close is answered, not recorded.
/// Every other fence is refused, and the first holder's answer does not change.
#[test]
fn only_the_live_fence_is_told_that_the_run_closed_meanwhile() {
    for cancel in [true, false] {
        let mut bench = Bench::start();
        let older = bench.claim(1);
        bench.lose(1);
        let live = bench.claim(1);
        if cancel {
            bench.cancel()
        } else {
            bench.terminate()
        };
        let version = bench.state().version;
        for _ in 0..2 {
            let complete = bench.answered(live.complete(vec![complete_workflow()]));
            assert!(
                matches!(complete, Reply::ClosedMeanwhile(_)),
                "{complete:?}"
            );
            let failed = bench.answered(live.fail(TaskFailure::Other("late".into())));
            assert!(matches!(failed, Reply::ClosedMeanwhile(_)), "{failed:?}");
        }
        let mut forged = live.clone();
        forged.attempt = 9;
        let mut stranger = live.clone();
        stranger.owner = "w9".into();
        for fence in [older, forged, stranger] {
            let refusal = bench.refused(fence.complete(Vec::new()));
            assert!(matches!(refusal, Refusal::RunClosed(_)), "{refusal:?}");
        }
        assert_eq!(bench.state().version, version);
    }
}

/// A lease that had run out at the close was not live, and neither was a task that nobody held.
#[test]
fn a_fence_that_was_not_live_is_refused() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    bench.now = bench.row(1).lease.clone().unwrap().expires_at;
    assert!(matches!(bench.cancel(), Outcome::Committed(_)));
    let refusal = bench.refused(task.complete(Vec::new()));
    assert!(matches!(refusal, Refusal::RunClosed(_)));
}

/// Reports of activities after a closing from outside are refused; a run that ended by itself only
/// no longer cares.
#[test]
fn activities_of_a_closed_run_are_told_why() {
    let mut bench = Bench::after(vec![activity("a")]);
    let held = bench.claim(2);
    bench.cancel();
    for outcome in [returned(), ActivityOutcome::Failed(failure("Busy"))] {
        match bench.refused(held.outcome(outcome, None)) {
            Refusal::RunClosed(close) => assert_eq!(close.reason, CloseReason::Cancelled),
            other => panic!("{other:?}"),
        }
    }
    let mut bench = Bench::after(vec![activity("a"), activity("b")]);
    let held = bench.claim(2);
    bench.run_activity(3);
    bench.step(vec![complete_workflow()]);
    let events = bench.types().len();
    let reply = bench.answered(held.outcome(returned(), None));
    assert!(matches!(reply, Reply::TooLate(_)), "{reply:?}");
    assert_eq!(
        bench.types().len(),
        events,
        "no event after the terminal one"
    );
}

/// Only a closed run can be archived; its events may follow the terminal one, once.
#[test]
fn a_closed_run_is_archived_once() {
    let mut bench = Bench::start();
    assert!(matches!(bench.refused(archive()), Refusal::NotClosed));
    bench.cancel();
    let reply = bench.ok(archive());
    assert!(
        matches!(reply, Reply::Archived { command: Some(3) }),
        "{reply:?}"
    );
    assert_eq!(bench.new_types(), ["ArchiveRequested", "WorkflowArchived"]);
    assert!(bench.state().archived);
    assert!(matches!(
        bench.answered(archive()),
        Reply::Archived { command: None }
    ));
    assert_eq!(bench.state().status(), Status::Cancelled);
}
