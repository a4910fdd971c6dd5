//! Operations of the protocol that this server does not have, and that have refusals of their own:
//! prepared local activities and cancellation scopes (worker plane 1.14 to 1.20, sections 10.4, 10.5).

use actix_web::HttpRequest;
use actix_web::http::{Method, StatusCode};
use serde_json::json;

use crate::protocol::feature::{Feature, Negotiated};
use crate::protocol::reason::Reason;

use super::PREFIX;
use super::answer::Failure;

/// The refusal of such an operation; none for a path that the protocol does not know.
pub fn refusal(request: &HttpRequest, version: &Negotiated) -> Option<Failure> {
    if request.method() != Method::POST {
        return None;
    }
    let path = request.path().strip_prefix(PREFIX)?;
    let (task, operation) = path.strip_prefix("/workflow-tasks/")?.split_once('/')?;
    let failure = match operation.split_once('/')?.0 {
        "local-activities" => prepared(version),
        "cancellation-scopes" => scope(version),
        _ => return None,
    };
    Some(
        failure
            .with("task_id", task)
            .with("recorded", false)
            .with("requested_version", version.requested().to_string()),
    )
}

fn prepared(version: &Negotiated) -> Failure {
    let feature = Feature::PreparedLocalActivities;
    let mut unavailable = vec!["installed_runtime_prepared_local_activity"];
    if !version.knows(feature) {
        unavailable.push("server_protocol");
    }
    if !version.allows(feature) {
        unavailable.push("request_protocol");
    }
    Failure::new(
        StatusCode::CONFLICT,
        Reason::PreparedLocalActivityNotSupported,
        "This server does not admit local activities attempt by attempt.",
    )
    .with("required_capability", feature.worker_capability())
    .with("minimum_protocol_version", feature.floor().to_string())
    .with("unavailable", json!(unavailable))
    .with(
        "remediation",
        "Report the local activity with record_local_activity, or run an ordinary one.",
    )
}

fn scope(version: &Negotiated) -> Failure {
    let feature = Feature::CancellationScopes;
    let (reason, sentence) = if version.allows(feature) {
        (
            Reason::CancellationScopeOpeningUnavailable,
            "This server has no cancellation scopes.".to_owned(),
        )
    } else {
        (
            Reason::CancellationScopeRequiresProtocol120,
            format!(
                "Cancellation scopes need worker protocol {} or newer.",
                feature.floor()
            ),
        )
    };
    Failure::new(StatusCode::CONFLICT, reason, sentence)
        .with("minimum_protocol_version", feature.floor().to_string())
        .with("remediation", "Use the root scope, which needs no opening.")
}
