//! Answers held against the published JSON schemas of the contract, which tests/contract/schemas keeps.
//!
//! Two are not kept, since nothing that this server writes is what they describe: `cli-json-envelopes`
//! is what the command line tool prints, and `replay-bundle` belongs to the verification of replays,
//! which is not built. Of the repair objects, those about actions of operators' tools do not occur.

use serde_json::{Value, json};

use super::support::{TestServer, envelope, merged, text};

const CLUSTER: &str = include_str!("../contract/schemas/cluster-info-envelope.schema.json");
const BUNDLE: &str = include_str!("../contract/schemas/history-export-bundle.schema.json");
const EVENT: &str = include_str!("../contract/schemas/history-event-payloads.schema.json");
const SESSIONS: &str = include_str!("../contract/schemas/worker-sessions-runtime.schema.json");
const LOCAL: &str = include_str!("../contract/schemas/local-activity-runtime.schema.json");
const REPAIR: &str = include_str!("../contract/schemas/repair-actionability-objects.schema.json");

/// What discovery shows otherwise: every client reads text here, and `1.13` is no integer.
const TEXT_BY_INTENTION: [&str; 2] = ["/control_plane/version", "/worker_protocol/version"];

/// Asserts that a value is valid by a published schema, or by one of its parts.
#[track_caller]
fn valid(schema: &str, part: Option<&str>, value: &Value) {
    let wrong = wrong(schema, part, value);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What is wrong with a value, by its place.
fn wrong(schema: &str, part: Option<&str>, value: &Value) -> Vec<(String, String)> {
    // What one file takes from another is found in itself.
    let mut schema = schema.to_owned();
    for file in ["local-activity-runtime", "worker-sessions-runtime"] {
        schema = schema.replace(&format!("./{file}.schema.json#"), "#");
    }
    let parse = |text: &str| -> Value { serde_json::from_str(text).expect("the schema is JSON") };
    schema = schema.replace("./history-event-payloads.schema.json", "#/$defs/event");
    let mut schema = parse(&schema);
    let mut event = parse(EVENT);
    let mut parts = event["$defs"].take();
    let fields = event.as_object_mut().expect("an object");
    for key in ["$id", "$defs"] {
        fields.remove(key);
    }
    parts["event"] = event;
    for (name, part) in parts.as_object().cloned().expect("parts") {
        schema["$defs"][name] = part;
    }
    for (name, part) in [LOCAL, SESSIONS].iter().flat_map(|file| {
        let parts = parse(file)["$defs"].take();
        parts.as_object().cloned().expect("parts")
    }) {
        schema["$defs"][name] = part;
    }
    let fields = schema.as_object_mut().expect("an object");
    // Its name is no address, and everything it refers to is inside.
    fields.remove("$id");
    if let Some(part) = part {
        schema = json!({"$ref": format!("#/$defs/{part}"), "$defs": schema["$defs"]});
    }
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    validator
        .iter_errors(value)
        .map(|error| (error.instance_path().to_string(), format!("{error:.300}")))
        .collect()
}

/// Rule: discovery has the published shape at the default version and at the newest.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_info_is_valid() {
    for version in ["1.13", "1.20"] {
        let server = TestServer::with(|settings| settings.worker_protocol = version.into()).await;
        let info = server.client.get("/cluster/info").await.expect(200);
        let wrong = wrong(CLUSTER, None, &info);
        let places: Vec<&str> = wrong.iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(places, TEXT_BY_INTENTION, "{wrong:#?}");
        server.stop().await;
    }
}

/// Rule: events and exports have their published shapes.
#[tokio::test(flavor = "multi_thread")]
async fn histories_are_valid() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    client
        .report(&activity, "complete", json!({"result": 1}))
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    let command = json!({"type": "complete_workflow", "result": envelope(json!(2))});
    client.complete(&task, json!([command])).await.expect(200);
    let run = text(&task, "run_id");
    let events = client.history("wf", run).await;
    assert!(events.len() >= 5, "{events:#?}");
    for event in &events {
        valid(EVENT, None, event);
    }
    let path = format!("/workflows/wf/runs/{run}/history/export");
    let bundle = client.get(&path).await.expect(200);
    valid(BUNDLE, None, &bundle);
    for event in bundle["history_events"].as_array().expect("events") {
        valid(EVENT, None, event);
    }
    server.stop().await;
}

