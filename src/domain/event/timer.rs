//! Payloads of timer events. A plain timer has no `timer_kind`: readers take its absence as the kind.
#![allow(
    missing_docs,
    reason = "field names are the contract's keys; each type says what happened"
)]

use serde::{Deserialize, Serialize};

use crate::domain::ids::Step;
use crate::domain::parallel::GroupFields;
use crate::domain::time::Timestamp;

/// The keys that every event of a timer repeats.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimerKeys {
    pub timer_id: String,
    pub sequence: Step,
    pub delay_seconds: u64,
    pub fire_at: Timestamp,
    #[serde(flatten)]
    pub group: GroupFields,
}

/// A timer was set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimerScheduled {
    #[serde(flatten)]
    pub timer: TimerKeys,
}

/// A timer went off.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimerFired {
    #[serde(flatten)]
    pub timer: TimerKeys,
    pub fired_at: Timestamp,
}

/// A timer was dropped because its run closed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TimerCancelled {
    #[serde(flatten)]
    pub timer: TimerKeys,
    pub cancelled_at: Timestamp,
}
