//! Local activities: told as a whole by the worker that ran them, recorded as ordinary ones are.

use serde_json::{Value, json};

use super::{first_task, register, server};
use crate::support::{envelope, merged, only, text};

fn local(fields: Value) -> Value {
    let base = json!({
        "type": "record_local_activity", "activity_type": "loc", "execution_mode": "local",
        "outcome": "completed", "attempts": [attempt(1, "completed", json!({}))],
    });
    merged(base, fields)
}

fn attempt(number: u64, outcome: &str, fields: Value) -> Value {
    merged(
        json!({"attempt_number": number, "outcome": outcome}),
        fields,
    )
}

/// Rule: one command becomes the events of an activity with all its attempts, each marked as local and
/// of one step; there is no task, and the workflow is not woken.
#[tokio::test(flavor = "multi_thread")]
async fn a_local_activity_is_recorded_whole() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let run = text(&task, "run_id").to_owned();
    let command = local(json!({
        "arguments": envelope(json!(["x"])),
        "result": envelope(json!({"n": 1})),
        "start_to_close_timeout": 5,
        "retry_policy": {
            "max_attempts": 3, "backoff_seconds": [1], "non_retryable_error_types": ["Final"],
        },
        "attempts": [
            attempt(1, "failed", json!({
                "attempt_id": "mine-1", "message": "no", "exception_type": "Oh",
                "retry_reason": "failure", "backoff_seconds": 1, "duration_ms": 3,
            })),
            attempt(2, "timed_out", json!({
                "timeout_kind": "start_to_close", "message": "slow", "retry_reason": "timeout",
                "heartbeats": [
                    {"elapsed_ms": 1, "details": {"at": 1}}, {"elapsed_ms": 2, "details": [2]},
                ],
            })),
            attempt(3, "completed", json!({"attempt_id": "mine-3"})),
        ],
    }));
    let body = client
        .complete(
            &task,
            json!([command, {"type": "start_timer", "delay_seconds": 60}]),
        )
        .await
        .expect(200);
    assert_eq!(body["created_task_ids"], json!([]));
    assert_eq!(
        client.events("wf", &run).await[2..],
        [
            "ActivityScheduled",
            "ActivityStarted",
            "ActivityRetryScheduled",
            "ActivityStarted",
            "ActivityHeartbeatRecorded",
            "ActivityHeartbeatRecorded",
            "ActivityRetryScheduled",
            "ActivityStarted",
            "ActivityCompleted",
            "TimerScheduled",
        ]
    );
    let history = client.history("wf", &run).await;
    let execution = &history[2]["payload"]["activity_execution_id"];
    for event in &history[2..11] {
        let payload = &event["payload"];
        assert_eq!(payload["execution_mode"], "local", "{event}");
        assert_eq!(payload["local_activity"], true);
        assert_eq!(payload["sequence"], 1);
        assert_eq!(payload["activity_type"], "loc");
        assert_eq!(payload["activity_execution_id"], *execution);
    }
    assert_eq!(history[3]["payload"]["worker_attempt_id"], "mine-1");
    assert_ne!(
        history[3]["payload"]["activity_attempt_id"],
        history[5]["payload"]["activity_attempt_id"]
    );
    assert_eq!(history[4]["payload"]["retry_reason"], "failure");
    assert_eq!(history[4]["payload"]["retry_backoff_seconds"], 1);
    assert_eq!(history[6]["payload"]["progress"], json!({"at": 1}));
    assert_eq!(history[8]["payload"]["timeout_kind"], "start_to_close");
    let snapshot = &history[2]["payload"]["activity"];
    assert_eq!(snapshot["arguments"], envelope(json!(["x"])));
    assert_eq!(snapshot["retry_policy"]["max_attempts"], 3);
    let completed = &only(&history, "ActivityCompleted")["payload"];
    assert_eq!(completed["result"], envelope(json!({"n": 1})));
    assert_eq!(completed["attempt_number"], 3);
    assert_eq!(history[11]["payload"]["sequence"], 2);
    for kind in ["workflow", "activity"] {
        assert!(client.poll(kind, "w", "q", 0).await.is_null(), "{kind}");
    }
    server.stop().await;
}

/// Rule: every outcome has its terminal event, marked as local.
#[tokio::test(flavor = "multi_thread")]
async fn every_outcome_has_its_event() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let run = text(&task, "run_id").to_owned();
    let commands = json!([
        local(json!({
            "outcome": "failed", "message": "no", "exception_type": "Oh", "non_retryable": true,
            "attempts": [attempt(1, "failed", json!({"message": "no"}))],
        })),
        local(json!({
            "outcome": "timed_out", "message": "slow", "timeout_kind": "heartbeat",
            "attempts": [attempt(1, "timed_out", json!({}))],
        })),
        local(json!({
            "outcome": "cancelled", "message": "stop",
            "attempts": [attempt(1, "cancelled", json!({}))],
        })),
    ]);
    client.complete(&task, commands).await.expect(200);
    let history = client.history("wf", &run).await;
    let failed = &only(&history, "ActivityFailed")["payload"];
    assert_eq!(failed["message"], "no");
    assert_eq!(failed["exception_type"], "Oh");
    assert_eq!(failed["non_retryable"], true);
    let timed_out = &only(&history, "ActivityTimedOut")["payload"];
    assert_eq!(timed_out["timeout_kind"], "heartbeat");
    assert_eq!(timed_out["message"], "slow");
    let cancelled = &only(&history, "ActivityCancelled")["payload"];
    assert_eq!(cancelled["message"], "stop");
    for (step, payload) in [(1, failed), (2, timed_out), (3, cancelled)] {
        assert_eq!(payload["sequence"], step);
        assert_eq!(payload["execution_mode"], "local");
        assert_eq!(payload["local_activity"], true);
    }
    server.stop().await;
}

