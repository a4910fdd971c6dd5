//! Selections: the record of the winner, and giving up a member that lost.

use std::sync::Arc;

use super::super::event::{SelectionOperationCancelled, SelectionResolved};
use super::super::ids::{Part, Step, part_id};
use super::super::parallel::{LeafEnd, Path, Resolution};
use super::draft::Draft;
use super::outcome::Refusal;
use super::state::RunState;
use super::steps::invalid;
use super::{activity, child, condition, signal, timer};

/// The event that names the winner.
pub(super) fn resolved(state: &RunState, resolution: Resolution) -> SelectionResolved {
    let Resolution { group, member, .. } = resolution;
    SelectionResolved {
        selection_group_id: group.parallel_group_id,
        selection_group_base_sequence: group.parallel_group_base_sequence,
        selection_group_size: group.parallel_group_size,
        member_key: member.selection_member_key,
        member_index: member.selection_member_index,
        member_base_sequence: member.selection_member_base_sequence,
        member_size: member.selection_member_size,
        operation_kind: member.selection_member_kind,
        operation_identity: resolution.identity,
        outcome: if resolution.failed {
            "failed".into()
        } else {
            "completed".into()
        },
        resolution_event_id: part_id(state.id, Part::Event, resolution.sequence),
        resolution_event_type: resolution.event_type.into(),
    }
}

/// `cancel_selection_operation`: closes what is open of a member. A member that has ended stays as it
/// is.
pub(super) fn cancel(
    draft: &mut Draft<'_>,
    command: SelectionOperationCancelled,
) -> Result<(), Refusal> {
    let base = command.member_base_sequence;
    let group = draft
        .state
        .groups
        .values()
        .find(|group| group.id() == Some(&command.selection_group_id));
    let Some(group) = group else {
        // A selection that was seen finished is forgotten; one that was never made is a mistake.
        return if base < draft.state.next_step {
            Ok(())
        } else {
            Err(unknown(&command))
        };
    };
    let Some(member) = group
        .selected(base)
        .find_map(|path| path.outermost().member.as_ref())
    else {
        return Err(unknown(&command));
    };
    let as_recorded = member.selection_member_key == command.member_key
        && member.selection_member_index == command.member_index
        && member.selection_member_size == command.member_size
        && member.selection_member_kind == command.operation_kind;
    if !as_recorded {
        return Err(unknown(&command));
    }
    if group.is_over(base) {
        return Ok(());
    }
    let open = Open::of(&draft.state, base);
    let run = draft.state.id;
    let identity = if command.operation_kind == "group" {
        Some(format!("group:{base}:{}", command.member_size))
    } else {
        open.identity(run)
    };
    if identity.is_some_and(|identity| identity != command.operation_identity) {
        return Err(unknown(&command));
    }
    draft.emit(command);
    for activity in &open.activities {
        activity::withdraw(draft, activity);
    }
    for timer in &open.timers {
        timer::cancel(draft, timer);
    }
    for child in &open.children {
        child::give_up(draft, child);
    }
    for wait in &open.conditions {
        condition::cancel_timer(draft, wait);
    }
    for wait in &open.signal_waits {
        signal::cancel_timer(draft, wait);
    }
    Ok(())
}

fn unknown(command: &SelectionOperationCancelled) -> Refusal {
    invalid(&format!(
        "the selection {:?} has no such member at step {}",
        command.selection_group_id, command.member_base_sequence
    ))
}

/// What is open of a member.
struct Open {
    activities: Vec<Arc<super::state::Activity>>,
    timers: Vec<Arc<super::state::Timer>>,
    children: Vec<Arc<super::state::Child>>,
    conditions: Vec<Arc<super::state::Condition>>,
    signal_waits: Vec<Arc<super::state::SignalWait>>,
}

impl Open {
    fn of(state: &RunState, base: u32) -> Self {
        let is_member =
            |path: &Option<Path>| path.as_ref().is_some_and(|path| path.is_of_member(base));
        let activities = state.activities.values();
        let timers = state.timers.values();
        let children = state.children.values();
        let conditions = state.conditions.values();
        let signal_waits = state.signal_waits.values();
        Self {
            activities: activities.filter(|a| is_member(&a.path)).cloned().collect(),
            timers: timers.filter(|t| is_member(&t.path)).cloned().collect(),
            children: children.filter(|c| is_member(&c.path)).cloned().collect(),
            conditions: conditions.filter(|c| is_member(&c.path)).cloned().collect(),
            signal_waits: signal_waits
                .filter(|w| is_member(&w.path))
                .cloned()
                .collect(),
        }
    }

    /// The identity of the one operation that is open.
    fn identity(&self, run: super::super::ids::RunId) -> Option<String> {
        let numbered = |part, n: u32| part_id(run, part, n.into());
        let activity = self
            .activities
            .first()
            .map(|a| numbered(Part::Activity, a.no));
        let timer = self.timers.first().map(|t| numbered(Part::Timer, t.step));
        let child = self.children.first().map(|c| c.run.to_string());
        let condition = self
            .conditions
            .first()
            .map(|c| numbered(Part::Wait, c.step));
        let wait = self
            .signal_waits
            .first()
            .map(|w| numbered(Part::Wait, w.step));
        activity.or(timer).or(child).or(condition).or(wait)
    }
}

impl RunState {
    /// A selection gave a member up: what is open of it neither wakes nor decides anything.
    pub(super) fn give_up_member(&mut self, cancelled: &SelectionOperationCancelled) {
        let member = cancelled.member_base_sequence;
        let Some(base) = self.group_of_member(member) else {
            return;
        };
        if let Some(group) = self.groups.get_mut(&base) {
            Arc::make_mut(group).cancel(member);
        }
        // The waits of the member have no event of their own.
        let conditions: Vec<Step> =
            steps_of(self.conditions.values().map(|c| (c.step, &c.path)), member);
        let waits: Vec<Step> = steps_of(
            self.signal_waits.values().map(|w| (w.step, &w.path)),
            member,
        );
        for step in conditions {
            self.conditions.remove(&step);
            self.close_quietly(base, step);
        }
        for step in waits {
            self.signal_waits.remove(&step);
            self.close_quietly(base, step);
        }
    }

    /// The outermost group in which `member` is a member of a selection.
    fn group_of_member(&self, member: Step) -> Option<Step> {
        self.groups
            .iter()
            .find(|(_, group)| group.selected(member).next().is_some())
            .map(|(base, _)| *base)
    }

    /// The leaf at `step` of the group at `base` is closed; nobody waits for it any more.
    pub(super) fn close_quietly(&mut self, base: Step, step: Step) {
        let last = self.last_event();
        if let Some(group) = self.groups.get_mut(&base) {
            let group = Arc::make_mut(group);
            let path = group.path_at(step).cloned();
            if let Some(path) = path {
                group.close_leaf(&path, &LeafEnd::quiet(last));
            }
        }
    }
}

fn steps_of<'a>(open: impl Iterator<Item = (Step, &'a Option<Path>)>, member: Step) -> Vec<Step> {
    open.filter(|(_, path)| path.as_ref().is_some_and(|path| path.is_of_member(member)))
        .map(|(step, _)| step)
        .collect()
}
