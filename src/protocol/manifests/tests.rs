//! Cluster info: every required key with its type, the literal values that clients compare, and
//! honest switches.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;

/// Serves the facts of a small server, at a version and with a set of features.
fn info_with(
    version: &str,
    supported: Supported,
    fleet: &WorkerFleet,
    checks: &[HealthCheck],
) -> Value {
    cluster_info(&ClusterFacts {
        server_id: "node-1",
        version: "0.1.0",
        default_namespace: "default",
        advertised: &version.parse().unwrap(),
        supported: &supported,
        timing: &Timing::default(),
        limits: &AnnouncedLimits::default(),
        worker_fleet: fleet,
        task_repair: &TaskRepair::default(),
        checks,
    })
}

fn info(version: &str, supported: Supported) -> Value {
    let fleet = WorkerFleet {
        namespace: "default".into(),
        ..WorkerFleet::default()
    };
    info_with(version, supported, &fleet, &[])
}

fn assert_keys(value: &Value, keys: &str) {
    let entries = value.as_object().unwrap();
    for key in keys.split_whitespace() {
        assert!(entries.contains_key(key), "{key} is missing in {value}");
    }
}

fn strings(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item.as_str().unwrap())
        .collect()
}

/// The keys the official envelope requires, by the object they belong to.
const REQUIRED: [(&str, &str); 14] = [
    (
        "",
        "server_id version default_namespace supported_sdk_versions capabilities worker_fleet \
         task_repair limits structural_limits topology coordination_health client_compatibility \
         surface_stability_contract platform_protocol_specs platform_conformance_suite \
         sdk_neutrality_contract auth_composition_contract control_plane worker_protocol \
         bridge_adapter_outcome_contract replay_verification_contract",
    ),
    (
        "/capabilities",
        "workflow_tasks activity_tasks signals queries updates schedules history_export \
         payload_codec_envelope payload_codec_envelope_responses bridge_adapter_outcome_contract \
         replay_verification_contract external_executor_config_contract \
         invocable_carrier_contract payload_codecs response_compression",
    ),
    (
        "/worker_fleet",
        "namespace active_workers queues build_ids workers",
    ),
    ("/task_repair", "policy candidates"),
    (
        "/task_repair/policy",
        "redispatch_after_seconds loop_throttle_seconds scan_limit scan_strategy \
         failure_backoff_max_seconds failure_backoff_strategy",
    ),
    (
        "/task_repair/candidates",
        "existing_task_candidates missing_task_candidates total_candidates scan_limit \
         scan_strategy scopes",
    ),
    (
        "/limits",
        "max_payload_bytes max_memo_bytes max_search_attributes max_pending_activities \
         max_pending_children",
    ),
    ("/topology", "schema version supported_shapes current_shape"),
    ("/coordination_health", "schema version status checks"),
    (
        "/surface_stability_contract",
        "schema version authority_url stability_levels release_rules field_visibility_rule \
         surface_families release_check",
    ),
    (
        "/platform_protocol_specs",
        "schema version catalog_url authority_url formats owner_repos status_levels \
         evolution_rules specs release_check",
    ),
    (
        "/platform_conformance_suite",
        "schema version authority_doc surface_stability_authority result_schema result_version \
         conformance_levels targets fixture_catalog pass_fail_rules harness_contract release_gates",
    ),
    ("/sdk_neutrality_contract", "schema version authority_url"),
    (
        "/worker_protocol",
        "version server_capabilities negotiation external_execution_surface_contract \
         external_executor_config_contract invocable_carrier_contract \
         external_task_input_contract external_task_result_contract",
    ),
];

#[test]
fn every_required_key_is_there() {
    for version in ["1.0", "1.13", "1.20"] {
        for supported in [Supported::build(), Supported::of(Feature::ALL)] {
            let all = info(version, supported);
            for (path, keys) in REQUIRED {
                assert_keys(all.pointer(path).unwrap(), keys);
            }
            // Its absence is what tells clients to send payloads inline.
            assert!(all["namespace"].get("external_payload_storage").is_none());
        }
    }
}

