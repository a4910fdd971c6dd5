//! Values that a workflow records: side effects and version markers for replay, memo and search
//! attributes to be found by.

use serde_json::{Value, json};

use super::{VERSIONS, first_task, register, server};
use crate::support::{Client, TestServer, envelope, merged, only, text};

fn memo(entries: Value) -> Value {
    json!({"type": "upsert_memo", "entries": envelope(entries)})
}

fn attributes(attributes: Value, fields: Value) -> Value {
    merged(
        json!({"type": "upsert_search_attributes", "attributes": attributes}),
        fields,
    )
}

async fn signal(client: &Client) -> Value {
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    client.poll("workflow", "w", "q", 5).await
}

/// That a refused completion changed nothing and kept its lease.
async fn assert_untouched(
    server: &TestServer,
    before: &std::collections::BTreeMap<&'static str, String>,
    task: &Value,
) {
    assert_eq!(server.db.contents().await, *before);
    server.client.wait_for_history(task).await.expect(200);
}

/// Rule: a side effect is one event with the value as it was sent, a marker one with exactly its five
/// keys; both take a step and open no task.
#[tokio::test(flavor = "multi_thread")]
async fn effects_and_markers_are_recorded() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        let task = first_task(client).await;
        let marker = json!({
            "type": "record_version_marker", "change_id": "c", "version": 2,
            "min_supported": -1, "max_supported": 3, "payload_codec": "avro",
        });
        let effect = json!({"type": "record_side_effect", "result": envelope(json!([1]))});
        let body = client
            .complete(&task, json!([effect, marker]))
            .await
            .expect(200);
        assert_eq!(body["created_task_ids"], json!([]));
        let history = client.history("wf", text(&task, "run_id")).await;
        let effect = &only(&history, "SideEffectRecorded")["payload"];
        let expected = json!({
            "sequence": 1, "result": envelope(json!([1])), "payload_codec": "avro",
        });
        assert_eq!(*effect, expected);
        let marker = &only(&history, "VersionMarkerRecorded")["payload"];
        let expected = json!({
            "sequence": 2, "change_id": "c", "version": 2, "min_supported": -1, "max_supported": 3,
        });
        assert_eq!(*marker, expected);
        assert!(client.poll("workflow", "w", "q", 0).await.is_null());
        server.stop().await;
    }
}

/// Rule: a version outside of its own range contradicts itself; nothing is applied and the lease is
/// kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_must_be_in_its_range() {
    let server = server("1.13").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    for (version, min, max) in [(0, 1, 2), (3, 1, 2), (1, 2, 1)] {
        let marker = json!({
            "type": "record_version_marker", "change_id": "c", "version": version,
            "min_supported": min, "max_supported": max,
        });
        let effect = json!({"type": "record_side_effect", "result": envelope(json!(1))});
        let body = client
            .complete(&task, json!([effect, marker]))
            .await
            .refused(409, "invalid_commands");
        assert_eq!(body["recorded"], false);
    }
    assert_untouched(&server, &before, &task).await;
    server.stop().await;
}

/// Rule: a memo change replaces the named keys, drops those set to null and keeps the others; history
/// holds the change as it was sent and the result in the order of its keys; it is shown at once, after
/// the end, and by the successor before its first command.
#[tokio::test(flavor = "multi_thread")]
async fn a_memo_is_merged() {
    let server = server("1.20").await;
    let client = &server.client;
    register(client, "w", "q", json!({})).await;
    let run = client
        .start_with("wf", json!({"memo": {"kept": 1, "gone": 2, "new": 3}}))
        .await;
    let task = client.poll("workflow", "w", "q", 5).await;
    let sent = memo(json!({"new": [1, {"a": null}], "gone": null, "also": "x"}));
    client
        .complete(&task, json!([sent.clone()]))
        .await
        .expect(200);
    let merged = json!({"also": "x", "kept": 1, "new": [1, {"a": null}]});
    let history = client.history("wf", &run).await;
    let event = &only(&history, "MemoUpserted")["payload"];
    let expected = json!({
        "sequence": 1, "entries": sent["entries"], "merged": envelope(merged.clone()),
    });
    assert_eq!(*event, expected);
    let shown = async || client.get("/workflows/wf").await.expect(200)["memo"].take();
    assert_eq!(shown().await, merged);
    // Everything can be dropped; an empty result is no error.
    let task = signal(client).await;
    let drop = memo(json!({"also": null, "kept": null, "new": null}));
    let again = memo(json!({"last": true}));
    client
        .complete(&task, json!([drop, again, {"type": "continue_as_new"}]))
        .await
        .expect(200);
    let history = client.history("wf", &run).await;
    let event = &history.iter().rfind(|e| e["event_type"] == "MemoUpserted");
    assert_eq!(
        event.unwrap()["payload"]["merged"],
        envelope(json!({"last": true}))
    );
    assert_eq!(shown().await, json!({"last": true}));
    let task = client.poll("workflow", "w", "q", 5).await;
    let end = json!([memo(json!({"end": 1})), {"type": "complete_workflow"}]);
    client.complete(&task, end).await.expect(200);
    let all = json!({"end": 1, "last": true});
    assert_eq!(shown().await, all);
    let mut list = client.get("/workflows").await.expect(200);
    let listed = list["workflows"].as_array_mut().unwrap();
    assert_eq!(listed[0]["memo"], all);
    server.stop().await;
}

