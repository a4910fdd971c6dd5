//! Repair: an operator makes a workflow task ready that is put off after failures.

use serde_json::{Value, json};

use super::{VERSIONS, first_task, server};
use crate::support::{Answer, Client, only, text};

async fn repair(client: &Client, fields: Value) -> Answer {
    client.post("/workflows/wf/repair", fields).await
}

/// Rule: a task that its worker could not replay waits, is shown as blocked, and is ready at once after
/// a repair, which is recorded; a repair of what is well changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_task_is_made_ready() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        let task = first_task(client).await;
        let run = text(&task, "run_id").to_owned();
        let before = server.db.contents().await;
        let body = repair(client, json!({})).await.expect(200);
        assert_eq!(body["outcome"], "repair_not_needed");
        assert_eq!(server.db.contents().await, before);
        let failure = json!({"failure": {
            "message": "history does not fit", "reason": "workflow_nondeterministic",
        }});
        client.task(&task, "fail", failure).await.expect(200);
        assert!(client.poll("workflow", "w", "q", 0).await.is_null());
        let body = client.get("/workflows/wf").await.expect(200);
        assert_eq!(body["status_bucket"], "running");
        let body = repair(client, json!({"request_id": "k"})).await.expect(200);
        assert_eq!(body["outcome"], "repair_dispatched");
        assert_eq!(body["run_id"], run);
        let history = client.history("wf", &run).await;
        let event = &only(&history, "RepairRequested")["payload"];
        assert_eq!(event["outcome"], "repair_dispatched");
        assert_eq!(event["workflow_run_id"], run);
        assert_eq!(event["task_type"], "workflow");
        assert_eq!(event["workflow_command_id"], body["command_id"]);
        let again = client.poll("workflow", "w", "q", 0).await;
        assert_eq!(again["workflow_id"], "wf");
        // While a worker holds it, there is nothing to repair.
        let body = repair(client, json!({})).await.expect(200);
        assert_eq!(body["outcome"], "repair_not_needed");
        client
            .complete(&again, json!([{"type": "complete_workflow"}]))
            .await
            .expect(200);
        let body = repair(client, json!({})).await;
        let body = body.refused(409, "run_not_active");
        assert_eq!(body["run_status"], "completed");
        server.stop().await;
    }
}

/// Rule: the fields of a repair; what does not exist.
#[tokio::test(flavor = "multi_thread")]
async fn a_repair_is_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    first_task(client).await;
    repair(client, json!({"request_id": ""}))
        .await
        .invalid(&["request_id"]);
    client
        .post("/workflows/none/repair", json!({}))
        .await
        .refused(404, "instance_not_found");
    server.stop().await;
}