/// Rule: the story must hold together: attempts in order and no more than the policy allows, the last
/// with the outcome of the whole, each problem by its path; a refused report changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_story_must_hold_together() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    let beats: Vec<_> = (0..1_001).map(|n| json!({"elapsed_ms": n})).collect();
    for (fields, paths) in [
        (json!({"activity_type": null}), &["activity_type"][..]),
        (json!({"attempts": null}), &["attempts"]),
        (json!({"attempts": []}), &["attempts"]),
        (json!({"attempts": {}}), &["attempts"]),
        (json!({"outcome": null}), &["outcome", "outcome"]),
        (json!({"outcome": "done"}), &["outcome", "outcome"]),
        (json!({"execution_mode": "remote"}), &["execution_mode"]),
        (json!({"outcome": "failed"}), &["message", "outcome"]),
        (
            json!({"attempts": [attempt(2, "completed", json!({}))]}),
            &["attempts.0.attempt_number"],
        ),
        (
            json!({"attempts": [
                attempt(1, "failed", json!({})), attempt(2, "completed", json!({})),
            ]}),
            &["attempts"],
        ),
        (
            json!({"retry_policy": {"max_attempts": 2}, "attempts": [
                attempt(1, "completed", json!({})), attempt(2, "completed", json!({})),
            ]}),
            &["attempts.0.outcome"],
        ),
        (
            json!({"retry_policy": {"max_attempts": 2}, "attempts": [
                attempt(1, "cancelled", json!({})), attempt(2, "completed", json!({})),
            ]}),
            &["attempts.0.outcome"],
        ),
        (
            json!({"attempts": [attempt(1, "completed", json!({"heartbeats": beats}))]}),
            &["attempts"],
        ),
        (
            json!({"attempts": [attempt(1, "completed", json!({
                "heartbeats": [{"elapsed_ms": 1, "details": 7}],
            }))]}),
            &["attempts.0.heartbeats.0.details"],
        ),
        (
            json!({"attempts": [attempt(1, "completed", json!({"retry_reason": "mood"}))]}),
            &["attempts.0.retry_reason"],
        ),
        (
            json!({
                "outcome": "timed_out", "message": "m", "timeout_kind": "schedule_to_start",
                "attempts": [attempt(1, "timed_out", json!({}))],
            }),
            &["timeout_kind"],
        ),
        (
            json!({"schedule_to_start_timeout": 1}),
            &["schedule_to_start_timeout"],
        ),
        (json!({"heartbeat_timeout": 0}), &["heartbeat_timeout"]),
        (json!({"result": [1]}), &["result"]),
    ] {
        let answer = client.complete(&task, json!([local(fields.clone())])).await;
        assert_eq!(answer.status, 422, "{fields}");
        let mut paths: Vec<String> = paths.iter().map(|p| format!("commands.0.{p}")).collect();
        paths.dedup();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        answer.invalid(&paths);
    }
    assert_eq!(server.db.contents().await, before);
    client.wait_for_history(&task).await.expect(200);
    server.stop().await;
}

/// Rule: from 1.19 on a key that is not known is refused wherever it is, and a heartbeat tells its
/// time; before, such keys are passed over.
#[tokio::test(flavor = "multi_thread")]
async fn reports_are_strict_from_1_19_on() {
    let server = server("1.20").await;
    let client = &server.client;
    register(client, "w", "q", json!({})).await;
    client.start("wf", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    for (fields, path) in [
        (
            json!({"attempts": [attempt(1, "completed", json!({"mood": 1}))]}),
            "attempts.0.mood",
        ),
        (
            json!({"attempts": [attempt(1, "completed", json!({
                "heartbeats": [{"elapsed_ms": 1, "mood": 1}],
            }))]}),
            "attempts.0.heartbeats.0.mood",
        ),
        (
            json!({"attempts": [attempt(1, "completed", json!({"heartbeats": [{}]}))]}),
            "attempts.0.heartbeats.0.elapsed_ms",
        ),
        (
            json!({"retry_policy": {"max_attempts": 1, "mood": 1}}),
            "retry_policy.mood",
        ),
    ] {
        let path = format!("commands.0.{path}");
        let wrong = json!({"type": "no_such_command"});
        for version in ["1.20", "1.19"] {
            client
                .speaking(version)
                .complete(&task, json!([local(fields.clone()), wrong]))
                .await
                .invalid(&[&path, "commands.1.type"]);
        }
        client
            .speaking("1.18")
            .complete(&task, json!([local(fields), wrong]))
            .await
            .invalid(&["commands.1.type"]);
    }
    client.wait_for_history(&task).await.expect(200);
    server.stop().await;
}
