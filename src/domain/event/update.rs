//! Payloads of update events. They belong to no step, so none of them has a `sequence`.
#![allow(
    missing_docs,
    reason = "field names are the contract's keys; each type says what happened"
)]

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::ids::{RunId, WorkflowId};
use crate::payload::{Codec, Payload};

use super::{Json, Word};

/// The keys that every event of an update repeats.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpdateKeys {
    pub workflow_command_id: String,
    pub update_id: Arc<str>,
    pub workflow_instance_id: WorkflowId,
    pub workflow_run_id: RunId,
    pub update_name: Arc<str>,
}

/// An update entered the history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpdateAccepted {
    #[serde(flatten)]
    pub keys: UpdateKeys,
    pub arguments: Payload,
    pub payload_codec: Codec,
    pub ordering_state: Word,
}

/// A validator refused an update.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpdateRejected {
    #[serde(flatten)]
    pub keys: UpdateKeys,
    pub arguments: Payload,
    pub payload_codec: Codec,
    pub message: Arc<str>,
    pub validation_errors: Option<Json>,
}

/// The handler ran; replay runs it again at this place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpdateApplied {
    #[serde(flatten)]
    pub keys: UpdateKeys,
    pub arguments: Payload,
    pub payload_codec: Codec,
}

/// The update has an outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpdateCompleted {
    #[serde(flatten)]
    pub keys: UpdateKeys,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub result: Option<Payload>,
    pub payload_codec: Codec,
    #[serde(flatten)]
    pub failure: Option<UpdateFailure>,
}

/// Why an update failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpdateFailure {
    pub failure_id: String,
    pub failure_category: Word,
    pub non_retryable: bool,
    pub exception_type: Option<Arc<str>>,
    pub exception_class: Option<Arc<str>>,
    pub message: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub terminal_reason: Option<Word>,
}
