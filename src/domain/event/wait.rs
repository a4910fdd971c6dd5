//! Payloads of the events of waits: for a condition, or for a signal.
#![allow(
    missing_docs,
    reason = "field names are the contract's keys; each type says what happened"
)]

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::ids::Step;
use crate::domain::parallel::GroupFields;
use crate::payload::{Codec, Payload};

/// The keys that every event of a condition wait repeats, and those of its timeout timer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConditionKeys {
    pub condition_wait_id: String,
    pub condition_key: Option<Arc<str>>,
    pub condition_definition_fingerprint: Option<Arc<str>>,
    pub condition_wait_occurrence_id: Option<Arc<str>>,
}

/// A workflow waits for a condition, which only its worker can evaluate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConditionWaitOpened {
    #[serde(flatten)]
    pub condition: ConditionKeys,
    pub sequence: Step,
    pub timeout_seconds: Option<u64>,
    #[serde(flatten)]
    pub group: GroupFields,
}

/// A worker saw input newer than the wait: it goes on, or opens the wait again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConditionWaitSatisfied {
    #[serde(flatten)]
    pub condition: ConditionKeys,
    pub sequence: Step,
    pub timeout_seconds: Option<u64>,
    pub timer_id: Option<String>,
    pub workflow_signal_id: Option<String>,
    pub signal_name: Option<Arc<str>>,
    #[serde(flatten)]
    pub group: GroupFields,
}

/// The condition did not come true in time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConditionWaitTimedOut {
    #[serde(flatten)]
    pub condition: ConditionKeys,
    pub sequence: Step,
    pub timeout_seconds: Option<u64>,
    pub timer_id: Option<String>,
    #[serde(flatten)]
    pub group: GroupFields,
}

/// A workflow waits for a signal of this name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SignalWaitOpened {
    pub signal_name: Arc<str>,
    pub signal_wait_id: String,
    pub sequence: Step,
    pub timeout_seconds: Option<u64>,
    #[serde(flatten)]
    pub group: GroupFields,
}

/// A signal met a wait for its name. The value is the argument list as it was sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SignalApplied {
    pub workflow_command_id: String,
    pub signal_id: String,
    pub signal_name: Arc<str>,
    pub signal_wait_id: String,
    pub sequence: Step,
    pub value: Payload,
    pub arguments: Payload,
    pub payload_codec: Codec,
    #[serde(flatten)]
    pub group: GroupFields,
}
