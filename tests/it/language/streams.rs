//! Message streams: ordered, idempotent input to a workflow, delivered where it waits, acknowledged by
//! its completions, and carried on by its successors.

use serde_json::{Value, json};

use super::{first_task, server};
use crate::support::{Answer, Client, envelope, merged, only, text};

const SIGNAL: &str = "__durable_workflow_message_stream";

async fn send(client: &Client, stream: &str, id: &str, input: Value) -> Answer {
    let path = format!("/workflows/wf/message-streams/{stream}/messages");
    client
        .post(&path, json!({"message_id": id, "input": input}))
        .await
}

async fn poll(client: &Client) -> Value {
    let task = client.poll("workflow", "w", "q", 5).await;
    assert!(task.is_object(), "no task");
    task
}

/// Completes a task as an SDK does that has read `through` and waits for more.
async fn wait_after(client: &Client, task: &Value, stream: &str, through: u64) -> Answer {
    let fields = json!({
        "commands": [{
            "type": "open_condition_wait", "condition_key": format!("message-stream:{stream}:{through}"),
        }],
        "message_stream_cursors": [{"stream_name": stream, "through_position": through}],
        "message_stream_waits": [{"stream_name": stream, "after_position": through}],
    });
    client.task(task, "complete", fields).await
}

/// The argument of each message signal of a history.
fn delivered(history: &[Value]) -> Vec<Value> {
    history
        .iter()
        .filter(|event| event["payload"]["signal_name"] == SIGNAL)
        .map(|event| {
            let blob = text(&event["payload"]["arguments"], "blob");
            let payload = leasehold::payload::Payload::new(leasehold::payload::Codec::Avro, blob);
            let list = payload.shown(1 << 20).expect("the arguments can be read");
            assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
            list[0].clone()
        })
        .collect()
}

fn message(stream: &str, id: &str, position: u64, input: Value) -> Value {
    json!({
        "schema": "durable-workflow.v2.message-stream.message", "stream_name": stream,
        "message_id": id, "position": position, "payload_envelope": envelope(input),
    })
}

/// Rule: positions without gaps, from 1 in every stream; the same id and content again is the same
/// message, another content is a conflict; a message keeps its id over the runs of its workflow.
#[tokio::test(flavor = "multi_thread")]
async fn messages_have_places() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let run = text(&task, "run_id");
    let body = send(client, "orders", "a", json!([1])).await.expect(202);
    for (key, value) in [
        ("accepted", json!(true)),
        ("duplicate", json!(false)),
        ("workflow_id", json!("wf")),
        ("run_id", json!(run)),
        ("stream_name", json!("orders")),
        ("message_id", json!("a")),
        ("position", json!(1)),
        ("cursor_position", json!(0)),
        ("outcome", json!("accepted")),
        ("reason", json!(null)),
    ] {
        assert_eq!(body[key], value, "{key}");
    }
    for (stream, id, position) in [("orders", "b", 2), ("other", "a", 1), ("orders", "c", 3)] {
        let body = send(client, stream, id, json!([1])).await.expect(202);
        assert_eq!(body["position"], position);
    }
    let again = send(client, "orders", "b", json!([1])).await.expect(200);
    assert_eq!(again["duplicate"], true);
    assert_eq!(again["position"], 2);
    let body = send(client, "orders", "b", json!([2]))
        .await
        .refused(409, "message_identity_conflict");
    assert_eq!(body["position"], 2);
    let shown = client
        .get("/workflows/wf/message-streams/orders")
        .await
        .expect(200);
    for (key, value) in [
        ("stream_name", json!("orders")),
        ("last_position", json!(3)),
        ("cursor_position", json!(0)),
        ("pending_count", json!(3)),
        ("pending_wait", json!(null)),
        ("duplicate_count", json!(1)),
        ("malformed_count", json!(0)),
        ("last_input_outcome", json!("duplicate")),
        ("last_input_message_id", json!("b")),
    ] {
        assert_eq!(shown[key], value, "{key}");
    }
    assert!(shown["last_input_at"].is_string());
    let list = client
        .get("/workflows/wf/message-streams")
        .await
        .expect(200);
    let names: Vec<_> = list["streams"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stream| text(stream, "stream_name"))
        .collect();
    assert_eq!(names, ["orders", "other"]);
    client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    let again = send(client, "orders", "a", json!([1])).await.expect(200);
    assert_eq!(again["position"], 1);
    let next = send(client, "orders", "d", json!([1])).await.expect(202);
    assert_eq!(next["position"], 4);
    assert_ne!(next["run_id"], run);
    server.stop().await;
}