/// Rule: names, number and size of memo entries are bounded, before and after the merge; a change that
/// is refused changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_memo_is_bounded() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    let many: serde_json::Map<String, Value> =
        (0..101).map(|n| (format!("k{n}"), json!(n))).collect();
    for entries in [
        json!({}),
        json!({"7": 1}),
        json!({"-7": 1}),
        json!({"a b": 1}),
        json!({"": 1}),
        json!({"x".repeat(65): 1}),
        json!({"big": "x".repeat(10_240)}),
        json!([1]),
        json!("text"),
        Value::from(many),
    ] {
        let effect = json!({"type": "record_side_effect", "result": envelope(json!(1))});
        let answer = client
            .complete(&task, json!([effect, memo(entries.clone())]))
            .await;
        let body = answer.refused(422, "workflow_memo_validation_failed");
        assert_eq!(body["recorded"], false, "{entries}");
        assert!(body["validation_errors"].is_object(), "{body:#}");
    }
    // Each entry is small enough, and all of them are too much.
    let large: serde_json::Map<String, Value> = (0..8)
        .map(|n| (format!("k{n}"), json!("x".repeat(9_000))))
        .collect();
    let answer = client
        .complete(&task, json!([memo(Value::from(large))]))
        .await;
    let body = answer.refused(422, "structural_limit_exceeded");
    assert_eq!(body["recorded"], false);
    assert_eq!(body["limit_kind"], "memo_size");
    for (command, field) in [
        (json!({"type": "upsert_memo"}), "entries"),
        (
            json!({"type": "upsert_memo", "entries": {"a": 1}}),
            "entries",
        ),
        (
            json!({"type": "upsert_memo", "entries": {"codec": "json", "blob": "{}"}}),
            "entries.codec",
        ),
    ] {
        client
            .complete(&task, json!([command]))
            .await
            .invalid(&[&format!("commands.0.{field}")]);
    }
    assert_untouched(&server, &before, &task).await;
    server.stop().await;
}

/// Rule: a completion that is repeated changes a memo once.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_completion_changes_a_memo_once() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let commands = json!([memo(json!({"a": 1}))]);
    client.complete(&task, commands.clone()).await.expect(200);
    let before = server.db.contents().await;
    let again = client.complete(&task, commands).await.expect(200);
    assert_eq!(again["duplicate"], true);
    assert_eq!(server.db.contents().await, before);
    server.stop().await;
}

/// Rule: a history with a memo change is for workers that registered `memo_upserts`, one with declared
/// types for those that registered `typed_search_attributes`; without declared types for all.
#[tokio::test(flavor = "multi_thread")]
async fn changes_route_their_history() {
    for (command, capability) in [
        (memo(json!({"a": 1})), Some("memo_upserts")),
        (
            attributes(json!({"A": 1}), json!({"attribute_types": {"A": "int"}})),
            Some("typed_search_attributes"),
        ),
        (attributes(json!({"A": 1}), json!({})), None),
    ] {
        let server = server("1.20").await;
        let client = &server.client;
        let task = first_task(client).await;
        client.complete(&task, json!([command])).await.expect(200);
        let mut plain = super::capable(client, "plain", "q");
        let list = plain["capabilities"].as_array_mut().unwrap();
        list.retain(|said| Some(said.as_str().unwrap()) != capability);
        client.post("/worker/register", plain).await.expect(200);
        client
            .post("/workflows/wf/signal/go", json!({}))
            .await
            .expect(202);
        let task = client.poll("workflow", "plain", "q", 0).await;
        assert_eq!(task.is_null(), capability.is_some(), "{capability:?}");
        if capability.is_some() {
            assert!(client.poll("workflow", "w", "q", 0).await.is_object());
        }
        server.stop().await;
    }
}

