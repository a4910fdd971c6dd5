//! Updates with a validator: a worker is asked before the update is accepted.

use serde_json::{Value, json};

use super::{VERSIONS, ask, first_task, judge, register, server};
use crate::support::{Answer, Client, envelope, merged, only, text};

/// Declares that `change` has a validator.
fn contract() -> Value {
    json!({"workflow_command_contracts": {
        "flow": {"updates": ["change", "other"], "update_validators": ["change"]},
    }})
}

/// A run that waits and whose workers declared a validator, and its id.
async fn waiting(client: &Client) -> String {
    let task = first_task(client).await;
    client.wait_for_history(&task).await.expect(200);
    register(client, "w", "q", contract()).await;
    text(&task, "run_id").to_owned()
}

async fn update(client: &Client, fields: Value) -> Answer {
    let body = merged(json!({"request_id": "k", "input": [1]}), fields);
    client.post("/workflows/wf/update/change", body).await
}

fn asked(client: &Client, key: &str) -> tokio::task::JoinHandle<Answer> {
    let body = json!({"request_id": key, "input": [1]});
    ask(client, "wf", "update/change", body)
}

async fn poll(client: &Client) -> Value {
    let task = client.poll("update-validation", "w", "q", 5).await;
    assert!(task.is_object(), "no validation");
    task
}

/// Rule: the fields of a validation; approved, the update is accepted under the id that the validator
/// saw, and a repeat asks no validator.
#[tokio::test(flavor = "multi_thread")]
async fn an_approved_update_is_accepted() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        let run = waiting(client).await;
        let before = server.db.contents().await;
        let caller = asked(client, "k");
        let task = poll(client).await;
        let id = text(&task, "update_validation_task_id");
        assert_eq!(task["task_kind"], "update_validation");
        assert_eq!(task["update_id"], id);
        assert_eq!(task["update_validation_attempt"], 1);
        assert_eq!(task["workflow_id"], "wf");
        assert_eq!(task["run_id"], run);
        assert_eq!(task["workflow_type"], "flow");
        assert_eq!(task["update_name"], "change");
        assert_eq!(task["update_arguments"], envelope(json!([1])));
        assert_eq!(task["workflow_arguments"], envelope(json!([])));
        assert_eq!(task["payload_codec"], "avro");
        assert_eq!(task["task_queue"], "q");
        assert_eq!(task["lease_owner"], "w");
        assert_eq!(task["last_history_sequence"], 2);
        assert_eq!(task["history_events"].as_array().unwrap().len(), 2);
        assert!(task["lease_expires_at"].is_string());
        assert_eq!(server.db.contents().await, before);
        let body = judge(client, &task, "approve", json!({})).await.expect(200);
        assert_eq!(body["outcome"], "approved");
        assert_eq!(body["update_validation_task_id"], id);
        let body = caller.await.unwrap().expect(202);
        assert_eq!(body["update_id"], id);
        assert_eq!(body["update_status"], "accepted");
        let history = client.history("wf", &run).await;
        assert_eq!(only(&history, "UpdateAccepted")["payload"]["update_id"], id);
        let again = update(client, json!({})).await.expect(202);
        assert_eq!(again["update_id"], id);
        assert_eq!(again["retained"], true);
        let task = client.poll("workflow", "w", "q", 5).await;
        assert_eq!(task["workflow_update_id"], id);
        server.stop().await;
    }
}

