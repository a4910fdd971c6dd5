//! Waits for conditions: over with newer input, opened again, timed out, and told apart.

use super::kit::*;
use crate::domain::command::OpenConditionWait;
use crate::domain::decision::TimerKind;
use crate::domain::run::{Resume, TaskFailure};

/// Rule: worker plane 7.3 (3) and Precedence: a wait is over in the completion of the task that saw
/// newer input, before that task's commands.
#[test]
fn newer_input_ends_the_wait_before_the_commands() {
    let mut bench = Bench::after(vec![wait_for(limited_condition("ready", "o-1", 60))]);
    assert_eq!(bench.new_types(), ["ConditionWaitOpened", "TimerScheduled"]);
    bench.ok(signal("go"));
    assert_eq!(bench.new_types(), ["SignalReceived"], "not on arrival");
    bench.step(vec![activity("a")]);
    assert_eq!(
        bench.new_types(),
        [
            "ConditionWaitSatisfied",
            "TimerCancelled",
            "ActivityScheduled"
        ]
    );
    assert_eq!(bench.timers(), []);
    assert!(bench.state().conditions.is_empty());
}

/// The same for a worker that has nothing to do.
#[test]
fn a_waiting_report_ends_the_wait_as_well() {
    let mut bench = Bench::after(vec![wait_for(condition("ready"))]);
    bench.ok(signal("go"));
    let task = bench.claim(2);
    bench.ok(task.fail(TaskFailure::WaitingForHistory));
    assert_eq!(bench.new_types(), ["ConditionWaitSatisfied"]);
}

/// Input that the task had not seen leaves the wait as it is.
#[test]
fn unseen_input_does_not_end_the_wait() {
    let mut bench = Bench::after(vec![wait_for(condition("ready")), timer(1)]);
    bench.at(1).fire();
    let task = bench.claim(2);
    bench.ok(signal("go"));
    bench.ok(task.complete(Vec::new()));
    assert_eq!(bench.new_types(), ["SignalReceived"]);
    assert_eq!(bench.state().conditions.len(), 1);
    bench.step(Vec::new());
    assert_eq!(bench.new_types(), ["ConditionWaitSatisfied"]);
}

/// A command that repeats an open wait is ignored: no event, no step.
#[test]
fn an_open_wait_that_is_sent_again_is_ignored() {
    let mut bench = Bench::after(vec![wait_for(condition("ready")), timer(1)]);
    bench.at(1).fire();
    bench.step(vec![wait_for(condition("ready")), side_effect()]);
    assert_eq!(bench.new_types(), ["SideEffectRecorded"]);
    assert_eq!(bench.state().next_step, 4);
}

/// Another key, another fingerprint or another occurrence is another wait.
#[test]
fn the_identity_tells_waits_apart() {
    let first = limited_condition("ready", "o-1", 60);
    let others = [
        OpenConditionWait {
            key: Some("other".into()),
            ..first.clone()
        },
        OpenConditionWait {
            fingerprint: Some("other".into()),
            ..first.clone()
        },
        OpenConditionWait {
            occurrence: Some("o-2".into()),
            ..first.clone()
        },
    ];
    for other in others {
        let mut bench = Bench::after(vec![wait_for(first.clone()), timer(1)]);
        bench.at(1).fire();
        bench.step(vec![wait_for(other)]);
        assert_eq!(bench.new_types(), ["ConditionWaitOpened", "TimerScheduled"]);
        assert_eq!(bench.state().conditions.len(), 2);
    }
}

/// Rule: 1.17, section 7: a wait that is opened again has its own step and id, repeats its
/// occurrence, and keeps the deadline of its first opening.
#[test]
fn a_wait_that_is_opened_again_keeps_its_deadline() {
    let wait = || wait_for(limited_condition("ready", "o-1", 60));
    let mut bench = Bench::after(vec![wait()]);
    bench.at(20).ok(signal("go"));
    bench.step(vec![wait()]);
    assert_eq!(
        bench.new_types(),
        [
            "ConditionWaitSatisfied",
            "TimerCancelled",
            "ConditionWaitOpened",
            "TimerScheduled"
        ]
    );
    assert_eq!(bench.timers(), [(TimerKind::ConditionTimeout, 2, 60)]);
    let opened = bench.payloads("ConditionWaitOpened");
    assert_ne!(
        opened[0]["condition_wait_id"],
        opened[1]["condition_wait_id"]
    );
    for event_type in [
        "ConditionWaitOpened",
        "ConditionWaitSatisfied",
        "TimerScheduled",
        "TimerCancelled",
    ] {
        for payload in bench.payloads(event_type) {
            assert_eq!(
                payload["condition_wait_occurrence_id"], "o-1",
                "{event_type}"
            );
        }
    }
}

/// Without an occurrence, and for another one, the time counts anew.
#[test]
fn another_occurrence_has_its_own_deadline() {
    let nameless = |seconds| OpenConditionWait {
        timeout_seconds: Some(seconds),
        ..condition("ready")
    };
    for (first, second) in [
        (nameless(60), nameless(60)),
        (
            limited_condition("ready", "o-1", 60),
            limited_condition("ready", "o-2", 60),
        ),
    ] {
        let mut bench = Bench::after(vec![wait_for(first)]);
        bench.at(20).ok(signal("go"));
        bench.step(vec![wait_for(second)]);
        assert_eq!(bench.timers(), [(TimerKind::ConditionTimeout, 2, 80)]);
    }
}

