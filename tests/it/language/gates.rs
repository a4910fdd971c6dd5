//! What a version, a request or a registration does not bring along is refused: at the default version
//! and at the newest.

use serde_json::{Value, json};

use super::{capable, first_task, server};
use crate::support::{Client, envelope, merged, text};

/// A use of each gated feature, with the version it came with, the capability it needs, and the
/// reasons of both refusals.
struct Gated {
    command: Value,
    version: u64,
    reason: &'static str,
    capability: Option<(&'static str, &'static str)>,
}

fn gated() -> Vec<Gated> {
    let child = json!({"type": "start_child_workflow", "workflow_type": "kid"});
    let cooperation = Some((
        "cooperative_cancellation",
        "child_cancellation_policy_not_supported",
    ));
    vec![
        Gated {
            command: json!({"type": "upsert_memo", "entries": envelope(json!({"a": 1}))}),
            version: 14,
            reason: "workflow_memo_updates_unavailable",
            capability: Some((
                "memo_upserts",
                "workflow_metadata_capability_not_advertised",
            )),
        },
        Gated {
            command: json!({
                "type": "upsert_search_attributes", "attributes": {"A": 1},
                "attribute_types": {"A": "int"},
            }),
            version: 16,
            reason: "typed_search_attributes_unavailable",
            capability: Some((
                "typed_search_attributes",
                "workflow_metadata_capability_not_advertised",
            )),
        },
        Gated {
            command: json!({
                "type": "open_condition_wait", "condition_wait_occurrence_id": null,
            }),
            version: 17,
            reason: "condition_wait_occurrence_identity_unavailable",
            capability: None,
        },
        Gated {
            command: json!({
                "type": "record_local_activity", "activity_type": "loc", "outcome": "completed",
                "attempts": [{"attempt_number": 1, "outcome": "completed"}],
            }),
            version: 18,
            reason: "portable_worker_affinity_protocol_floor_unavailable",
            capability: Some(("local_activities", "worker_capability_not_supported")),
        },
        Gated {
            command: merged(child.clone(), json!({"cancellation_policy": "try_cancel"})),
            version: 20,
            reason: "child_cancellation_policy_not_supported",
            capability: cooperation,
        },
        Gated {
            command: merged(
                child,
                json!({"parent_close_policy": "request_cancellation"}),
            ),
            version: 20,
            reason: "child_cancellation_policy_not_supported",
            capability: cooperation,
        },
    ]
}

/// Rule: a use below its version is refused as a conflict that names the version, with nothing applied
/// and the lease kept; from that version on it is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_below_the_version_is_refused() {
    for gated in gated() {
        let server = server("1.20").await;
        let client = &server.client;
        let task = first_task(client).await;
        let before = server.db.contents().await;
        let effect = json!({"type": "record_side_effect", "result": envelope(json!(1))});
        let commands = json!([effect, gated.command]);
        for minor in [0, 13, gated.version - 1] {
            let version = format!("1.{minor}");
            let older = client.speaking(&version);
            let answer = older.complete(&task, commands.clone()).await;
            let body = answer.refused(409, gated.reason);
            assert_eq!(body["task_id"], task["task_id"]);
            assert_eq!(body["workflow_task_attempt"], 1);
            assert_eq!(body["outcome"], "rejected");
            assert_eq!(body["recorded"], false);
            assert_eq!(body["requested_version"], version);
            let needed = format!("1.{}", gated.version);
            assert_eq!(body["minimum_protocol_version"], needed);
            assert!(!text(&body, "remediation").is_empty());
            if gated.version == 17 {
                assert_eq!(body["command_type"], "open_condition_wait");
                assert_eq!(body["command_field"], "condition_wait_occurrence_id");
            }
        }
        assert_eq!(server.db.contents().await, before);
        let newer = client.speaking(&format!("1.{}", gated.version));
        newer.complete(&task, commands).await.expect(200);
        server.stop().await;
    }
}

/// Registers a worker without one capability.
async fn register_without(client: &Client, capability: &str) {
    let mut body = capable(client, "w", "q");
    let list = body["capabilities"].as_array_mut().unwrap();
    list.retain(|said| said != capability);
    if let Some(entry) = body["capability_manifest"].get_mut(capability) {
        entry["supported"] = false.into();
    }
    client.post("/worker/register", body).await.expect(200);
}