/// Rule: a rejection is recorded as `UpdateRejected` under the same id, wakes nobody, and is the answer
/// to every repeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_update_is_recorded() {
    let server = server("1.20").await;
    let client = &server.client;
    let run = waiting(client).await;
    let caller = asked(client, "k");
    let task = poll(client).await;
    let failure = json!({"failure": {
        "message": "too much", "validation_errors": {"amount": ["too much"]},
    }});
    let body = judge(client, &task, "reject", failure).await.expect(200);
    assert_eq!(body["outcome"], "rejected");
    assert_eq!(body["reason"], "update_validator_rejected");
    let first = caller.await.unwrap();
    let again = update(client, json!({"wait_for": "completed"})).await;
    for answer in [first, again] {
        let body = answer.refused(422, "update_validator_rejected");
        assert_eq!(body["update_status"], "rejected");
        assert_eq!(body["update_id"], task["update_id"]);
        assert_eq!(body["message"], "too much");
        assert_eq!(body["validation_errors"], json!({"amount": ["too much"]}));
    }
    let history = client.history("wf", &run).await;
    let rejected = &only(&history, "UpdateRejected")["payload"];
    assert_eq!(rejected["update_id"], task["update_id"]);
    assert_eq!(rejected["update_name"], "change");
    assert_eq!(rejected["arguments"], envelope(json!([1])));
    assert_eq!(
        rejected["validation_errors"],
        json!({"amount": ["too much"]})
    );
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    server.stop().await;
}

/// Rule: a validator that could not decide refuses the request, records nothing, and may be asked
/// again under the same key.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_validator_records_nothing() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    let before = server.db.contents().await;
    let caller = asked(client, "k");
    let task = poll(client).await;
    let failure = json!({"failure": {"message": "no such type", "reason": "replay_failed"}});
    let body = judge(client, &task, "reject", failure).await.expect(200);
    assert_eq!(body["outcome"], "failed");
    let answer = caller.await.unwrap();
    let body = answer.refused(422, "update_validation_worker_failed");
    assert_eq!(body["message"], "no such type");
    assert_eq!(server.db.contents().await, before);
    let caller = asked(client, "k");
    let task = poll(client).await;
    judge(client, &task, "approve", json!({})).await.expect(200);
    let body = caller.await.unwrap().expect(202);
    assert_eq!(body["retained"], false);
    server.stop().await;
}

/// Rule: an update with a validator needs a key; one without needs no worker at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_validated_update_needs_a_key() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    client
        .post("/workflows/wf/update/change", json!({}))
        .await
        .refused(422, "update_validation_request_id_required");
    let path = "/workflows/wf/update/other";
    client.post(path, json!({})).await.expect(202);
    server.stop().await;
}

/// Rule: the guards of a validation: no such task, another holder, another hand-out, answered before.
#[tokio::test(flavor = "multi_thread")]
async fn validations_are_fenced() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    let caller = asked(client, "k");
    let task = poll(client).await;
    let failure = json!({"failure": {"message": "m"}});
    for (report, fields) in [("approve", json!({})), ("reject", failure)] {
        let with = |over: Value| merged(fields.clone(), over);
        let judge = async |over: Value| judge(client, &task, report, with(over)).await;
        let body = judge(json!({"lease_owner": "other"}))
            .await
            .refused(409, "update_validation_lease_owner_mismatch");
        assert_eq!(body["outcome"], "rejected");
        assert_eq!(body["lease_owner"], "w");
        judge(json!({"update_validation_attempt": 2}))
            .await
            .refused(409, "stale_update_validation_completion");
        judge(json!({"update_validation_attempt": 0}))
            .await
            .invalid(&["update_validation_attempt"]);
        let mut unknown = task.clone();
        for id in ["x", "01ARZ3NDEKTSV4RRFFQ69G5FAV-u1", text(&task, "run_id")] {
            unknown["update_validation_task_id"] = id.into();
            super::judge(client, &unknown, report, with(json!({})))
                .await
                .refused(404, "update_validation_task_not_found");
        }
    }
    judge(client, &task, "reject", json!({}))
        .await
        .invalid(&["failure.message"]);
    judge(client, &task, "approve", json!({})).await.expect(200);
    caller.await.unwrap().expect(202);
    let failure = json!({"failure": {"message": "m"}});
    for (report, fields) in [("approve", json!({})), ("reject", failure)] {
        judge(client, &task, report, fields)
            .await
            .refused(409, "duplicate_update_validation_completion");
    }
    server.stop().await;
}

