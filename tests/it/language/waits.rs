//! Waits for conditions: satisfied by the task that saw newer input, opened again, timed out, and the
//! occurrence that tells one wait from another.

use serde_json::{Value, json};

use super::{VERSIONS, first_task, server};
use crate::support::{Client, eventually, merged, only, text};

fn condition(fields: Value) -> Value {
    let base = json!({
        "type": "open_condition_wait", "condition_key": "k",
        "condition_definition_fingerprint": "f",
    });
    merged(base, fields)
}

async fn poll(client: &Client) -> Value {
    let task = client.poll("workflow", "w", "q", 5).await;
    assert!(task.is_object(), "no task");
    task
}

async fn signal(client: &Client) {
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
}

/// The events of a run from the third on: a start has two.
async fn after_start(client: &Client, run: &str) -> Vec<String> {
    client.events("wf", run).await.split_off(2)
}

/// Rule: a condition is satisfied in the completion of the task that saw newer input, before that
/// task's commands; a workflow that still waits opens it again at a new step.
#[tokio::test(flavor = "multi_thread")]
async fn newer_input_satisfies_a_condition() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        let task = first_task(client).await;
        let run = text(&task, "run_id").to_owned();
        client
            .complete(&task, json!([condition(json!({}))]))
            .await
            .expect(200);
        let opened = only(&client.history("wf", &run).await, "ConditionWaitOpened").clone();
        assert_eq!(opened["payload"]["condition_key"], "k");
        assert_eq!(opened["payload"]["condition_definition_fingerprint"], "f");
        assert_eq!(opened["payload"]["sequence"], 1);
        signal(client).await;
        let task = poll(client).await;
        assert_eq!(
            after_start(client, &run).await,
            ["ConditionWaitOpened", "SignalReceived"]
        );
        let again = json!([condition(json!({})), {"type": "start_timer", "delay_seconds": 60}]);
        client.complete(&task, again).await.expect(200);
        assert_eq!(
            after_start(client, &run).await[2..],
            [
                "ConditionWaitSatisfied",
                "ConditionWaitOpened",
                "TimerScheduled"
            ]
        );
        let history = client.history("wf", &run).await;
        let satisfied = &only(&history, "ConditionWaitSatisfied")["payload"];
        for key in [
            "condition_wait_id",
            "condition_key",
            "condition_definition_fingerprint",
            "sequence",
        ] {
            assert_eq!(satisfied[key], opened["payload"][key], "{key}");
        }
        let reopened = &history[5]["payload"];
        assert_eq!(reopened["sequence"], 2);
        assert_ne!(
            reopened["condition_wait_id"],
            satisfied["condition_wait_id"]
        );
        // Without newer input nothing is satisfied, and the wait that is open is not opened twice.
        assert!(client.poll("workflow", "w", "q", 0).await.is_null());
        server.stop().await;
    }
}

/// Rule: input that comes while the task is held does not satisfy the wait that the task opens; the
/// task that shows it does.
#[tokio::test(flavor = "multi_thread")]
async fn input_that_was_not_seen_satisfies_nothing() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let run = text(&task, "run_id").to_owned();
    client
        .complete(&task, json!([condition(json!({}))]))
        .await
        .expect(200);
    signal(client).await;
    let task = poll(client).await;
    signal(client).await;
    client
        .complete(&task, json!([condition(json!({}))]))
        .await
        .expect(200);
    let kinds = after_start(client, &run).await;
    assert_eq!(
        kinds[2..],
        [
            "ConditionWaitSatisfied",
            "ConditionWaitOpened",
            "SignalReceived"
        ]
    );
    let task = poll(client).await;
    client.wait_for_history(&task).await.expect(200);
    let kinds = after_start(client, &run).await;
    assert_eq!(kinds[5..], ["ConditionWaitSatisfied"]);
    server.stop().await;
}

/// Rule: the timeout of a condition is a timer of kind `condition_timeout`; it is cancelled when the
/// wait is satisfied, and fires before the event that says so. A timeout of 0 has no timer.
#[tokio::test(flavor = "multi_thread")]
async fn a_condition_may_time_out() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let run = text(&task, "run_id").to_owned();
    let limited = condition(json!({"timeout_seconds": 600}));
    client.complete(&task, json!([limited])).await.expect(200);
    signal(client).await;
    let task = poll(client).await;
    let limits = json!([
        condition(json!({"timeout_seconds": 1, "condition_key": "short"})),
        condition(json!({"timeout_seconds": 0, "condition_key": "none"})),
    ]);
    client.complete(&task, limits).await.expect(200);
    assert_eq!(
        after_start(client, &run).await,
        [
            "ConditionWaitOpened",
            "TimerScheduled",
            "SignalReceived",
            "ConditionWaitSatisfied",
            "TimerCancelled",
            "ConditionWaitOpened",
            "TimerScheduled",
            "ConditionWaitOpened",
        ]
    );
    let task = poll(client).await;
    assert_eq!(task["workflow_wait_kind"], "condition");
    assert_eq!(task["workflow_sequence"], 2);
    let history = client.history("wf", &run).await;
    let kinds = after_start(client, &run).await;
    assert_eq!(kinds[8..], ["TimerFired", "ConditionWaitTimedOut"]);
    let fired = &only(&history, "TimerFired")["payload"];
    assert_eq!(fired["timer_kind"], "condition_timeout");
    assert_eq!(fired["condition_key"], "short");
    let lapsed = &only(&history, "ConditionWaitTimedOut")["payload"];
    assert_eq!(lapsed["timer_id"], fired["timer_id"]);
    assert_eq!(lapsed["condition_wait_id"], fired["condition_wait_id"]);
    // A plain timer has no kind.
    client
        .complete(&task, json!([{"type": "start_timer", "delay_seconds": 60}]))
        .await
        .expect(200);
    let history = client.history("wf", &run).await;
    assert!(
        history.last().unwrap()["payload"]
            .get("timer_kind")
            .is_none()
    );
    server.stop().await;
}

