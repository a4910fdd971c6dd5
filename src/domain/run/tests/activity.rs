//! Activities: attempts and retries, starts and heartbeats in history, outcomes and late reports.

use super::kit::*;
use crate::domain::command::Failure;
use crate::domain::ids::WorkerId;
use crate::domain::routing::TaskKind;
use crate::domain::run::{ActivityOutcome, Beat, Refusal, ReportKind};

fn with_policy(max_attempts: u32, backoff_seconds: &[u64]) -> Bench {
    Bench::after(vec![activity_with(
        "a",
        Some(policy(max_attempts, backoff_seconds)),
    )])
}

/// An outcome is recorded and wakes the workflow in one commit; the activity's row is gone.
#[test]
fn a_result_wakes_the_workflow() {
    let mut bench = Bench::after(vec![activity("a")]);
    let reply = bench.run_activity(2);
    assert_eq!(
        reported(&reply),
        (ReportKind::Completed, vec![], Some(3), false)
    );
    assert_eq!(bench.new_types(), ["ActivityStarted", "ActivityCompleted"]);
    assert_eq!(bench.tasks(), [(3, TaskKind::Workflow)]);
    assert_eq!(bench.payloads("ActivityCompleted")[0]["attempt_number"], 1);
}

/// Without a policy there is exactly one attempt.
#[test]
fn no_policy_means_one_attempt() {
    let mut bench = Bench::after(vec![activity("a")]);
    bench.fail_activity(2, failure("Declined"));
    assert_eq!(bench.new_types(), ["ActivityStarted", "ActivityFailed"]);
    let failed = &bench.payloads("ActivityFailed")[0];
    assert_eq!(failed["exception_type"], "Declined");
    assert_eq!(failed["message"], "Declined happened");
    assert_eq!(failed["non_retryable"], false);
    assert_eq!(failed["failure_category"], "activity");
}

/// Attempt n is followed after element n - 1 of the backoff list, whose last one repeats; attempts
/// count on in one row, and the last failure is final.
#[test]
fn the_backoff_list_is_followed_until_the_attempts_are_spent() {
    let mut bench = with_policy(4, &[1, 5]);
    let mut waits = Vec::new();
    for attempt in 1..=3 {
        let held = bench.claim(2);
        assert_eq!(held.attempt, attempt);
        let reply = bench.ok(held.outcome(ActivityOutcome::Failed(failure("Busy")), None));
        assert_eq!(reported(&reply).2, Some(2), "the same task carries on");
        assert_eq!(
            bench.new_types(),
            ["ActivityStarted", "ActivityRetryScheduled"]
        );
        assert_eq!(bench.workflow_task(), None);
        let at = bench.row(2).visible_at;
        waits.push(at.millis_since(bench.now));
        bench.now = at;
    }
    assert_eq!(waits, [1_000, 5_000, 5_000]);
    bench.fail_activity(2, failure("Busy"));
    assert_eq!(bench.new_types(), ["ActivityStarted", "ActivityFailed"]);
    assert_eq!(bench.payloads("ActivityFailed")[0]["attempt_number"], 4);
    let retries: Vec<_> = bench
        .payloads("ActivityRetryScheduled")
        .iter()
        .map(|retry| {
            (
                retry["retry_after_attempt"].clone(),
                retry["retry_backoff_seconds"].clone(),
            )
        })
        .collect();
    assert_eq!(
        retries,
        [
            (1.into(), 1.into()),
            (2.into(), 5.into()),
            (3.into(), 5.into())
        ]
    );
}

/// An empty backoff list means that the next attempt is ready at once.
#[test]
fn no_backoff_means_at_once() {
    let mut bench = with_policy(2, &[]);
    bench.fail_activity(2, failure("Busy"));
    assert_eq!(bench.row(2).visible_at, bench.now);
    bench.run_activity(2);
    assert_eq!(bench.payloads("ActivityCompleted")[0]["attempt_number"], 2);
}

/// `non_retryable` and the listed types and classes end the activity at once, by exact match.
#[test]
fn final_failures_are_not_tried_again() {
    let flagged = Failure {
        non_retryable: true,
        ..failure("Busy")
    };
    let of_class = Failure {
        class: Some("Declined".to_owned()),
        ..failure("Other")
    };
    for (failure, retried) in [
        (flagged, false),
        (failure("Declined"), false),
        (of_class, false),
        (failure("declined"), true),
        (failure("Busy"), true),
    ] {
        let mut listing = policy(3, &[]);
        listing.non_retryable_error_types = vec!["Declined".to_owned()];
        let mut bench = Bench::after(vec![activity_with("a", Some(listing))]);
        bench.fail_activity(2, failure.clone());
        let last = if retried {
            "ActivityRetryScheduled"
        } else {
            "ActivityFailed"
        };
        assert_eq!(bench.new_types(), ["ActivityStarted", last], "{failure:?}");
    }
}

