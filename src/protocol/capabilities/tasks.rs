//! Capabilities of polling, tasks, history pages, queries and update validation.

use serde_json::{Map, Value, json};

use super::{ENCODINGS, HISTORY_COMPRESSION_THRESHOLD, Offer, object};
use crate::protocol::feature::Feature;
use crate::protocol::reason::Reason;

/// Budget fields of every history answer, with the type of each.
const BUDGET_FIELDS: [(&str, &str); 6] = [
    ("total_history_events", "int"),
    ("history_size_bytes", "int"),
    ("history_fan_out", "int"),
    ("continue_as_new_recommended", "bool"),
    ("history_budget_pressure", "string"),
    ("history_budget_pressure_dimensions", "list<string>"),
];

pub(super) fn capabilities(offer: Offer<'_>) -> Map<String, Value> {
    let timing = offer.timing;
    let children = offer.on(Feature::ChildWorkflows);
    let poll_ids = offer.on(Feature::PollRequestIdempotency);
    let queries = offer.on(Feature::QueryTasks);
    let encodings = |feature| {
        if offer.on(feature) {
            ENCODINGS.as_slice()
        } else {
            &[]
        }
    };
    let commands: Vec<_> = offer.supported.commands(offer.advertised).collect();

    let mut all = object(json!({
        "long_poll_timeout": timing.long_poll_timeout.as_secs(),
        "poll_status": true,
        "supported_workflow_task_commands": commands,
        "workflow_task_poll_request_idempotency": poll_ids,
        "history_page_size_default": timing.history_page_size_default,
        "history_page_size_max": timing.history_page_size_max,
        "workflow_history_budget": history_budget(),
        "activity_retry_policy": offer.on(Feature::ActivityRetryPolicy),
        "activity_timeouts": offer.on(Feature::ActivityTimeouts),
        "non_retryable_failures": offer.on(Feature::NonRetryableFailures),
        "child_workflow_retry_policy": children,
        "child_workflow_timeouts": children,
        "parent_close_policy": children,
        "response_compression": encodings(Feature::ResponseCompression),
        "history_compression": {
            "supported_encodings": encodings(Feature::HistoryCompression),
            "compression_threshold": HISTORY_COMPRESSION_THRESHOLD,
        },
        "worker_status": worker_status(offer),
        "query_tasks": queries,
        "query_task_poll_request_idempotency": queries && poll_ids,
        "update_validation_tasks": offer.on(Feature::UpdateValidation),
        "synchronous_update_validation": update_validation(offer),
    }));
    if queries {
        all.insert(
            "query_task_timeouts".to_owned(),
            json!({
                "control_plane_timeout_seconds": timing.query_timeout.as_secs(),
                "lease_timeout_seconds": timing.query_lease().as_secs(),
                "lease_grace_seconds": timing.query_lease_grace.as_secs(),
            }),
        );
    }
    if offer.on(Feature::PriorityFairness) {
        all.insert("task_queue_priority_fairness".to_owned(), fairness());
    }
    all
}

/// How a worker reads the size of a history (worker protocol, history budget).
fn history_budget() -> Value {
    let names = BUDGET_FIELDS.map(|(name, _)| name);
    json!({
        "schema": "durable-workflow.v2.worker-history-payload.contract",
        "version": 1,
        "fields": names,
        "field_types": BUDGET_FIELDS.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "pressure_values": ["ok", "approaching", "continue_as_new_recommended"],
        "pressure_dimension_values": ["event_count", "size_bytes", "fan_out"],
        "required_response_fields": names,
        "required_paginated_response_fields": names,
    })
}

/// What a worker may tell about itself, and how long its silence is tolerated.
fn worker_status(offer: Offer<'_>) -> Value {
    json!({
        "supported": true,
        "heartbeat_interval_seconds": offer.timing.heartbeat_interval.as_secs(),
        "stale_after_seconds": offer.timing.stale_after.as_secs(),
        "fields": {
            "task_slots": ["workflow_available", "activity_available", "session_available"],
            "process_metrics": [
                "cpu_percent",
                "memory_bytes",
                "process_uptime_seconds",
                "process_id",
                "host",
                "process_started_at",
            ],
        },
    })
}

/// Validation of updates by a worker before they are accepted. The SDKs compare most of these
/// values literally and refuse to start a worker with validators when one differs.
fn update_validation(offer: Offer<'_>) -> Value {
    if !offer.on(Feature::UpdateValidation) {
        return json!({"supported": false});
    }
    let failures = [
        Reason::UpdateValidatorRejected,
        Reason::UpdateValidationTaskNotClaimed,
        Reason::UpdateValidationExecutionTimeout,
        Reason::UpdateValidatorWorkerLost,
        Reason::UpdateValidatorWorkerUnavailable,
        Reason::UpdateValidatorWorkerIncompatible,
        Reason::UpdateValidationCapabilityUnsupported,
        Reason::UpdateValidationIdempotencyConflict,
    ];
    json!({
        "supported": true,
        "minimum_protocol_version": Feature::UpdateValidation.floor(),
        "acceptance_boundary": "validator_approved",
        "worker_capability": Feature::UpdateValidation.worker_capability(),
        "workflow_contract_field": "update_validators",
        "validator_execution": "replay_without_handler_or_state_commit",
        "request_id_required": true,
        "duplicate_completion": "typed_rejection",
        "stale_completion": "typed_rejection",
        "missing_contract": "typed_rejection",
        "unsupported_worker": "typed_rejection",
        "task_poll": {
            "strategy": "multiplexed",
            "endpoint": "/worker/workflow-tasks/poll",
            "request_field": "task_kinds",
            "task_kinds": ["workflow", "update_validation"],
            "default_task_kinds": ["workflow"],
            "response_discriminator": "task.task_kind",
            "poll_request_id_binding": "normalized_task_kind_set",
            "poll_request_id_conflict_reason": Reason::PollRequestTaskKindsConflict,
        },
        "completion": {
            "approve_endpoint": "/worker/update-validation-tasks/{taskId}/approve",
            "reject_endpoint": "/worker/update-validation-tasks/{taskId}/reject",
            "fence_fields": ["lease_owner", "update_validation_attempt"],
            "typed_failure_reasons": failures,
        },
        "timeout_seconds": offer.timing.update_validation_timeout.as_secs(),
        "lease_timeout_seconds": offer.timing.update_validation_lease.as_secs(),
        "sdk_surfaces": {
            "sdk-python": "validator_capable",
            "sdk-php": "validators_not_exposed",
            "sdk-rust": "validators_not_exposed",
        },
    })
}

/// The fields that order tasks within a queue.
fn fairness() -> Value {
    json!({
        "schema": "durable-workflow.v2.task-queue-priority-fairness.contract",
        "version": 1,
        "feature": "task_queue_priority_fairness",
        "fields": {
            "priority": {
                "type": "integer",
                "min": 0,
                "min_user": 1,
                "max": 9,
                "default": 5,
                "lower_is_more_urgent": true,
            },
            "fairness_key": {
                "type": "string",
                "nullable": true,
                "max_length": 64,
                "default": null,
                "default_class_label": "__default__",
            },
            "fairness_weight": {"type": "integer", "min": 1, "max": 1000, "default": 1},
        },
    })
}