/// Rule: the occurrence is repeated in every event of the wait and of its timer, also when the wait is
/// opened again; the deadline of the first opening holds for all openings of one occurrence.
#[tokio::test(flavor = "multi_thread")]
async fn an_occurrence_is_in_every_event() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let run = text(&task, "run_id").to_owned();
    let wait = condition(json!({"condition_wait_occurrence_id": "o1", "timeout_seconds": 3}));
    client
        .complete(&task, json!([wait.clone()]))
        .await
        .expect(200);
    signal(client).await;
    let task = poll(client).await;
    client.complete(&task, json!([wait])).await.expect(200);
    eventually("the timeout", 10, async || {
        let kinds = after_start(client, &run).await;
        kinds
            .contains(&"ConditionWaitTimedOut".to_owned())
            .then_some(())
    })
    .await;
    let history = client.history("wf", &run).await;
    let mut seen = Vec::new();
    let mut deadlines = Vec::new();
    for event in &history[2..] {
        let kind = text(event, "event_type");
        if kind == "SignalReceived" {
            continue;
        }
        assert_eq!(
            event["payload"]["condition_wait_occurrence_id"], "o1",
            "{kind}"
        );
        seen.push(kind);
        if kind == "TimerScheduled" {
            deadlines.push(event["payload"]["fire_at"].clone());
        }
    }
    assert_eq!(
        seen,
        [
            "ConditionWaitOpened",
            "TimerScheduled",
            "ConditionWaitSatisfied",
            "TimerCancelled",
            "ConditionWaitOpened",
            "TimerScheduled",
            "TimerFired",
            "ConditionWaitTimedOut",
        ]
    );
    assert_eq!(deadlines[0], deadlines[1]);
    server.stop().await;
}

/// Rule: a wait without an occurrence has the key as null, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn an_occurrence_may_be_null() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let sent = condition(json!({"condition_wait_occurrence_id": null}));
    client.complete(&task, json!([sent])).await.expect(200);
    let history = client.history("wf", text(&task, "run_id")).await;
    let opened = &only(&history, "ConditionWaitOpened")["payload"];
    assert!(opened["condition_wait_occurrence_id"].is_null());
    server.stop().await;
}

/// Rule: a history with an occurrence is for workers whose requests are of 1.17 or newer; others are
/// not given its tasks, and the task stays ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_with_an_occurrence_needs_a_new_worker() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let wait = condition(json!({"condition_wait_occurrence_id": "o1"}));
    client.complete(&task, json!([wait])).await.expect(200);
    signal(client).await;
    let older = client.speaking("1.16");
    assert!(older.poll("workflow", "w", "q", 0).await.is_null());
    let newer = client.speaking("1.17");
    let task = newer.poll("workflow", "w", "q", 0).await;
    assert_eq!(task["workflow_id"], "wf");
    // It is asked at every hand-out.
    newer
        .task(&task, "fail", json!({"failure": {"message": "no"}}))
        .await
        .expect(200);
    assert!(older.poll("workflow", "w", "q", 0).await.is_null());
    server.stop().await;
}

/// Rule: fields of the wait, each by its path; a refused completion changes nothing and keeps the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_condition_is_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    let long = "x".repeat(256);
    for (fields, field) in [
        (json!({"condition_key": long}), "condition_key"),
        (json!({"condition_key": 7}), "condition_key"),
        (
            json!({"condition_definition_fingerprint": long}),
            "condition_definition_fingerprint",
        ),
        (
            json!({"condition_wait_occurrence_id": long}),
            "condition_wait_occurrence_id",
        ),
        (json!({"timeout_seconds": -1}), "timeout_seconds"),
        (json!({"delay_seconds": 1}), "delay_seconds"),
    ] {
        let answer = client.complete(&task, json!([condition(fields)])).await;
        answer.invalid(&[&format!("commands.0.{field}")]);
    }
    let other =
        json!({"type": "start_timer", "delay_seconds": 1, "condition_wait_occurrence_id": "o"});
    client
        .complete(&task, json!([other]))
        .await
        .invalid(&["commands.0.condition_wait_occurrence_id"]);
    assert_eq!(server.db.contents().await, before);
    client.wait_for_history(&task).await.expect(200);
    server.stop().await;
}