/// Rule: concurrent messages of one id are one message; those of different ids have places of their
/// own.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_messages_have_their_own_places() {
    let server = server("1.20").await;
    let client = &server.client;
    first_task(client).await;
    let sends = (0..24).map(|n| {
        let id = format!("m{}", n % 12);
        async move { (id.clone(), send(client, "s", &id, json!([id])).await) }
    });
    let mut positions = std::collections::BTreeMap::new();
    let mut fresh = 0;
    for (id, answer) in futures_util::future::join_all(sends).await {
        fresh += u32::from(answer.status == 202);
        assert!(answer.status == 202 || answer.status == 200, "{answer:?}");
        let position = answer.body["position"].as_u64().unwrap();
        assert_eq!(*positions.entry(id).or_insert(position), position);
    }
    assert_eq!(fresh, 12);
    let mut positions: Vec<u64> = positions.into_values().collect();
    positions.sort_unstable();
    assert_eq!(positions, (1..=12).collect::<Vec<_>>());
    server.stop().await;
}

/// Rule: messages are delivered, in order, when the workflow waits for them: at once when some are
/// there, else when one comes; a cursor moves with an event and what is behind it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn messages_are_delivered_where_they_are_awaited() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let run = text(&task, "run_id").to_owned();
    for id in ["a", "b"] {
        send(client, "s", id, json!([id])).await.expect(202);
    }
    assert!(delivered(&client.history("wf", &run).await).is_empty());
    wait_after(client, &task, "s", 0).await.expect(200);
    let task = poll(client).await;
    let first = [
        message("s", "a", 1, json!(["a"])),
        message("s", "b", 2, json!(["b"])),
    ];
    assert_eq!(delivered(&client.history("wf", &run).await), first);
    wait_after(client, &task, "s", 2).await.expect(200);
    let history = client.history("wf", &run).await;
    let advanced = &only(&history, "MessageCursorAdvanced")["payload"];
    let expected = json!({"stream_key": "s", "previous_position": 0, "new_position": 2});
    assert_eq!(*advanced, expected);
    let shown = client
        .get("/workflows/wf/message-streams/s")
        .await
        .expect(200);
    assert_eq!(shown["cursor_position"], 2);
    assert_eq!(shown["pending_count"], 0);
    let wait = &shown["pending_wait"];
    assert_eq!(wait["run_id"], run);
    assert_eq!(wait["after_position"], 2);
    assert!(wait["since"].is_string());
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    // Another stream wakes nobody; a message that is repeated is not delivered again.
    send(client, "t", "x", json!([])).await.expect(202);
    send(client, "s", "b", json!(["b"])).await.expect(200);
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    send(client, "s", "c", json!(["c"])).await.expect(202);
    let task = poll(client).await;
    let all = delivered(&client.history("wf", &run).await);
    assert_eq!(all[2..], [message("s", "c", 3, json!(["c"]))]);
    // A condition that waits is satisfied by the message as by any signal.
    wait_after(client, &task, "s", 3).await.expect(200);
    let kinds = client.events("wf", &run).await;
    assert!(kinds.contains(&"ConditionWaitSatisfied".to_owned()));
    // A smaller cursor changes nothing.
    send(client, "s", "d", json!(["d"])).await.expect(202);
    let task = poll(client).await;
    let back = json!({
        "commands": [{"type": "start_timer", "delay_seconds": 60}],
        "message_stream_cursors": [{"stream_name": "s", "through_position": 1}],
    });
    client.task(&task, "complete", back).await.expect(200);
    let shown = client
        .get("/workflows/wf/message-streams/s")
        .await
        .expect(200);
    assert_eq!(shown["cursor_position"], 3);
    assert_eq!(shown["pending_count"], 1);
    server.stop().await;
}

/// Rule: a successor is told where the workflow stands in each stream, then given what it has not
/// taken, in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_successor_carries_on() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    for id in ["a", "b", "c"] {
        send(client, "s", id, json!([id])).await.expect(202);
    }
    send(client, "fresh", "x", json!([])).await.expect(202);
    wait_after(client, &task, "s", 0).await.expect(200);
    let task = poll(client).await;
    let end = json!({
        "commands": [{"type": "continue_as_new"}],
        "message_stream_cursors": [{"stream_name": "s", "through_position": 1}],
    });
    client.task(&task, "complete", end).await.expect(200);
    let task = poll(client).await;
    let history = task["history_events"].as_array().unwrap();
    let cursor = json!({
        "schema": "durable-workflow.v2.message-stream.cursor", "stream_name": "s",
        "through_position": 1,
    });
    assert_eq!(
        delivered(history),
        [
            message("fresh", "x", 1, json!([])),
            cursor,
            message("s", "b", 2, json!(["b"])),
            message("s", "c", 3, json!(["c"])),
        ]
    );
    wait_after(client, &task, "s", 3).await.expect(200);
    let shown = client
        .get("/workflows/wf/message-streams/s")
        .await
        .expect(200);
    assert_eq!(shown["pending_count"], 0);
    server.stop().await;
}

