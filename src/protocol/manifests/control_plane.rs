//! The control plane as clients see it: its version and the request fields of its operations.
//!
//! The request contract describes shapes, not availability: clients use it to check values before
//! they send them.

use serde_json::{Value, json};

/// The one control-plane version; on the wire always this string.
pub const CONTROL_PLANE_VERSION: &str = "2";

/// Header with the control-plane version, on requests and on every answer.
pub const CONTROL_PLANE_HEADER: &str = "X-Durable-Workflow-Control-Plane-Version";

/// The `control_plane` object.
pub(super) fn manifest() -> Value {
    json!({
        "version": CONTROL_PLANE_VERSION,
        "header": CONTROL_PLANE_HEADER,
        "request_contract": {
            "schema": "durable-workflow.v2.control-plane-request.contract",
            "version": 1,
            "operations": operations(),
        },
    })
}

fn operations() -> Value {
    let request_id = json!({"type": "string", "max_length": 255});
    let reason = json!({"type": "string", "max_length": 1000});
    let input = json!({"type": "argument_list_or_payload_envelope", "default": []});
    let seconds = json!({"type": "integer", "minimum": 1});
    let text = json!({"type": "string", "max_length": 255});
    let closing = json!({"fields": {"reason": reason, "request_id": request_id}});

    json!({
        "list": {
            "fields": {
                "status": {
                    "canonical_values": [
                        "running", "completed", "failed", "cancelled", "terminated",
                    ],
                    "rejected_aliases": {
                        "pending": "running",
                        "waiting": "running",
                    },
                },
                "workflow_type": text,
                "query": {"type": "string"},
                "page_size": {"type": "integer", "minimum": 1, "maximum": 200, "default": 50},
                "next_page_token": {"type": "string"},
            },
        },
        "start": {
            "fields": {
                "workflow_type": text,
                "workflow_id": {"type": "string", "max_length": 128},
                "task_queue": text,
                "input": input,
                "payload_codec": {"canonical_values": ["avro"], "default": "avro"},
                "business_key": text,
                "memo": {"type": "object"},
                "search_attributes": {"type": "object"},
                "duplicate_policy": {
                    "canonical_values": ["fail", "use-existing"],
                    "rejected_aliases": {"use_existing": "use-existing"},
                    "default": "fail",
                },
                "execution_timeout_seconds": seconds,
                "run_timeout_seconds": seconds,
                "priority": {"type": "integer", "minimum": 0, "maximum": 9, "default": 5},
                "fairness_key": {"type": "string", "max_length": 64},
                "fairness_weight": {
                    "type": "integer", "minimum": 1, "maximum": 1000, "default": 1,
                },
                "build_id": text,
                "compatibility": text,
            },
            "unsupported_fields": [
                "workflow_execution_timeout",
                "workflow_run_timeout",
                "workflow_task_timeout",
                "retry_policy",
                "idempotency_key",
                "request_id",
            ],
        },
        "signal": {"fields": {"input": input, "request_id": request_id}},
        "query": {"fields": {"input": input}},
        "update": {
            "fields": {
                "input": input,
                "wait_for": {
                    "canonical_values": ["accepted", "completed"],
                    "default": "accepted",
                },
                "wait_timeout_seconds": {"type": "integer", "minimum": 1, "default": 10},
                "request_id": request_id,
            },
            "removed_fields": {"wait_policy": "wait_for"},
        },
        "cancel": closing,
        "terminate": closing,
        "archive": closing,
        "repair": {"fields": {"request_id": request_id}},
    })
}
