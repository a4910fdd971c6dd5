//! Which capabilities and definitions a registration may announce, and what it is told otherwise.

use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer, merged, text};

const PORTABLE: [&str; 3] = ["local_activities", "worker_sessions", "sticky_execution"];

fn entry(supported: bool, minimum: &str) -> Value {
    json!({"supported": supported, "minimum_protocol_version": minimum})
}

/// A manifest that supports none of the portable capabilities.
fn none() -> Value {
    json!(
        PORTABLE
            .map(|name| (name, entry(false, "1.18")))
            .into_iter()
            .collect::<std::collections::BTreeMap<_, _>>()
    )
}

async fn register(client: &Client, version: &str, fields: Value) -> Answer {
    let base = json!({"worker_id": "w", "task_queue": "q", "workflow_types": ["flow"]});
    client
        .speaking(version)
        .post("/worker/register", merged(base, fields))
        .await
}

/// Asserts a refusal by a capability rule, with everything that it tells.
#[track_caller]
fn assert_refused(answer: Answer, reason: &str, capability: &str, requested: &str, minimum: &str) {
    let body = answer.refused(409, reason);
    assert_eq!(body["registered"], false);
    assert_eq!(body["capability"], capability);
    assert_eq!(body["requested_version"], requested);
    assert_eq!(body["minimum_protocol_version"], minimum);
    assert!(!text(&body, "remediation").is_empty());
}

async fn newest() -> TestServer {
    TestServer::with(|settings| settings.worker_protocol = "1.20".to_owned()).await
}

/// Rule: from request version 1.18 on a manifest is required, with an entry for each portable
/// capability; before it is optional.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_is_required_from_its_version_on() {
    let server = newest().await;
    let client = &server.client;
    for version in ["1.18", "1.19", "1.20"] {
        register(client, version, json!({}))
            .await
            .invalid(&["capability_manifest"]);
        let missing = PORTABLE.map(|name| format!("capability_manifest.{name}"));
        let mut missing: Vec<&str> = missing.iter().map(String::as_str).collect();
        missing.sort_unstable();
        register(client, version, json!({"capability_manifest": {}}))
            .await
            .invalid(&missing);
        register(client, version, json!({"capability_manifest": none()}))
            .await
            .expect(200);
    }
    for version in ["1.0", "1.13", "1.17"] {
        register(client, version, json!({})).await.expect(200);
        register(client, version, json!({"capability_manifest": {}}))
            .await
            .expect(200);
    }
    server.stop().await;
}

/// Rule: the shape of manifest entries: strict for the portable capabilities, open for others.
#[tokio::test(flavor = "multi_thread")]
async fn manifest_entries_have_a_shape() {
    let server = newest().await;
    let client = &server.client;
    for (change, wrong) in [
        (
            json!({"sticky_execution": {"supported": false}}),
            "capability_manifest.sticky_execution",
        ),
        (
            json!({"sticky_execution": {"minimum_protocol_version": "1.18"}}),
            "capability_manifest.sticky_execution",
        ),
        (
            json!({"sticky_execution": entry(false, &"1".repeat(33))}),
            "capability_manifest.sticky_execution.minimum_protocol_version",
        ),
        (
            json!({"sticky_execution": merged(entry(false, "1.18"), json!({"reason": "r".repeat(256)}))}),
            "capability_manifest.sticky_execution.reason",
        ),
        (
            json!({"sticky_execution": merged(entry(false, "1.18"), json!({"implementation": 1}))}),
            "capability_manifest.sticky_execution.implementation",
        ),
        (
            json!({"sticky_execution": merged(entry(false, "1.18"), json!({"binding_kinds": []}))}),
            "capability_manifest.sticky_execution.binding_kinds",
        ),
        (
            json!({"other": merged(entry(true, "1.20"), json!({"reason": 1}))}),
            "capability_manifest.other.reason",
        ),
    ] {
        let manifest = merged(none(), change);
        register(client, "1.20", json!({"capability_manifest": manifest}))
            .await
            .invalid(&[wrong]);
    }
    let manifest = merged(
        none(),
        json!({
            "nexus_cooperative_cancellation": merged(entry(true, "1.20"), json!({"binding_kinds": ["workflow_run"]})),
            "sticky_execution": merged(entry(false, "1.18"), json!({"reason": "sticky_cache_disabled", "implementation": null})),
        }),
    );
    let body = register(client, "1.20", json!({"capability_manifest": manifest}))
        .await
        .expect(200);
    assert_eq!(
        body["capability_manifest"]["nexus_cooperative_cancellation"]["binding_kinds"],
        json!(["workflow_run"])
    );
    server.stop().await;
}

