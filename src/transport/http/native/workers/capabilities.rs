//! What a registration says its worker can do: the list of capabilities and the manifest, their shape
//! and the versions that they need.

use actix_web::http::StatusCode;

use crate::protocol::feature::Feature;
use crate::protocol::reason::Reason;
use crate::protocol::version::ProtocolVersion;

use super::super::super::problems::Problems;
use super::super::answer::Failure;
use super::super::call::{AnyRole, Call};
use super::super::leases::MAX_ID;
use super::WorkerRegistrationRequest;

/// Capabilities that every manifest speaks of.
const PORTABLE: [&str; 3] = ["local_activities", "worker_sessions", "sticky_execution"];

/// The shape of the capability manifest: required from its version on, with an entry for each
/// portable capability, which holds nothing that the contract does not know.
pub fn check_manifest(problems: &mut Problems, call: &Call<AnyRole, WorkerRegistrationRequest>) {
    let Some(manifest) = &call.body.capability_manifest else {
        if call.version.allows(Feature::CapabilityManifest) {
            problems.add(
                "capability_manifest",
                "is required from protocol version 1.18 on",
            );
        }
        return;
    };
    for name in PORTABLE {
        if !manifest.contains_key(name) && call.version.allows(Feature::CapabilityManifest) {
            problems.add(format!("capability_manifest.{name}"), "is required");
        }
    }
    for (name, entry) in manifest {
        let path = |field: &str| format!("capability_manifest.{name}.{field}");
        if entry.minimum_protocol_version.chars().count() > 32 {
            problems.add(
                path("minimum_protocol_version"),
                "must have at most 32 characters",
            );
        }
        for (field, value) in &entry.rest {
            if matches!(field.as_str(), "implementation" | "reason") {
                let text = value.as_str();
                if !value.is_null() && text.is_none_or(|text| text.chars().count() > MAX_ID) {
                    problems.add(
                        path(field),
                        format!("must be a text of at most {MAX_ID} characters"),
                    );
                }
            } else if PORTABLE.contains(&name.as_str()) {
                problems.add(path(field), "is not a field of this entry");
            }
        }
    }
}

/// The capability rules of a registration: manifest and list agree, and each gated name is used at a
/// version that knows it. A worker may list what this server does not offer.
///
/// # Errors
/// The refusal of the first rule that does not hold.
pub fn check_capabilities(call: &Call<AnyRole, WorkerRegistrationRequest>) -> Result<(), Failure> {
    let listed = call.body.capabilities.as_deref().unwrap_or(&[]);
    let lists = |name: &str| listed.iter().any(|listed| listed == name);
    let refuse = |reason: Reason, name: &str, minimum: String, sentence: String| {
        Err(Failure::new(StatusCode::CONFLICT, reason, sentence)
            .with("registered", false)
            .with("capability", name)
            .with("requested_version", call.version.requested().to_string())
            .with("minimum_protocol_version", minimum)
            .with(
                "remediation",
                "Leave the capability out, or use a protocol version that has it.",
            ))
    };
    let floor = Feature::CapabilityManifest.floor().to_string();
    let manifest = call
        .body
        .capability_manifest
        .as_ref()
        .filter(|_| call.version.knows(Feature::CapabilityManifest));
    for name in PORTABLE {
        let Some(manifest) = manifest else { break };
        let entry = manifest.get(name);
        if lists(name) != entry.is_some_and(|entry| entry.supported) {
            return refuse(
                Reason::WorkerCapabilityManifestMismatch,
                name,
                floor,
                format!("capabilities and capability_manifest disagree on {name}."),
            );
        }
        let Some(entry) = entry else { continue };
        let minimum = ProtocolVersion::parse(&entry.minimum_protocol_version);
        let right = minimum
            .as_ref()
            .is_ok_and(|minimum| *minimum >= Feature::CapabilityManifest.floor());
        let too_new =
            entry.supported && minimum.is_ok_and(|minimum| *call.version.requested() < minimum);
        if !right || too_new {
            return refuse(
                Reason::WorkerCapabilityProtocolFloorMismatch,
                name,
                floor,
                format!("{name} needs a protocol version that this request does not use."),
            );
        }
    }
    for feature in [Feature::MemoUpserts, Feature::TypedSearchAttributes] {
        let Some(name) = feature.worker_capability() else {
            continue;
        };
        if lists(name) && !call.version.allows(feature) {
            return refuse(
                Reason::WorkflowMetadataCapabilityProtocolMismatch,
                name,
                feature.floor().to_string(),
                format!("{name} needs protocol version {}.", feature.floor()),
            );
        }
    }
    let streams = Feature::MessageStreams;
    if lists("message_streams") && !call.version.allows(streams) {
        return refuse(
            Reason::MessageStreamsUnavailable,
            "message_streams",
            streams.floor().to_string(),
            format!(
                "message_streams needs protocol version {}.",
                streams.floor()
            ),
        );
    }
    Ok(())
}
