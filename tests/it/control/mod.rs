//! The control plane: its version and envelope, and every operation on workflows, workers and queues.

mod close;
mod describe;
mod envelope;
mod export;
mod fleet;
mod history;
mod info;
mod isolation;
mod list;
mod signal;
mod start;

use serde_json::Value;

use crate::support::Answer;

/// Name of the version header.
pub const VERSION: &str = "X-Durable-Workflow-Control-Plane-Version";

/// Checks an answer of a workflow route as the command line tool does, which refuses to go on
/// otherwise: the version header, and the `control_plane` object with its own contract.
#[track_caller]
pub fn assert_tool_accepts(answer: &Answer, operation: &str) {
    assert_eq!(answer.header(VERSION), "2", "{operation}");
    let body = &answer.body;
    let object = body["control_plane"]
        .as_object()
        .unwrap_or_else(|| panic!("no object: {body:#}"));
    let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    assert!(text(&object["schema"]), "{body:#}");
    assert!(
        object["version"]
            .as_u64()
            .is_some_and(|version| version > 0),
        "{body:#}"
    );
    assert_eq!(object["operation"], operation, "{body:#}");
    let contract = &object["contract"];
    assert_eq!(
        contract["schema"],
        "durable-workflow.v2.control-plane-response.contract"
    );
    assert_eq!(contract["version"], 1);
    assert_eq!(contract["legacy_field_policy"], "reject_non_canonical");
    assert!(
        contract["legacy_fields"]
            .as_object()
            .is_some_and(|fields| fields.values().all(text))
    );
    let list = |name: &str| -> Vec<String> {
        let items = contract[name]
            .as_array()
            .unwrap_or_else(|| panic!("no {name}: {body:#}"));
        assert!(items.iter().all(text), "{body:#}");
        items
            .iter()
            .map(|item| item.as_str().unwrap().to_owned())
            .collect()
    };
    for field in list("required_fields") {
        assert!(
            object.get(&field).is_some_and(text),
            "{field} of {operation}: {body:#}"
        );
    }
    for field in list("success_fields") {
        assert!(
            answer.status.as_u16() >= 400 || object.contains_key(&field),
            "{field}: {body:#}"
        );
    }
    for legacy in ["query", "signal", "update", "wait_policy"] {
        assert!(body.get(legacy).is_none(), "{legacy}: {body:#}");
    }
    if let (Some(outer), Some(inner)) = (body.get("workflow_id"), object.get("workflow_id")) {
        assert_eq!(outer, inner);
    }
    // What the object repeats, it repeats as it is.
    for (key, value) in object {
        if let Some(outer) = body.get(key) {
            assert_eq!(outer, value, "{key}");
        }
    }
}
