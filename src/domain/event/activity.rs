//! Payloads of activity events. All events of one activity repeat its identity and its groups.
#![allow(
    missing_docs,
    reason = "field names are the contract's keys; each type says what happened"
)]

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::ids::{Step, TaskId, TaskQueue};
use crate::domain::parallel::GroupFields;
use crate::domain::retry::Policy;
use crate::domain::session;
use crate::domain::time::Timestamp;
use crate::payload::{Codec, Payload};

use super::{Json, Word};

/// The keys that every event of an activity repeats.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivityKeys {
    pub activity_execution_id: String,
    pub activity_class: Arc<str>,
    pub activity_type: Arc<str>,
    pub sequence: Step,
    pub activity_task_id: TaskId,
    /// `local` for an activity that its worker ran inside a workflow task.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub execution_mode: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub local_activity: Option<bool>,
    #[serde(flatten)]
    pub group: GroupFields,
}

/// What was scheduled, as replay compares it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivitySnapshot {
    pub id: String,
    pub idempotency_key: String,
    pub sequence: Step,
    #[serde(rename = "type")]
    pub kind: Arc<str>,
    pub class: Arc<str>,
    pub status: Word,
    pub payload_codec: Codec,
    pub attempt_count: u32,
    pub retry_policy: Option<Policy>,
    pub connection: Option<Word>,
    pub queue: TaskQueue,
    pub arguments: Option<Payload>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cancellation_policy: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub worker_session: Option<Arc<session::Options>>,
}

/// An activity was scheduled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivityScheduled {
    #[serde(flatten)]
    pub keys: ActivityKeys,
    pub activity: ActivitySnapshot,
}

/// An attempt was handed to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivityStarted {
    #[serde(flatten)]
    pub keys: ActivityKeys,
    pub activity_attempt_id: String,
    pub attempt_number: u32,
    pub lease_owner: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub worker_attempt_id: Option<Arc<str>>,
}

impl ActivityKeys {
    /// Its worker ran it inside a workflow task.
    pub fn is_local(&self) -> bool {
        self.local_activity == Some(true)
    }
}

/// The last heartbeat of an attempt, recorded with the attempt's outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivityHeartbeatRecorded {
    #[serde(flatten)]
    pub keys: ActivityKeys,
    pub activity_attempt_id: String,
    pub attempt_number: u32,
    pub heartbeat_at: Timestamp,
    pub progress: Option<Json>,
}

/// Another attempt will be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivityRetryScheduled {
    #[serde(flatten)]
    pub keys: ActivityKeys,
    pub retry_task_id: TaskId,
    pub retry_of_task_id: TaskId,
    pub retry_available_at: Timestamp,
    pub retry_backoff_seconds: u64,
    pub retry_after_attempt_id: Option<String>,
    pub retry_after_attempt: u32,
    pub retry_reason: Word,
    pub max_attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_kind: Option<Word>,
    pub exception_type: Option<String>,
    pub exception_class: Option<String>,
    pub message: String,
    pub code: Option<i64>,
}

/// The activity returned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivityCompleted {
    #[serde(flatten)]
    pub keys: ActivityKeys,
    pub activity_attempt_id: String,
    pub attempt_number: u32,
    pub result: Payload,
    pub payload_codec: Codec,
}

/// The activity failed for good.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivityFailed {
    #[serde(flatten)]
    pub keys: ActivityKeys,
    pub activity_attempt_id: String,
    pub attempt_number: u32,
    pub failure_id: String,
    pub failure_category: Word,
    pub non_retryable: bool,
    pub exception_type: Option<String>,
    pub exception_class: Option<String>,
    pub message: String,
    pub code: Option<i64>,
    pub exception: Json,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structural_limit_kind: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structural_limit_value: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structural_limit_configured: Option<u64>,
}

/// A time limit of the activity passed, and no attempt is left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivityTimedOut {
    #[serde(flatten)]
    pub keys: ActivityKeys,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity_attempt_id: Option<String>,
    pub attempt_number: u32,
    pub failure_id: String,
    pub failure_category: Word,
    pub timeout_kind: Word,
    pub message: String,
    pub exception_class: Word,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_to_close_deadline_at: Option<Timestamp>,
}

/// The activity was dropped because its run closed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivityCancelled {
    #[serde(flatten)]
    pub keys: ActivityKeys,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_command_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity_attempt_id: Option<String>,
    pub attempt_number: u32,
    pub cancelled_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
}
