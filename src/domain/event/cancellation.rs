//! Payloads of the events of a cooperative cancellation, and the context that both repeat.
#![allow(
    missing_docs,
    reason = "field names are the contract's keys; each type says what happened"
)]

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::ids::{RunId, Step, WorkflowId};
use crate::domain::time::Timestamp;

use super::Word;

/// Schema of [`CancellationContext`].
pub const CONTEXT_SCHEMA: &str = "durable-workflow.cancellation-context/v1";

/// Who asked for a cancellation, when, and how it came down to this run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancellationContext {
    pub schema: Word,
    pub request_id: Arc<str>,
    pub root_request_id: Arc<str>,
    pub root_workflow_instance_id: WorkflowId,
    pub root_workflow_run_id: RunId,
    pub parent_request_id: Option<Arc<str>>,
    pub reason: Option<Arc<str>>,
    pub requester: Requester,
    pub source: Word,
    pub requested_at: Timestamp,
    pub cleanup_deadline_at: Timestamp,
    pub lineage: Vec<CancellationLineage>,
}

/// Who asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requester {
    #[serde(rename = "type")]
    pub kind: Word,
}

/// One request on the way from the first run to this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancellationLineage {
    pub request_id: Arc<str>,
    pub workflow_instance_id: WorkflowId,
    pub workflow_run_id: RunId,
}

/// The run was asked to clean up and end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CooperativeCancellationRequested {
    pub workflow_command_id: Arc<str>,
    pub workflow_run_id: RunId,
    pub workflow_instance_id: WorkflowId,
    pub cleanup_deadline_at: Timestamp,
    pub reason: Option<Arc<str>>,
    pub cancellation: CancellationContext,
}

/// Which call of the workflow's code a cancellation interrupts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub sequence: Step,
    pub call_kind: Arc<str>,
    pub sequence_span: u32,
    pub operation_sequence: Option<Step>,
    pub operation_sequence_span: u32,
}

impl Delivery {
    /// First step of the interrupted operation, and how many steps it has.
    pub fn range(&self) -> (Step, u32) {
        match self.operation_sequence {
            Some(first) => (first, self.operation_sequence_span),
            None => (self.sequence, self.sequence_span),
        }
    }
}

/// The cancellation reached the workflow's code at one of its calls.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CooperativeCancellationDelivered {
    pub workflow_command_id: Arc<str>,
    pub workflow_run_id: RunId,
    #[serde(flatten)]
    pub delivery: Delivery,
    pub cancellation: CancellationContext,
}
