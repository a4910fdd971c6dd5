//! What a claimed workflow task shows, key by key.

use serde_json::{Value, json};

use crate::support::{TestServer, envelope, text};

/// Keys that say why a task exists; always there, null when they do not apply.
const RESUME: [&str; 21] = [
    "workflow_wait_kind",
    "open_wait_id",
    "resume_source_kind",
    "resume_source_id",
    "workflow_update_id",
    "workflow_signal_id",
    "signal_name",
    "signal_wait_id",
    "signal_arguments",
    "workflow_command_id",
    "activity_execution_id",
    "activity_attempt_id",
    "activity_type",
    "child_call_id",
    "child_workflow_run_id",
    "workflow_sequence",
    "workflow_event_type",
    "timer_id",
    "condition_wait_id",
    "condition_key",
    "condition_definition_fingerprint",
];

fn assert_six_digits(time: &Value) {
    let time = time.as_str().unwrap();
    let (_, fraction) = time.split_once('.').unwrap();
    assert_eq!(fraction.len(), 7, "{time}");
    assert!(time.ends_with('Z'), "{time}");
}

/// Rule: the first task of a run, with every key of the contract under both names.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_task_shows_every_key() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let input = envelope(json!(["Ada", 7]));
    let run = client.start_with("wf", json!({ "input": input })).await;
    let mut body = client.poll_whole("workflow", "w", "q", 0).await.expect(200);
    assert_eq!(body["poll_status"], "leased");
    let mut task = body["task"].take();
    let expires = task["lease_expires_at"].clone();
    assert_six_digits(&expires);
    assert_eq!(body["lease"]["lease_expires_at"], expires);
    for time in [&body["lease"]["leased_at"], &body["server_time"]] {
        assert_six_digits(time);
        assert!(time.as_str() < expires.as_str());
    }
    let fields = task.as_object_mut().unwrap();
    for key in RESUME {
        assert_eq!(fields.remove(key), Some(Value::Null), "{key}");
    }
    let events = fields.remove("history_events").unwrap();
    assert_eq!(fields.remove("history").unwrap(), events);
    let size = fields.remove("history_size_bytes").unwrap();
    assert!(size.as_u64().is_some_and(|size| size > 100), "{size}");
    fields.remove("lease_expires_at");
    assert!(text(&Value::Object(fields.clone()), "task_id").starts_with(&run));
    fields.remove("task_id");
    let expected = json!({
        "task_kind": "workflow",
        "task_type": "workflow",
        "workflow_id": "wf",
        "run_id": run,
        "workflow_type": "flow",
        "workflow_task_attempt": 1,
        "lease_owner": "w",
        "payload_codec": "avro",
        "arguments": input,
        "run_status": "pending",
        "next_history_page_token": null,
        "last_history_sequence": 2,
        "total_history_events": 2,
        "history_fan_out": 0,
        "continue_as_new_recommended": false,
        "history_budget_pressure": "ok",
        "history_budget_pressure_dimensions": [],
        "namespace": "default",
        "task_queue": "q",
        "connection": null,
        "compatibility": null,
    });
    assert_eq!(task, expected);
    let events = events.as_array().unwrap();
    assert_eq!(events[0]["event_type"], "StartAccepted");
    assert_eq!(events[1]["event_type"], "WorkflowStarted");
    server.stop().await;
}

/// Rule: every event has an id of its own, a dense sequence, its time, namespace and payload.
#[tokio::test(flavor = "multi_thread")]
async fn every_event_has_the_shape_of_the_contract() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    client
        .report(&activity, "complete", json!({"result": 1}))
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    let events = task["history_events"].as_array().unwrap();
    assert_eq!(events.len(), 5);
    let mut ids = Vec::new();
    for (place, event) in events.iter().enumerate() {
        let keys: Vec<&str> = event
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        for key in [
            "id",
            "sequence",
            "event_type",
            "namespace",
            "payload",
            "workflow_task_id",
            "workflow_command_id",
            "recorded_at",
        ] {
            assert!(keys.contains(&key), "{key} in {event}");
        }
        assert_eq!(event["sequence"], place + 1);
        assert_eq!(event["namespace"], "default");
        assert!(event["payload"].is_object());
        assert_six_digits(&event["recorded_at"]);
        ids.push(text(event, "id"));
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 5);
    // Events of one activity repeat its step; the sequence of the history is another count.
    for event in &events[2..] {
        assert_eq!(event["payload"]["sequence"], 1, "{event}");
        assert_eq!(event["payload"]["activity_type"], "act", "{event}");
    }
    assert_eq!(events[4]["payload"]["payload_codec"], "avro");
    server.stop().await;
}

/// Rule: a task that an activity brought about names it.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_an_activity_opened_names_it() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    let id = &activity["activity_execution_id"];
    assert_eq!(task["run_status"], "running");
    assert_eq!(task["workflow_wait_kind"], "activity");
    assert_eq!(
        task["open_wait_id"],
        format!("activity:{}", id.as_str().unwrap())
    );
    assert_eq!(task["resume_source_kind"], "activity_execution");
    assert_eq!(task["resume_source_id"], *id);
    assert_eq!(task["activity_execution_id"], *id);
    assert_eq!(task["activity_type"], "act");
    assert_eq!(task["workflow_sequence"], 1);
    assert_eq!(task["workflow_event_type"], "ActivityCompleted");
    for key in [
        "timer_id",
        "workflow_signal_id",
        "workflow_update_id",
        "signal_name",
    ] {
        assert!(task[key].is_null(), "{key}");
    }
    server.stop().await;
}

/// Rule: the same for a timer and for a signal, whose arguments are only in the history.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_a_timer_or_a_signal_opened_names_it() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    client
        .complete(&task, json!([{"type": "start_timer", "delay_seconds": 0}]))
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    assert_eq!(task["workflow_wait_kind"], "timer");
    assert_eq!(task["resume_source_kind"], "timer");
    let timer = text(&task, "timer_id");
    assert_eq!(task["resume_source_id"], timer);
    assert_eq!(task["open_wait_id"], format!("timer:{timer}"));
    assert_eq!(task["workflow_event_type"], "TimerFired");
    assert_eq!(task["workflow_sequence"], 1);
    client.complete(&task, json!([])).await.expect(200);
    client
        .post("/workflows/wf/signal/go", json!({"input": [1]}))
        .await
        .expect(202);
    let task = client.poll("workflow", "w", "q", 5).await;
    assert_eq!(task["workflow_wait_kind"], "signal");
    assert_eq!(task["resume_source_kind"], "workflow_signal");
    let signal = text(&task, "workflow_signal_id");
    assert_eq!(task["resume_source_id"], signal);
    assert_eq!(task["open_wait_id"], format!("signal-application:{signal}"));
    assert!(task["signal_name"].is_null());
    assert!(task["signal_arguments"].is_null());
    let last = task["history_events"].as_array().unwrap().last().unwrap();
    assert_eq!(last["event_type"], "SignalReceived");
    assert_eq!(last["payload"]["signal_id"], signal);
    server.stop().await;
}