#[test]
fn capability_flags_are_booleans_and_lists_are_lists() {
    const FLAGS: [&str; 13] = [
        "workflow_tasks",
        "activity_tasks",
        "signals",
        "queries",
        "updates",
        "schedules",
        "history_export",
        "payload_codec_envelope",
        "payload_codec_envelope_responses",
        "bridge_adapter_outcome_contract",
        "replay_verification_contract",
        "external_executor_config_contract",
        "invocable_carrier_contract",
    ];
    for supported in [Supported::build(), Supported::of(Feature::ALL)] {
        let flags = info("1.20", supported)["capabilities"].clone();
        for flag in FLAGS {
            assert!(flags[flag].is_boolean(), "{flag}");
        }
        assert_eq!(flags["payload_codecs"], json!(["avro"]));
        assert!(flags["response_compression"].is_array());
    }

    let now = info("1.20", Supported::build())["capabilities"].clone();
    for (flag, expected) in [
        ("workflow_tasks", true),
        ("signals", true),
        ("continue_as_new", true),
        ("queries", true),
        ("updates", true),
        ("schedules", false),
        ("child_workflows", true),
        ("history_export", true),
    ] {
        assert_eq!(now[flag], json!(expected), "{flag}");
    }
    let later = info("1.20", Supported::build().with(Feature::Schedules));
    assert_eq!(later["capabilities"]["schedules"], json!(true));
}

#[test]
fn both_protocol_versions_are_strings() {
    for version in ["1.13", "1.20"] {
        let all = info(version, Supported::build());
        assert_eq!(all["control_plane"]["version"], json!("2"));
        assert_eq!(all["worker_protocol"]["version"], json!(version));
        assert_eq!(
            all["client_compatibility"]["authority"],
            json!("protocol_manifests")
        );
    }
}

#[test]
fn negotiation_is_published_in_the_words_of_the_contract() {
    let rule = info("1.20", Supported::build())["worker_protocol"]["negotiation"].clone();
    assert_eq!(
        rule["advertised_version_path"],
        json!("worker_protocol.version")
    );
    assert_eq!(rule["default_advertised_version"], json!("1.13"));
    assert_eq!(
        rule["request_header_rule"],
        json!("same_major_and_minor_less_than_or_equal_to_advertised")
    );
    assert_eq!(rule["response_version"], json!("advertised_version"));
    assert_eq!(
        strings(&rule["fail_closed_on"]),
        [
            "missing_header",
            "malformed_version",
            "different_major",
            "minor_greater_than_advertised"
        ]
    );
    assert_eq!(
        strings(&rule["accepted_request_versions_by_default"]).len(),
        14
    );
    assert_eq!(
        strings(&rule["accepted_request_versions"]).last(),
        Some(&"1.20")
    );
}

#[test]
fn the_request_contract_has_what_clients_check() {
    let contract = info("1.20", Supported::build())["control_plane"]["request_contract"].clone();
    assert_eq!(
        contract["schema"],
        json!("durable-workflow.v2.control-plane-request.contract")
    );
    assert_eq!(contract["version"], json!(1));
    let operations = &contract["operations"];
    assert_keys(
        operations,
        "list start signal query update cancel terminate",
    );
    assert_eq!(
        strings(&operations["update"]["fields"]["wait_for"]["canonical_values"]),
        ["accepted", "completed"]
    );
    assert_eq!(
        strings(&operations["list"]["fields"]["status"]["canonical_values"]),
        ["running", "completed", "failed", "cancelled", "terminated"]
    );
    assert_eq!(
        operations["start"]["fields"]["duplicate_policy"]["rejected_aliases"],
        json!({"use_existing": "use-existing"})
    );
}

