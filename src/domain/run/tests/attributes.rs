//! Search attributes and memo: merged, typed, limited, inherited.

use serde_json::{Value, json as value};

use super::kit::*;
use crate::domain::command::Command;
use crate::domain::features;
use crate::domain::limits::LimitKind;
use crate::domain::run::Refusal;

fn shown(json: &crate::domain::event::Json) -> Value {
    serde_json::from_str(json.get()).unwrap()
}

fn refusal(command: Command) -> Refusal {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    bench.refused(task.complete(vec![command]))
}

/// Rule: 1.16, section 6: values are merged by name, null deletes, and the event carries the
/// effective type of every value that it sets.
#[test]
fn search_attributes_are_merged() {
    let mut bench = Bench::start_with(|request| {
        request.search_attributes = json(r#"{"Customer":"c-1","Old":1}"#);
    });
    bench.step(vec![
        attributes(
            value!({"Old": null, "Total": 3, "Share": 0.5, "Paid": true, "Tags": ["a"], "Note": "n"}),
            &[],
        ),
        attributes(value!({"At": "2026-01-01T00:00:00Z"}), &[("At", "datetime")]),
    ]);
    let events = bench.payloads("SearchAttributesUpserted");
    assert_eq!(events[0]["sequence"], 1);
    assert_eq!(events[1]["sequence"], 2);
    assert_eq!(events[0]["attributes"]["Old"], Value::Null);
    assert_eq!(
        events[0]["attribute_types"],
        value!({"Note": "keyword", "Paid": "bool", "Share": "float", "Tags": "keyword_list", "Total": "int"})
    );
    assert_eq!(events[1]["attribute_types"], value!({"At": "datetime"}));
    let expected = value!({
        "Customer": "c-1", "Total": 3, "Share": 0.5, "Paid": true, "Tags": ["a"], "Note": "n",
        "At": "2026-01-01T00:00:00Z"
    });
    assert_eq!(events[1]["merged"], expected);
    assert_eq!(shown(&bench.state().attributes.shown), expected);
    assert_eq!(bench.workflow_task(), None, "nothing to wait for in itself");
}

/// Only declared types make the history one that older workers cannot read.
#[test]
fn declared_types_are_a_feature_of_the_history() {
    let untyped = Bench::after(vec![attributes(value!({"A": 1}), &[])]);
    assert_eq!(untyped.state().needs & features::TYPED_ATTRIBUTES, 0);
    let typed = Bench::after(vec![attributes(value!({"A": 1}), &[("A", "int")])]);
    assert_ne!(typed.state().needs & features::TYPED_ATTRIBUTES, 0);
}

/// Rule: worker plane 10.4: number and size of search attributes are limited; nothing is written.
#[test]
fn search_attributes_are_limited() {
    let many: serde_json::Map<String, Value> =
        (0..=100).map(|n| (format!("A{n}"), value!(n))).collect();
    let refused = refusal(attributes(Value::Object(many), &[]));
    assert!(matches!(
        refused,
        Refusal::Limit {
            kind: LimitKind::SearchAttributes,
            current: 101,
            ..
        }
    ));
    let refused = refusal(attributes(value!({"A": "x".repeat(50_000)}), &[]));
    assert!(matches!(
        refused,
        Refusal::Limit {
            kind: LimitKind::SearchAttributes,
            ..
        }
    ));
}

/// Rule: 1.14, section 4: memo entries are merged by name, null deletes, and the event holds both the
/// change and what comes of it.
#[test]
fn memo_entries_are_merged() {
    let mut bench = Bench::start_with(|request| request.memo = json(r#"{"note":"kept","old":1}"#));
    bench.step(vec![
        memo(&value!({"old": null, "step": 1})),
        memo(&value!({"step": 2})),
    ]);
    let events = bench.payloads("MemoUpserted");
    assert_eq!(events[0]["sequence"], 1);
    assert_eq!(events[1]["sequence"], 2);
    assert_eq!(
        shown(&bench.state().memo.shown),
        value!({"note": "kept", "step": 2})
    );
    assert_ne!(bench.state().needs & features::MEMO, 0);
}

/// A memo without entries, with a name that is none, or of undecodable bytes is refused.
#[test]
fn a_memo_must_be_a_memo() {
    for entries in [
        value!({}),
        value!({"": 1}),
        value!({"12": 1}),
        value!({"-3": 1}),
        value!({"a b": 1}),
        value!({"x".repeat(65): 1}),
    ] {
        assert!(
            matches!(refusal(memo(&entries)), Refusal::InvalidMemo(_)),
            "{entries}"
        );
    }
    let broken = Command::UpsertMemo {
        entries: payload("not a map"),
    };
    assert!(matches!(refusal(broken), Refusal::InvalidMemo(_)));
    Bench::after(vec![memo(&value!({"1a": 1, "a-1": 2, "a.b:c_d": 3}))]);
}

/// Both are handed on to a successor and to a child as they stand; a later change is the run's own.
#[test]
fn they_are_inherited() {
    let mut bench = Bench::after(vec![
        attributes(value!({"Customer": "c-2"}), &[]),
        memo(&value!({"note": "n"})),
        child(),
        attributes(value!({"Customer": "c-3"}), &[]),
        timer(1),
    ]);
    let run = bench.child_run(3);
    let parent = bench.visit(run);
    let state = bench.state();
    assert_eq!(shown(&state.attributes.shown), value!({"Customer": "c-2"}));
    assert_eq!(shown(&state.memo.shown), value!({"note": "n"}));
    assert_eq!(state.needs, 0, "its own history has no such event");
    bench.visit(parent);
    bench.at(1).fire();
    bench.step(vec![continue_as_new()]);
    bench.follow();
    let state = bench.state();
    assert_eq!(shown(&state.attributes.shown), value!({"Customer": "c-3"}));
    assert_eq!(shown(&state.memo.shown), value!({"note": "n"}));
    bench.step(vec![memo(&value!({"more": [1, 2]}))]);
    assert_eq!(
        shown(&bench.state().memo.shown),
        value!({"note": "n", "more": [1, 2]})
    );
}
