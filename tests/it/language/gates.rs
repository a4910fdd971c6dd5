//! How the gates of commands answer: when they are looked at, and what they name. Which gate is closed
//! to whom is the table in `gates/table.rs`.

use serde_json::{Value, json};

use super::{first_task, server};
use crate::support::{envelope, merged, text};

/// A command for each gate.
fn gated() -> Vec<Value> {
    let child = json!({"type": "start_child_workflow", "workflow_type": "kid"});
    vec![
        json!({"type": "upsert_memo", "entries": envelope(json!({"a": 1}))}),
        json!({
            "type": "upsert_search_attributes", "attributes": {"A": 1},
            "attribute_types": {"A": "int"},
        }),
        json!({"type": "open_condition_wait", "condition_wait_occurrence_id": null}),
        json!({
            "type": "record_local_activity", "activity_type": "loc", "outcome": "completed",
            "attempts": [{"attempt_number": 1, "outcome": "completed"}],
        }),
        merged(child.clone(), json!({"cancellation_policy": "try_cancel"})),
        merged(
            child,
            json!({"parent_close_policy": "request_cancellation"}),
        ),
    ]
}

/// Rule: a refused field is named, with the command that it belongs to.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_field_is_named() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let session = json!({
        "type": "schedule_activity", "activity_type": "act", "worker_session": {"session_id": "s"},
    });
    let wait = json!({"type": "open_condition_wait", "condition_wait_occurrence_id": "o"});
    for (command, version, reason, field) in [
        (
            session,
            "1.7",
            "worker_sessions_unavailable",
            "worker_session",
        ),
        (
            wait,
            "1.16",
            "condition_wait_occurrence_identity_unavailable",
            "condition_wait_occurrence_id",
        ),
    ] {
        let older = client.speaking(version);
        let body = older
            .complete(&task, json!([command]))
            .await
            .refused(409, reason);
        assert_eq!(body["command_type"], command["type"]);
        assert_eq!(body["command_field"], field);
    }
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
        .map(|command| json!({"commands": [command]}))
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
