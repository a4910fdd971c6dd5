//! Random workflow code: the commands of one completion, drawn from what the run's state offers.

use serde_json::json as value;

use super::super::kit::*;
use super::super::model::Rng;
use crate::domain::command::{
    CancellationPolicy, ClosePolicy, Command, LocalEnd, OpenConditionWait,
};
use crate::domain::event::{Delivery, SelectionOperationCancelled};
use crate::domain::ids::{Part, Step, part_id};
use crate::domain::parallel::{Path, PathEntry, StepKind};
use crate::domain::run::{RunState, StreamReport};

const NAMES: [&str; 2] = ["go", "stop"];
const STREAMS: [&str; 2] = ["orders", "news"];

fn policy_of(rng: &mut Rng) -> Option<CancellationPolicy> {
    [
        None,
        Some(CancellationPolicy::TryCancel),
        Some(CancellationPolicy::WaitCancellationCompleted),
        Some(CancellationPolicy::Abandon),
    ][rng.below(4)]
}

fn some_activity(rng: &mut Rng) -> Command {
    let mut limits = policy(u32::try_from(rng.between(1, 3)).unwrap(), &[1]);
    if rng.percent(30) {
        limits.start_to_close_timeout = Some(rng.between(1, 10));
    }
    if rng.percent(30) {
        limits.schedule_to_close_timeout = Some(rng.between(5, 40));
    }
    if rng.percent(20) {
        limits.schedule_to_start_timeout = Some(rng.between(1, 10));
    }
    let limits = rng.percent(60).then_some(limits);
    match policy_of(rng) {
        None => activity_with("a", limits),
        Some(cancellation) => limited_activity("a", cancellation, limits),
    }
}

fn some_child(rng: &mut Rng) -> Command {
    child_with(|child| {
        child.close_policy = [
            ClosePolicy::Abandon,
            ClosePolicy::RequestCancel,
            ClosePolicy::RequestCancellation,
            ClosePolicy::Terminate,
        ][rng.below(4)];
        child.cancellation = policy_of(rng);
        if rng.percent(40) {
            child.policy = Some(policy(3, &[1]));
        }
        if rng.percent(20) {
            child.run_timeout_seconds = Some(rng.between(5, 60));
        }
        if rng.percent(10) {
            child.execution_timeout_seconds = Some(rng.between(60, 100));
        }
    })
}

fn some_condition(rng: &mut Rng) -> Command {
    let seconds = [None, Some(0), Some(3), Some(20)][rng.below(4)];
    let occurrence = [None, Some("o-1"), Some("o-2")][rng.below(3)];
    wait_for(OpenConditionWait {
        occurrence: occurrence.map(Into::into),
        timeout_seconds: seconds,
        ..condition(["ready", "done"][rng.below(2)])
    })
}

fn some_signal_wait(rng: &mut Rng) -> Command {
    let seconds = [None, None, Some(0), Some(3), Some(20)][rng.below(5)];
    // Mostly one name, so that several waits compete for a signal of it.
    let name = NAMES[usize::from(rng.percent(20))];
    signal_wait(name, seconds)
}

fn leaf(rng: &mut Rng, children: bool) -> Command {
    match rng.below(12) {
        0..=3 => some_activity(rng),
        4 | 5 => timer(rng.below(4) as u64 * 5),
        6 | 7 => some_condition(rng),
        8 | 9 => some_signal_wait(rng),
        _ if children => some_child(rng),
        _ => timer(7),
    }
}

fn some_local_activity(rng: &mut Rng) -> Command {
    let end = match rng.below(4) {
        0 => LocalEnd::Completed(None),
        1 => LocalEnd::Failed(failure("Broken")),
        2 => LocalEnd::TimedOut {
            kind: "start_to_close".into(),
            message: "too slow".to_owned(),
        },
        _ => LocalEnd::Cancelled {
            message: "stopped".to_owned(),
        },
    };
    let attempts = (0..=rng.below(2)).map(|_| local_attempt("try")).collect();
    local_activity(attempts, end)
}

/// A group or a selection that a worker may still send, sent again.
fn sent_again(rng: &mut Rng, state: &RunState) -> Vec<Command> {
    let groups: Vec<_> = state.groups.values().collect();
    let Some(group) = rng.pick(&groups) else {
        return Vec::new();
    };
    (0u32..)
        .map_while(|index| group.member(index))
        .map(|member| {
            let command = match member.kind {
                StepKind::Activity => activity("a"),
                StepKind::Timer => timer(5),
                StepKind::Child => child(),
                StepKind::Condition => wait_for(condition("ready")),
                StepKind::SignalWait => signal_wait(NAMES[0], None),
            };
            with_path(command, member.path.entries().to_vec())
        })
        .collect()
}

/// The open leaves that are in groups: their path and the identity of their operation.
fn open_leaves(state: &RunState) -> Vec<(Path, String)> {
    let part = |part, no: u32| part_id(state.id, part, no.into());
    let mut leaves = Vec::new();
    let mut add = |path: &Option<Path>, identity: String| {
        leaves.extend(path.clone().map(|path| (path, identity)));
    };
    for a in state.activities.values() {
        add(&a.path, part(Part::Activity, a.no));
    }
    for t in state.timers.values() {
        add(&t.path, part(Part::Timer, t.step));
    }
    for c in state.children.values() {
        add(&c.path, c.run.to_string());
    }
    for c in state.conditions.values() {
        add(&c.path, part(Part::Wait, c.step));
    }
    for w in state.signal_waits.values() {
        add(&w.path, part(Part::Wait, w.step));
    }
    leaves
}

