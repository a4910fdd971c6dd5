//! Capabilities that came after 1.13 or belong to no version. Most are single switches; a switch
//! that is on makes SDKs expect its whole protocol.

use serde_json::{Map, Value, json};

use super::{FLOOR, Offer, not_offered, object};
use crate::protocol::feature::Feature;
use crate::protocol::support::Supported;
use crate::protocol::version::Advertised;

pub(super) fn capabilities(offer: Offer<'_>) -> Map<String, Value> {
    let on = |feature| offer.on(feature);
    let listed = |feature, items: &'static [&'static str]| if on(feature) { items } else { &[] };
    let nexus = Feature::NexusCooperativeCancellation;
    object(json!({
        "workflow_memo_updates": memo_updates(offer),
        "message_streams": message_streams(offer.advertised, offer.supported),
        "typed_search_attributes": typed_search_attributes(offer),
        "condition_wait_occurrence_identity": condition_wait_occurrence_identity(offer),
        "cooperative_cancellation": on(Feature::CooperativeCancellation),
        "activity_cancellation_acknowledgement": on(Feature::ActivityCancellationReceipts),
        "prepared_local_activities": on(Feature::PreparedLocalActivities),
        "prepared_local_activity_groups": on(Feature::PreparedLocalActivityGroups),
        "prepared_local_activity_cancellation_policies": listed(
            Feature::PreparedLocalActivityPolicies,
            &["try_cancel", "wait_cancellation_completed"],
        ),
        "query_task_authority": on(Feature::QueryTaskAuthority),
        "activity_lease_renewal": on(Feature::ActivityLeaseRenewal),
        "nexus_cooperative_cancellation": on(nexus),
        "nexus_cooperative_cancellation_binding_kinds": listed(nexus, &["workflow_run"]),
        "runtime_external_payload_transport": on(Feature::ExternalPayloads),
        "worker_deregistration_fencing": fenced_deregistration(offer),
        "observability_context": observability_context(offer),
    }))
}

fn memo_updates(offer: Offer<'_>) -> Value {
    if !offer.on(Feature::MemoUpserts) {
        return not_offered("minimum_protocol_version", Feature::MemoUpserts);
    }
    json!({
        "supported": true,
        "type": "upsert_memo",
        "minimum_protocol_version": Feature::MemoUpserts.floor(),
        "worker_capability": Feature::MemoUpserts.worker_capability(),
        "required_fields": ["type", "entries"],
        "entries": {
            "form": "payload_envelope_of_a_map",
            "key_pattern": "^(?!-?[0-9]+$)[A-Za-z0-9_.:-]{1,64}$",
            "max_entries": 100,
            "max_value_bytes": 10_240,
            "max_total_bytes": 65_536,
        },
        "merge": {
            "named_keys": "replaced",
            "null_values": "removed",
            "other_keys": "kept",
            "key_order": "lexicographic",
        },
        "history": {"event": "MemoUpserted", "fields": ["sequence", "entries", "merged"]},
        "idempotency": {
            "identity": ["sequence", "entries"],
            "repeated_completion": "applied_once",
        },
        "continue_as_new": "merged memo is inherited before commands on the continued run",
        "external_payloads": {
            "accepted": offer.on(Feature::ExternalPayloads),
            "history_form": "inline",
        },
    })
}

/// The message-stream manifest, which cluster info publishes a second time at its top level.
pub(in crate::protocol) fn message_streams(
    advertised: &Advertised,
    supported: &Supported,
) -> Value {
    json!({
        "schema": "durable-workflow.v2.message-streams.contract",
        "version": 1,
        "capability_flag": Feature::MessageStreams.worker_capability(),
        "minimum_worker_protocol_version": Feature::MessageStreams.floor(),
        "supported": supported.offers(advertised, Feature::MessageStreams),
    })
}

fn typed_search_attributes(offer: Offer<'_>) -> Value {
    if !offer.on(Feature::TypedSearchAttributes) {
        return not_offered(FLOOR, Feature::TypedSearchAttributes);
    }
    json!({
        "supported": true,
        FLOOR: Feature::TypedSearchAttributes.floor(),
        "worker_capability": Feature::TypedSearchAttributes.worker_capability(),
        "canonical_types": [
            "string", "keyword", "keyword_list", "int", "float", "bool", "datetime",
        ],
        "command_field": "attribute_types",
        "history_event": "SearchAttributesUpserted",
        "history_field": "attribute_types",
        "legacy_history_rule": "absent_metadata_is_unknown_type_identity",
    })
}

fn condition_wait_occurrence_identity(offer: Offer<'_>) -> Value {
    if !offer.on(Feature::ConditionWaitOccurrenceIdentity) {
        return not_offered(FLOOR, Feature::ConditionWaitOccurrenceIdentity);
    }
    json!({
        "supported": true,
        FLOOR: Feature::ConditionWaitOccurrenceIdentity.floor(),
        "command_type": "open_condition_wait",
        "command_field": "condition_wait_occurrence_id",
        "history_field": "condition_wait_occurrence_id",
        "history_events": [
            "ConditionWaitOpened",
            "ConditionWaitSatisfied",
            "ConditionWaitTimedOut",
            "TimerScheduled",
            "TimerFired",
            "TimerCancelled",
        ],
        "history_routing": "requires_minimum_worker_protocol_version",
    })
}

fn fenced_deregistration(offer: Offer<'_>) -> Value {
    if !offer.on(Feature::FencedDeregistration) {
        return json!({"supported": false});
    }
    json!({
        "supported": true,
        "schema": "durable-workflow.v2.worker-deregistration.v1",
        "endpoint": "/worker/registrations/{workerId}/deregister",
        "receipt_retention_seconds": 600,
    })
}

/// The SDKs accept this object only when every value and its type is exactly this.
fn observability_context(offer: Offer<'_>) -> Value {
    if !offer.on(Feature::ObservabilityContext) {
        return json!({"supported": false});
    }
    json!({
        "supported": true,
        "schema": "durable-workflow.trace-context",
        "version": 1,
        "dispatch_schema": "durable-workflow.queue-trace",
        "links_schema": "durable-workflow.trace-links",
        "max_context_bytes": 4096,
        "max_links": 32,
        "max_links_bytes": 4096,
    })
}
