//! Capabilities that tie work to one worker process: local activities, worker sessions, the sticky
//! cache. Two of them are published as whole contracts whose words the official schemas fix.

use serde_json::{Map, Value, json};

use super::{FLOOR, Offer, not_offered, object};
use crate::protocol::feature::Feature;

pub(super) fn capabilities(offer: Offer<'_>) -> Map<String, Value> {
    let mut all = object(json!({
        "local_activities": local_activities(offer),
        "worker_sessions": worker_sessions(offer),
        "sticky_execution": sticky_execution(offer),
    }));
    // The schemas want all three verbs wherever the key is, so a server without sessions leaves the
    // key out; `worker_sessions.supported` is what clients read.
    if offer.on(Feature::WorkerSessions) {
        all.insert("worker_session_verbs".to_owned(), json!(VERBS));
    }
    all
}

const VERBS: [&str; 3] = ["create", "heartbeat", "close"];

/// The local-activity runtime contract. It describes how workers run them whether or not this
/// server takes their reports, so only `supported` differs.
fn local_activities(offer: Offer<'_>) -> Value {
    json!({
        "schema": "durable-workflow.v2.local-activity.contract",
        "version": 1,
        "supported": offer.on(Feature::LocalActivities),
        "worker_capability": Feature::LocalActivities.worker_capability(),
        "minimum_worker_protocol_version": Feature::LocalActivities.floor(),
        "api": {
            "functions": ["Workflow\\V2\\localActivity"],
            "workflow_facade": [
                "Workflow\\V2\\Workflow::localActivity",
                "Workflow\\V2\\Workflow::executeLocalActivity",
            ],
            "options": "Workflow\\V2\\Support\\LocalActivityOptions",
        },
        "execution": {
            "mode": "local",
            "same_process": true,
            "ordinary_activity_task_created": false,
            "history_events": [
                "ActivityScheduled",
                "ActivityStarted",
                "ActivityHeartbeatRecorded",
                "ActivityRetryScheduled",
                "ActivityCompleted",
                "ActivityFailed",
                "ActivityTimedOut",
                "ActivityCancelled",
            ],
            "history_marker": {"execution_mode": "local", "local_activity": true},
        },
        "heartbeating": {
            "lease": "workflow_task",
            "automatic_points": ["before_attempt_start", "after_activity_heartbeat"],
            "long_running_requirement":
                "activity_code_calls_heartbeat_before_the_workflow_task_lease_can_expire",
        },
        "cancellation": {
            "preemption": "cooperative",
            "observed_at": ["heartbeat", "timeout_enforcement", "attempt_completion"],
            "terminal_event": "ActivityCancelled",
        },
        "shutdown": {
            "graceful": "worker_stops_claiming_new_workflow_tasks_and_allows_in_process_attempt_to_finish_or_heartbeat",
            "crash": "workflow_task_lease_expires_and_task_repair_reclaims_the_workflow_task",
            "cold_replay": "committed_terminal_event_is_replayed_or_started_attempt_without_terminal_event_schedules_local_retry",
        },
        "routing": {
            "admission": "activity_class_must_resolve_in_the_workflow_worker_process",
            "queue_bypassed": true,
            "rejected_options": [
                "connection",
                "queue",
                "worker_session",
                "schedule_to_start_timeout",
            ],
        },
        "retry": {
            "new_attempt_when": [
                "a local attempt starts",
                "a retry workflow task replays after backoff",
                "cold replay finds a previously started local attempt without a terminal event",
            ],
            "backoff": "durable_workflow_task_available_at",
            "cold_replay_reason": "cold_replay",
        },
        "timeouts": {
            "start_to_close_timeout": "one_local_attempt",
            "schedule_to_close_timeout": "entire_local_execution_including_retries",
            "heartbeat_timeout": "gap_between_recorded_local_activity_heartbeats",
            "enforcement":
                "cooperative_at_heartbeat_attempt_start_and_attempt_completion_boundaries",
        },
        "visibility": {
            "activity_execution_marker": "activity_options.execution_mode",
            "history_marker": "payload.execution_mode",
            "metrics_marker": "activities.local_*",
            "history_export": "same_activity_event_payloads_with_execution_mode_local",
        },
    })
}