/// Rule: list and manifest agree on each portable capability.
#[tokio::test(flavor = "multi_thread")]
async fn list_and_manifest_must_agree() {
    let server = newest().await;
    let client = &server.client;
    let reason = "worker_capability_manifest_mismatch";
    for name in PORTABLE {
        let listed = json!({"capabilities": [name], "capability_manifest": none()});
        assert_refused(
            register(client, "1.20", listed).await,
            reason,
            name,
            "1.20",
            "1.18",
        );
        let manifest = merged(none(), json!({name: entry(true, "1.18")}));
        let unlisted = json!({"capability_manifest": manifest});
        assert_refused(
            register(client, "1.20", unlisted).await,
            reason,
            name,
            "1.20",
            "1.18",
        );
        let both = json!({"capabilities": [name], "capability_manifest": manifest});
        let body = register(client, "1.20", both).await.expect(200);
        assert_eq!(body["capabilities"], json!([name]));
        assert_eq!(body["capability_manifest"][name], entry(true, "1.18"));
    }
    // An older request whose manifest does not speak of what it lists.
    let listed = json!({"capabilities": ["local_activities"], "capability_manifest": {}});
    assert_refused(
        register(client, "1.17", listed).await,
        reason,
        "local_activities",
        "1.17",
        "1.18",
    );
    server.stop().await;
}

/// Rule: a portable capability names a version of at least 1.18 that the request has. Minors compare
/// as numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_portable_capability_needs_its_version() {
    let server = newest().await;
    let client = &server.client;
    let reason = "worker_capability_protocol_floor_mismatch";
    for name in PORTABLE {
        let with = |supported: bool, minimum: &str| {
            let listed = if supported { vec![name] } else { vec![] };
            let manifest = merged(none(), json!({name: entry(supported, minimum)}));
            json!({"capabilities": listed, "capability_manifest": manifest})
        };
        for minimum in ["", "1.17", "1.2", "0.99", "x", "1"] {
            for supported in [true, false] {
                let answer = register(client, "1.20", with(supported, minimum)).await;
                assert_refused(answer, reason, name, "1.20", "1.18");
            }
        }
        for (version, minimum) in [
            ("1.17", "1.18"),
            ("1.9", "1.18"),
            ("1.18", "1.19"),
            ("1.19", "1.20"),
        ] {
            let answer = register(client, version, with(true, minimum)).await;
            assert_refused(answer, reason, name, version, "1.18");
            register(client, version, with(false, minimum))
                .await
                .expect(200);
        }
        register(client, "1.19", with(true, "1.19"))
            .await
            .expect(200);
    }
    server.stop().await;
}

/// Rule: memo and attribute capabilities need their version; message streams as well.
#[tokio::test(flavor = "multi_thread")]
async fn gated_names_need_their_version() {
    let server = newest().await;
    let client = &server.client;
    for (name, reason, before, first) in [
        (
            "memo_upserts",
            "workflow_metadata_capability_protocol_mismatch",
            "1.13",
            "1.14",
        ),
        (
            "typed_search_attributes",
            "workflow_metadata_capability_protocol_mismatch",
            "1.15",
            "1.16",
        ),
        (
            "message_streams",
            "message_streams_unavailable",
            "1.14",
            "1.15",
        ),
    ] {
        let fields = json!({"capabilities": ["query_tasks", name]});
        for version in ["1.9", before] {
            let answer = register(client, version, fields.clone()).await;
            assert_refused(answer, reason, name, version, first);
        }
        let body = register(client, first, fields).await.expect(200);
        assert_eq!(body["capabilities"], json!(["query_tasks", name]));
    }
    server.stop().await;
}

/// Rule: a server of the default version knows nothing of manifests and ignores them; a worker that
/// lists message streams is refused there.
#[tokio::test(flavor = "multi_thread")]
async fn the_default_version_has_no_manifest_rules() {
    let server = TestServer::start().await;
    let client = &server.client;
    for manifest in [
        json!({}),
        none(),
        json!({"local_activities": entry(true, "1.2")}),
    ] {
        let fields = json!({"capability_manifest": manifest, "capabilities": ["worker_sessions"]});
        register(client, "1.13", fields).await.expect(200);
    }
    let fields = json!({"capabilities": ["message_streams"]});
    let answer = register(client, "1.13", fields).await;
    assert_refused(
        answer,
        "message_streams_unavailable",
        "message_streams",
        "1.13",
        "1.15",
    );
    server.stop().await;
}

