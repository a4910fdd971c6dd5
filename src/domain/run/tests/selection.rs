//! Selections: one winner ever, decided with its event; losers run on until they are given up.

use super::kit::*;
use crate::domain::command::Command;
use crate::domain::decision::{Relay, TimerKind};
use crate::domain::run::{CloseReason, Refusal};

fn race() -> Vec<Command> {
    select(1, vec![vec![activity("a")], vec![timer(60)]])
}

fn activity_id(bench: &Bench, no: u32) -> String {
    bench
        .payloads("ActivityScheduled")
        .iter()
        .find(|scheduled| {
            scheduled["activity_task_id"]
                .as_str()
                .unwrap()
                .ends_with(&format!("-{no}"))
        })
        .map(|scheduled| {
            scheduled["activity_execution_id"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .unwrap()
}

fn timer_id(bench: &Bench, step: u64) -> String {
    bench
        .payloads("TimerScheduled")
        .iter()
        .find(|scheduled| scheduled["sequence"] == step)
        .map(|scheduled| scheduled["timer_id"].as_str().unwrap().to_owned())
        .unwrap()
}

/// Rule: 1.19, 9.2: the first member to end wins; `SelectionResolved` follows its event in the same
/// batch and names it literally.
#[test]
fn the_first_member_to_end_wins() {
    let mut bench = Bench::after(race());
    bench.run_activity(2);
    let types = bench.new_types();
    assert_eq!(
        types[types.len() - 2..],
        ["ActivityCompleted", "SelectionResolved"]
    );
    let resolved = &bench.payloads("SelectionResolved")[0];
    let last = bench.served(bench.types().len() - 1);
    assert_eq!(resolved["selection_group_id"], "select-calls:1:2");
    assert_eq!(resolved["member_key"], 0);
    assert_eq!(resolved["member_index"], 0);
    assert_eq!(resolved["member_base_sequence"], 1);
    assert_eq!(resolved["member_size"], 1);
    assert_eq!(resolved["operation_kind"], "activity");
    assert_eq!(resolved["operation_identity"], activity_id(&bench, 2));
    assert_eq!(resolved["outcome"], "completed");
    assert_eq!(resolved["resolution_event_id"], last["id"]);
    assert_eq!(resolved["resolution_event_type"], "ActivityCompleted");
    assert_eq!(
        bench.timers(),
        [(TimerKind::User, 2, 60)],
        "the loser runs on"
    );
    let task = bench.claim(bench.workflow_task().unwrap());
    assert_eq!(
        task.seen,
        bench.state().last_event(),
        "its task sees the decision"
    );
}

/// A member that fails wins as failed.
#[test]
fn a_failed_member_wins_as_failed() {
    let mut bench = Bench::after(race());
    bench.fail_activity(2, failure("Declined"));
    let resolved = &bench.payloads("SelectionResolved")[0];
    assert_eq!(resolved["outcome"], "failed");
    assert_eq!(resolved["resolution_event_type"], "ActivityFailed");
}

/// Rule: 1.19, 9.2 (4, 5): losers keep running, each end of a member wakes, and none decides again.
#[test]
fn a_selection_is_decided_once() {
    let mut bench = Bench::after(race());
    bench.at(60).fire();
    assert_eq!(bench.new_types(), ["TimerFired", "SelectionResolved"]);
    bench.step(Vec::new());
    assert_eq!(bench.workflow_task(), None);
    bench.run_activity(2);
    assert!(bench.workflow_task().is_some());
    assert_eq!(bench.payloads("SelectionResolved").len(), 1);
    bench.step(Vec::new());
    assert!(bench.state().groups.is_empty(), "seen and over");
}

/// Two members that end before anybody looks: the first one has won.
#[test]
fn a_later_member_does_not_take_the_win() {
    let mut bench = Bench::after(select(1, vec![vec![activity("a")], vec![activity("b")]]));
    bench.run_activity(3);
    bench.run_activity(2);
    let resolved = bench.payloads("SelectionResolved");
    assert_eq!(resolved.len(), 1);
    assert_eq!(resolved[0]["member_index"], 1);
}

/// A nested group wins with its last success, or with its first failure; its leaves alone decide
/// nothing.
#[test]
fn a_group_is_a_member() {
    let members = || select(1, vec![vec![activity("a"), activity("b")], vec![timer(60)]]);
    let mut bench = Bench::after(members());
    bench.run_activity(3);
    assert_eq!(bench.workflow_task(), None);
    assert_eq!(bench.payloads("SelectionResolved").len(), 0);
    bench.run_activity(2);
    let resolved = &bench.payloads("SelectionResolved")[0];
    assert_eq!(resolved["operation_kind"], "group");
    assert_eq!(resolved["operation_identity"], "group:1:2");
    assert_eq!(resolved["member_size"], 2);
    let mut bench = Bench::after(members());
    bench.fail_activity(3, failure("Declined"));
    assert_eq!(bench.payloads("SelectionResolved")[0]["outcome"], "failed");
    bench.run_activity(2);
    assert_eq!(bench.payloads("SelectionResolved").len(), 1);
}

/// Rule: 1.19, 9.2: each kind of leaf may win, and its identity is the one of its opening event.
#[test]
fn every_kind_of_leaf_may_win() {
    let leaf_wins = |leaf: Command, end: &dyn Fn(&mut Bench)| {
        let mut bench = Bench::after(select(1, vec![vec![leaf], vec![timer(600)]]));
        end(&mut bench);
        let resolved = bench.payloads("SelectionResolved");
        assert_eq!(resolved.len(), 1);
        assert_eq!(resolved[0]["member_index"], 0);
        let opening = bench.served(3)["payload"].clone();
        (
            resolved[0]["resolution_event_type"]
                .as_str()
                .unwrap()
                .to_owned(),
            resolved[0]["operation_identity"].clone(),
            opening,
        )
    };
    let (event, identity, opening) = leaf_wins(child(), &|bench| {
        bench.end_child(1, CloseReason::Completed);
    });
    assert_eq!(event, "ChildRunCompleted");
    assert_eq!(identity, opening["child_workflow_run_id"]);
    let (event, identity, opening) = leaf_wins(signal_wait("go", Some(60)), &|bench| {
        bench.ok(signal("go"));
    });
    assert_eq!(event, "SignalApplied");
    assert_eq!(identity, opening["signal_wait_id"]);
    let (event, identity, opening) = leaf_wins(wait_for(condition("ready")), &|bench| {
        bench.ok(signal("go"));
        bench.step(Vec::new());
    });
    assert_eq!(event, "ConditionWaitSatisfied");
    assert_eq!(identity, opening["condition_wait_id"]);
    let limited = wait_for(limited_condition("ready", "o-1", 60));
    let (event, ..) = leaf_wins(limited, &|bench| drop(bench.at(60).fire()));
    assert_eq!(event, "ConditionWaitTimedOut");
}

/// A selection that a worker sends again before it has seen the decision is ignored.
#[test]
fn a_selection_sent_again_is_ignored() {
    let mut bench = Bench::after(race().into_iter().chain([timer(1)]).collect());
    bench.at(1).fire();
    let task = bench.claim(bench.workflow_task().unwrap());
    bench.run_activity(2);
    bench.ok(task.complete(race()));
    assert_eq!(bench.new_types(), [""; 0]);
    assert!(bench.workflow_task().is_some(), "the decision is news");
}

/// Rule: 1.19, `cancel_selection_operation`: what is open of a loser is closed, the command's fields
/// are recorded unchanged, and the command takes no step and opens no task.
#[test]
fn a_loser_is_given_up() {
    let mut bench = Bench::after(race());
    bench.run_activity(2);
    let cancel = give_up_member(&race()[1], timer_id(&bench, 2));
    bench.step(vec![Command::CancelSelection(cancel), side_effect()]);
    assert_eq!(
        bench.new_types(),
        [
            "SelectionOperationCancelled",
            "TimerCancelled",
            "SideEffectRecorded"
        ]
    );
    let cancelled = &bench.payloads("SelectionOperationCancelled")[0];
    assert_eq!(cancelled["selection_group_id"], "select-calls:1:2");
    assert_eq!(cancelled["member_index"], 1);
    assert_eq!(cancelled["operation_kind"], "timer");
    assert_eq!(bench.payloads("SideEffectRecorded")[0]["sequence"], 3);
    assert_eq!(bench.timers(), []);
    assert_eq!(bench.workflow_task(), None);
}

/// Every kind of loser can be given up: what is open of it is closed, nobody is woken or decided by
/// it, and the selection is then over.
#[test]
fn every_kind_of_loser_is_given_up() {
    let winner = || vec![activity("a")];
    let losers: Vec<(Vec<Command>, &[&str])> = vec![
        (vec![activity("b")], &["ActivityCancelled"]),
        (vec![timer(60)], &["TimerCancelled"]),
        (vec![child()], &["ChildRunCancelled"]),
        (vec![wait_for(condition("ready"))], &[]),
        (
            vec![wait_for(limited_condition("ready", "o-1", 60))],
            &["TimerCancelled"],
        ),
        (vec![signal_wait("go", None)], &[]),
        (vec![signal_wait("go", Some(60))], &["TimerCancelled"]),
        (
            vec![activity("b"), timer(60), child()],
            &["ActivityCancelled", "TimerCancelled", "ChildRunCancelled"],
        ),
    ];
    for (loser, expected) in losers {
        let commands = select(1, vec![winner(), loser]);
        let mut bench = Bench::after(commands.clone());
        bench.run_activity(2);
        let opening = (1..=bench.types().len())
            .map(|sequence| bench.served(sequence)["payload"].clone())
            .find(|payload| payload["sequence"] == 2)
            .unwrap();
        let identity = [
            "activity_execution_id",
            "child_workflow_run_id",
            "condition_wait_id",
            "signal_wait_id",
            "timer_id",
        ]
        .iter()
        .find_map(|key| opening[key].as_str())
        .unwrap()
        .to_owned();
        let identity = if commands.len() > 2 {
            format!("group:2:{}", commands.len() - 1)
        } else {
            identity
        };
        let cancel = give_up_member(&commands[1], identity);
        bench.step(vec![Command::CancelSelection(cancel.clone())]);
        let types = bench.new_types();
        assert_eq!(types[0], "SelectionOperationCancelled");
        assert_eq!(&types[1..], expected);
        let state = bench.state();
        assert!(
            state.activities.is_empty() && state.timers.is_empty() && state.children.is_empty()
        );
        assert!(state.conditions.is_empty() && state.signal_waits.is_empty());
        assert_eq!(bench.timers(), []);
        assert_eq!(bench.workflow_task(), None, "it opens no task");
        assert_eq!(bench.payloads("SelectionResolved").len(), 1);
        // Given up again, in a later task: nothing happens.
        bench.ok(signal("other"));
        bench.step(vec![Command::CancelSelection(cancel)]);
        assert_eq!(bench.new_types(), [""; 0]);
        assert!(
            bench.state().groups.is_empty(),
            "a selection that is over is forgotten: {expected:?}"
        );
    }
}

/// A child that is given up is told to cancel.
#[test]
fn a_child_that_is_given_up_is_cancelled() {
    let commands = select(1, vec![vec![activity("a")], vec![child()]]);
    let mut bench = Bench::after(commands.clone());
    let run = bench.child_run(2);
    let to = bench.state().children[&2].workflow_id.clone();
    bench.run_activity(2);
    let cancel = give_up_member(&commands[1], run.to_string());
    bench.step(vec![Command::CancelSelection(cancel)]);
    match bench.relays() {
        [
            Relay::Close {
                workflow_id,
                terminate: false,
                ..
            },
        ] => assert_eq!(*workflow_id, to),
        other => panic!("{other:?}"),
    }
}

/// A loser that has ended meanwhile is left as it is: no event, no error.
#[test]
fn a_loser_that_has_ended_is_left_alone() {
    let mut bench = Bench::after(race());
    bench.run_activity(2);
    let task = bench.claim(bench.workflow_task().unwrap());
    bench.at(20);
    let cancel = give_up_member(&race()[1], timer_id(&bench, 2));
    bench.db.give_back(bench.run, task.no, 0, bench.now);
    bench.at(60).fire();
    assert_eq!(bench.new_types(), ["TimerFired"]);
    bench.step(vec![Command::CancelSelection(cancel)]);
    assert_eq!(bench.new_types(), [""; 0]);
}

/// A command that names no recorded member is refused.
#[test]
fn a_member_that_does_not_exist_is_refused() {
    let mut bench = Bench::after(race());
    bench.run_activity(2);
    let right = give_up_member(&race()[1], timer_id(&bench, 2));
    type Change = fn(&mut crate::domain::event::SelectionOperationCancelled);
    let wrong: [Change; 7] = [
        |c| c.selection_group_id = "select-calls:9:2".to_owned(),
        |c| c.member_base_sequence = 9,
        |c| c.member_key = serde_json::json!("1"),
        |c| c.member_index = 0,
        |c| c.member_size = 2,
        |c| c.operation_kind = "activity".to_owned(),
        |c| c.operation_identity = "another".to_owned(),
    ];
    let task = bench.claim(bench.workflow_task().unwrap());
    for (place, change) in wrong.into_iter().enumerate() {
        let mut cancel = right.clone();
        change(&mut cancel);
        if place == 0 {
            cancel.member_base_sequence = 9;
        }
        let refusal = bench.refused(task.complete(vec![Command::CancelSelection(cancel)]));
        assert!(matches!(refusal, Refusal::InvalidCommands(_)), "{place}");
    }
    bench.ok(task.complete(vec![Command::CancelSelection(right)]));
}

/// A run that is closed from outside decides no selection by what it drops.
#[test]
fn a_closing_decides_no_selection() {
    let mut bench = Bench::after(race());
    assert!(matches!(bench.cancel(), Outcome::Committed(_)));
    assert_eq!(
        bench.new_types(),
        [
            "CancelRequested",
            "ActivityCancelled",
            "TimerCancelled",
            "WorkflowCancelled"
        ]
    );
}
