//! Local activities: told as a whole, recorded like any activity, without a task.

use super::kit::*;
use crate::domain::command::{Command, LocalEnd};
use crate::domain::run::{ActivityOutcome, Refusal};

fn ends() -> Vec<(LocalEnd, &'static str)> {
    vec![
        (
            LocalEnd::Completed(Some(payload("done"))),
            "ActivityCompleted",
        ),
        (LocalEnd::Failed(failure("Broken")), "ActivityFailed"),
        (
            LocalEnd::TimedOut {
                kind: "start_to_close".into(),
                message: "too slow".to_owned(),
            },
            "ActivityTimedOut",
        ),
        (
            LocalEnd::Cancelled {
                message: "stopped".to_owned(),
            },
            "ActivityCancelled",
        ),
    ]
}

/// Rule: 1.18, 8.1: scheduled, then each attempt with its heartbeats, a retry between attempts, and
/// one end; all under one step and with the mark of a local activity.
#[test]
fn the_whole_story_is_recorded() {
    for (end, event) in ends() {
        let mut first = local_attempt("try-1");
        first.heartbeats = vec![Some(json(r#"{"done":1}"#)), None];
        let bench = Bench::after(vec![
            side_effect(),
            local_activity(vec![first, local_attempt("try-2")], end),
            side_effect(),
        ]);
        assert_eq!(
            bench.new_types(),
            [
                "SideEffectRecorded",
                "ActivityScheduled",
                "ActivityStarted",
                "ActivityHeartbeatRecorded",
                "ActivityHeartbeatRecorded",
                "ActivityRetryScheduled",
                "ActivityStarted",
                event,
                "SideEffectRecorded"
            ]
        );
        for name in ["ActivityScheduled", "ActivityStarted", event] {
            for payload in bench.payloads(name) {
                assert_eq!(payload["sequence"], 2, "{name}");
                assert_eq!(payload["execution_mode"], "local", "{name}");
                assert_eq!(payload["local_activity"], true, "{name}");
            }
        }
        let started = bench.payloads("ActivityStarted");
        let attempts: Vec<_> = started
            .iter()
            .map(|s| s["attempt_number"].clone())
            .collect();
        assert_eq!(attempts, [1, 2]);
        assert_eq!(started[1]["worker_attempt_id"], "try-2");
        assert_eq!(bench.payloads(event)[0]["attempt_number"], 2);
        assert_eq!(bench.payloads("SideEffectRecorded")[1]["sequence"], 3);
    }
}

/// No task is made for it, nothing stays open, and its end, which its worker knows, wakes nobody.
#[test]
fn it_leaves_nothing_open() {
    for (end, _) in ends() {
        let mut bench = Bench::after(vec![local_activity(vec![local_attempt("try-1")], end)]);
        assert_eq!(bench.tasks(), []);
        assert_eq!(bench.timers(), []);
        assert!(bench.state().activities.is_empty());
        assert!(bench.state().cancelled_activities.is_empty());
        // Its number is taken: a report on it finds nothing, and the next task has another.
        let held = Held {
            no: 2,
            attempt: 1,
            owner: "w1".into(),
            seen: 0,
        };
        let report = held.outcome(ActivityOutcome::Completed(payload("late")), None);
        assert!(matches!(bench.refused(report), Refusal::StaleAttempt));
        bench.ok(signal("go"));
        assert_eq!(bench.workflow_task(), Some(3));
    }
}

/// It stands beside remote ones of the same completion, each with ids of its own.
#[test]
fn it_stands_beside_remote_ones() {
    let local = || {
        let end = LocalEnd::Completed(None);
        local_activity(vec![local_attempt("try-1")], end)
    };
    let mut bench = Bench::after(vec![local(), activity("a"), local(), activity("b")]);
    let ids: std::collections::BTreeSet<String> = bench
        .payloads("ActivityScheduled")
        .iter()
        .map(|scheduled| {
            scheduled["activity_execution_id"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 4);
    let open: Vec<u32> = bench.tasks().iter().map(|(no, _)| *no).collect();
    assert_eq!(open, [3, 5]);
    bench.run_activity(3);
    bench.step(vec![Command::End(crate::domain::command::End::Complete {
        result: None,
    })]);
    assert_eq!(bench.tasks(), []);
}