/// Rule: an announced feature that the server lacks is no reason to refuse a worker; the SDKs announce
/// theirs regardless.
#[tokio::test(flavor = "multi_thread")]
async fn the_announcements_of_the_sdks_are_taken() {
    let server = newest().await;
    let capabilities = json!([
        "memo_upserts",
        "typed_search_attributes",
        "durable_selection",
        "local_activities",
        "workflow_entry_arguments_validation",
        "message_streams",
        "worker_sessions",
        "query_tasks",
        "update_validation_tasks",
        "workflow_updates",
        "condition_wait_occurrence_identity",
        "cooperative_cancellation",
        "gpu-a100",
    ]);
    let manifest = json!({
        "local_activities": merged(entry(true, "1.18"), json!({"implementation": "sdk"})),
        "worker_sessions": entry(true, "1.18"),
        "sticky_execution": merged(entry(false, "1.18"), json!({"reason": "sticky_cache_disabled"})),
    });
    let fields = json!({"capabilities": capabilities, "capability_manifest": manifest});
    let body = register(&server.client, "1.20", fields).await.expect(200);
    assert_eq!(body["capabilities"], capabilities);
    assert_eq!(body["capability_manifest"], manifest);
    assert_eq!(body["registered"], true);
    server.stop().await;
}

/// Rule: under a live worker id no workflow definition changes, and none loses its fingerprint; a
/// refusal leaves the older registration as it was.
#[tokio::test(flavor = "multi_thread")]
async fn definitions_do_not_change_under_a_live_worker_id() {
    let server = TestServer::start().await;
    let client = &server.client;
    let types = |types: &[&str], fingerprints: Value| json!({"workflow_types": types, "workflow_definition_fingerprints": fingerprints});
    let first = types(&["a", "b"], json!({"a": "1", "b": "1"}));
    register(client, "1.13", first).await.expect(200);
    let before = server.db.contents().await;
    for (fields, reason, kind) in [
        (
            types(&["a", "b"], json!({"a": "2", "b": "2"})),
            "workflow_definition_changed",
            "a",
        ),
        (
            types(&["a", "b"], json!({"a": "1", "b": "2"})),
            "workflow_definition_changed",
            "b",
        ),
        (
            types(&["a", "b"], json!({"b": "1"})),
            "workflow_definition_fingerprint_missing",
            "a",
        ),
        // A missing fingerprint is noticed before a changed one.
        (
            types(&["a", "b"], json!({"a": "2"})),
            "workflow_definition_fingerprint_missing",
            "b",
        ),
    ] {
        let body = register(client, "1.13", fields).await.refused(409, reason);
        assert_eq!(body["workflow_type"], kind);
        assert_eq!(body["registered"], false);
        assert!(text(&body, "remediation").contains("new worker id"));
    }
    assert_eq!(server.db.contents().await["workers"], before["workers"]);
    // None at all keeps those that are known; a type that is given up may come back as another one.
    register(client, "1.13", types(&["a", "b"], json!({})))
        .await
        .expect(200);
    let worker = client.get("/workers/w").await.expect(200);
    assert_eq!(
        worker["workflow_definition_fingerprints"],
        json!({"a": "1", "b": "1"})
    );
    register(client, "1.13", types(&["b"], json!({"b": "1"})))
        .await
        .expect(200);
    register(
        client,
        "1.13",
        types(&["a", "b"], json!({"a": "2", "b": "1"})),
    )
    .await
    .expect(200);
    // Another worker is another process.
    let other = merged(types(&["a"], json!({"a": "3"})), json!({"worker_id": "v"}));
    register(client, "1.13", other).await.expect(200);
    server.stop().await;
}

/// Rule: contracts of a live worker are kept when a registration brings none.
#[tokio::test(flavor = "multi_thread")]
async fn contracts_are_kept_when_none_are_sent() {
    let server = TestServer::start().await;
    let client = &server.client;
    let contract = json!({"flow": {"signals": ["go"], "queries": []}});
    register(
        client,
        "1.13",
        json!({"workflow_command_contracts": contract}),
    )
    .await
    .expect(200);
    register(client, "1.13", json!({})).await.expect(200);
    let worker = client.get("/workers/w").await.expect(200);
    assert_eq!(worker["workflow_command_contracts"], contract);
    register(client, "1.13", json!({"workflow_command_contracts": {}}))
        .await
        .expect(200);
    let worker = client.get("/workers/w").await.expect(200);
    assert_eq!(worker["workflow_command_contracts"], json!({}));
    server.stop().await;
}