fn give_up_some_member(rng: &mut Rng, state: &RunState) -> Option<Command> {
    let mut leaves = open_leaves(state);
    leaves.retain(|(path, _)| path.outermost().member.is_some());
    let (path, identity) = rng.pick(&leaves)?.clone();
    let outer = path.outermost();
    let member = outer.member.clone()?;
    let identity = match &*member.selection_member_kind {
        "group" => format!(
            "group:{}:{}",
            member.selection_member_base_sequence, member.selection_member_size
        ),
        _ => identity,
    };
    Some(Command::CancelSelection(SelectionOperationCancelled {
        selection_group_id: outer.parallel_group_id.clone(),
        member_key: member.selection_member_key,
        member_index: member.selection_member_index,
        member_base_sequence: member.selection_member_base_sequence,
        member_size: member.selection_member_size,
        operation_kind: member.selection_member_kind,
        operation_identity: identity,
    }))
}

/// The commands of one completion. `children` says whether another child may be started.
pub fn commands(rng: &mut Rng, state: &RunState, children: bool) -> Vec<Command> {
    let mut commands = Vec::new();
    if let Some(update) = &state.update
        && rng.percent(85)
    {
        commands.push(if rng.percent(60) {
            complete_update(&update.id)
        } else {
            fail_update(&update.id)
        });
    }
    if rng.percent(30) {
        commands.extend(sent_again(rng, state));
    }
    if rng.percent(40) {
        commands.extend(give_up_some_member(rng, state));
    }
    let mut next = state.next_step;
    for _ in 0..rng.below(3) {
        match rng.below(14) {
            0 => commands.push(side_effect()),
            1 => commands.push(some_local_activity(rng)),
            2 => commands.push(attributes(value!({"A": rng.below(3)}), &[])),
            3 => commands.push(memo(&value!({"note": rng.below(3)}))),
            4 | 5 => {
                let size = u32::try_from(rng.between(2, 3)).unwrap();
                for index in 0..size {
                    let leaf = leaf(rng, children);
                    commands.push(with_path(leaf, vec![level(next, size, index)]));
                }
                next += size;
                continue;
            }
            6..=8 => {
                let mut members = Vec::new();
                for _ in 0..rng.between(2, 3) {
                    let leaves = if rng.percent(25) { 2 } else { 1 };
                    members.push((0..leaves).map(|_| leaf(rng, children)).collect::<Vec<_>>());
                }
                let new = select(next, members);
                next += u32::try_from(new.len()).unwrap();
                commands.extend(new);
                continue;
            }
            _ => commands.push(leaf(rng, children)),
        }
        next += 1;
    }
    let end = match rng.below(50) {
        0 => Some(complete_workflow()),
        1 => Some(fail_workflow()),
        2 | 3 => Some(continue_as_new()),
        _ => None,
    };
    commands.extend(end);
    commands
}

/// What the code says about its streams.
pub fn stream_report(rng: &mut Rng, state: &RunState) -> StreamReport {
    let mut report = StreamReport::default();
    for name in STREAMS {
        let known = state.streams.get(name);
        let (mut cursor, delivered) = known.map_or((0, 0), |s| (s.cursor, s.delivered));
        if rng.percent(40) && delivered > cursor {
            cursor = rng.between(cursor, delivered);
            report.cursors.push((name.into(), cursor));
        }
        if rng.percent(40) {
            report.waits.push((name.into(), cursor));
        }
    }
    report
}

pub fn stream_name(rng: &mut Rng) -> &'static str {
    STREAMS[rng.below(2)]
}

pub fn signal_name(rng: &mut Rng) -> &'static str {
    NAMES[rng.below(2)]
}

/// The call that a cancellation interrupts: one that is open, with its whole group, or a new one.
pub fn interrupted_call(rng: &mut Rng, state: &RunState) -> Delivery {
    let alone = |path: &Option<Path>, step: Step| path.is_none().then_some(step);
    let mut calls: Vec<Delivery> = open_leaves(state)
        .iter()
        .map(|(path, _)| path.outermost())
        .map(|outer: &PathEntry| {
            parallel_call(
                outer.parallel_group_base_sequence,
                outer.parallel_group_size,
            )
        })
        .collect();
    let activities = state.activities.values();
    calls.extend(activities.filter_map(|a| Some(call("activity", alone(&a.path, a.step)?))));
    let timers = state.timers.values();
    calls.extend(timers.filter_map(|t| Some(call("timer", alone(&t.path, t.step)?))));
    let children = state.children.values();
    calls.extend(children.filter_map(|c| Some(call("child", alone(&c.path, c.step)?))));
    let conditions = state.conditions.values();
    calls.extend(conditions.filter_map(|c| Some(call("condition", alone(&c.path, c.step)?))));
    let waits = state.signal_waits.values();
    calls.extend(waits.filter_map(|w| Some(call("signal", alone(&w.path, w.step)?))));
    match rng.pick(&calls) {
        Some(open) if rng.percent(85) => open.clone(),
        _ => call("timer", state.next_step),
    }
}