/// Rule: a cursor goes no further than what this run was shown, a wait begins at the cursor; one entry
/// for each stream, with exactly its keys. A refused completion changes nothing and keeps the lease.
#[tokio::test(flavor = "multi_thread")]
async fn cursors_and_waits_are_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    wait_after(client, &task, "s", 0).await.expect(200);
    send(client, "s", "a", json!([])).await.expect(202);
    let task = poll(client).await;
    // It is there, and was not shown.
    send(client, "s", "b", json!([])).await.expect(202);
    let before = server.db.contents().await;
    let cursor = |stream: &str, n: u64| json!({"stream_name": stream, "through_position": n});
    let wait = |stream: &str, n: u64| json!({"stream_name": stream, "after_position": n});
    let many: Vec<_> = (0..101).map(|n| cursor(&format!("s{n}"), 0)).collect();
    for (fields, path) in [
        (
            json!({"message_stream_cursors": [cursor("s", 2)]}),
            "message_stream_cursors.0.through_position",
        ),
        (
            json!({"message_stream_cursors": [cursor("s", 1), cursor("none", 1)]}),
            "message_stream_cursors.1.through_position",
        ),
        (
            json!({"message_stream_waits": [wait("s", 1)]}),
            "message_stream_waits.0.after_position",
        ),
        (
            json!({
                "message_stream_cursors": [cursor("s", 1)], "message_stream_waits": [wait("s", 0)],
            }),
            "message_stream_waits.0.after_position",
        ),
        (
            json!({"message_stream_cursors": [cursor("s", 0), cursor("s", 1)]}),
            "message_stream_cursors.1.stream_name",
        ),
        (
            json!({"message_stream_cursors": [cursor("a b", 0)]}),
            "message_stream_cursors.0.stream_name",
        ),
        (
            json!({"message_stream_cursors": [{"stream_name": "s", "through_position": -1}]}),
            "message_stream_cursors.0.through_position",
        ),
        (
            json!({"message_stream_waits": [merged(wait("s", 0), json!({"x": 1}))]}),
            "message_stream_waits.0.x",
        ),
        (
            json!({"message_stream_cursors": many}),
            "message_stream_cursors",
        ),
    ] {
        let timer = json!({"commands": [{"type": "start_timer", "delay_seconds": 1}]});
        let answer = client
            .task(&task, "complete", merged(timer, fields.clone()))
            .await;
        let body = answer.expect(422);
        assert!(body["errors"].get(path).is_some(), "{fields}: {body:#}");
    }
    assert_eq!(server.db.contents().await, before);
    wait_after(client, &task, "s", 1).await.expect(200);
    server.stop().await;
}

/// Rule: names of streams and messages; what does not exist; a run that is closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    let long = "x".repeat(129);
    for (stream, id, path) in [
        ("a%20b", "m", "stream_name"),
        (long.as_str(), "m", "stream_name"),
        ("s", "", "message_id"),
        ("s", "a b", "message_id"),
        ("s", &"x".repeat(192), "message_id"),
    ] {
        send(client, stream, id, json!([])).await.invalid(&[path]);
    }
    let path = "/workflows/wf/message-streams/s/messages";
    client.post(path, json!({})).await.invalid(&["message_id"]);
    let fields = json!({"message_id": "m", "input": {"codec": "json", "blob": ""}});
    client.post(path, fields).await.invalid(&["input.codec"]);
    let answer = client.get("/workflows/wf/message-streams/none").await;
    answer.refused(404, "stream_not_found");
    for path in ["message-streams", "message-streams/s"] {
        client
            .get(&format!("/workflows/none/{path}"))
            .await
            .refused(404, "instance_not_found");
    }
    client
        .post(
            "/workflows/none/message-streams/s/messages",
            json!({"message_id": "m"}),
        )
        .await
        .refused(404, "instance_not_found");
    assert_eq!(server.db.contents().await, before);
    client
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    send(client, "s", "m", json!([]))
        .await
        .refused(409, "run_not_active");
    server.stop().await;
}