/// Rule: what the server says of sessions and local activities, and every answer about a session, has
/// its published shape.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_local_activities_are_valid() {
    let server = TestServer::with(|settings| settings.worker_protocol = "1.20".into()).await;
    let client = &server.client;
    let entry = |supported| json!({"supported": supported, "minimum_protocol_version": "1.18"});
    let body = json!({
        "worker_id": "w", "task_queue": "q", "capabilities": ["worker_sessions"],
        "capability_manifest": {"local_activities": entry(false), "worker_sessions": entry(true), "sticky_execution": entry(false)},
    });
    let registered = client.post("/worker/register", body).await.expect(200);
    let capabilities = &registered["server_capabilities"];
    valid(
        SESSIONS,
        Some("workerSessionRuntimeContract"),
        &capabilities["worker_sessions"],
    );
    valid(
        LOCAL,
        Some("localActivityRuntimeContract"),
        &capabilities["local_activities"],
    );

    let operation = |answer: &Value| valid(SESSIONS, Some("workerSessionOperationResult"), answer);
    let worker = json!({"worker_id": "w"});
    let asked = merged(worker.clone(), json!({"session_id": "s", "queue": "q"}));
    operation(
        &client
            .post("/worker/sessions", asked.clone())
            .await
            .expect(201),
    );
    operation(&client.post("/worker/sessions", asked).await.expect(200));
    operation(
        &client
            .post("/worker/sessions/s/heartbeat", worker.clone())
            .await
            .expect(200),
    );
    operation(
        &client
            .post("/worker/sessions/none/heartbeat", worker)
            .await
            .expect(404),
    );
    let unnamed = json!({"worker_id": "w", "session_id": ""});
    operation(&client.post("/worker/sessions", unnamed).await.expect(422));

    let listed = client.get("/worker-sessions").await.expect(200);
    valid(SESSIONS, Some("workerSessionVisibility"), &listed);
    let shown = client.get("/worker-sessions/s").await.expect(200);
    valid(SESSIONS, Some("workerSessionDetail"), &shown);
    operation(
        &client
            .delete("/worker/sessions/s?worker_id=w")
            .await
            .expect(200),
    );
    server.stop().await;
}

/// Rule: the rules and the work of repair, and failures, have their published shapes.
#[tokio::test(flavor = "multi_thread")]
async fn repair_and_failures_are_valid() {
    let server = TestServer::start().await;
    let client = &server.client;
    let mut schema: Value = serde_json::from_str(REPAIR).expect("the schema is JSON");
    // Its name is no address.
    schema.as_object_mut().expect("an object").remove("$id");
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let check = |value: &Value| {
        let wrong: Vec<String> = validator
            .iter_errors(value)
            .map(|error| format!("{}: {error:.300}", error.instance_path()))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    };
    let info = client.get("/cluster/info").await.expect(200);
    for part in ["policy", "candidates"] {
        let shown = &info["task_repair"][part];
        assert!(shown.is_object(), "{part}");
        check(&json!({ part: shown }));
    }
    let task = client.first_task().await;
    let failure = json!({
        "type": "fail_workflow", "message": "no", "exception_type": "T", "exception_class": "my.T",
        "non_retryable": true,
    });
    client.complete(&task, json!([failure])).await.expect(200);
    let events = client.history("wf", text(&task, "run_id")).await;
    let failed = events.last().expect("an event");
    assert_eq!(failed["event_type"], "WorkflowFailed");
    let keys = [
        "failure_id",
        "failure_category",
        "non_retryable",
        "exception_type",
        "exception_class",
        "message",
        "code",
    ];
    let shown: serde_json::Map<String, Value> = keys
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), failed["payload"].get(*key)?.clone())))
        .collect();
    assert_eq!(shown["message"], "no");
    check(&json!({ "failure": shown }));
    server.stop().await;
}