/// The worker-session runtime contract. The endpoints are older than the capability that workers
/// announce for them, hence two versions.
fn worker_sessions(offer: Offer<'_>) -> Value {
    const STATUSES: [&str; 5] = ["active", "closed", "expired", "failed", "orphaned"];
    let supported = offer.on(Feature::WorkerSessions);
    let unavailable = if supported {
        Value::Null
    } else if offer.supported.has(Feature::WorkerSessions) {
        json!("worker_protocol_version_below_worker_session_minimum")
    } else {
        json!("worker_sessions_not_implemented")
    };
    json!({
        "supported": supported,
        "unavailable_reason": unavailable,
        "minimum_protocol_version": Feature::WorkerSessions.floor(),
        "worker_capability": Feature::PortableWorkerSessions.worker_capability(),
        "minimum_worker_protocol_version": Feature::PortableWorkerSessions.floor(),
        "feature": "worker_sessions",
        "contract_version": "1.0",
        "command_field": "worker_session",
        "activity_options_field": "worker_session",
        "verbs": VERBS,
        "lifecycle": {
            "creation": "lazy_create_on_first_admitted_activity_or_explicit_worker_create",
            "renewal": "activity_heartbeat_or_explicit_session_heartbeat",
            "close": "explicit_holder_close",
            "lease_expiry": "session_expires_when_lease_is_not_renewed",
            "ttl_expiry": "absolute_session_ttl_is_terminal_for_that_session_id",
        },
        "ownership": "single_worker_lease_owner",
        "lease": {
            "scope": "namespace_session_id",
            "owner": "registered_worker_id",
            "activity_attempt_leases_remain_independent": true,
        },
        "admission": {
            "queue_routing_first": true,
            "requires_registered_worker": true,
            "requires_capabilities": true,
            "create_if_missing_default": true,
            "allow_reacquire_after_failure_default": true,
        },
        "limits": {
            "max_concurrent_worker_sessions": "worker_registration",
            "max_concurrent_activities": "session",
        },
        "default_max_concurrent_activities": 1,
        "renewal": {
            "activity_heartbeat_renews_session": true,
            "explicit_session_heartbeat": true,
        },
        "failure_detection": ["lease_expiry", "registered_worker_heartbeat_staleness"],
        "holder_loss": {
            "in_flight_activities_keep_at_least_once_attempt_semantics": true,
            "replacement_worker_must_reacquire_session": true,
            "process_local_state_must_be_rebuilt_after_reacquire": true,
        },
        "cancellation": {
            "workflow_cancellation_observed_through_activity_heartbeat": true,
            "session_lease_does_not_override_activity_cancel_requested": true,
            "planned_shutdown_should_close_sessions": true,
        },
        "routing": ["queue", "connection", "requirements"],
        "visibility": STATUSES,
        "statuses": STATUSES,
        "terminal_statuses": ["closed"],
        "terminal_conditions": [
            "explicit_close",
            "ttl_expired",
            "allow_reacquire_after_failure_false",
        ],
        "authoring_guidance": [
            "Keep in a session only what another worker can build again.",
            "Heartbeat long activities, or renew the session itself, before its lease ends.",
            "Close the session when its last activity is done.",
        ],
    })
}

/// Preference of a run for the worker that has it in memory.
fn sticky_execution(offer: Offer<'_>) -> Value {
    if !offer.on(Feature::StickyExecution) {
        return not_offered(FLOOR, Feature::StickyExecution);
    }
    json!({
        "feature": "sticky_execution",
        "supported": true,
        "worker_capability": Feature::StickyExecution.worker_capability(),
        "minimum_worker_protocol_version": Feature::StickyExecution.floor(),
        "cache_owner": "worker_process",
        "routing_identity": "worker_id",
        "cache_key_fields": ["workflow_id", "run_id", "build_id"],
        "correctness_fallback": "cold_replay",
        "replay_modes": ["sticky_hit_expected", "forced_cold_replay", "cold_replay"],
        "metrics": ["hit", "miss", "eviction", "forced_cold_replay"],
        "default_ttl_seconds": 300,
        "default_cache_capacity": 100,
        "default_capacity_pressure_ratio": 0.9,
    })
}
