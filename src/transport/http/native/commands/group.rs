//! Group metadata of a command, and the command that gives a member of a selection up.

use serde::Deserialize;
use serde_json::Value;

use crate::domain::command::Command;
use crate::domain::event::SelectionOperationCancelled;
use crate::domain::ids::Step;
use crate::domain::parallel::{Path, PathEntry, SelectionMember};
use crate::protocol::feature::Feature;

use super::super::super::fields::Int;
use super::super::leases::MAX_ID;
use super::{CommandRequest, Reader};

/// Largest parallel group.
const MAX_GROUP: i64 = 1_000;
/// Levels of a path.
const MAX_LEVELS: usize = 32;
/// Highest step that a group may begin at.
const MAX_STEP: i64 = 2_147_483_647;
/// The mode of a selection.
const SELECT: &str = "select";

/// One level of `parallel_group_path`.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct PathEntryRequest {
    parallel_group_id: Option<String>,
    parallel_group_kind: Option<String>,
    parallel_group_base_sequence: Option<i64>,
    parallel_group_size: Option<i64>,
    parallel_group_index: Option<i64>,
    parallel_group_mode: Option<String>,
    #[schema(value_type = Option<serde_json::Value>)]
    selection_member_key: Option<Value>,
    selection_member_index: Option<i64>,
    selection_member_base_sequence: Option<i64>,
    selection_member_size: Option<i64>,
    selection_member_kind: Option<String>,
}

impl PathEntryRequest {
    fn flat(command: &CommandRequest) -> Self {
        Self {
            parallel_group_id: command.parallel_group_id.clone(),
            parallel_group_kind: command.parallel_group_kind.clone(),
            parallel_group_base_sequence: command.parallel_group_base_sequence,
            parallel_group_size: command.parallel_group_size,
            parallel_group_index: command.parallel_group_index,
            parallel_group_mode: command.parallel_group_mode.clone(),
            selection_member_key: command.selection_member_key.clone(),
            selection_member_index: command.selection_member_index,
            selection_member_base_sequence: command.selection_member_base_sequence,
            selection_member_size: command.selection_member_size,
            selection_member_kind: command.selection_member_kind.clone(),
        }
    }

    fn is_empty(&self) -> bool {
        self.parallel_group_id.is_none()
            && self.parallel_group_kind.is_none()
            && self.parallel_group_base_sequence.is_none()
            && self.parallel_group_size.is_none()
            && self.parallel_group_index.is_none()
            && self.parallel_group_mode.is_none()
    }
}

