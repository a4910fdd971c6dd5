//! Manifests about the platform and this server's place in it. They identify the contracts this
//! server follows; where a claim would need proof, they claim nothing.

use serde_json::{Value, json};

use super::control_plane::CONTROL_PLANE_VERSION;
use crate::protocol::version::{Advertised, ProtocolVersion};

/// Where the platform's contracts are kept, by the owner their documents name.
const AUTHORITY_URL: &str = "https://github.com/durable-workflow/workflow";

/// From this version on the released SDKs can talk to a server; below it only their release
/// candidates, which send what they were built with.
const RELEASED_SDKS: ProtocolVersion = ProtocolVersion::new(1, 19);

/// Ranges of SDK versions by SDK; null where nothing is known to be excluded.
pub(super) fn sdk_versions(advertised: &Advertised) -> Value {
    let released = *advertised.version() >= RELEASED_SDKS;
    json!({
        "python": if released { ">=2.0.0rc1,<3.0.0" } else { ">=2.0.0rc1,<2.0.0" },
        "rust": if released { ">=2.0.0-rc.1,<5.0.0" } else { ">=2.0.0-rc.1,<2.0.1" },
        "php": null,
        "cli": null,
    })
}

/// What a client has to check, and that nothing else counts.
pub(super) fn client_compatibility(advertised: &Advertised) -> Value {
    let both = json!({"required_protocols": ["control_plane", "worker_protocol"]});
    json!({
        "schema": "durable-workflow.v2.client-compatibility",
        "version": 1,
        "authority": "protocol_manifests",
        "top_level_version_role": "informational",
        "fail_closed": true,
        "required_protocols": {
            "control_plane": {"version": CONTROL_PLANE_VERSION},
            "worker_protocol": {"version": advertised},
        },
        "clients": {
            "cli": {"required_protocols": ["control_plane"]},
            "sdk-php": both,
            "sdk-python": both,
            "sdk-rust": both,
        },
    })
}

/// Nodes are identical, and all they share is the database.
pub(super) fn topology() -> Value {
    json!({
        "schema": "durable-workflow.v2.topology.contract",
        "version": 1,
        "supported_shapes": ["standalone_server"],
        "current_shape": "standalone_server",
        "current_process_class": "server_node",
        "current_roles": ["control_plane", "worker_plane", "matching", "maintenance"],
        "execution_mode": "remote_worker_protocol",
        "matching_role": {
            "queue_wake_enabled": true,
            "shape": "in_server_node",
            "task_dispatch_mode": "poll",
            "partition_primitives": ["namespace", "queue", "compatibility"],
            "backpressure_model": "lease_ownership",
        },
    })
}

/// How stable the surfaces of this server are.
pub(super) fn surface_stability() -> Value {
    let family = |authority: &str| json!({"stability": "stable", "authority": authority});
    json!({
        "schema": "durable-workflow.v2.surface-stability.contract",
        "version": 1,
        "authority_url": AUTHORITY_URL,
        "stability_levels": {
            "stable": "changes only by additions within a major version",
            "diagnostic": "may change at any time",
        },
        "release_rules": {
            "added_field": "minor",
            "removed_or_changed_field": "major",
        },
        "field_visibility_rule": "clients_ignore_fields_they_do_not_know",
        "surface_families": {
            "worker_protocol": family("worker_protocol.version"),
            "control_plane": family("control_plane.version"),
            "history": family("history_event_payloads"),
            "cluster_info": family("cluster_info_envelope"),
        },
        "release_check": {"kind": "generated_documents_are_compared_with_the_contract"},
    })
}

/// The specifications this server is written against.
pub(super) fn protocol_specs() -> Value {
    let spec = |id: &str, format: &str, owner: &str| {
        json!({
            "spec_id": format!("durable-workflow.v2.{id}"),
            "format": format,
            "owner_repo": owner,
            "status": "published",
        })
    };
    const SERVER: &str = "durable-workflow/server";
    const WORKFLOW: &str = "durable-workflow/workflow";
    json!({
        "schema": "durable-workflow.v2.platform-protocol-specs.catalog",
        "version": 16,
        "catalog_url": AUTHORITY_URL,
        "authority_url": AUTHORITY_URL,
        "formats": ["openapi", "asyncapi", "json_schema"],
        "owner_repos": [SERVER, WORKFLOW],
        "status_levels": ["published", "candidate"],
        "evolution_rules": ["additive_minor_breaking_major"],
        "specs": {
            "worker_protocol_api": spec("worker-protocol-api", "openapi", SERVER),
            "worker_protocol_stream": spec("worker-protocol-stream", "asyncapi", SERVER),
            "control_plane_api": spec("control-plane-api", "openapi", SERVER),
            "cluster_info_envelope": spec("cluster-info-envelope", "json_schema", SERVER),
            "history_event_payloads": spec("history-event-payloads", "json_schema", WORKFLOW),
            "local_activity_runtime": spec("local-activity-runtime", "json_schema", WORKFLOW),
            "worker_sessions_runtime": spec("worker-sessions-runtime", "json_schema", WORKFLOW),
        },
        "release_check": {"kind": "generated_documents_are_compared_with_the_contract"},
    })
}

/// Names the suite without claiming a result of it.
pub(super) fn conformance_suite() -> Value {
    json!({
        "schema": "durable-workflow.v2.platform-conformance.suite",
        "version": 1,
        "authority_doc": AUTHORITY_URL,
        "surface_stability_authority": "surface_stability_contract",
        "result_schema": "durable-workflow.v2.platform-conformance.result",
        "result_version": 1,
        "conformance_levels": ["not_claimed"],
        "targets": {"standalone_server": {"level": "not_claimed"}},
        "fixture_catalog": {},
        "pass_fail_rules": [],
        "harness_contract": {},
        "release_gates": [],
    })
}

/// No SDK is treated differently from another.
pub(super) fn sdk_neutrality() -> Value {
    json!({
        "schema": "durable-workflow.v2.sdk-neutrality.contract",
        "version": 1,
        "authority_url": AUTHORITY_URL,
    })
}