/// Rule: search attributes are merged as a memo is; the event has the types of all that were set,
/// declared or not; they are shown and can be found by.
#[tokio::test(flavor = "multi_thread")]
async fn search_attributes_are_merged() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        register(client, "w", "q", json!({})).await;
        let run = client
            .start_with(
                "wf",
                json!({"search_attributes": {"Kept": "k", "Gone": "g"}}),
            )
            .await;
        let task = client.poll("workflow", "w", "q", 5).await;
        let sent = json!({
            "Text": "t", "N": 7, "F": 1.5, "B": true, "L": ["a", "b"], "Gone": null,
        });
        client
            .complete(&task, json!([attributes(sent.clone(), json!({}))]))
            .await
            .expect(200);
        let history = client.history("wf", &run).await;
        let event = &only(&history, "SearchAttributesUpserted")["payload"];
        assert_eq!(event["sequence"], 1);
        assert_eq!(event["attributes"], sent);
        let merged = json!({
            "B": true, "F": 1.5, "Kept": "k", "L": ["a", "b"], "N": 7, "Text": "t",
        });
        assert_eq!(event["merged"], merged);
        let types = event["attribute_types"].as_object().unwrap();
        assert_eq!(types["N"], "int");
        assert_eq!(types["F"], "float");
        assert_eq!(types["B"], "bool");
        assert_eq!(types["L"], "keyword_list");
        assert!(!types.contains_key("Gone"));
        assert!(!types.contains_key("Kept"));
        let body = client.get("/workflows/wf").await.expect(200);
        assert_eq!(body["search_attributes"], merged);
        server.stop().await;
    }
}

/// Rule: declared types go into the event as they are, and the value must be one of the type; names
/// and values are bounded, each problem by its path; a refused change changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn search_attributes_are_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    let typed = |value: Value, kind: &str| {
        attributes(json!({"A": value}), json!({"attribute_types": {"A": kind}}))
    };
    let text_of = |length: usize| Value::from("x".repeat(length));
    for (command, field) in [
        (json!({"type": "upsert_search_attributes"}), "attributes"),
        (attributes(json!({}), json!({})), "attributes"),
        (attributes(json!([]), json!({})), "attributes"),
        (attributes(json!({"A": {}}), json!({})), "attributes.A"),
        (attributes(json!({"A": [1]}), json!({})), "attributes.A"),
        (
            attributes(json!({"A": text_of(2_049)}), json!({})),
            "attributes.A",
        ),
        (
            attributes(json!({"A": [text_of(256)]}), json!({})),
            "attributes.A",
        ),
        (attributes(json!({"a b": 1}), json!({})), "attributes.a b"),
        (typed(json!(1), "number"), "attribute_types.A"),
        (typed(json!(1), "string"), "attributes.A"),
        (typed(json!("1"), "int"), "attributes.A"),
        (typed(json!(1.5), "int"), "attributes.A"),
        (typed(json!("x"), "float"), "attributes.A"),
        (typed(json!(1), "bool"), "attributes.A"),
        (typed(json!("x"), "keyword_list"), "attributes.A"),
        (typed(json!("yesterday"), "datetime"), "attributes.A"),
        (
            attributes(json!({"A": 1}), json!({"attribute_types": {"B": "int"}})),
            "attribute_types.B",
        ),
        (
            attributes(
                json!({"A-b": 1}),
                json!({"attribute_types": {"A-b": "int"}}),
            ),
            "attributes.A-b",
        ),
        (
            attributes(json!({"A": 1}), json!({"attribute_types": []})),
            "attribute_types",
        ),
    ] {
        let answer = client.complete(&task, json!([command.clone()])).await;
        assert_eq!(answer.status, 422, "{command}");
        answer.invalid(&[&format!("commands.0.{field}")]);
    }
    let many: serde_json::Map<String, Value> =
        (0..101).map(|n| (format!("k{n}"), json!(n))).collect();
    let answer = client
        .complete(&task, json!([attributes(Value::from(many), json!({}))]))
        .await;
    let body = answer.refused(422, "structural_limit_exceeded");
    assert_eq!(body["limit_kind"], "search_attribute_size");
    assert_eq!(server.db.contents().await, before);
    let all = json!({
        "S": "s", "K": "k", "L": ["a"], "I": 1, "F": 2, "B": false,
        "D": "2026-07-18T00:40:00Z",
    });
    let types = json!({
        "S": "string", "K": "keyword", "L": "keyword_list", "I": "int", "F": "float", "B": "bool",
        "D": "datetime",
    });
    let command = attributes(all, json!({"attribute_types": types}));
    client.complete(&task, json!([command])).await.expect(200);
    let history = client.history("wf", text(&task, "run_id")).await;
    let event = &only(&history, "SearchAttributesUpserted")["payload"];
    assert_eq!(event["attribute_types"], types);
    server.stop().await;
}
