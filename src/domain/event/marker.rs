//! Payloads of the events that only record a value for replay.
#![allow(
    missing_docs,
    reason = "field names are the contract's keys; each type says what happened"
)]

use serde::{Deserialize, Serialize};

use crate::domain::ids::Step;
use crate::payload::{Codec, Payload};

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