/// A result that is too large fails the activity for good, as a structural limit.
#[test]
fn a_too_large_result_is_a_structural_limit() {
    let mut bench = with_policy(3, &[]);
    let held = bench.claim(2);
    let reply = bench.ok(held.outcome(ActivityOutcome::TooLarge { bytes: 2_097_153 }, None));
    assert_eq!(reported(&reply).0, ReportKind::Completed);
    assert_eq!(bench.new_types(), ["ActivityStarted", "ActivityFailed"]);
    let failed = &bench.payloads("ActivityFailed")[0];
    assert_eq!(failed["failure_category"], "structural_limit");
    assert_eq!(failed["non_retryable"], true);
    assert_eq!(failed["structural_limit_kind"], "payload_size");
    assert_eq!(failed["structural_limit_value"], 2_097_153);
    assert_eq!(failed["structural_limit_configured"], 2_097_152);
    assert!(bench.workflow_task().is_some());
}

/// A claimed attempt is shown while it runs, once; its outcome does not show it again.
#[test]
fn a_start_is_shown_once_while_it_runs() {
    let mut bench = Bench::after(vec![activity("a")]);
    let held = bench.claim(2);
    bench.ok(held.started());
    assert_eq!(bench.new_types(), ["ActivityStarted"]);
    assert_eq!(bench.payloads("ActivityStarted")[0]["lease_owner"], "w1");
    assert!(matches!(
        bench.refused(held.started()),
        Refusal::NothingToDo
    ));
    bench.ok(held.outcome(returned(), None));
    assert_eq!(bench.new_types(), ["ActivityCompleted"]);
    assert!(matches!(
        bench.refused(held.started()),
        Refusal::NothingToDo
    ));
}

/// A hand-off shows the start in the opening commit.
#[test]
fn a_hand_off_shows_the_start_in_the_opening_commit() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    bench.parked = vec![(TaskKind::Activity, WorkerId::from("w2"))];
    bench.ok(task.complete(vec![activity("a"), activity("b")]));
    assert_eq!(
        bench.new_types(),
        ["ActivityScheduled", "ActivityScheduled", "ActivityStarted"]
    );
    let held = bench.held(2, 1);
    assert_eq!(held.owner.as_str(), "w2");
    assert!(matches!(
        bench.refused(held.started()),
        Refusal::NothingToDo
    ));
    bench.ok(held.outcome(returned(), None));
    assert_eq!(bench.new_types(), ["ActivityCompleted"]);
}

/// Each attempt is shown once: also the one after a retry, and after a lost lease.
#[test]
fn every_attempt_is_shown_once() {
    let mut bench = with_policy(2, &[]);
    let first = bench.claim(2);
    bench.ok(first.started());
    bench.lose(2);
    let second = bench.claim(2);
    bench.ok(second.started());
    bench.ok(second.outcome(ActivityOutcome::Failed(failure("Busy")), None));
    bench.run_activity(2);
    let shown: Vec<_> = bench
        .payloads("ActivityStarted")
        .iter()
        .map(|started| started["attempt_number"].as_u64().unwrap())
        .collect();
    assert_eq!(shown, [1, 2, 3]);
}

/// A lost lease spends no retry: two attempts may fail, however many were lost.
#[test]
fn a_lost_lease_spends_no_retry() {
    let mut bench = with_policy(2, &[]);
    for _ in 0..3 {
        bench.claim(2);
        bench.lose(2);
    }
    bench.fail_activity(2, failure("Busy"));
    assert_eq!(
        bench.new_types(),
        ["ActivityStarted", "ActivityRetryScheduled"]
    );
    bench.claim(2);
    bench.lose(2);
    bench.fail_activity(2, failure("Busy"));
    assert_eq!(bench.new_types(), ["ActivityStarted", "ActivityFailed"]);
    assert_eq!(bench.payloads("ActivityFailed")[0]["attempt_number"], 6);
}

/// The last heartbeat of an attempt enters the history with the outcome, between start and outcome.
#[test]
fn the_last_heartbeat_is_recorded_with_the_outcome() {
    let mut bench = with_policy(2, &[]);
    for outcome in [ActivityOutcome::Failed(failure("Busy")), returned()] {
        let held = bench.claim(2);
        for place in ["1", "2"] {
            let beat = Beat {
                at: bench.now,
                details: Some(json(place)),
            };
            assert!(bench.db.beat(bench.run, 2, beat, bench.now));
        }
        let beat = bench.row(2).beat.clone();
        bench.ok(held.outcome(outcome, beat));
        assert_eq!(
            bench.new_types()[..2],
            ["ActivityStarted", "ActivityHeartbeatRecorded"]
        );
        assert_eq!(bench.new_types().len(), 3);
    }
    let beats = bench.payloads("ActivityHeartbeatRecorded");
    assert_eq!(beats.len(), 2, "one for each attempt");
    assert_eq!(beats[1]["progress"], 2);
    assert_eq!(beats[1]["attempt_number"], 2);
    assert!(bench.workflow_task().is_some());
}

