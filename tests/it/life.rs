//! The life of a workflow: started, run by a worker with one activity, finished.

use serde_json::json;

use crate::support::{TestServer, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_with_one_activity_runs_to_its_end() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["greet"], &["hello"]).await;
    let run = client.start("wf", "greet", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    assert_eq!(task["run_id"], run.as_str());
    client
        .complete(
            &task,
            json!([{"type": "schedule_activity", "activity_type": "hello", "input": ["Ada"]}]),
        )
        .await
        .expect(200);
    let activity = client.poll("activity", "w", "q", 5).await;
    assert_eq!(activity["attempt"], 1);
    client
        .report(
            &activity,
            "complete",
            json!({"result": {"greeting": "hello, Ada"}}),
        )
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    let events = task["history_events"].as_array().unwrap();
    let result = &events
        .iter()
        .find(|e| e["event_type"] == "ActivityCompleted")
        .unwrap()["payload"]["result"];
    client
        .complete(
            &task,
            json!([{"type": "complete_workflow", "result": result}]),
        )
        .await
        .expect(200);
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(text(&described, "status"), "completed");
    assert_eq!(described["output"], json!({"greeting": "hello, Ada"}));
    assert_eq!(
        client.events("wf", &run).await,
        [
            "StartAccepted",
            "WorkflowStarted",
            "ActivityScheduled",
            "ActivityStarted",
            "ActivityCompleted",
            "WorkflowCompleted"
        ]
    );
    server.stop().await;
}