#[test]
fn auth_composition_has_the_words_that_the_sdk_demands() {
    let contract = info("1.20", Supported::build())["auth_composition_contract"].clone();
    assert_keys(
        &contract,
        "scope unknown_field_policy precedence effective_config redaction resolution",
    );
    assert_eq!(
        contract["schema"],
        json!("durable-workflow.v2.auth-composition.contract")
    );
    assert_eq!(contract["version"], json!(1));
    assert_eq!(
        contract["canonical_environment"],
        json!({
            "server_url": "DURABLE_WORKFLOW_SERVER_URL",
            "namespace": "DURABLE_WORKFLOW_NAMESPACE",
            "auth_token": "DURABLE_WORKFLOW_AUTH_TOKEN",
            "tls_verify": "DURABLE_WORKFLOW_TLS_VERIFY",
            "profile": "DW_ENV",
        })
    );
    for list in [
        &contract["precedence"]["connection_values"],
        &contract["precedence"]["profile_selection"],
    ] {
        assert!(!strings(list).is_empty());
    }
    let token = json!({"status": "supported", "effective_config_value": "redacted"});
    assert_eq!(contract["auth_material"]["token"], token);
    for kind in ["mtls", "signed_headers"] {
        assert_eq!(contract["auth_material"][kind]["status"], json!("reserved"));
    }
    assert_eq!(
        strings(&contract["effective_config"]["required_fields"]),
        [
            "server_url",
            "namespace",
            "profile",
            "auth",
            "tls",
            "identity"
        ]
    );
    for secret in ["bearer_tokens", "private_keys", "raw_authorization_headers"] {
        assert!(strings(&contract["redaction"]["never_echo"]).contains(&secret));
    }
}

#[test]
fn limits_come_from_one_set_of_numbers() {
    let all = info("1.13", Supported::build());
    assert_eq!(
        all["limits"],
        json!({
            "max_payload_bytes": 2_097_152,
            "max_memo_bytes": 262_144,
            "max_search_attributes": 100,
            "max_search_attribute_key_length": 128,
            "max_search_attribute_value_bytes": 2048,
            "max_operation_name_length": 256,
            "max_pending_activities": 2000,
            "max_pending_children": 2000,
        })
    );
    assert_eq!(
        all["structural_limits"],
        json!({
            "payload_size": 2_097_152,
            "memo_size": 262_144,
            "search_attribute_size": 40_960,
            "pending_activity_count": 2000,
            "pending_child_count": 2000,
            "pending_timer_count": 2000,
            "pending_signal_count": 5000,
            "pending_update_count": 500,
            "command_batch_size": 1000,
            "history_transaction_size": 5000,
            "warning_threshold_percent": 80,
        })
    );
}

#[test]
fn the_fleet_is_bounded_and_its_counts_are_not() {
    let worker = FleetWorker {
        worker_id: "w".into(),
        task_queues: vec!["q".into()],
        build_id: None,
        runtime: "rust".into(),
        status: "active".into(),
        last_heartbeat_at: "2026-07-18T00:40:00.000000Z".into(),
    };
    let fleet = WorkerFleet {
        namespace: "tenant".into(),
        active_workers: 5_000,
        active_worker_scopes: vec![FleetScope {
            task_queue: "q".into(),
            build_id: None,
            active_workers: 5_000,
        }],
        queues: vec!["q".into()],
        build_ids: Vec::new(),
        workers: vec![worker; 5_000],
    };
    let all = info_with("1.13", Supported::build(), &fleet, &[]);
    let shown = &all["worker_fleet"];
    assert_eq!(shown["active_workers"], json!(5_000));
    assert_eq!(shown["workers"].as_array().unwrap().len(), FLEET_ROWS);
    assert_eq!(shown["truncated"], json!(true));
    assert_eq!(all["namespace"]["name"], json!("tenant"));
}

#[test]
fn one_failed_check_degrades_health() {
    let ok = HealthCheck {
        name: "database",
        healthy: true,
    };
    let slow = HealthCheck {
        name: "clock",
        healthy: false,
    };
    let fleet = WorkerFleet::default();
    let status = |checks: &[HealthCheck]| {
        info_with("1.13", Supported::build(), &fleet, checks)["coordination_health"]["status"]
            .clone()
    };
    assert_eq!(status(&[]), json!("ok"));
    assert_eq!(status(&[ok]), json!("ok"));
    assert_eq!(status(&[ok, slow]), json!("degraded"));
}

#[test]
fn released_sdks_are_named_only_where_they_can_connect() {
    let python =
        |version| info(version, Supported::build())["supported_sdk_versions"]["python"].clone();
    assert_eq!(python("1.20"), json!(">=2.0.0rc1,<3.0.0"));
    assert_eq!(python("1.18"), json!(">=2.0.0rc1,<2.0.0"));
}

#[test]
fn the_document_stays_small() {
    let text = info("1.20", Supported::of(Feature::ALL)).to_string();
    assert!(text.len() < 32 * 1024, "{} bytes", text.len());
}
