//! Payloads of the events that open, steer and close a run.
#![allow(
    missing_docs,
    reason = "field names are the contract's keys; each type says what happened"
)]

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::payload::{Codec, Payload};

use super::{Json, Word};
use crate::domain::ids::{RunId, Step, TaskId, WorkflowId};
use crate::domain::time::Timestamp;

/// The control plane took the start of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartAccepted {
    pub workflow_command_id: String,
    pub workflow_instance_id: WorkflowId,
    pub workflow_run_id: RunId,
    pub workflow_class: Arc<str>,
    pub workflow_type: Arc<str>,
    pub business_key: Option<Arc<str>>,
    pub visibility_labels: Json,
    pub memo: Json,
    pub search_attributes: Json,
    pub outcome: Word,
    pub rejection_reason: Option<Word>,
}

/// A run began.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkflowStarted {
    pub workflow_class: Arc<str>,
    pub workflow_type: Arc<str>,
    pub workflow_instance_id: WorkflowId,
    pub workflow_run_id: RunId,
    pub workflow_id: WorkflowId,
    pub run_number: u32,
    pub workflow_command_id: Option<String>,
    pub business_key: Option<Arc<str>>,
    pub visibility_labels: Json,
    pub memo: Json,
    pub search_attributes: Json,
    pub execution_timeout_seconds: Option<u64>,
    pub run_timeout_seconds: Option<u64>,
    pub execution_deadline_at: Option<Timestamp>,
    pub run_deadline_at: Option<Timestamp>,
    pub timestamp: Timestamp,
    pub continued_from_run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub declared_queries: Option<Arc<[Arc<str>]>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub declared_signals: Option<Arc<[Arc<str>]>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub declared_updates: Option<Arc<[Arc<str>]>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub declared_update_validators: Option<Arc<[Arc<str>]>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent_workflow_instance_id: Option<WorkflowId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent_workflow_run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent_sequence: Option<Step>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub child_call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub workflow_link_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_of_child_workflow_run_id: Option<RunId>,
}

/// The run ended and a successor took its place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkflowContinuedAsNew {
    pub sequence: Step,
    pub continued_to_run_id: RunId,
    pub continued_to_run_number: u32,
    pub workflow_link_id: String,
    pub closed_reason: Word,
}

/// A signal entered the history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SignalReceived {
    pub workflow_command_id: String,
    pub signal_id: String,
    pub workflow_instance_id: WorkflowId,
    pub workflow_run_id: RunId,
    pub signal_name: Arc<str>,
    pub signal_wait_id: Option<String>,
    pub arguments: Payload,
    pub payload_codec: Codec,
}

/// The keys that requests to close or archive a run share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    pub workflow_command_id: String,
    pub workflow_instance_id: WorkflowId,
    pub workflow_run_id: RunId,
    pub command_type: Word,
    pub reason: Option<Arc<str>>,
}

/// A caller asked for the run to be cancelled.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CancelRequested(pub Request);

/// A caller asked for the run to be terminated.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TerminateRequested(pub Request);

/// A caller asked for the closed run to be kept for good.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ArchiveRequested(pub Request);

/// An operator made a task ready at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RepairRequested {
    pub workflow_command_id: String,
    pub workflow_instance_id: WorkflowId,
    pub workflow_run_id: RunId,
    pub command_type: Word,
    pub outcome: Word,
    pub liveness_state: Word,
    pub wait_kind: Word,
    pub task_id: TaskId,
    pub task_type: Word,
}

/// The closed run is kept for good.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkflowArchived {
    pub workflow_command_id: String,
    pub workflow_instance_id: WorkflowId,
    pub workflow_run_id: RunId,
    pub archive_command_id: String,
    pub reason: Option<Arc<str>>,
}

/// The workflow returned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkflowCompleted {
    pub output: Payload,
    pub payload_codec: Codec,
}

/// The workflow failed by its own decision.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkflowFailed {
    pub failure_id: String,
    pub source_kind: Word,
    pub source_id: String,
    pub failure_category: Word,
    pub non_retryable: bool,
    pub exception_type: Option<String>,
    pub exception_class: Option<String>,
    pub message: String,
    pub exception: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed_step_sequence: Option<Step>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed_activity_execution_id: Option<String>,
    /// The run that tries the same again, for a child with a retry policy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retried_as_run_id: Option<RunId>,
}

/// The keys that the closings from outside share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClosedFromOutside {
    pub workflow_command_id: String,
    pub workflow_instance_id: WorkflowId,
    pub workflow_run_id: RunId,
    pub failure_id: String,
    pub failure_category: Word,
    pub closed_reason: Word,
    pub exception_class: Word,
    pub message: String,
    pub reason: Option<Arc<str>>,
}

/// The run was cancelled.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkflowCancelled(pub ClosedFromOutside);

/// The run was terminated.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkflowTerminated(pub ClosedFromOutside);

/// The run or its whole execution ran out of time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkflowTimedOut {
    pub failure_id: String,
    pub timeout_kind: Word,
    pub failure_category: Word,
    pub message: String,
    pub exception_class: Word,
    pub execution_deadline_at: Option<Timestamp>,
    pub run_deadline_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retried_as_run_id: Option<RunId>,
}
