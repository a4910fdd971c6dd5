//! The cluster-info document: who this server is, what it can do, which limits hold, and the
//! manifests by which clients decide whether they can talk to it (cluster info).

mod auth;
mod control_plane;
mod facts;
mod platform;
#[cfg(test)]
mod tests;
mod worker;

use serde_json::{Value, json};

use super::capabilities::{ENCODINGS, Timing, message_streams};
use super::feature::Feature;
use super::support::Supported;
use super::version::Advertised;

pub use control_plane::{CONTROL_PLANE_HEADER, CONTROL_PLANE_VERSION};
pub use facts::{
    AnnouncedLimits, FLEET_ROWS, FleetScope, FleetWorker, HealthCheck, RepairCandidates,
    RepairPolicy, RepairScope, TaskRepair, WorkerFleet,
};

/// Everything the document is made of. Borrowed, since it is read once per request and the caller
/// keeps it.
#[derive(Clone, Copy, Debug)]
pub struct ClusterFacts<'a> {
    /// Identity of this process, stable while it runs.
    pub server_id: &'a str,
    /// Version of this build; information only, no client decides by it.
    pub version: &'a str,
    /// Namespace of requests that name none; not empty.
    pub default_namespace: &'a str,
    /// The advertised worker protocol version.
    pub advertised: &'a Advertised,
    /// What this build implements.
    pub supported: &'a Supported,
    /// The numbers workers are told.
    pub timing: &'a Timing,
    /// The limits this server enforces.
    pub limits: &'a AnnouncedLimits,
    /// Workers of the namespace the request resolved to.
    pub worker_fleet: &'a WorkerFleet,
    /// What maintenance has to repair.
    pub task_repair: &'a TaskRepair,
    /// What this node has checked about itself and its database.
    pub checks: &'a [HealthCheck],
}

/// Builds the document. All of the contract's keys are always there, with bounded content.
///
/// Both protocol versions are strings, as every client reads them. `external_payload_storage` is
/// left out on purpose: its absence tells clients to send payloads inline.
#[must_use]
pub fn cluster_info(facts: &ClusterFacts<'_>) -> Value {
    let on = |feature| facts.supported.offers(facts.advertised, feature);
    json!({
        "server_id": facts.server_id,
        "version": facts.version,
        "default_namespace": facts.default_namespace,
        "namespace": {"name": facts.worker_fleet.namespace},
        "supported_sdk_versions": platform::sdk_versions(facts.advertised),
        "capabilities": capabilities(&on),
        "worker_fleet": facts.worker_fleet.bounded(),
        "task_repair": facts.task_repair,
        "limits": facts.limits.requests(),
        "structural_limits": facts.limits.structural(),
        "topology": platform::topology(),
        "coordination_health": facts::coordination_health(facts.checks),
        "client_compatibility": platform::client_compatibility(facts.advertised),
        "surface_stability_contract": platform::surface_stability(),
        "platform_protocol_specs": platform::protocol_specs(),
        "platform_conformance_suite": platform::conformance_suite(),
        "sdk_neutrality_contract": platform::sdk_neutrality(),
        "auth_composition_contract": auth::composition(),
        "control_plane": control_plane::manifest(),
        "worker_protocol": worker::manifest(facts.advertised, facts.supported, facts.timing),
        "message_streams_contract": message_streams(facts.advertised, facts.supported),
        "bridge_adapter_outcome_contract": {
            "schema": "durable-workflow.v2.bridge-adapter-outcome.contract",
            "version": 1,
            "supported": on(Feature::BridgeAdapters),
        },
        "replay_verification_contract": {
            "schema": "durable-workflow.v2.replay-verification.contract",
            "version": 1,
            "supported": on(Feature::ReplayVerification),
        },
    })
}

/// The switches of both planes together.
fn capabilities(on: &dyn Fn(Feature) -> bool) -> Value {
    let children = on(Feature::ChildWorkflows);
    let schedules = on(Feature::Schedules);
    let external = on(Feature::ExternalExecution);
    let encodings: &[_] = if on(Feature::ResponseCompression) {
        &ENCODINGS
    } else {
        &[]
    };
    json!({
        "workflow_tasks": true,
        "activity_tasks": true,
        "continue_as_new": true,
        "payload_codec_envelope": true,
        "payload_codec_envelope_responses": true,
        "payload_codecs": ["avro"],
        "signals": on(Feature::Signals),
        "queries": on(Feature::QueryTasks),
        "updates": on(Feature::Updates),
        "schedules": schedules,
        "schedule_jitter": schedules,
        "schedule_max_runs": schedules,
        "history_export": on(Feature::HistoryExport),
        "history_retention": on(Feature::HistoryRetention),
        "search_attributes": on(Feature::SearchAttributes),
        "activity_timeouts": on(Feature::ActivityTimeouts),
        "activity_retry_policy": on(Feature::ActivityRetryPolicy),
        "non_retryable_failures": on(Feature::NonRetryableFailures),
        "child_workflows": children,
        "child_workflow_retry_policy": children,
        "child_workflow_timeouts": children,
        "parent_close_policy": children,
        "bridge_adapter_outcome_contract": on(Feature::BridgeAdapters),
        "replay_verification_contract": on(Feature::ReplayVerification),
        "external_executor_config_contract": external,
        "invocable_carrier_contract": external,
        "response_compression": encodings,
    })
}
