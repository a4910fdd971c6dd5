//! What a worker must know to replay a run: the bits of its history, on every task that is opened.

use serde_json::json as value;

use super::kit::*;
use crate::domain::command::{Command, LocalEnd};
use crate::domain::features;

/// The bits on the run's next workflow task.
fn after(commands: Vec<Command>) -> i64 {
    let mut bench = Bench::after(commands);
    let first = bench.stored().state.needs;
    if bench.workflow_task().is_none() {
        bench.ok(signal("go"));
    }
    let no = bench.workflow_task().unwrap();
    let on_task = bench.row(no).task.routing.needs;
    assert_eq!(on_task, first, "the task says what the history needs");
    assert_eq!(bench.stored().folded().needs, first, "and so does a fold");
    on_task
}

/// Rule: 1.14 to 1.20, 1.3: each feature of a history has its bit, and what every worker knows has
/// none.
#[test]
fn each_feature_has_its_bit() {
    let local = || {
        let end = LocalEnd::Completed(None);
        local_activity(vec![local_attempt("try-1")], end)
    };
    let table: Vec<(Vec<Command>, i64)> = vec![
        (vec![activity("a"), timer(60), child()], 0),
        (vec![side_effect(), version_marker(1, 0, 2), local()], 0),
        (
            vec![wait_for(condition("ready")), signal_wait("go", Some(60))],
            0,
        ),
        (group(1, vec![activity("a"), timer(60)]), 0),
        (vec![memo(&value!({"a": 1}))], features::MEMO),
        (vec![attributes(value!({"A": 1}), &[])], 0),
        (
            vec![attributes(value!({"A": 1}), &[("A", "int")])],
            features::TYPED_ATTRIBUTES,
        ),
        (
            vec![wait_for(limited_condition("ready", "o-1", 60))],
            features::OCCURRENCE,
        ),
        (
            select(1, vec![vec![activity("a")], vec![timer(60)]]),
            features::SELECTION,
        ),
        (
            vec![
                memo(&value!({"a": 1})),
                wait_for(limited_condition("ready", "o-1", 60)),
            ],
            features::MEMO | features::OCCURRENCE,
        ),
    ];
    for (commands, expected) in table {
        let name = format!("{commands:?}");
        assert_eq!(after(commands), expected, "{name}");
    }
}

/// A request for a cancellation raises the bar of the task that is open already.
#[test]
fn a_cancellation_raises_the_bar_of_the_open_task() {
    let mut bench = Bench::start();
    assert_eq!(bench.row(1).task.routing.needs, 0);
    bench.request_cancellation(100);
    assert_eq!(bench.row(1).task.routing.needs, features::CANCELLATION);
}

/// A successor's history begins anew, and so does what it needs.
#[test]
fn a_successor_needs_what_its_own_history_holds() {
    let mut bench = Bench::after(vec![memo(&value!({"a": 1})), timer(1)]);
    bench.at(1).fire();
    bench.step(vec![continue_as_new()]);
    bench.follow();
    assert_eq!(bench.state().needs, 0);
    assert_eq!(bench.row(1).task.routing.needs, 0);
}
