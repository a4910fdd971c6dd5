//! Payloads of the events that record a value: for replay, for lists, for a selection.
#![allow(
    missing_docs,
    reason = "field names are the contract's keys; each type says what happened"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::domain::ids::Step;
use crate::payload::{Codec, Payload};

use super::Word;

/// The result of a side effect was recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SideEffectRecorded {
    pub sequence: Step,
    pub result: Payload,
    pub payload_codec: Codec,
}

/// The version that the workflow chose for a change was recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VersionMarkerRecorded {
    pub sequence: Step,
    pub change_id: String,
    pub version: i64,
    pub min_supported: i64,
    pub max_supported: i64,
}

/// Search attributes changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SearchAttributesUpserted {
    pub sequence: Step,
    pub attributes: Map<String, Value>,
    pub merged: Map<String, Value>,
    /// Type of every attribute that was not deleted.
    pub attribute_types: BTreeMap<String, Word>,
}

/// The memo changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemoUpserted {
    pub sequence: Step,
    pub entries: Payload,
    pub merged: Payload,
}

/// The workflow has taken messages of a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MessageCursorAdvanced {
    pub stream_key: Arc<str>,
    pub previous_position: u64,
    pub new_position: u64,
}

/// A member of a selection won.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SelectionResolved {
    pub selection_group_id: String,
    pub selection_group_base_sequence: Step,
    pub selection_group_size: u32,
    pub member_key: Value,
    pub member_index: u32,
    pub member_base_sequence: Step,
    pub member_size: u32,
    pub operation_kind: String,
    pub operation_identity: String,
    pub outcome: Word,
    pub resolution_event_id: String,
    pub resolution_event_type: Word,
}

/// A member of a selection that had not ended was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectionOperationCancelled {
    pub selection_group_id: String,
    pub member_key: Value,
    pub member_index: u32,
    pub member_base_sequence: Step,
    pub member_size: u32,
    pub operation_kind: String,
    pub operation_identity: String,
}
