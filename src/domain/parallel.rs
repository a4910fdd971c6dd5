//! Parallel groups: the metadata that commands carry, and what a group still waits for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ids::Step;

/// One level of a command's group path. Copied unchanged into every event of the step, because
/// SDKs compare it literally.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathEntry {
    /// `{prefix}:{base}:{size}`.
    pub parallel_group_id: String,
    /// `activity`, `child`, `timer`, `condition`, `signal` or `mixed`.
    pub parallel_group_kind: String,
    /// `select` for a selection, whose first finished member wins.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parallel_group_mode: Option<String>,
    /// Step of the group's first leaf.
    pub parallel_group_base_sequence: Step,
    /// Leaves in the group.
    pub parallel_group_size: u32,
    /// This leaf's place in the group, from 0.
    pub parallel_group_index: u32,
    /// The leaf's member of a selection.
    #[serde(flatten)]
    pub member: Option<SelectionMember>,
}

/// A member of a selection, as its leaves name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectionMember {
    /// The author's name for it: text or a number.
    pub selection_member_key: Value,
    /// Its place among the members, from 0.
    pub selection_member_index: u32,
    /// Step of its first leaf.
    pub selection_member_base_sequence: Step,
    /// Its leaves.
    pub selection_member_size: u32,
    /// `activity`, `child`, `timer`, `condition`, `signal` or `group`.
    pub selection_member_kind: String,
}

/// A command's place in its groups: the path from the outermost group inwards, never empty. The
/// flat fields on the wire repeat the innermost entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<PathEntry>);

impl Path {
    /// A path of at least one entry.
    pub fn new(entries: Vec<PathEntry>) -> Option<Self> {
        (!entries.is_empty()).then_some(Self(entries))
    }

    /// The outermost group, whose end wakes the workflow.
    pub fn outermost(&self) -> &PathEntry {
        &self.0[0]
    }

    /// The innermost group.
    pub fn innermost(&self) -> &PathEntry {
        &self.0[self.0.len() - 1]
    }

    /// Whether the command is a leaf of the member of a selection that begins at `base`.
    pub fn is_of_member(&self, base: Step) -> bool {
        self.outermost()
            .member
            .as_ref()
            .is_some_and(|member| member.selection_member_base_sequence == base)
    }

    /// All entries, outermost first.
    pub fn entries(&self) -> &[PathEntry] {
        &self.0
    }

    /// Whether every entry puts the command at `step`, inside its group.
    pub fn is_at(&self, step: Step) -> bool {
        self.0.iter().all(|entry| {
            entry.parallel_group_index < entry.parallel_group_size
                && entry
                    .parallel_group_base_sequence
                    .checked_add(entry.parallel_group_index)
                    == Some(step)
        })
    }

    /// The step that the path declares.
    pub fn step(&self) -> Option<Step> {
        let outer = self.outermost();
        outer
            .parallel_group_base_sequence
            .checked_add(outer.parallel_group_index)
    }
}

/// The group keys of an event payload: the innermost level and the whole path; all absent for a step
/// outside any group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupFields {
    #[serde(flatten)]
    innermost: Option<PathEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parallel_group_path: Vec<PathEntry>,
}

impl GroupFields {
    /// The path these keys describe, if the step is in a group.
    pub fn path(&self) -> Option<Path> {
        Path::new(self.parallel_group_path.clone())
    }
}

impl From<Option<&Path>> for GroupFields {
    fn from(path: Option<&Path>) -> Self {
        path.map_or_else(Self::default, |path| Self {
            innermost: Some(path.innermost().clone()),
            parallel_group_path: path.0.clone(),
        })
    }
}

/// What kind of command a step is; one step number holds one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// An activity.
    Activity,
    /// A timer.
    Timer,
    /// A child workflow.
    Child,
    /// A wait for a condition.
    Condition,
    /// A wait for a signal.
    SignalWait,
}

/// One recorded leaf of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its command.
    pub kind: StepKind,
    /// Its path, compared when the group is sent again.
    pub path: Path,
}

/// How a leaf ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafEnd {
    /// The event that says so.
    pub sequence: u64,
    /// Its type.
    pub event_type: &'static str,
    /// It failed, timed out or was cancelled.
    pub failed: bool,
    /// Identity of the operation.
    pub identity: String,
}

impl LeafEnd {
    /// The end of a leaf that no event records and nobody waits for.
    pub fn quiet(sequence: u64) -> Self {
        Self {
            sequence,
            event_type: "",
            failed: false,
            identity: String::new(),
        }
    }
}

/// What the end of a leaf means for whoever waits for its group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consequence {
    /// A workflow task must see it.
    pub wake: bool,
    /// A selection was decided by it.
    pub resolved: Option<Resolution>,
}

