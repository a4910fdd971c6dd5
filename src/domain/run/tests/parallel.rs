//! Parallel groups: sent whole, numbered as they declare, ignored when sent again, and the barrier.

use super::kit::*;
use crate::domain::command::Command;
use crate::domain::run::{ActivityOutcome, Refusal};

fn refused(bench: &mut Bench, commands: Vec<Command>) {
    let task = match bench.workflow_task() {
        Some(no) if bench.row(no).lease.is_some() => bench.held(no, bench.row(no).attempt),
        Some(no) => bench.claim(no),
        None => panic!("no workflow task is open"),
    };
    let refusal = bench.refused(task.complete(commands));
    assert!(
        matches!(refusal, Refusal::InvalidCommands(_)),
        "{refusal:?}"
    );
}

/// `[a, [b, c]]` as a group at `base`.
fn nested(base: u32) -> Vec<Command> {
    vec![
        placed(activity("a"), vec![level(base, 3, 0)]),
        placed(
            activity("b"),
            vec![level(base, 3, 1), level(base + 1, 2, 0)],
        ),
        placed(
            activity("c"),
            vec![level(base, 3, 2), level(base + 1, 2, 1)],
        ),
    ]
}

/// The members of a group have the steps that its base says.
#[test]
fn members_are_numbered_from_the_base() {
    let mut commands = vec![side_effect()];
    commands.extend(group(2, vec![activity("a"), timer(60), activity("b")]));
    commands.push(side_effect());
    let bench = Bench::after(commands);
    assert_eq!(bench.steps(), [1, 2, 3, 4, 5]);
}

/// A base ahead of the next number is followed: numbers may have gaps.
#[test]
fn a_base_ahead_is_followed() {
    let mut commands = group(5, vec![activity("a"), activity("b")]);
    commands.push(side_effect());
    let bench = Bench::after(commands);
    assert_eq!(bench.steps(), [5, 6, 7]);
}

/// All members of a group are in the same completion.
#[test]
fn a_group_with_a_member_missing_is_refused() {
    for missing in 0..3 {
        let mut commands = group(1, vec![activity("a"), activity("b"), activity("c")]);
        commands.remove(missing);
        refused(&mut Bench::start(), commands);
    }
}

/// That goes for every level of a path, not only for the outermost.
#[test]
fn an_inner_group_with_a_member_missing_is_refused() {
    let commands = vec![
        placed(activity("a"), vec![level(1, 2, 0)]),
        placed(activity("b"), vec![level(1, 2, 1), level(2, 2, 0)]),
    ];
    refused(&mut Bench::start(), commands);
}

/// Members that say different things about one group are no group.
#[test]
fn members_must_agree_about_their_group() {
    let commands = vec![
        placed(activity("a"), vec![level(1, 2, 0)]),
        placed(activity("b"), vec![level(1, 2, 1)]),
        placed(activity("c"), vec![level(1, 3, 2)]),
    ];
    refused(&mut Bench::start(), commands);
    let mut commands = group(1, vec![activity("a"), activity("b")]);
    commands[1] = placed(activity("b"), vec![level(1, 3, 1)]);
    refused(&mut Bench::start(), commands);
}

/// Members stand in the order of their steps.
#[test]
fn members_out_of_order_are_refused() {
    let mut commands = group(1, vec![activity("a"), activity("b")]);
    commands.reverse();
    refused(&mut Bench::start(), commands);
}

/// Every level of a path must put the command at the same step.
#[test]
fn levels_that_disagree_about_the_step_are_refused() {
    let commands = vec![
        placed(activity("a"), vec![level(1, 2, 0)]),
        placed(activity("b"), vec![level(1, 2, 1), level(3, 1, 0)]),
    ];
    refused(&mut Bench::start(), commands);
    for outside in [level(u32::MAX, 2, 1), level(1, 1, 1), level(0, 1, 0)] {
        refused(
            &mut Bench::start(),
            vec![placed(activity("a"), vec![outside])],
        );
    }
}