/// Rule: a use by a worker that did not register the capability is refused likewise.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_the_capability_is_refused() {
    for gated in gated() {
        let Some((capability, reason)) = gated.capability else {
            continue;
        };
        let server = server("1.20").await;
        let client = &server.client;
        register_without(client, capability).await;
        client.start("wf", "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let before = server.db.contents().await;
        let answer = client.complete(&task, json!([gated.command])).await;
        let body = answer.refused(409, reason);
        assert_eq!(body["recorded"], false);
        assert_eq!(body["outcome"], "rejected");
        assert_eq!(body["task_id"], task["task_id"]);
        assert_eq!(server.db.contents().await, before);
        client.wait_for_history(&task).await.expect(200);
        server.stop().await;
    }
}

/// Rule: what is newer than the advertised version is not there: its commands are unknown, its fields
/// are refused as below their version, and nothing is applied.
#[tokio::test(flavor = "multi_thread")]
async fn the_default_version_lacks_what_is_newer() {
    let server = server("1.13").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    for gated in gated() {
        let kind = text(&gated.command, "type").to_owned();
        let answer = client.complete(&task, json!([gated.command])).await;
        if ["upsert_memo", "record_local_activity"].contains(&kind.as_str()) {
            answer.invalid(&["commands.0.type"]);
        } else {
            answer.refused(409, gated.reason);
        }
    }
    client
        .complete(&task, json!([{"type": "cancel_selection_operation"}]))
        .await
        .invalid(&["commands.0.type"]);
    let level = json!({
        "parallel_group_id": "select-calls:1:1", "parallel_group_kind": "activity",
        "parallel_group_mode": "select", "parallel_group_base_sequence": 1,
        "parallel_group_size": 1, "parallel_group_index": 0, "selection_member_key": "a",
        "selection_member_index": 0, "selection_member_base_sequence": 1,
        "selection_member_size": 1, "selection_member_kind": "activity",
    });
    let command = json!({
        "type": "schedule_activity", "activity_type": "act", "parallel_group_path": [level],
    });
    let answer = client
        .complete(&task, json!([merged(command, level)]))
        .await;
    let body = answer.refused(422, "validation_failed");
    let path = "commands.0.parallel_group_mode";
    assert!(body["errors"].get(path).is_some(), "{body:#}");
    let fields = json!({
        "commands": [], "message_stream_cursors": [{"stream_name": "s", "through_position": 0}],
    });
    let body = client
        .task(&task, "complete", fields)
        .await
        .refused(409, "message_streams_unavailable");
    assert_eq!(body["minimum_protocol_version"], "1.15");
    let path = "/workflows/wf/message-streams/s/messages";
    let body = client
        .post(path, json!({"message_id": "m"}))
        .await
        .refused(409, "message_stream_not_supported");
    assert!(!text(&body, "remediation").is_empty());
    let body = client
        .post("/workflows/wf/request-cancellation", json!({}))
        .await
        .refused(409, "cooperative_cancellation_not_supported");
    assert_eq!(body["minimum_protocol_version"], "1.20");
    let delivery = json!({"request_id": "r", "sequence": 1, "call_kind": "timer"});
    let body = client
        .task(&task, "deliver-cancellation", delivery)
        .await
        .refused(409, "cooperative_cancellation_not_supported");
    assert_eq!(body["minimum_protocol_version"], "1.20");
    assert_eq!(server.db.contents().await, before);
    let command = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    client.complete(&task, command).await.expect(200);
    let activity = client.poll("activity", "w", "q", 5).await;
    let body = client
        .report(&activity, "status", json!({}))
        .await
        .refused(422, "activity_attempt_status_unavailable");
    assert_eq!(body["minimum_protocol_version"], "1.20");
    client
        .report(
            &activity,
            "acknowledge-cancellation",
            json!({"request_id": "r"}),
        )
        .await
        .refused(409, "cooperative_cancellation_not_supported");
    server.stop().await;
}