/// Rule: a poll that takes both kinds gets either, told apart by `task_kind`; each kind alone is left
/// to the polls that ask for it.
#[tokio::test(flavor = "multi_thread")]
async fn one_poll_may_take_both_kinds() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    let send = |seconds: u64| {
        let body = json!({
            "worker_id": "w", "task_queue": "q", "timeout_seconds": seconds,
            "task_kinds": ["workflow", "update_validation"],
        });
        super::send(client, "/worker/workflow-tasks/poll", body)
    };
    let both = async |seconds: u64| {
        let answer = send(seconds).await.unwrap();
        answer.expect(200)["task"].take()
    };
    // Sent before anything is there, then looking at what is there.
    let parked = send(20);
    let caller = asked(client, "k1");
    let parked = parked.await.unwrap().expect(200)["task"].take();
    assert_eq!(parked["task_kind"], "update_validation");
    judge(client, &parked, "approve", json!({}))
        .await
        .expect(200);
    caller.await.unwrap().expect(202);
    let task = both(5).await;
    assert_eq!(task["task_kind"], "workflow");
    assert_eq!(task["workflow_update_id"], parked["update_id"]);
    let answer = json!([{"type": "complete_update", "update_id": task["workflow_update_id"]}]);
    client.complete(&task, answer).await.expect(200);
    let task = both(5).await;
    assert_eq!(task["task_kind"], "workflow");
    client.wait_for_history(&task).await.expect(200);
    let caller = asked(client, "k2");
    let task = poll(client).await;
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    judge(client, &task, "approve", json!({})).await.expect(200);
    caller.await.unwrap().expect(202);
    server.stop().await;
}

/// Rule: without a worker that validates, the update is refused and may be sent again: nobody lives,
/// or nobody who can.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_without_a_validator_is_refused() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    let before = server.db.contents().await;
    let plain = merged(contract(), json!({"capabilities": ["workflow_updates"]}));
    let none = json!({"supported": false, "minimum_protocol_version": "1.18"});
    let manifest = json!({
        "local_activities": none, "worker_sessions": none, "sticky_execution": none,
    });
    let plain = merged(plain, json!({"capability_manifest": manifest}));
    register(client, "w", "q", plain).await;
    let body = update(client, json!({}))
        .await
        .refused(409, "update_validator_worker_incompatible");
    assert_eq!(body["retryable"], true);
    client.delete("/worker/registrations/w").await.expect(200);
    let body = update(client, json!({}))
        .await
        .refused(409, "update_validator_worker_unavailable");
    assert_eq!(body["retryable"], true);
    let after = server.db.contents().await;
    for table in ["workflow_runs", "history_batches", "request_receipts"] {
        assert_eq!(after[table], before[table], "{table}");
    }
    server.stop().await;
}

/// Rule: a repeated poll is given its validation again, also one that takes both kinds; a worker whose
/// process is gone loses it to another.
#[tokio::test(flavor = "multi_thread")]
async fn a_validation_is_given_again() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    let caller = asked(client, "k");
    let poll = async |worker: &str, seconds: u64| {
        let body = json!({
            "worker_id": worker, "task_queue": "q", "timeout_seconds": seconds,
            "poll_request_id": "same", "task_kinds": ["update_validation", "workflow"],
        });
        let answer = client.post("/worker/workflow-tasks/poll", body).await;
        answer.expect(200)["task"].take()
    };
    let task = poll("w", 5).await;
    let again = poll("w", 0).await;
    assert_eq!(again["update_id"], task["update_id"]);
    assert_eq!(again["update_validation_attempt"], 1);
    register(client, "v", "q", contract()).await;
    client.delete("/worker/registrations/w").await.expect(200);
    let other = poll("v", 5).await;
    assert_eq!(other["update_id"], task["update_id"]);
    assert_eq!(other["update_validation_attempt"], 2);
    judge(client, &task, "approve", json!({}))
        .await
        .refused(409, "update_validation_lease_owner_mismatch");
    judge(client, &other, "approve", json!({}))
        .await
        .expect(200);
    let body = caller.await.unwrap().expect(202);
    assert_eq!(body["update_id"], task["update_id"]);
    server.stop().await;
}
