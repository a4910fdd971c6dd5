//! Payloads of the events that a parent records about a child workflow.
#![allow(
    missing_docs,
    reason = "field names are the contract's keys; each type says what happened"
)]

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::ids::{RunId, Step, WorkflowId};
use crate::domain::parallel::GroupFields;
use crate::domain::retry::Policy;
use crate::domain::time::Timestamp;
use crate::payload::{Codec, Payload};

use super::{Json, Word};

/// The keys that every event of a child repeats. The run is the child's first one throughout, since
/// readers compare it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildKeys {
    pub sequence: Step,
    pub workflow_link_id: String,
    pub child_call_id: String,
    pub child_workflow_instance_id: WorkflowId,
    pub child_workflow_run_id: RunId,
    pub child_workflow_class: Arc<str>,
    pub child_workflow_type: Arc<str>,
    #[serde(flatten)]
    pub group: GroupFields,
}

/// A child was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildWorkflowScheduled {
    #[serde(flatten)]
    pub keys: ChildKeys,
    pub child_run_number: u32,
    pub parent_close_policy: Word,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cancellation_policy: Option<Word>,
    pub retry_policy: Option<Policy>,
    pub execution_timeout_seconds: Option<u64>,
    pub run_timeout_seconds: Option<u64>,
}

/// A run of the child began.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildRunStarted {
    #[serde(flatten)]
    pub keys: ChildKeys,
    pub child_status: Word,
    pub child_run_number: u32,
    pub retry_attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_of_child_workflow_run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_backoff_seconds: Option<u64>,
}

/// The child returned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildRunCompleted {
    #[serde(flatten)]
    pub keys: ChildKeys,
    pub child_status: Word,
    pub closed_reason: Word,
    pub closed_at: Timestamp,
    pub output: Payload,
    pub result: Payload,
    pub payload_codec: Codec,
}

/// The keys of a child's bad end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildEnd {
    #[serde(flatten)]
    pub keys: ChildKeys,
    pub child_status: Word,
    pub closed_reason: Word,
    pub closed_at: Timestamp,
    pub failure_id: String,
    pub failure_category: Word,
    pub exception_type: Option<Arc<str>>,
    pub exception_class: Option<Arc<str>>,
    pub message: Arc<str>,
    pub exception: Option<Json>,
}

/// The child failed or ran out of time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChildRunFailed(pub ChildEnd);

/// The child was cancelled.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChildRunCancelled(pub ChildEnd);

/// The child was terminated.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChildRunTerminated(pub ChildEnd);

/// The close policy of a child was put to work because its parent closed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ParentClosePolicyApplied {
    pub child_instance_id: WorkflowId,
    pub child_run_id: RunId,
    pub policy: Word,
    pub reason: Word,
}
