//! The worker protocol as clients see it: version, negotiation rule, capabilities and the five
//! manifests of external execution.

use serde_json::{Value, json};

use crate::protocol::capabilities::{Timing, server_capabilities};
use crate::protocol::feature::Feature;
use crate::protocol::support::Supported;
use crate::protocol::version::Advertised;

/// The `worker_protocol` object.
pub(super) fn manifest(advertised: &Advertised, supported: &Supported, timing: &Timing) -> Value {
    let external = supported.offers(advertised, Feature::ExternalExecution);
    let contract = |name: &str| {
        json!({
            "schema": format!("durable-workflow.v2.{name}.contract"),
            "version": 1,
            "supported": external,
        })
    };
    json!({
        "version": advertised,
        "negotiation": negotiation(advertised),
        "server_capabilities": server_capabilities(advertised, supported, timing),
        "external_execution_surface_contract": contract("external-execution-surface"),
        "external_executor_config_contract": contract("external-executor-config"),
        "invocable_carrier_contract": contract("invocable-carrier"),
        "external_task_input_contract": contract("external-task-input"),
        "external_task_result_contract": contract("external-task-result"),
    })
}

/// The rule in the contract's own words, and what follows from it for this server.
fn negotiation(advertised: &Advertised) -> Value {
    let by_default = Advertised::default();
    let accepted = |server: &Advertised| server.accepted().collect::<Vec<_>>();
    json!({
        "advertised_version_path": "worker_protocol.version",
        "default_advertised_version": by_default,
        "request_header_rule": "same_major_and_minor_less_than_or_equal_to_advertised",
        "accepted_request_versions_by_default": accepted(&by_default),
        "response_version": "advertised_version",
        "fail_closed_on": [
            "missing_header",
            "malformed_version",
            "different_major",
            "minor_greater_than_advertised",
        ],
        "accepted_request_versions": accepted(advertised),
    })
}
