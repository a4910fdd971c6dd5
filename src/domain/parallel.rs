//! Parallel groups: the metadata that commands carry, and what a group still waits for.

use serde::{Deserialize, Serialize};

use super::ids::Step;

/// One level of a command's group path. Copied unchanged into every event of the step, because
/// SDKs compare it literally.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathEntry {
    /// `{prefix}:{base}:{size}`.
    pub parallel_group_id: String,
    /// `activity`, `child`, `timer` or `mixed`.
    pub parallel_group_kind: String,
    /// Step of the group's first leaf.
    pub parallel_group_base_sequence: Step,
    /// Leaves in the group.
    pub parallel_group_size: u32,
    /// This leaf's place in the group, from 0.
    pub parallel_group_index: u32,
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

/// The six group keys of an event payload; all absent for a step outside any group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_group_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_group_kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_group_base_sequence: Option<Step>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_group_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_group_index: Option<u32>,
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
        let Some(path) = path else {
            return Self::default();
        };
        let inner = path.innermost();
        Self {
            parallel_group_id: Some(inner.parallel_group_id.clone()),
            parallel_group_kind: Some(inner.parallel_group_kind.clone()),
            parallel_group_base_sequence: Some(inner.parallel_group_base_sequence),
            parallel_group_size: Some(inner.parallel_group_size),
            parallel_group_index: Some(inner.parallel_group_index),
            parallel_group_path: path.0.clone(),
        }
    }
}

/// What kind of command a step is; one step number holds one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// An activity.
    Activity,
    /// A timer.
    Timer,
}

/// One recorded leaf of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its command.
    pub kind: StepKind,
    /// Its path, compared when the group is sent again.
    pub path: Path,
}

/// A recorded outermost group: who is in it and how many leaves are still open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    members: Vec<Option<Member>>,
    open: u32,
    finished_at: Option<u64>,
}

impl Group {
    /// A group of `size` leaves, none recorded yet.
    pub fn new(size: u32) -> Self {
        Self {
            members: vec![None; usize::try_from(size).unwrap_or(0)],
            open: size,
            finished_at: None,
        }
    }

    /// Records the leaf at `index`.
    pub fn record(&mut self, index: u32, member: Member) {
        if let Some(place) = self.members.get_mut(index as usize) {
            *place = Some(member);
        }
    }

    /// The leaf recorded at `index`.
    pub fn member(&self, index: u32) -> Option<&Member> {
        self.members.get(index as usize)?.as_ref()
    }

    /// A leaf reached its end in event `sequence`. Returns whether the group is finished.
    pub fn close_leaf(&mut self, sequence: u64) -> bool {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.finished_at.get_or_insert(sequence);
        }
        self.open == 0
    }

    /// The event that finished the group.
    pub fn finished_at(&self) -> Option<u64> {
        self.finished_at
    }
}
