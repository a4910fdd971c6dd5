//! The `server_capabilities` object: what every worker answer and cluster info say about this
//! server. A pure function of the advertised version, the supported features and the configuration.

mod affinity;
mod optional;
mod tasks;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::feature::Feature;
use super::support::Supported;
use super::version::Advertised;

pub(super) use optional::message_streams;

/// Content encodings and history encodings, in the order in which the server prefers them.
pub(super) const ENCODINGS: [&str; 2] = ["gzip", "deflate"];

/// A history page of fewer events is never compressed.
pub const HISTORY_COMPRESSION_THRESHOLD: u32 = 50;

/// The configured numbers that workers are told. Each must be the one the server enforces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a poll that names no wait is held.
    pub long_poll_timeout: Duration,
    /// How often a worker should send its heartbeat; the SDKs adopt it, and it is never zero.
    pub heartbeat_interval: Duration,
    /// Silence after which a worker counts as gone, for polls, guards and listings alike.
    pub stale_after: Duration,
    /// Events of a history page when the request names no size.
    pub history_page_size_default: u32,
    /// Events of a history page at most.
    pub history_page_size_max: u32,
    /// How long a caller waits for the answer to a query.
    pub query_timeout: Duration,
    /// How much longer than the caller's wait a query lease lasts at least.
    pub query_lease_grace: Duration,
    /// How long a caller waits for the validation of an update.
    pub update_validation_timeout: Duration,
    /// How long a worker holds an update validation task.
    pub update_validation_lease: Duration,
}

impl Timing {
    /// How long a worker holds a query task: the caller's wait and the grace, and never less than a
    /// minute.
    #[must_use]
    pub fn query_lease(&self) -> Duration {
        let waited = self.query_timeout.saturating_add(self.query_lease_grace);
        waited.max(Duration::from_secs(60))
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            long_poll_timeout: Duration::from_secs(30),
            heartbeat_interval: Duration::from_secs(10),
            stale_after: Duration::from_secs(60),
            history_page_size_default: 500,
            history_page_size_max: 1000,
            query_timeout: Duration::from_secs(30),
            query_lease_grace: Duration::from_secs(5),
            update_validation_timeout: Duration::from_secs(10),
            update_validation_lease: Duration::from_secs(5),
        }
    }
}

/// What one capability document is computed from.
#[derive(Clone, Copy)]
struct Offer<'a> {
    advertised: &'a Advertised,
    supported: &'a Supported,
    timing: &'a Timing,
}

impl Offer<'_> {
    fn on(&self, feature: Feature) -> bool {
        self.supported.offers(self.advertised, feature)
    }
}

/// What stands for the manifest of a feature that is not offered: every worker answer carries it, and what the
/// manifest would say is of no use then.
fn not_offered(floor_key: &str, feature: Feature) -> Value {
    json!({"supported": false, floor_key: feature.floor()})
}

/// Key of the first version of a feature in the manifests of 1.16 and later.
const FLOOR: &str = "minimum_worker_protocol_version";

/// Builds the capability object (worker protocol, server capabilities).
///
/// Every switch is present with a real boolean, since some SDK calls answer a missing one with a
/// vaguer error than a false one. The result never changes while the server runs; callers keep it
/// as bytes, see [`EnvelopeBytes`](super::envelope::EnvelopeBytes).
#[must_use]
pub fn server_capabilities(
    advertised: &Advertised,
    supported: &Supported,
    timing: &Timing,
) -> Value {
    let offer = Offer {
        advertised,
        supported,
        timing,
    };
    let mut all = tasks::capabilities(offer);
    all.append(&mut affinity::capabilities(offer));
    all.append(&mut optional::capabilities(offer));
    all.append(&mut external(offer));
    Value::Object(all)
}

/// Manifests of the external execution surface, by identity only; cluster info has them in full.
fn external(offer: Offer<'_>) -> Map<String, Value> {
    let supported = offer.on(Feature::ExternalExecution);
    object(json!({
        "external_execution_surface": {
            "schema": "durable-workflow.v2.external-execution-surface.contract",
            "version": 1,
            "name": "activity_grade_external_execution",
            "supported": supported,
        },
        "external_executor_config": {
            "schema": "durable-workflow.v2.external-executor-config.contract",
            "version": 1,
            "config_schema": "durable-workflow.external-executor.config",
            "config_schema_version": 1,
            "supported": supported,
        },
        "invocable_carrier": {
            "schema": "durable-workflow.v2.invocable-carrier.contract",
            "version": 1,
            "carrier_type": "invocable_http",
            "supported": supported,
        },
        "external_task_input": {
            "schema": "durable-workflow.v2.external-task-input.contract",
            "version": 1,
            "supported": supported,
        },
        "external_task_result": {
            "schema": "durable-workflow.v2.external-task-result.contract",
            "version": 1,
            "supported": supported,
        },
    }))
}

/// The entries of a literal object.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(entries) => entries,
        _ => Map::new(),
    }
}