/// A report after the end of its activity is stale.
#[test]
fn a_report_after_the_end_is_stale() {
    let mut limited = policy(1, &[]);
    limited.schedule_to_close_timeout = Some(5);
    let mut bench = Bench::after(vec![activity_with("a", Some(limited))]);
    let held = bench.claim(2);
    bench.at(5).fire();
    assert_eq!(bench.new_types(), ["ActivityTimedOut"]);
    for outcome in [returned(), ActivityOutcome::Failed(failure("Busy"))] {
        assert!(matches!(
            bench.refused(held.outcome(outcome, None)),
            Refusal::StaleAttempt
        ));
    }
}

/// A report of an attempt that a later one has replaced is stale, as far as history shows it; the
/// fence sees to the rest.
#[test]
fn a_report_of_a_replaced_attempt_is_stale() {
    let mut bench = Bench::after(vec![activity("a")]);
    let first = bench.claim(2);
    bench.lose(2);
    assert_eq!(bench.lost(first.outcome(returned(), None)), Lost::Fence);
    let second = bench.claim_as(2, "w2");
    assert_eq!(bench.lost(first.outcome(returned(), None)), Lost::Fence);
    bench.ok(second.started());
    assert!(matches!(
        bench.refused(first.outcome(returned(), None)),
        Refusal::StaleAttempt
    ));
    bench.ok(second.outcome(returned(), None));
}

/// An attempt that ended in a retry is over: what comes under its fence later is stale, whatever
/// the row says at that moment. The lease of an attempt outlives its start-to-close limit, so both
/// fences can hold at once, and a decision that is merged with the retry builds on the same row.
#[test]
fn an_attempt_that_ended_in_a_retry_is_over() {
    let mut limited = policy(3, &[]);
    limited.start_to_close_timeout = Some(5);
    let mut bench = Bench::after(vec![activity_with("a", Some(limited))]);
    let held = bench.claim(2);
    bench.at(5);
    bench.ok(held.overdue(crate::domain::run::OverdueKind::StartToClose, None));
    assert_eq!(
        bench.new_types(),
        ["ActivityStarted", "ActivityRetryScheduled"]
    );
    assert!(matches!(
        bench.refused(held.outcome(returned(), None)),
        Refusal::StaleAttempt
    ));
    let second = bench.claim(2);
    bench.ok(second.outcome(ActivityOutcome::Failed(failure("Busy")), None));
    bench.at(10);
    assert!(matches!(
        bench.refused(second.overdue(crate::domain::run::OverdueKind::StartToClose, None)),
        Refusal::NothingToDo
    ));
    assert!(matches!(
        bench.refused(second.give_up()),
        Refusal::NothingToDo
    ));
}

/// An outcome that finds a workflow task ready relies on it; one that finds it leased gets a
/// follow-up when that task closes.
#[test]
fn outcomes_share_a_ready_task_and_follow_a_leased_one() {
    let mut bench = Bench::after(vec![activity("a"), activity("b"), activity("c")]);
    assert_eq!(reported(&bench.run_activity(2)).2, Some(5));
    assert_eq!(
        reported(&bench.run_activity(3)).2,
        None,
        "task 5 is ready and will see it"
    );
    let task = bench.claim(5);
    bench.run_activity(4);
    assert_eq!(
        bench.workflow_task(),
        Some(5),
        "one workflow task at a time"
    );
    let reply = bench.ok(task.complete(Vec::new()));
    assert_eq!(reported(&reply).2, Some(6));
}

/// An activity handed out too often is closed as timed out, whatever its policy says.
#[test]
fn an_activity_is_given_up_at_the_cap() {
    let mut bench = with_policy(100, &[]);
    for _ in 1..20 {
        bench.claim(2);
        bench.lose(2);
    }
    let last = bench.claim(2);
    assert_eq!(last.attempt, 20);
    assert_eq!(
        bench.lost(last.give_up()),
        Lost::Fence,
        "its lease is still live"
    );
    bench.now = bench.row(2).lease.clone().unwrap().expires_at;
    bench.ok(last.give_up());
    assert_eq!(bench.new_types(), ["ActivityStarted", "ActivityTimedOut"]);
    assert_eq!(
        bench.payloads("ActivityTimedOut")[0]["failure_category"],
        "timeout"
    );
    assert_eq!(bench.tasks(), [(3, TaskKind::Workflow)]);
}