/// A command between the members of a group takes the number of one of them.
#[test]
fn a_command_inside_a_group_is_refused() {
    let mut commands = group(1, vec![activity("a"), activity("b")]);
    commands.insert(1, side_effect());
    refused(&mut Bench::start(), commands);
}

/// A group sent again in full is ignored member by member: nothing is recorded for it, it takes no
/// number, and commands beside it count as ever.
#[test]
fn a_group_sent_again_is_ignored() {
    let members = || group(1, vec![activity("a"), timer(60), activity("b")]);
    let mut bench = Bench::after(members());
    bench.fail_activity(2, failure("Declined"));
    let mut again = members();
    again.push(activity("compensate"));
    let reply = bench.step(again);
    assert_eq!(bench.new_types(), ["ActivityScheduled"]);
    assert_eq!(bench.steps(), [1, 2, 3, 4]);
    assert_eq!(
        reported(&reply).1,
        [5],
        "only the new activity has a new task"
    );
}

/// A group that is sent again between the failure of a member and the end of the last one is known,
/// also when it has ended in the meantime without its worker having seen it.
#[test]
fn a_group_that_ended_unseen_may_be_sent_again() {
    let members = || group(1, vec![activity("a"), activity("b")]);
    let mut bench = Bench::after(members());
    bench.fail_activity(2, failure("Declined"));
    let task = bench.claim(4);
    bench.run_activity(3);
    bench.ok(task.complete(members()));
    assert_eq!(bench.new_types(), [""; 0]);
    assert_eq!(
        bench.workflow_task(),
        Some(5),
        "its end is news for the worker"
    );
    // The next worker has seen the end of the group, and goes on behind it.
    bench.step(vec![side_effect()]);
    assert_eq!(bench.steps(), [1, 2, 3]);
    bench.ok(signal("s"));
    refused(&mut bench, members());
}

/// A number that is taken by another kind of command, another group or a single command is refused.
#[test]
fn a_taken_number_is_refused_to_another_command() {
    let mut bench = Bench::after(group(1, vec![activity("a"), activity("b")]));
    bench.fail_activity(2, failure("Declined"));
    refused(&mut bench, group(1, vec![timer(60), activity("b")]));
    refused(
        &mut bench,
        group(1, vec![activity("a"), activity("b"), activity("c")]),
    );
    refused(&mut bench, group(2, vec![activity("b"), activity("c")]));
    let mut bench = Bench::after(vec![side_effect(), activity("a")]);
    bench.run_activity(2);
    refused(&mut bench, group(1, vec![activity("x"), activity("y")]));
    refused(&mut bench, group(2, vec![activity("a"), activity("y")]));
}

/// Barrier: a member that succeeds wakes the workflow only when it was the last one open.
#[test]
fn the_last_success_wakes() {
    let mut bench = Bench::after(group(1, vec![activity("a"), timer(60), activity("b")]));
    bench.run_activity(2);
    assert_eq!(bench.workflow_task(), None);
    bench.at(60).fire();
    assert_eq!(bench.new_types(), ["TimerFired"]);
    assert_eq!(bench.workflow_task(), None);
    let reply = bench.run_activity(3);
    assert_eq!(reported(&reply).2, Some(4));
    assert_eq!(bench.workflow_task(), Some(4));
}

/// A timer may be the last one.
#[test]
fn the_last_timer_wakes() {
    let mut bench = Bench::after(group(1, vec![timer(10), timer(20)]));
    bench.at(10).fire();
    assert_eq!(bench.workflow_task(), None);
    bench.at(20).fire();
    assert!(bench.workflow_task().is_some());
}

