//! Export bundles, with their checksum computed again from the rule.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{TestServer, envelope, text};

/// The canonical text of a bundle: keys sorted at every level, no spaces, text in ASCII with UTF-16
/// escapes, floats in the shortest form, in fixed notation up to an exponent of 16.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
            let fields: Vec<String> = sorted
                .into_iter()
                .map(|(key, value)| {
                    format!(
                        "{}:{}",
                        canonical(&Value::from(key.as_str())),
                        canonical(value)
                    )
                })
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Value::String(_) => {
            let quoted = value.to_string();
            let mut ascii = String::new();
            for c in quoted.chars() {
                if c.is_ascii() {
                    ascii.push(c);
                } else {
                    ascii.extend(
                        c.encode_utf16(&mut [0; 2])
                            .iter()
                            .map(|unit| format!("\\u{unit:04x}")),
                    );
                }
            }
            ascii
        }
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap();
            let scientific = format!("{float:e}");
            let (mantissa, exponent) = scientific.split_once('e').unwrap();
            let whole = |digits: &str| {
                if digits.contains('.') {
                    digits.to_owned()
                } else {
                    format!("{digits}.0")
                }
            };
            match exponent.parse::<i32>().unwrap() {
                -4..17 => whole(&float.to_string()),
                exponent => format!("{}e{exponent:+}", whole(mantissa)),
            }
        }
        other => other.to_string(),
    }
}

fn assert_intact(bundle: &Value) {
    let integrity = &bundle["integrity"];
    assert_eq!(integrity["canonicalization"], "json-recursive-ksort-v1");
    assert_eq!(integrity["checksum_algorithm"], "sha256");
    let mut rest = bundle.clone();
    rest.as_object_mut().unwrap().remove("integrity");
    let digest = Sha256::digest(canonical(&rest));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(integrity["checksum"], digest);
}

/// Rule: a bundle is the whole answer, with every required key; its checksum is right whatever the run
/// holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_whole_and_intact() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let memo = json!({
        "text": "Grüße / \"🚀\" \\ \u{7f}\u{1}\n\t", "zeta": 1, "Alpha": 2, "é": 3,
        "floats": [1.0, -0.5, 0.1, 1e16, 1e17, 123456789012345680.0, 1.5e-5, 0.0001, 1e300, -2.5e-10],
        "ints": [0, -1, 9007199254740993_i64, u64::MAX], "nested": {"b": {"d": 1, "c": [{"z": 1, "y": 2}]}},
        "empty": {}, "none": null, "flag": true,
    });
    let run = client
        .start_with("wf", json!({"memo": memo, "input": ["ä"]}))
        .await;
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .complete(
            &task,
            json!([{"type": "schedule_activity", "activity_type": "act"}]),
        )
        .await
        .expect(200);
    let activity = client.poll("activity", "w", "q", 5).await;
    client
        .report(
            &activity,
            "heartbeat",
            json!({"details": {"f": 1.0, "u": "ü"}}),
        )
        .await
        .expect(200);
    let path = format!("/workflows/wf/runs/{run}/history/export");
    let answer = client.get(&path).await;
    assert_eq!(answer.header(super::VERSION), "2");
    let open = answer.expect(200);
    assert_intact(&open);
    assert!(open.get("control_plane").is_none());
    assert_eq!(open["history_complete"], false);
    client
        .report(&activity, "complete", json!({"result": {"f": 2.0}}))
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    let output = envelope(json!({"ok": 1.0}));
    client
        .complete(
            &task,
            json!([{"type": "complete_workflow", "result": output}]),
        )
        .await
        .expect(200);
    let bundle = client.get(&path).await.expect(200);
    assert_intact(&bundle);
    assert_eq!(bundle["schema"], "durable-workflow.v2.history-export");
    assert_eq!(bundle["schema_version"], 1);
    assert_eq!(bundle["history_complete"], true);
    let workflow = &bundle["workflow"];
    for (key, value) in [
        ("instance_id", json!("wf")),
        ("run_id", json!(run)),
        ("run_number", json!(1)),
        ("workflow_type", json!("flow")),
        ("status", json!("completed")),
        ("is_current_run", json!(true)),
        ("current_run_id", json!(run)),
        ("memo", memo),
        ("closed_reason", json!("completed")),
        ("last_history_sequence", json!(7)),
    ] {
        assert_eq!(workflow[key], value, "{key}");
    }
    assert_eq!(bundle["payloads"]["codec"], "avro");
    let arguments = json!({"available": true, "data": envelope(json!(["ä"]))});
    assert_eq!(bundle["payloads"]["arguments"], arguments);
    assert_eq!(
        bundle["payloads"]["output"],
        json!({"available": true, "data": output})
    );
    let events = bundle["history_events"].as_array().unwrap();
    let served = client.history("wf", &run).await;
    assert_eq!(events.len(), served.len());
    for (event, served) in events.iter().zip(&served) {
        for key in ["id", "sequence", "payload", "recorded_at"] {
            assert_eq!(event[key], served[key], "{key}");
        }
        assert_eq!(event["type"], served["event_type"]);
    }
    server.stop().await;
}

/// Rule: the identity of a bundle is its run and last event: the same while nothing is added.
#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_identified_by_run_and_last_event() {
    let server = TestServer::start().await;
    let client = &server.client;
    let run = client.start("wf", "flow", "q").await;
    let path = format!("/workflows/wf/runs/{run}/history/export");
    let first = client.get(&path).await.expect(200);
    let again = client.get(&path).await.expect(200);
    assert_eq!(first["dedupe_key"], again["dedupe_key"]);
    client
        .post("/workflows/wf/cancel", json!({}))
        .await
        .expect(200);
    let later = client.get(&path).await.expect(200);
    assert_ne!(text(&first, "dedupe_key"), text(&later, "dedupe_key"));
    assert_intact(&later);
    server.stop().await;
}
