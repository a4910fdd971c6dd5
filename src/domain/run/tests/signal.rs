//! Signals: held while a workflow task is open, released at its boundary, never lost or doubled.

use std::sync::Arc;

use super::kit::*;
use crate::domain::run::{CloseReason, Input, Refusal, Reply, Resume, TaskFailure};

/// With no workflow task open a signal is recorded at once, and its commit opens the task.
#[test]
fn a_signal_to_a_waiting_run_is_recorded_at_once() {
    let mut bench = Bench::after(vec![timer(60)]);
    let reply = bench.ok(signal("go"));
    assert!(matches!(reply, Reply::SignalAccepted { command: 2 }));
    assert_eq!(bench.new_types(), ["SignalReceived"]);
    assert_eq!(bench.workflow_task(), Some(2));
    let received = &bench.payloads("SignalReceived")[0];
    assert_eq!(received["signal_name"], "go");
    assert_eq!(received["arguments"]["blob"], "go");
    assert!(
        received.get("sequence").is_none(),
        "a signal belongs to no command of the workflow"
    );
}

/// Ready or leased, a workflow task makes signals wait; they come right behind its own events, in
/// the order of their arrival.
#[test]
fn held_signals_follow_the_tasks_own_events_in_order() {
    let mut bench = Bench::start();
    bench.ok(signal("one"));
    let task = bench.claim(1);
    bench.ok(signal("two"));
    bench.ok(signal("three"));
    assert_eq!(bench.types().len(), 2);
    bench.ok(task.complete(vec![activity("a"), timer(0)]));
    assert_eq!(
        bench.new_types(),
        [
            "ActivityScheduled",
            "TimerScheduled",
            "TimerFired",
            "SignalReceived",
            "SignalReceived",
            "SignalReceived"
        ]
    );
    assert_eq!(bench.signals(), ["one", "two", "three"]);
    assert_eq!(bench.workflow_task(), Some(3));
    assert!(bench.state().held.is_empty());
}

/// A signal behind one that was recorded at once waits for the task that this one opened.
#[test]
fn a_second_signal_waits_for_the_firsts_task() {
    let mut bench = Bench::after(vec![timer(60)]);
    bench.ok(signal("one"));
    bench.ok(signal("two"));
    assert_eq!(bench.signals(), ["one"]);
    bench.step(Vec::new());
    assert_eq!(bench.signals(), ["one", "two"]);
    bench.step(Vec::new());
    assert_eq!(bench.workflow_task(), None);
}

/// A failed or lost task is still open: signals go on waiting.
#[test]
fn a_failing_task_still_holds_signals() {
    let mut bench = Bench::start();
    bench.ok(signal("one"));
    let task = bench.claim(1);
    bench.ok(task.fail(TaskFailure::Other(Arc::from("no handler"))));
    bench.claim(1);
    bench.lose(1);
    bench.ok(signal("two"));
    assert_eq!(bench.signals(), [""; 0]);
    let task = bench.claim(1);
    bench.ok(task.fail(TaskFailure::WaitingForHistory));
    assert_eq!(bench.signals(), ["one", "two"]);
}

/// A run that ends by itself records what it held before its terminal event.
#[test]
fn a_closing_run_records_held_signals_before_the_terminal_event() {
    for (end, last) in [
        (complete_workflow(), "WorkflowCompleted"),
        (fail_workflow(), "WorkflowFailed"),
    ] {
        let mut bench = Bench::start();
        let task = bench.claim(1);
        bench.ok(signal("one"));
        bench.ok(signal("two"));
        bench.ok(task.complete(vec![side_effect(), end]));
        assert_eq!(
            bench.new_types(),
            [
                "SideEffectRecorded",
                "SignalReceived",
                "SignalReceived",
                last
            ]
        );
        assert_eq!(bench.tasks(), []);
    }
}

/// On continue-as-new they move to the successor, keep their ids, and are held there for its first
/// task; later ones queue behind them.
#[test]
fn held_signals_move_to_the_successor() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    bench.ok(signal("one"));
    bench.ok(signal("two"));
    bench.ok(task.complete(vec![continue_as_new()]));
    assert_eq!(bench.new_types(), ["WorkflowContinuedAsNew"]);
    let first_run = bench.run;
    bench.follow();
    bench.ok(signal("three"));
    assert_eq!(bench.types(), ["WorkflowStarted"]);
    bench.step(vec![timer(60)]);
    assert_eq!(
        bench.new_types(),
        [
            "TimerScheduled",
            "SignalReceived",
            "SignalReceived",
            "SignalReceived"
        ]
    );
    assert_eq!(bench.signals(), ["one", "two", "three"]);
    let ids: Vec<_> = bench
        .payloads("SignalReceived")
        .iter()
        .map(|signal| signal["signal_id"].as_str().unwrap().to_owned())
        .collect();
    assert!(ids[0].starts_with(&first_run.to_string()), "{ids:?}");
    assert!(ids[2].starts_with(&bench.run.to_string()), "{ids:?}");
}

/// A task that a signal woke tells its worker which one: the one that history shows last, by the
/// run that accepted it.
#[test]
fn a_resumed_task_names_the_signal() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    bench.ok(signal("one"));
    bench.ok(signal("two"));
    bench.ok(task.complete(vec![continue_as_new()]));
    let first_run = bench.run;
    bench.follow();
    bench.step(vec![timer(60)]);
    let task = bench.state().workflow_task.clone().unwrap();
    assert_eq!(
        task.resume,
        Resume::Signal {
            run: first_run,
            n: 3,
            name: "two".into()
        }
    );
}

/// A signal to a closed run is refused and says how the run closed.
#[test]
fn a_closed_run_takes_no_signal() {
    let mut bench = Bench::after(vec![complete_workflow()]);
    match bench.refused(signal("late")) {
        Refusal::NotActive(close) => assert_eq!(close.reason, CloseReason::Completed),
        other => panic!("{other:?}"),
    }
}

/// A caller's key is claimed with the signal; taken, nothing is written.
#[test]
fn a_callers_key_is_claimed_once() {
    let keyed = || {
        let mut request = signal_request("go");
        request.request_id = Some("key-1".into());
        Input::Signal(request)
    };
    let mut bench = Bench::after(vec![timer(60)]);
    bench.ok(keyed());
    assert_eq!(bench.lost(keyed()), Lost::Key);
    assert_eq!(bench.signals(), ["go"]);
    assert_eq!(bench.state().held.len(), 0);
}
