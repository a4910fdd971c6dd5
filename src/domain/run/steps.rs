//! Step numbers: which one a command gets, and which commands were recorded before.

use std::collections::BTreeMap;

use super::super::ids::Step;
use super::super::parallel::{Path, PathEntry, StepKind};
use super::draft::Draft;
use super::outcome::Refusal;

/// What a command's step number is.
pub(super) enum Numbered {
    /// A new step.
    New(Step),
    /// The command repeats a recorded member of a group; it is ignored.
    Repeat,
}

/// Numbers the steps of one completion.
#[derive(Default)]
pub(super) struct Steps {
    /// New groups by level and base: the first member's entry, and how many leaves there are.
    sent: BTreeMap<(usize, Step), (PathEntry, u32)>,
}

impl Steps {
    /// Numbers the next step-producing command. Outside a group that is simply the next number.
    /// A group declares its base: ahead of the next number it is followed, behind it the members
    /// must be those that are recorded there.
    pub fn number(
        &mut self,
        draft: &Draft<'_>,
        kind: StepKind,
        path: Option<&Path>,
    ) -> Result<Numbered, Refusal> {
        let next = draft.state.next_step;
        let Some(path) = path else {
            return Ok(Numbered::New(next));
        };
        let step = path
            .step()
            .filter(|step| *step >= 1 && path.is_at(*step))
            .ok_or_else(|| invalid("the group path does not put every level at the same step"))?;
        let outer = path.outermost();
        if step < next {
            let recorded = draft
                .state
                .groups
                .get(&outer.parallel_group_base_sequence)
                .and_then(|group| group.member(outer.parallel_group_index));
            return match recorded {
                Some(member) if member.kind == kind && member.path == *path => Ok(Numbered::Repeat),
                _ => Err(invalid(&format!("step {step} is taken by another command"))),
            };
        }
        for (level, entry) in path.entries().iter().enumerate() {
            let (first, leaves) = self
                .sent
                .entry((level, entry.parallel_group_base_sequence))
                .or_insert_with(|| (entry.clone(), 0));
            if !is_same_group(first, entry) {
                return Err(invalid(&format!(
                    "step {step} says another size or kind of its parallel group than a step before it"
                )));
            }
            *leaves += 1;
        }
        Ok(Numbered::New(step))
    }

    /// After the last command: every group that was opened must be there in full, on every level.
    /// Steps are distinct and each index follows from its step, so the leaves need only be counted.
    pub fn check_whole(&self) -> Result<(), Refusal> {
        for ((_, base), (entry, leaves)) in &self.sent {
            if *leaves != entry.parallel_group_size {
                return Err(invalid(&format!(
                    "the parallel group at step {base} was not sent in full"
                )));
            }
        }
        Ok(())
    }
}

fn is_same_group(one: &PathEntry, other: &PathEntry) -> bool {
    one.parallel_group_id == other.parallel_group_id
        && one.parallel_group_kind == other.parallel_group_kind
        && one.parallel_group_size == other.parallel_group_size
        && one.parallel_group_mode == other.parallel_group_mode
}

/// A refusal of the whole completion.
pub(super) fn invalid(why: &str) -> Refusal {
    Refusal::InvalidCommands(why.to_owned())
}