/// Rule: worker plane 7.2: a timed-out wait is the timer's end, then the wait's; one task sees both.
#[test]
fn a_wait_times_out() {
    let mut bench = Bench::after(vec![wait_for(limited_condition("ready", "o-1", 60))]);
    assert!(matches!(bench.at(59).fire(), Outcome::Refused(_)));
    bench.at(60).fire();
    assert_eq!(bench.new_types(), ["TimerFired", "ConditionWaitTimedOut"]);
    assert_eq!(
        bench.payloads("TimerFired")[0]["condition_wait_occurrence_id"],
        "o-1"
    );
    assert_eq!(bench.timers(), []);
    let task = bench.state().workflow_task.clone().unwrap();
    assert_eq!(task.resume, Resume::Condition { step: 1 });
}

/// A worker that had not seen the time-out sends the wait again: ignored. One that had opens another.
#[test]
fn a_wait_that_timed_out_unseen_is_not_opened_again() {
    let wait = || wait_for(limited_condition("ready", "o-1", 60));
    let mut bench = Bench::after(vec![wait(), timer(59)]);
    bench.at(59).fire();
    let task = bench.claim(2);
    bench.at(60).fire();
    bench.ok(task.complete(vec![wait()]));
    assert_eq!(bench.new_types(), [""; 0]);
    assert_eq!(bench.state().lapsed.len(), 1);
    bench.step(vec![wait_for(limited_condition("ready", "o-2", 60))]);
    assert_eq!(bench.new_types(), ["ConditionWaitOpened", "TimerScheduled"]);
    assert!(bench.state().lapsed.is_empty());
}

/// When the time is up while a task is open that may have seen newer input, the end of that task
/// decides: satisfied if it saw it, timed out if it did not.
#[test]
fn the_end_of_the_open_task_decides_about_an_overdue_wait() {
    for saw in [true, false] {
        let mut bench = Bench::after(vec![wait_for(limited_condition("ready", "o-1", 60))]);
        bench.at(59);
        bench.ok(signal("go"));
        let mut task = bench.claim(2);
        bench.at(60).fire();
        assert_eq!(bench.new_types(), [""; 0], "nothing is decided yet");
        if !saw {
            task.seen = 4;
        }
        bench.ok(task.complete(Vec::new()));
        let expected: &[&str] = if saw {
            &["ConditionWaitSatisfied", "TimerCancelled"]
        } else {
            &["TimerFired", "ConditionWaitTimedOut"]
        };
        assert_eq!(bench.new_types(), expected);
        assert_eq!(bench.timers(), []);
    }
}

/// A reopened wait whose first deadline has passed ends in the completion that opens it again.
#[test]
fn a_wait_opened_again_after_its_deadline_times_out_at_once() {
    let wait = || wait_for(limited_condition("ready", "o-1", 60));
    let mut bench = Bench::after(vec![wait()]);
    bench.at(50).ok(signal("go"));
    let task = bench.claim(2);
    bench.at(70);
    bench.fire();
    bench.ok(task.complete(vec![wait()]));
    assert_eq!(
        bench.new_types(),
        [
            "ConditionWaitSatisfied",
            "TimerCancelled",
            "ConditionWaitOpened",
            "TimerScheduled",
            "TimerFired",
            "ConditionWaitTimedOut"
        ]
    );
    assert_eq!(bench.timers(), []);
    assert!(bench.workflow_task().is_some());
}

/// Rule: worker plane 6.3: a wait of 0 seconds has no timer; its worker resolves it.
#[test]
fn a_wait_of_no_time_has_no_timer() {
    let bench = Bench::after(vec![wait_for(limited_condition("ready", "o-1", 0))]);
    assert_eq!(bench.new_types(), ["ConditionWaitOpened"]);
    assert_eq!(bench.timers(), []);
    assert_eq!(bench.workflow_task(), None);
}

/// An applied update is input as well; a failed one is not.
#[test]
fn an_applied_update_ends_the_wait() {
    for (applied, waits_left) in [(true, 0), (false, 1)] {
        let mut bench = Bench::after(vec![wait_for(condition("ready")), timer(60)]);
        let id = bench.update("change");
        bench.step(vec![if applied {
            complete_update(&id)
        } else {
            fail_update(&id)
        }]);
        assert_eq!(bench.workflow_task().is_some(), applied);
        if applied {
            bench.step(Vec::new());
        } else {
            bench.at(60).fire();
            bench.step(Vec::new());
        }
        assert_eq!(bench.state().conditions.len(), waits_left);
    }
}

/// A run that closes itself leaves no timer row of a wait.
#[test]
fn a_closing_run_drops_the_rows_of_waits() {
    let mut bench = Bench::after(vec![
        wait_for(limited_condition("ready", "o-1", 60)),
        signal_wait("go", Some(60)),
        timer(1),
    ]);
    bench.at(1).fire();
    bench.step(vec![complete_workflow()]);
    assert_eq!(bench.new_types(), ["WorkflowCompleted"]);
    assert_eq!(bench.timers(), []);
}
