//! The capability object at every advertised version: complete, boolean where clients read a
//! boolean, silent about what is not built, and shaped as the official schemas demand.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;

fn at(version: &str, supported: Supported) -> Value {
    server_capabilities(&version.parse().unwrap(), &supported, &Timing::default())
}

fn everything() -> Supported {
    Supported::of(Feature::ALL)
}

fn assert_keys(value: &Value, keys: &str) {
    let entries = value.as_object().unwrap();
    for key in keys.split_whitespace() {
        assert!(entries.contains_key(key), "{key} is missing in {value}");
    }
}

/// Switches that clients compare with the literal true.
const SWITCHES: [(&str, Feature); 17] = [
    ("query_tasks", Feature::QueryTasks),
    ("update_validation_tasks", Feature::UpdateValidation),
    ("activity_retry_policy", Feature::ActivityRetryPolicy),
    ("activity_timeouts", Feature::ActivityTimeouts),
    ("non_retryable_failures", Feature::NonRetryableFailures),
    ("child_workflow_retry_policy", Feature::ChildWorkflows),
    ("child_workflow_timeouts", Feature::ChildWorkflows),
    ("parent_close_policy", Feature::ChildWorkflows),
    (
        "workflow_task_poll_request_idempotency",
        Feature::PollRequestIdempotency,
    ),
    ("cooperative_cancellation", Feature::CooperativeCancellation),
    (
        "activity_cancellation_acknowledgement",
        Feature::ActivityCancellationReceipts,
    ),
    (
        "prepared_local_activities",
        Feature::PreparedLocalActivities,
    ),
    (
        "prepared_local_activity_groups",
        Feature::PreparedLocalActivityGroups,
    ),
    ("query_task_authority", Feature::QueryTaskAuthority),
    ("activity_lease_renewal", Feature::ActivityLeaseRenewal),
    (
        "nexus_cooperative_cancellation",
        Feature::NexusCooperativeCancellation,
    ),
    (
        "runtime_external_payload_transport",
        Feature::ExternalPayloads,
    ),
];

/// Manifests with a `supported` key of their own.
const MANIFESTS: [(&str, Feature); 10] = [
    ("local_activities", Feature::LocalActivities),
    ("worker_sessions", Feature::WorkerSessions),
    ("sticky_execution", Feature::StickyExecution),
    ("workflow_memo_updates", Feature::MemoUpserts),
    ("message_streams", Feature::MessageStreams),
    ("typed_search_attributes", Feature::TypedSearchAttributes),
    (
        "condition_wait_occurrence_identity",
        Feature::ConditionWaitOccurrenceIdentity,
    ),
    ("synchronous_update_validation", Feature::UpdateValidation),
    (
        "worker_deregistration_fencing",
        Feature::FencedDeregistration,
    ),
    ("observability_context", Feature::ObservabilityContext),
];

#[test]
fn every_switch_is_a_boolean_and_tells_the_truth_at_every_version() {
    for minor in 0..=20 {
        let version = format!("1.{minor}");
        let advertised: Advertised = version.parse().unwrap();
        for supported in [Supported::of(&[]), Supported::build(), everything()] {
            let all = at(&version, supported);
            for (key, feature) in SWITCHES {
                let expected = supported.offers(&advertised, feature);
                assert_eq!(all[key], json!(expected), "{key} at {version}");
            }
            for (key, feature) in MANIFESTS {
                let expected = supported.offers(&advertised, feature);
                assert_eq!(all[key]["supported"], json!(expected), "{key} at {version}");
            }
        }
    }
}

#[test]
fn one_more_feature_changes_only_what_announces_it() {
    let bare = Supported::of(&[]);
    let before = at("1.20", bare);
    for feature in Feature::ALL {
        let after = at("1.20", bare.with(*feature));
        let gone: Vec<_> = before
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| after.get(key).is_none())
            .collect();
        assert!(gone.is_empty(), "{feature:?} removed {gone:?}");
    }
    assert_eq!(before["workflow_memo_updates"]["supported"], json!(false));
    let memo = at("1.20", bare.with(Feature::MemoUpserts));
    assert_eq!(memo["workflow_memo_updates"]["supported"], json!(true));
    let commands = memo["supported_workflow_task_commands"].as_array().unwrap();
    assert!(commands.contains(&json!("upsert_memo")));
}