impl Reader<'_> {
    /// Group metadata: all of it or none, the flat fields equal to the innermost level. Only the
    /// outermost level may be a selection.
    pub(super) fn group(&mut self, command: &CommandRequest) -> Option<Path> {
        let flat = PathEntryRequest::flat(command);
        if flat.is_empty() && command.parallel_group_path.is_none() {
            return None;
        }
        let Some(sent) = &command.parallel_group_path else {
            self.add(
                "parallel_group_path",
                "is required with the other fields of a parallel group",
            );
            return None;
        };
        if sent.len() > MAX_LEVELS {
            self.add(
                "parallel_group_path",
                format!("must have at most {MAX_LEVELS} levels"),
            );
            return None;
        }
        let inner = self.path_entry("", &flat, sent.len() <= 1);
        let mut entries = Vec::new();
        for (place, entry) in sent.iter().enumerate() {
            let prefix = format!("parallel_group_path.{place}.");
            entries.extend(self.path_entry(&prefix, entry, place == 0));
        }
        let inner = inner?;
        if entries.len() != sent.len() || entries.last() != Some(&inner) {
            self.add(
                "parallel_group_path",
                "must end with the level that the other fields describe",
            );
            return None;
        }
        Path::new(entries)
    }

    fn path_entry(
        &mut self,
        prefix: &str,
        entry: &PathEntryRequest,
        outermost: bool,
    ) -> Option<PathEntry> {
        let before = self.problems.clone();
        let field = |name: &str| format!("{prefix}{name}");
        let select = self.is_selection(&field("parallel_group_mode"), entry, outermost);
        let base = self.number(
            &field("parallel_group_base_sequence"),
            entry.parallel_group_base_sequence,
            1,
            MAX_STEP,
        );
        let size = self.number(
            &field("parallel_group_size"),
            entry.parallel_group_size,
            1,
            MAX_GROUP,
        );
        let highest = i64::from(size.unwrap_or(1)) - 1;
        let index = self.number(
            &field("parallel_group_index"),
            entry.parallel_group_index,
            0,
            highest,
        );
        let id_prefix = match (select, entry.parallel_group_kind.as_deref()) {
            (true, Some("activity" | "child" | "timer" | "condition" | "signal" | "mixed")) => {
                Some("select-calls")
            }
            (false, Some("activity")) => Some("parallel-activities"),
            (false, Some("child")) => Some("parallel-children"),
            (false, Some("timer")) => Some("parallel-timers"),
            (false, Some("condition")) => Some("parallel-conditions"),
            (false, Some("signal")) => Some("parallel-signals"),
            (false, Some("mixed")) => Some("parallel-calls"),
            (_, Some(_)) => {
                self.add(
                    &field("parallel_group_kind"),
                    "must be activity, child, timer, condition, signal or mixed",
                );
                None
            }
            (_, None) => {
                self.add(&field("parallel_group_kind"), "is required");
                None
            }
        };
        match (&entry.parallel_group_id, id_prefix, base, size) {
            (None, ..) => self.add(&field("parallel_group_id"), "is required"),
            (Some(id), Some(prefix), Some(base), Some(size))
                if *id != format!("{prefix}:{base}:{size}") =>
            {
                self.add(
                    &field("parallel_group_id"),
                    "does not match kind, base and size of the group",
                );
            }
            _ => {}
        }
        let member = if select {
            self.member(prefix, entry, base, size, index)
        } else {
            None
        };
        if *self.problems != before {
            return None;
        }
        Some(PathEntry {
            parallel_group_id: entry.parallel_group_id.clone()?,
            parallel_group_kind: entry.parallel_group_kind.clone()?,
            parallel_group_mode: entry.parallel_group_mode.clone(),
            parallel_group_base_sequence: base?,
            parallel_group_size: size?,
            parallel_group_index: index?,
            member,
        })
    }

    fn is_selection(&mut self, field: &str, entry: &PathEntryRequest, outermost: bool) -> bool {
        let Some(mode) = entry.parallel_group_mode.as_deref() else {
            return false;
        };
        if mode != SELECT || !self.offered.contains(&"cancel_selection_operation") {
            self.add(field, "is not a mode that this server supports");
        } else if !self.version.allows(Feature::DurableSelection) {
            self.add(
                field,
                format!(
                    "needs worker protocol {} or newer",
                    Feature::DurableSelection.floor()
                ),
            );
        } else if !outermost {
            self.add(field, "belongs to the outermost level only");
        }
        true
    }

    /// The member of a selection that a leaf belongs to: a range of the group's steps around it.
    fn member(
        &mut self,
        prefix: &str,
        entry: &PathEntryRequest,
        base: Option<Step>,
        size: Option<Step>,
        index: Option<Step>,
    ) -> Option<SelectionMember> {
        let field = |name: &str| format!("{prefix}{name}");
        let key = self.member_key(
            &field("selection_member_key"),
            entry.selection_member_key.as_ref(),
        );
        let member_index = self.number(
            &field("selection_member_index"),
            entry.selection_member_index,
            0,
            MAX_GROUP - 1,
        );
        let member_base = self.number(
            &field("selection_member_base_sequence"),
            entry.selection_member_base_sequence,
            1,
            MAX_STEP,
        );
        let member_size = self.number(
            &field("selection_member_size"),
            entry.selection_member_size,
            1,
            MAX_GROUP,
        );
        let kind = entry.selection_member_kind.as_deref();
        if !matches!(
            kind,
            Some("activity" | "child" | "timer" | "condition" | "signal" | "group")
        ) {
            self.add(
                &field("selection_member_kind"),
                "must be activity, child, timer, condition, signal or group",
            );
        }
        let (base, size, index) = (base?, size?, index?);
        let (member_base, member_size) = (member_base?, member_size?);
        let step = base + index;
        let inside = member_base >= base
            && member_base + member_size <= base + size
            && (member_base..member_base + member_size).contains(&step);
        if !inside {
            self.add(
                &field("selection_member_base_sequence"),
                "must begin a range of the group's steps that holds this one",
            );
        }
        Some(SelectionMember {
            selection_member_key: key?,
            selection_member_index: member_index?,
            selection_member_base_sequence: member_base,
            selection_member_size: member_size,
            selection_member_kind: kind?.to_owned(),
        })
    }

    fn member_key(&mut self, field: &str, key: Option<&Value>) -> Option<Value> {
        match key {
            Some(Value::String(text)) if !text.is_empty() && text.chars().count() <= MAX_ID => {}
            Some(Value::Number(number)) if number.as_u64().is_some() => {}
            Some(_) => self.add(field, "must be a text or a number from 0 on"),
            None => self.add(field, "is required"),
        }
        key.cloned()
    }

    fn number(&mut self, field: &str, value: Option<i64>, least: i64, most: i64) -> Option<Step> {
        let Some(value) = value else {
            self.add(field, "is required");
            return None;
        };
        let path = self.path(field);
        self.problems.within(&path, value, least..=most);
        u32::try_from(value).ok()
    }

    /// `cancel_selection_operation`
    pub(super) fn cancel_selection(&mut self, command: CommandRequest) -> Option<Command> {
        self.name("selection_group_id", command.selection_group_id.as_deref());
        let member_key = self.member_key("member_key", command.member_key.as_ref());
        let int = |int: Option<Int>| int.map(|Int(n)| n);
        let member_index = self.number("member_index", int(command.member_index), 0, MAX_GROUP);
        let base = int(command.member_base_sequence);
        let member_base_sequence = self.number("member_base_sequence", base, 1, MAX_STEP);
        let member_size = self.number("member_size", int(command.member_size), 1, MAX_GROUP);
        self.name("operation_kind", command.operation_kind.as_deref());
        self.name("operation_identity", command.operation_identity.as_deref());
        Some(Command::CancelSelection(SelectionOperationCancelled {
            selection_group_id: command.selection_group_id?,
            member_key: member_key?,
            member_index: member_index?,
            member_base_sequence: member_base_sequence?,
            member_size: member_size?,
            operation_kind: command.operation_kind?,
            operation_identity: command.operation_identity?,
        }))
    }
}