/// A member that fails wakes at once; the end of the group wakes once more, and what succeeds in
/// between does not.
#[test]
fn a_failure_wakes_at_once() {
    let members = || group(1, vec![activity("a"), activity("b"), activity("c")]);
    let mut bench = Bench::after(members());
    bench.fail_activity(3, failure("Declined"));
    assert_eq!(bench.workflow_task(), Some(5));
    bench.step(members());
    assert_eq!(bench.workflow_task(), None);
    bench.run_activity(2);
    assert_eq!(bench.workflow_task(), None);
    bench.run_activity(4);
    assert_eq!(bench.workflow_task(), Some(6));
}

/// A timed-out member is a failed member; one that is tried again has not ended.
#[test]
fn a_time_out_wakes_at_once_and_a_retry_does_not() {
    let mut limited = policy(2, &[]);
    limited.schedule_to_start_timeout = Some(5);
    let members = vec![activity_with("a", Some(limited)), activity("b")];
    let mut bench = Bench::after(group(1, members));
    bench.at(5).fire();
    assert_eq!(bench.new_types(), ["ActivityRetryScheduled"]);
    assert_eq!(bench.workflow_task(), None);
    bench.at(10).fire();
    assert_eq!(bench.new_types(), ["ActivityTimedOut"]);
    assert!(bench.workflow_task().is_some());
}

/// The end of an inner group does not wake; the end of the outermost one does.
#[test]
fn only_the_outermost_group_wakes() {
    let mut bench = Bench::after(nested(1));
    bench.run_activity(3);
    bench.run_activity(4);
    assert_eq!(bench.workflow_task(), None, "[b, c] is done, a is open");
    bench.run_activity(2);
    assert!(bench.workflow_task().is_some());

    let mut bench = Bench::after(nested(1));
    bench.run_activity(2);
    bench.run_activity(3);
    assert_eq!(bench.workflow_task(), None);
    bench.fail_activity(4, failure("Declined"));
    assert!(bench.workflow_task().is_some());
}

/// A nested group sent again is known by its whole path.
#[test]
fn a_nested_group_sent_again_is_ignored() {
    let mut bench = Bench::after(nested(1));
    bench.fail_activity(2, failure("Declined"));
    bench.step(nested(1));
    assert_eq!(bench.new_types(), [""; 0]);
    bench.ok(signal("s"));
    refused(
        &mut bench,
        group(1, vec![activity("a"), activity("b"), activity("c")]),
    );
}

/// Timers without delay fire in the completion that sets them, and can end their group there.
#[test]
fn a_group_of_zero_timers_ends_at_once() {
    let bench = Bench::after(group(1, vec![timer(0), timer(0)]));
    assert_eq!(
        bench.new_types(),
        [
            "TimerScheduled",
            "TimerScheduled",
            "TimerFired",
            "TimerFired"
        ]
    );
    assert!(bench.workflow_task().is_some());
    let bench = Bench::after(group(1, vec![timer(0), activity("a")]));
    assert_eq!(bench.workflow_task(), None);
}

/// The metadata is copied into every event of the step, the opening and the closing one.
#[test]
fn the_metadata_is_in_every_event_of_the_step() {
    let mut bench = Bench::after(nested(1));
    let held = bench.claim(3);
    bench.ok(held.started());
    bench.ok(held.outcome(ActivityOutcome::Failed(failure("Declined")), None));
    for event_type in ["ActivityScheduled", "ActivityStarted", "ActivityFailed"] {
        let payload = bench
            .payloads(event_type)
            .into_iter()
            .find(|payload| payload["sequence"] == 2)
            .unwrap();
        assert_eq!(
            payload["parallel_group_id"], "parallel-calls:2:2",
            "{event_type}"
        );
        assert_eq!(payload["parallel_group_index"], 0);
        let path = payload["parallel_group_path"].as_array().unwrap();
        assert_eq!(path.len(), 2);
        assert_eq!(path[0]["parallel_group_id"], "parallel-calls:1:3");
        assert_eq!(path[1]["parallel_group_size"], 2);
    }
}
