//! Signals and the waits for them: applied once, in order, wherever the wait is; time limits of waits.

use serde_json::{Value, json};

use super::{VERSIONS, first_task, server};
use crate::support::{Answer, Client, envelope, merged, only, text};

async fn signal(client: &Client, name: &str, input: Value) -> Value {
    let path = format!("/workflows/wf/signal/{name}");
    client
        .post(&path, json!({ "input": input }))
        .await
        .expect(202)
}

fn wait_for(name: &str, fields: Value) -> Value {
    merged(
        json!({"type": "open_signal_wait", "signal_name": name}),
        fields,
    )
}

async fn poll(client: &Client) -> Value {
    let task = client.poll("workflow", "w", "q", 5).await;
    assert!(task.is_object(), "no task");
    task
}

/// What was applied: the name, the argument list and the step, in the order of the history.
fn applied(history: &[Value]) -> Vec<(&str, Value, u64)> {
    history
        .iter()
        .filter(|event| event["event_type"] == "SignalApplied")
        .map(|event| {
            let payload = &event["payload"];
            assert_eq!(payload["value"], payload["arguments"]);
            let step = payload["sequence"].as_u64().expect("a step");
            (text(payload, "signal_name"), payload["value"].clone(), step)
        })
        .collect()
}

/// Rule: a signal meets an open wait for its name at once, in the write that records it, and one wait
/// only; the next wait takes the oldest one that no wait has taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_is_applied_to_one_wait() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        let task = first_task(client).await;
        let run = text(&task, "run_id");
        client
            .complete(&task, json!([wait_for("go", json!({}))]))
            .await
            .expect(200);
        signal(client, "other", json!(["x"])).await;
        assert!(applied(&client.history("wf", run).await).is_empty());
        signal(client, "go", json!([[1]])).await;
        signal(client, "go", json!([2])).await;
        signal(client, "go", json!([3])).await;
        let task = poll(client).await;
        assert_eq!(
            client.events("wf", run).await[2..],
            ["SignalWaitOpened", "SignalReceived",]
        );
        assert!(task["signal_name"].is_null());
        client.wait_for_history(&task).await.expect(200);
        let task = poll(client).await;
        let history = client.history("wf", run).await;
        // An argument that is a list stays in the list of arguments.
        assert_eq!(applied(&history), [("go", envelope(json!([[1]])), 1)]);
        let (wait, received) = (only(&history, "SignalWaitOpened"), &history[4]);
        let done = only(&history, "SignalApplied");
        assert_eq!(
            done["payload"]["signal_wait_id"],
            wait["payload"]["signal_wait_id"]
        );
        assert_eq!(
            done["payload"]["signal_id"],
            received["payload"]["signal_id"]
        );
        assert_eq!(done["sequence"], received["sequence"].as_u64().unwrap() + 1);
        // Both of the others are there already; the waits take them at their opening.
        let waits = json!([
            wait_for("go", json!({})),
            wait_for("go", json!({})),
            wait_for("go", json!({}))
        ]);
        client.complete(&task, waits).await.expect(200);
        let history = client.history("wf", run).await;
        assert_eq!(
            applied(&history)[1..],
            [
                ("go", envelope(json!([2])), 2),
                ("go", envelope(json!([3])), 3)
            ]
        );
        let task = poll(client).await;
        client.wait_for_history(&task).await.expect(200);
        signal(client, "go", json!([])).await;
        let history = client.history("wf", run).await;
        assert_eq!(applied(&history)[3], ("go", envelope(json!([])), 4));
        server.stop().await;
    }
}

/// Rule: signals from before the first task, and from while a task is held, meet the waits that this
/// task opens.
#[tokio::test(flavor = "multi_thread")]
async fn early_signals_meet_the_first_waits() {
    let server = server("1.20").await;
    let client = &server.client;
    super::register(client, "w", "q", json!({})).await;
    let run = client.start("wf", "flow", "q").await;
    signal(client, "go", json!([1])).await;
    let task = poll(client).await;
    signal(client, "go", json!([2])).await;
    let waits = json!([wait_for("go", json!({})), wait_for("go", json!({}))]);
    client.complete(&task, waits).await.expect(200);
    assert_eq!(
        client.events("wf", &run).await,
        [
            "StartAccepted",
            "WorkflowStarted",
            "SignalWaitOpened",
            "SignalWaitOpened",
            "SignalReceived",
            "SignalApplied",
            "SignalReceived",
            "SignalApplied",
        ]
    );
    let history = client.history("wf", &run).await;
    let values: Vec<_> = applied(&history)
        .into_iter()
        .map(|(_, value, _)| value)
        .collect();
    assert_eq!(values, [envelope(json!([1])), envelope(json!([2]))]);
    server.stop().await;
}