#[test]
fn this_build_announces_its_commands_and_nothing_that_it_lacks() {
    let all = at("1.20", Supported::build());
    assert_eq!(
        all["supported_workflow_task_commands"],
        json!([
            "complete_workflow",
            "fail_workflow",
            "continue_as_new",
            "schedule_activity",
            "start_timer",
            "start_child_workflow",
            "complete_update",
            "fail_update",
            "record_side_effect",
            "record_version_marker",
            "upsert_search_attributes",
            "open_condition_wait",
            "open_signal_wait",
            "upsert_memo",
            "record_local_activity",
            "cancel_selection_operation",
        ])
    );
    let encodings = json!(["gzip", "deflate"]);
    assert_eq!(all["response_compression"], encodings);
    assert_eq!(all["history_compression"]["supported_encodings"], encodings);
    assert_eq!(
        all["prepared_local_activity_cancellation_policies"],
        json!([])
    );
    assert_eq!(
        all["nexus_cooperative_cancellation_binding_kinds"],
        json!([])
    );
    assert_eq!(
        all["worker_deregistration_fencing"],
        json!({
            "supported": true,
            "schema": "durable-workflow.v2.worker-deregistration.v1",
            "endpoint": "/worker/registrations/{workerId}/deregister",
            "receipt_retention_seconds": 600,
        })
    );
    assert_eq!(all["observability_context"], json!({"supported": false}));
    assert_eq!(
        all["task_queue_priority_fairness"],
        json!({
            "schema": "durable-workflow.v2.task-queue-priority-fairness.contract",
            "version": 1,
            "feature": "task_queue_priority_fairness",
            "fields": {
                "priority": {
                    "type": "integer", "min": 0, "min_user": 1, "max": 9, "default": 5,
                    "lower_is_more_urgent": true,
                },
                "fairness_key": {
                    "type": "string", "nullable": true, "max_length": 64, "default": null,
                    "default_class_label": "__default__",
                },
                "fairness_weight": {"type": "integer", "min": 1, "max": 1000, "default": 1},
            },
        })
    );
}

#[test]
fn configured_numbers_are_the_announced_numbers() {
    let timing = Timing {
        long_poll_timeout: Duration::from_secs(20),
        heartbeat_interval: Duration::from_secs(7),
        stale_after: Duration::from_secs(41),
        history_page_size_default: 100,
        history_page_size_max: 200,
        query_timeout: Duration::from_secs(57),
        query_lease_grace: Duration::from_secs(9),
        ..Timing::default()
    };
    let all = server_capabilities(&Advertised::default(), &everything(), &timing);
    assert_eq!(all["long_poll_timeout"], json!(20));
    assert_eq!(all["worker_status"]["heartbeat_interval_seconds"], json!(7));
    assert_eq!(all["worker_status"]["stale_after_seconds"], json!(41));
    assert_eq!(all["history_page_size_default"], json!(100));
    assert_eq!(all["history_page_size_max"], json!(200));
    assert_eq!(
        all["query_task_timeouts"],
        json!({
            "control_plane_timeout_seconds": 57,
            "lease_timeout_seconds": 66,
            "lease_grace_seconds": 9,
        })
    );
    assert_eq!(Timing::default().query_lease(), Duration::from_secs(60));
}

#[test]
fn contract_objects_are_whole_whether_or_not_they_are_supported() {
    for supported in [Supported::build(), everything()] {
        let all = at("1.20", supported);
        assert_keys(
            &all["local_activities"],
            "schema version api execution heartbeating cancellation shutdown routing retry timeouts \
             visibility",
        );
        assert_eq!(
            all["local_activities"]["execution"]["history_events"]
                .as_array()
                .unwrap()
                .len(),
            8
        );
        let sessions = &all["worker_sessions"];
        assert_keys(
            sessions,
            "feature contract_version command_field activity_options_field verbs lifecycle ownership \
             lease admission limits default_max_concurrent_activities renewal failure_detection \
             holder_loss cancellation routing visibility statuses terminal_statuses \
             terminal_conditions authoring_guidance",
        );
        assert_eq!(sessions["minimum_protocol_version"], json!("1.8"));
        assert_eq!(sessions["minimum_worker_protocol_version"], json!("1.18"));
    }
}

#[test]
fn sessions_say_why_they_are_off() {
    let reason = |version, supported| {
        at(version, supported)["worker_sessions"]["unavailable_reason"].clone()
    };
    assert_eq!(reason("1.13", everything()), Value::Null);
    assert_eq!(
        reason("1.7", everything()),
        json!("worker_protocol_version_below_worker_session_minimum")
    );
    assert_eq!(
        reason("1.13", everything().without(Feature::WorkerSessions)),
        json!("worker_sessions_not_implemented")
    );
    let verbs = at("1.8", everything())["worker_session_verbs"].clone();
    assert_eq!(verbs, json!(["create", "heartbeat", "close"]));
}

#[test]
fn update_validation_is_announced_in_the_words_that_sdks_compare() {
    let all = at("1.20", everything());
    let validation = &all["synchronous_update_validation"];
    assert_eq!(
        validation["acceptance_boundary"],
        json!("validator_approved")
    );
    assert_eq!(
        validation["worker_capability"],
        json!("update_validation_tasks")
    );
    assert_eq!(
        validation["workflow_contract_field"],
        json!("update_validators")
    );
    let poll = &validation["task_poll"];
    assert_eq!(poll["strategy"], json!("multiplexed"));
    assert_eq!(poll["endpoint"], json!("/worker/workflow-tasks/poll"));
    assert_eq!(poll["request_field"], json!("task_kinds"));
    assert_eq!(poll["response_discriminator"], json!("task.task_kind"));
    assert_eq!(poll["task_kinds"], json!(["workflow", "update_validation"]));
}

#[test]
fn history_budget_names_each_field_and_its_type() {
    let budget = at("1.13", Supported::build())["workflow_history_budget"].clone();
    for field in budget["fields"].as_array().unwrap() {
        assert!(budget["field_types"][field.as_str().unwrap()].is_string());
    }
    assert_eq!(budget["field_types"].as_object().unwrap().len(), 6);
}
