//! What a run shows and is found by: memo and search attributes, and the commands that change them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::payload::avro::Entries;
use crate::payload::{Codec, Payload};

use super::super::command::UpsertSearchAttributes;
use super::super::event::{Json, MemoUpserted, SearchAttributesUpserted, Word};
use super::super::limits::{
    LimitKind, MAX_MEMO_BYTES, MAX_MEMO_ENTRIES, MAX_MEMO_VALUE_BYTES, MAX_SEARCH_ATTRIBUTES,
};
use super::draft::Draft;
use super::fact::{Begun, Fact};
use super::outcome::Refusal;
use super::start::json;
use super::workflow_task::within;

/// The memo, as callers see it and as the SDK encoded it.
#[derive(Clone, Debug)]
pub struct Memo {
    /// A JSON object.
    pub shown: Json,
    /// The encoded map, once a workflow has changed it.
    pub encoded: Option<Payload>,
}

impl Memo {
    pub(super) fn from_begun(begun: &Begun) -> Self {
        Self {
            shown: begun.memo.clone(),
            encoded: begun.memo_encoded.clone(),
        }
    }

    /// The memo that `merged` holds.
    pub(super) fn from_merged(merged: &Payload) -> Self {
        let shown = Entries::read(merged.blob()).map_or_else(|_| Map::new(), |all| all.shown());
        Self {
            shown: json(shown),
            encoded: Some(merged.clone()),
        }
    }

    fn entries(&self) -> Entries {
        match &self.encoded {
            Some(encoded) => Entries::read(encoded.blob()).unwrap_or_default(),
            None => object(&self.shown)
                .and_then(|object| Entries::from_json(&object).ok())
                .unwrap_or_default(),
        }
    }
}

/// Search attributes, by name.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Their values.
    pub values: Map<String, Value>,
    /// The same as one JSON object.
    pub shown: Json,
}

impl Attributes {
    pub(super) fn from_json(shown: &Json) -> Self {
        Self {
            values: object(shown).unwrap_or_default(),
            shown: shown.clone(),
        }
    }

    pub(super) fn from_values(values: Map<String, Value>) -> Self {
        Self {
            shown: json(values.clone()),
            values,
        }
    }
}

fn object(json: &Json) -> Option<Map<String, Value>> {
    serde_json::from_str(json.get()).ok()
}

/// `upsert_memo`
pub(super) fn upsert_memo(draft: &mut Draft<'_>, entries: Payload) -> Result<(), Refusal> {
    let invalid = |why: String| Refusal::InvalidMemo(why);
    let changes = Entries::read(entries.blob()).map_err(|error| invalid(error.to_string()))?;
    if changes.is_empty() {
        return Err(invalid("at least one entry is required".to_owned()));
    }
    for (name, bytes) in changes.sizes() {
        if !is_memo_name(name) {
            return Err(invalid(format!("the name {name:?} is not allowed")));
        }
        if bytes > MAX_MEMO_VALUE_BYTES {
            return Err(invalid(format!(
                "the value of {name:?} has {bytes} bytes; {MAX_MEMO_VALUE_BYTES} are allowed"
            )));
        }
    }
    let mut merged = draft.state.memo.entries();
    merged.merge(&changes);
    let limit =
        |current: usize, configured: u64| within(current as u64, configured, LimitKind::MemoSize);
    if merged.len() > MAX_MEMO_ENTRIES {
        return Err(invalid(format!(
            "the memo would have {} entries; {MAX_MEMO_ENTRIES} are allowed",
            merged.len()
        )));
    }
    let bytes = merged.bytes().len();
    limit(bytes, MAX_MEMO_BYTES)?;
    limit(bytes, draft.settings.limits.memo_bytes)?;
    let sequence = draft.state.next_step;
    draft.emit(MemoUpserted {
        sequence,
        entries,
        merged: Payload::new(Codec::Avro, &merged.blob()),
    });
    Ok(())
}

/// `^(?!-?[0-9]+$)[A-Za-z0-9_.:-]{1,64}$`: what SDKs accept as a name.
fn is_memo_name(name: &str) -> bool {
    let digits = name.strip_prefix('-').unwrap_or(name);
    let numeric = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    !numeric && is_attribute_name(name)
}

/// `[A-Za-z0-9_.:-]{1,64}`
pub(crate) fn is_attribute_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte))
}

/// `upsert_search_attributes`; names and values were checked where the command came in.
pub(super) fn upsert_search_attributes(
    draft: &mut Draft<'_>,
    command: UpsertSearchAttributes,
) -> Result<(), Refusal> {
    let mut merged = draft.state.attributes.values.clone();
    let mut attribute_types = BTreeMap::new();
    for (name, value) in &command.attributes {
        if value.is_null() {
            merged.remove(name);
            continue;
        }
        let declared = command.types.get(name).copied();
        let kind = declared.unwrap_or_else(|| inferred_type(value));
        attribute_types.insert(name.clone(), Word::from(kind));
        merged.insert(name.clone(), value.clone());
    }
    within(
        merged.len() as u64,
        MAX_SEARCH_ATTRIBUTES,
        LimitKind::SearchAttributes,
    )?;
    let bytes = json(merged.clone()).get().len() as u64;
    within(
        bytes,
        draft.settings.limits.search_attribute_bytes,
        LimitKind::SearchAttributes,
    )?;
    if !command.types.is_empty() {
        draft.note(Fact::TypesDeclared);
    }
    let sequence = draft.state.next_step;
    draft.emit(SearchAttributesUpserted {
        sequence,
        attributes: command.attributes,
        merged,
        attribute_types,
    });
    Ok(())
}

/// The type of a value for which none was declared.
fn inferred_type(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::Array(_) => "keyword_list",
        _ => "keyword",
    }
}