/// Rule: a signal that no wait took moves to the successor when the workflow waits for such signals,
/// and is applied there, once.
#[tokio::test(flavor = "multi_thread")]
async fn signals_that_were_not_taken_move_on() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    client
        .complete(&task, json!([wait_for("go", json!({}))]))
        .await
        .expect(200);
    for n in [1, 2] {
        signal(client, "go", json!([n])).await;
    }
    let task = poll(client).await;
    signal(client, "go", json!([3])).await;
    client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    let first = client.history("wf", text(&task, "run_id")).await;
    assert_eq!(applied(&first), [("go", envelope(json!([1])), 1)]);
    let task = poll(client).await;
    let waits = json!([
        wait_for("go", json!({})),
        wait_for("go", json!({})),
        wait_for("go", json!({}))
    ]);
    client.complete(&task, waits).await.expect(200);
    let second = client.history("wf", text(&task, "run_id")).await;
    assert_eq!(
        applied(&second),
        [
            ("go", envelope(json!([2])), 1),
            ("go", envelope(json!([3])), 2)
        ]
    );
    server.stop().await;
}

/// Rule: a time limit of a wait is a timer of kind `signal_timeout`; a signal cancels it, and without
/// one the workflow is woken when it fires. A limit of 0 is over at once unless a signal is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_may_have_a_time_limit() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let run = text(&task, "run_id").to_owned();
    let limited = wait_for("go", json!({"timeout_seconds": 600}));
    client.complete(&task, json!([limited])).await.expect(200);
    signal(client, "go", json!([])).await;
    assert_eq!(
        client.events("wf", &run).await[2..],
        [
            "SignalWaitOpened",
            "TimerScheduled",
            "SignalReceived",
            "SignalApplied",
            "TimerCancelled"
        ]
    );
    let history = client.history("wf", &run).await;
    for event in ["TimerScheduled", "TimerCancelled"] {
        let payload = &only(&history, event)["payload"];
        assert_eq!(payload["timer_kind"], "signal_timeout");
        assert_eq!(payload["sequence"], 1);
        assert_eq!(payload["delay_seconds"], 600);
        assert_eq!(payload["signal_name"], "go");
        let wait = &only(&history, "SignalWaitOpened")["payload"];
        assert_eq!(payload["signal_wait_id"], wait["signal_wait_id"]);
    }
    let task = poll(client).await;
    let limits = json!([
        wait_for("go", json!({"timeout_seconds": 1})),
        wait_for("go", json!({"timeout_seconds": 0})),
    ]);
    client.complete(&task, limits).await.expect(200);
    let fired = |history: &[Value]| -> Vec<u64> {
        history
            .iter()
            .filter(|event| event["event_type"] == "TimerFired")
            .map(|event| event["payload"]["sequence"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(fired(&client.history("wf", &run).await), [3]);
    let task = poll(client).await;
    client.wait_for_history(&task).await.expect(200);
    poll(client).await;
    assert_eq!(fired(&client.history("wf", &run).await), [3, 2]);
    // A wait that is over takes no signal.
    server.stop().await;
}

/// Rule: fields of the wait, each by its path; a refused completion changes nothing and keeps the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_is_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    let check = async |command: Value, field: &str| {
        let answer: Answer = client.complete(&task, json!([command])).await;
        answer.invalid(&[&format!("commands.0.{field}")]);
    };
    check(json!({"type": "open_signal_wait"}), "signal_name").await;
    for (fields, field) in [
        (json!({"signal_name": ""}), "signal_name"),
        (json!({"signal_name": "x".repeat(256)}), "signal_name"),
        (json!({"timeout_seconds": -1}), "timeout_seconds"),
        (json!({"timeout_seconds": 1.5}), "timeout_seconds"),
        (json!({"timeout_seconds": u64::MAX}), "timeout_seconds"),
        (json!({"delay_seconds": 1}), "delay_seconds"),
    ] {
        check(wait_for("go", fields), field).await;
    }
    assert_eq!(server.db.contents().await, before);
    client.wait_for_history(&task).await.expect(200);
    server.stop().await;
}
