//! Version and capability gates of a completion (worker plane 1.14 to 1.20, section 1.2): a command
//! that the request's version, or the worker's registration, does not bring along is refused as a
//! conflict, with nothing applied and the lease kept.

use actix_web::http::StatusCode;

use crate::domain::worker::Registration;
use crate::engine::Holder;
use crate::protocol::feature::{Feature, Negotiated};
use crate::protocol::reason::Reason;

use super::super::answer::Failure;
use super::CommandRequest;

struct Gate {
    feature: Feature,
    used: fn(&CommandRequest) -> bool,
    /// What is refused when the worker did not register the capability.
    capability: Option<Reason>,
    /// Whether using it below its version is an older rule's business.
    is_later: bool,
    /// The command and field that are named in the refusal.
    named: Option<(&'static str, &'static str)>,
}

const GATES: &[Gate] = &[
    Gate {
        feature: Feature::ConditionWaitOccurrenceIdentity,
        used: |c| c.is("open_condition_wait") && c.condition_wait_occurrence_id.is_some(),
        capability: None,
        is_later: false,
        named: Some(("open_condition_wait", "condition_wait_occurrence_id")),
    },
    Gate {
        feature: Feature::WorkerSessions,
        used: has_session,
        capability: None,
        is_later: false,
        named: Some(("schedule_activity", "worker_session")),
    },
    Gate {
        feature: Feature::PortableWorkerSessions,
        used: has_session,
        capability: Some(Reason::WorkerCapabilityNotSupported),
        is_later: true,
        named: Some(("schedule_activity", "worker_session")),
    },
    Gate {
        feature: Feature::LocalActivities,
        used: |c| c.is("record_local_activity"),
        capability: Some(Reason::WorkerCapabilityNotSupported),
        is_later: false,
        named: None,
    },
    Gate {
        feature: Feature::CooperativeCancellation,
        used: asks_for_cooperation,
        capability: Some(Reason::ChildCancellationPolicyNotSupported),
        is_later: false,
        named: None,
    },
    Gate {
        feature: Feature::MemoUpserts,
        used: |c| c.is("upsert_memo"),
        capability: Some(Reason::WorkflowMetadataCapabilityNotAdvertised),
        is_later: false,
        named: None,
    },
    Gate {
        feature: Feature::TypedSearchAttributes,
        used: |c| c.is("upsert_search_attributes") && c.attribute_types.is_some(),
        capability: Some(Reason::WorkflowMetadataCapabilityNotAdvertised),
        is_later: false,
        named: None,
    },
];

fn has_session(command: &CommandRequest) -> bool {
    let named = command.worker_session.as_deref();
    command.is("schedule_activity") && named.is_some_and(|raw| raw.get() != "null")
}

/// What an operation does without being told is no wish for cooperation.
fn asks_for_cooperation(command: &CommandRequest) -> bool {
    let policy = command.cancellation_policy.as_deref();
    if command.is("start_child_workflow") {
        return policy.is_some_and(|policy| policy != "abandon")
            || command.parent_close_policy.as_deref() == Some("request_cancellation");
    }
    command.is("schedule_activity") && policy.is_some_and(|policy| policy != "try_cancel")
}

/// Whether any of the commands has a gate that asks for the worker's registration.
pub fn needs_registration(commands: &[CommandRequest]) -> bool {
    GATES
        .iter()
        .any(|gate| gate.capability.is_some() && commands.iter().any(gate.used))
}

/// Checks the gates of a completion.
///
/// # Errors
/// The refusal of the first gate that is closed.
pub fn gate(
    commands: &[CommandRequest],
    version: &Negotiated,
    offered: &[&'static str],
    worker: Option<&Registration>,
    holder: &Holder,
) -> Result<(), Failure> {
    for gate in GATES {
        // What the server does not offer at all is an unknown command or field.
        let used = commands
            .iter()
            .filter(|command| {
                command
                    .kind
                    .as_deref()
                    .is_some_and(|kind| offered.contains(&kind))
            })
            .any(gate.used);
        if !used {
            continue;
        }
        if !version.allows(gate.feature) {
            if gate.is_later {
                continue;
            }
            let reason = match gate.feature {
                Feature::CooperativeCancellation => Reason::ChildCancellationPolicyNotSupported,
                feature => feature.unavailable().unwrap_or(Reason::InvalidCommands),
            };
            let sentence = format!(
                "This needs worker protocol {} or newer.",
                gate.feature.floor()
            );
            return Err(refusal(gate, reason, &sentence, version, holder));
        }
        let (Some(reason), Some(capability)) = (gate.capability, gate.feature.worker_capability())
        else {
            continue;
        };
        if !worker.is_some_and(|worker| worker.has(capability)) {
            let sentence = format!("The worker did not register the capability {capability}.");
            return Err(refusal(gate, reason, &sentence, version, holder)
                .with("required_capability", capability));
        }
    }
    Ok(())
}

fn refusal(
    gate: &Gate,
    reason: Reason,
    sentence: &str,
    version: &Negotiated,
    holder: &Holder,
) -> Failure {
    let failure = Failure::new(StatusCode::CONFLICT, reason, sentence)
        .with("task_id", holder.task.to_string())
        .with("workflow_task_attempt", holder.attempt)
        .with("outcome", "rejected")
        .with("recorded", false)
        .with("requested_version", version.requested().to_string())
        .with("minimum_protocol_version", gate.feature.floor().to_string())
        .with(
            "remediation",
            "Upgrade the worker's SDK, or register the capability that the command needs.",
        );
    match gate.named {
        Some((command, field)) => failure
            .with("command_type", command)
            .with("command_field", field),
        None => failure,
    }
}