/// Rule: at the newest version the same requests of an older worker are refused by their version: the
/// mode of a selection, stream fields, delivery, status and receipt.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_request_lacks_what_is_newer() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    let fields = json!({
        "commands": [], "message_stream_cursors": [{"stream_name": "s", "through_position": 0}],
    });
    let older = client.speaking("1.14");
    older
        .task(&task, "complete", fields.clone())
        .await
        .refused(409, "message_streams_unavailable");
    let level = json!({
        "parallel_group_id": "select-calls:1:1", "parallel_group_kind": "activity",
        "parallel_group_mode": "select", "parallel_group_base_sequence": 1,
        "parallel_group_size": 1, "parallel_group_index": 0, "selection_member_key": "a",
        "selection_member_index": 0, "selection_member_base_sequence": 1,
        "selection_member_size": 1, "selection_member_kind": "activity",
    });
    let command = json!({
        "type": "schedule_activity", "activity_type": "act", "parallel_group_path": [level],
    });
    let command = merged(command, level);
    let answer = client
        .speaking("1.18")
        .complete(&task, json!([command]))
        .await;
    let body = answer.refused(422, "validation_failed");
    let path = "commands.0.parallel_group_mode";
    assert!(body["errors"].get(path).is_some(), "{body:#}");
    let older = client.speaking("1.19");
    let delivery = json!({"request_id": "r", "sequence": 1, "call_kind": "timer"});
    older
        .task(&task, "deliver-cancellation", delivery)
        .await
        .refused(409, "cooperative_cancellation_not_supported");
    assert_eq!(server.db.contents().await, before);
    let newer = client.speaking("1.19");
    let done = newer.complete(&task, json!([command])).await;
    done.expect(200);
    let activity = client.poll("activity", "w", "q", 5).await;
    older
        .report(&activity, "status", json!({}))
        .await
        .refused(422, "activity_attempt_status_unavailable");
    older
        .report(
            &activity,
            "acknowledge-cancellation",
            json!({"request_id": "r"}),
        )
        .await
        .refused(409, "cooperative_cancellation_not_supported");
    // The stream fields are taken from the version on that brought them.
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .speaking("1.15")
        .task(&task, "complete", fields)
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: a gate is checked after the lease: whoever does not hold the task is told so, whatever its
/// version and registration lack, and learns nothing about the run.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_comes_after_the_lease() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    client.register("v", "q", &["flow"], &[]).await;
    let before = server.db.contents().await;
    let path = format!("/worker/workflow-tasks/{}/complete", text(&task, "task_id"));
    let mut uses: Vec<Value> = gated()
        .into_iter()
        .map(|gated| json!({"commands": [gated.command]}))
        .collect();
    uses.push(json!({"commands": [{
        "type": "schedule_activity", "activity_type": "act", "worker_session": {"session_id": "s"},
    }]}));
    uses.push(json!({
        "commands": [], "message_stream_cursors": [{"stream_name": "s", "through_position": 0}],
    }));
    uses.push(json!({"commands": [], "sticky_cache": {
        "worker_id": "v", "workflow_id": "wf", "run_id": task["run_id"], "ttl_seconds": 1,
    }}));
    for fields in uses {
        for version in ["1.7", "1.20"] {
            let client = client.speaking(version);
            let fence = json!({"lease_owner": "v", "workflow_task_attempt": 1});
            let answer = client.post(&path, merged(fields.clone(), fence)).await;
            let body = answer.refused(409, "lease_owner_mismatch");
            assert_eq!(body["lease_owner"], "w", "{fields}");
            assert_eq!(body["recorded"], false);
        }
        let older = client.speaking("1.7");
        let fence = json!({"lease_owner": "w", "workflow_task_attempt": 2});
        let answer = older.post(&path, merged(fields.clone(), fence)).await;
        answer.refused(409, "workflow_task_attempt_mismatch");
        let missing = path.replace("-1/", "-9/");
        let fence = json!({"lease_owner": "w", "workflow_task_attempt": 1});
        let answer = older.post(&missing, merged(fields, fence)).await;
        answer.refused(404, "task_not_found");
    }
    assert_eq!(server.db.contents().await, before);
    client.complete(&task, json!([])).await.expect(200);
    server.stop().await;
}