/// The member that won a selection, and by which event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The selection.
    pub group: PathEntry,
    /// The winner.
    pub member: SelectionMember,
    /// Identity of the winning operation.
    pub identity: String,
    /// The deciding event.
    pub sequence: u64,
    /// Its type.
    pub event_type: &'static str,
    /// The winner failed.
    pub failed: bool,
}

/// What a selection knows of one of its members.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chosen {
    open: u32,
    failed: bool,
    cancelled: bool,
}

/// A recorded outermost group: who is in it and how many leaves are still open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    members: Vec<Option<Member>>,
    open: u32,
    finished_at: Option<u64>,
    /// Members of a selection by their first step; nothing for a group that is awaited as a whole.
    selection: BTreeMap<Step, Chosen>,
    winner: Option<Step>,
}

impl Group {
    /// A group of `size` leaves, none recorded yet.
    pub fn new(size: u32) -> Self {
        Self {
            members: vec![None; usize::try_from(size).unwrap_or(0)],
            open: size,
            finished_at: None,
            selection: BTreeMap::new(),
            winner: None,
        }
    }

    /// Records the leaf at `index`.
    pub fn record(&mut self, index: u32, member: Member) {
        if let Some(selected) = &member.path.outermost().member {
            self.selection
                .entry(selected.selection_member_base_sequence)
                .or_insert(Chosen {
                    open: selected.selection_member_size,
                    failed: false,
                    cancelled: false,
                });
        }
        if let Some(place) = self.members.get_mut(index as usize) {
            *place = Some(member);
        }
    }

    /// The leaf recorded at `index`.
    pub fn member(&self, index: u32) -> Option<&Member> {
        self.members.get(index as usize)?.as_ref()
    }

    /// The event that finished the group.
    pub fn finished_at(&self) -> Option<u64> {
        self.finished_at
    }

    /// The leaves of a member of a selection that starts at `base`.
    pub fn selected(&self, base: Step) -> impl Iterator<Item = &Path> {
        self.members
            .iter()
            .flatten()
            .map(|member| &member.path)
            .filter(move |path| path.is_of_member(base))
    }

    /// The path of the leaf at `step`.
    pub fn path_at(&self, step: Step) -> Option<&Path> {
        self.members
            .iter()
            .flatten()
            .map(|member| &member.path)
            .find(|path| path.step() == Some(step))
    }

    /// The id of the group, once a leaf is recorded.
    pub fn id(&self) -> Option<&str> {
        let member = self.members.iter().flatten().next()?;
        Some(&member.path.outermost().parallel_group_id)
    }

    /// Whether a member of a selection has reached its end, or was cancelled.
    pub fn is_over(&self, base: Step) -> bool {
        self.selection
            .get(&base)
            .is_none_or(|chosen| chosen.failed || chosen.cancelled || chosen.open == 0)
    }

    /// A member of a selection was cancelled: the ends of its leaves mean nothing any more.
    pub fn cancel(&mut self, base: Step) {
        if let Some(chosen) = self.selection.get_mut(&base) {
            chosen.cancelled = true;
        }
    }

    /// A selection was decided.
    pub fn decide(&mut self, base: Step) {
        self.winner.get_or_insert(base);
    }

    /// A leaf reached its end. A group wakes the workflow when its last leaf ends, or at once when one
    /// fails, so that the code can react. A selection wakes it when a member ends, and the first one
    /// that does has won.
    pub fn close_leaf(&mut self, path: &Path, end: &LeafEnd) -> Consequence {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.finished_at.get_or_insert(end.sequence);
        }
        let outer = path.outermost();
        let Some(member) = &outer.member else {
            return Consequence {
                wake: end.failed || self.open == 0,
                resolved: None,
            };
        };
        let base = member.selection_member_base_sequence;
        let Some(chosen) = self.selection.get_mut(&base) else {
            return Consequence::default();
        };
        let was_over = chosen.failed || chosen.cancelled;
        chosen.open = chosen.open.saturating_sub(1);
        chosen.failed |= end.failed;
        let over = chosen.failed || chosen.open == 0;
        if was_over || !over {
            return Consequence::default();
        }
        let resolved = self.winner.is_none().then(|| Resolution {
            group: outer.clone(),
            member: member.clone(),
            identity: if member.selection_member_kind == "group" {
                format!("group:{base}:{}", member.selection_member_size)
            } else {
                end.identity.clone()
            },
            sequence: end.sequence,
            event_type: end.event_type,
            failed: end.failed,
        });
        Consequence {
            wake: true,
            resolved,
        }
    }
}
