//! Updates: a task each, behind what came before, answered once, closed with their run.

use super::kit::*;
use crate::domain::run::{CloseReason, Input, Refusal, Rejection, Reply, Resume, TaskFailure};

/// An update to a run that waits is recorded at once, in a task that carries it.
#[test]
fn an_update_to_a_waiting_run_opens_a_task_for_it() {
    let mut bench = Bench::after(vec![timer(60)]);
    let id = bench.update("change");
    assert_eq!(bench.new_types(), ["UpdateAccepted"]);
    let accepted = &bench.payloads("UpdateAccepted")[0];
    assert_eq!(accepted["update_id"], id);
    assert_eq!(accepted["arguments"]["blob"], "change");
    let task = bench.state().workflow_task.clone().unwrap();
    assert!(matches!(&task.resume, Resume::Update { id: of, .. } if **of == *id));
    assert!(bench.state().open_update(&id).is_some());
}

/// Rule: worker plane 6.3: `complete_update` records `UpdateApplied`, then `UpdateCompleted`;
/// `fail_update` only the latter. Neither takes a step.
#[test]
fn an_update_is_answered_by_its_task() {
    let mut bench = Bench::after(vec![timer(60)]);
    let id = bench.update("change");
    bench.step(vec![complete_update(&id), side_effect()]);
    assert_eq!(
        bench.new_types(),
        ["UpdateApplied", "UpdateCompleted", "SideEffectRecorded"]
    );
    assert_eq!(bench.payloads("SideEffectRecorded")[0]["sequence"], 2);
    assert_eq!(
        bench.payloads("UpdateCompleted")[0]["result"]["blob"],
        "answer"
    );
    assert!(bench.workflow_task().is_some(), "the code may go on now");
    bench.step(Vec::new());
    let id = bench.update("change");
    bench.step(vec![fail_update(&id)]);
    assert_eq!(bench.new_types(), ["UpdateCompleted"]);
    let failed = &bench.payloads("UpdateCompleted")[1];
    assert_eq!(failed["exception_type"], "Invalid");
    assert_eq!(failed["failure_category"], "application");
    assert!(failed.get("result").is_none_or(serde_json::Value::is_null));
    assert_eq!(bench.workflow_task(), None);
    assert_eq!(bench.state().answered.len(), 2);
}

/// Rule: worker plane 6.8: a command may answer only the update that its task carries, and once.
#[test]
fn another_answer_is_refused() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    let held = bench.update("change");
    let refusal = bench.refused(task.complete(vec![complete_update(&held)]));
    assert!(matches!(refusal, Refusal::InvalidCommands(_)));
    bench.ok(task.complete(vec![timer(60)]));
    let task = bench.claim(bench.workflow_task().unwrap());
    for commands in [
        vec![complete_update("no such update")],
        vec![complete_update(&held), complete_update(&held)],
        vec![fail_update(&held), complete_update(&held)],
    ] {
        let refusal = bench.refused(task.complete(commands));
        assert!(matches!(refusal, Refusal::InvalidCommands(_)));
    }
    bench.ok(task.complete(vec![complete_update(&held)]));
}

/// A task that carries an update and ends without an answer to it fails the update.
#[test]
fn an_unanswered_update_fails() {
    for waits in [false, true] {
        let mut bench = Bench::after(vec![timer(60)]);
        bench.update("change");
        let task = bench.claim(2);
        bench.ok(if waits {
            task.fail(TaskFailure::WaitingForHistory)
        } else {
            task.complete(Vec::new())
        });
        assert_eq!(bench.new_types(), ["UpdateCompleted"]);
        assert!(bench.payloads("UpdateCompleted")[0]["message"].is_string());
        assert_eq!(bench.state().open_updates(), 0);
    }
}

/// A task that could not be processed keeps its update for the next hand-out.
#[test]
fn a_failed_task_keeps_its_update() {
    let mut bench = Bench::after(vec![timer(60)]);
    let id = bench.update("change");
    for failure in [
        TaskFailure::Other("no handler".into()),
        TaskFailure::Blocked("nondeterministic".into()),
    ] {
        let task = bench.claim(2);
        bench.ok(task.fail(failure));
        bench.now = bench.row(2).visible_at;
    }
    bench.claim(2);
    bench.lose(2);
    assert!(bench.state().open_update(&id).is_some());
    bench.step(vec![complete_update(&id)]);
    assert_eq!(bench.payloads("UpdateAccepted").len(), 1);
}

/// Rule: worker plane 7.6: signals and updates keep the order of their arrival: a later update waits
/// for the task that sees the signal, and a later signal for the update's task.
#[test]
fn signals_and_updates_keep_their_order() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    bench.ok(signal("one"));
    let first = bench.update("first");
    bench.ok(signal("two"));
    let second = bench.update("second");
    bench.ok(task.complete(vec![timer(60)]));
    assert_eq!(bench.new_types(), ["TimerScheduled", "SignalReceived"]);
    assert_eq!(bench.state().open_updates(), 2);
    bench.step(Vec::new());
    assert_eq!(bench.new_types(), ["UpdateAccepted"]);
    bench.step(vec![complete_update(&first)]);
    // The code acts on the applied update, and on the signal, before the next update has its turn.
    assert_eq!(
        bench.new_types(),
        ["UpdateApplied", "UpdateCompleted", "SignalReceived"]
    );
    bench.step(Vec::new());
    assert_eq!(bench.new_types(), ["UpdateAccepted"]);
    bench.step(vec![fail_update(&second)]);
    assert_eq!(bench.workflow_task(), None);
    assert!(bench.state().held.is_empty());
    let types: Vec<&str> = bench
        .types()
        .into_iter()
        .filter(|name| matches!(*name, "SignalReceived" | "UpdateAccepted"))
        .collect();
    assert_eq!(
        types,
        [
            "SignalReceived",
            "UpdateAccepted",
            "SignalReceived",
            "UpdateAccepted"
        ]
    );
}

/// Rule: architecture, updates: each task carries one update.
#[test]
fn updates_have_a_task_each() {
    let mut bench = Bench::after(vec![timer(60)]);
    let ids: Vec<String> = (0..3).map(|_| bench.update("change")).collect();
    for id in &ids {
        assert_eq!(
            bench.payloads("UpdateAccepted").last().unwrap()["update_id"],
            *id
        );
        bench.step(vec![fail_update(id)]);
    }
    assert_eq!(bench.workflow_task(), None);
}

/// An update task is not the workflow's own: what its worker saw there, the code has not acted on.
#[test]
fn an_update_task_hides_nothing_from_the_code() {
    let mut bench = Bench::after(vec![timer(60), activity("a")]);
    let id = bench.update("change");
    bench.run_activity(2);
    assert_eq!(bench.workflow_task(), Some(3));
    bench.step(vec![fail_update(&id)]);
    assert_eq!(bench.workflow_task(), Some(4), "the activity's end is news");
}

/// Rule: worker plane 7.3 (6): a run that closes fails every update without an outcome before its
/// terminal event, in the order of arrival, and says so; signals between them are recorded.
#[test]
fn a_closing_run_fails_its_updates() {
    let mut bench = Bench::after(vec![timer(60)]);
    let current = bench.update("current");
    bench.ok(signal("one"));
    let held = bench.update("held");
    assert!(matches!(bench.cancel(), Outcome::Committed(_)));
    assert_eq!(
        bench.new_types(),
        [
            "CancelRequested",
            "TimerCancelled",
            "UpdateCompleted",
            "SignalReceived",
            "UpdateAccepted",
            "UpdateCompleted",
            "WorkflowCancelled"
        ]
    );
    let ended = bench.payloads("UpdateCompleted");
    let ids: Vec<&str> = ended
        .iter()
        .map(|e| e["update_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, [current, held]);
    assert!(ended.iter().all(|e| e["terminal_reason"] == "cancelled"));
    assert_eq!(bench.state().open_updates(), 0);
}

/// A workflow that returns in the task of an update that it answered: the answer counts.
#[test]
fn an_update_may_be_answered_in_the_last_task() {
    let mut bench = Bench::after(vec![timer(60)]);
    let id = bench.update("change");
    bench.step(vec![complete_update(&id), complete_workflow()]);
    assert_eq!(
        bench.new_types(),
        ["UpdateApplied", "UpdateCompleted", "WorkflowCompleted"]
    );
}

/// Rule: worker plane 6.3, `continue_as_new`: updates that were not taken move to the successor with
/// their id and order.
#[test]
fn held_updates_move_to_the_successor() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    bench.ok(signal("one"));
    let id = bench.update("change");
    bench.ok(task.complete(vec![continue_as_new()]));
    let old = bench.run;
    bench.follow();
    assert!(bench.state().open_update(&id).is_some());
    bench.step(vec![timer(60)]);
    assert_eq!(bench.new_types(), ["TimerScheduled", "SignalReceived"]);
    bench.step(Vec::new());
    assert_eq!(bench.new_types(), ["UpdateAccepted"]);
    let accepted = &bench.payloads("UpdateAccepted")[0];
    assert_eq!(accepted["update_id"], id);
    let command = accepted["workflow_command_id"].as_str().unwrap();
    assert!(command.starts_with(&old.to_string()), "{command}");
    bench.step(vec![complete_update(&id)]);
    let last = bench.state().answered.back().unwrap().clone();
    assert_eq!(*last.update_id, *id);
}

/// A validator's refusal is recorded and is nobody's update: nothing is woken or held.
#[test]
fn a_rejected_update_changes_nothing_else() {
    let mut bench = Bench::after(vec![timer(60)]);
    let mut request = signal_request("change");
    request.update_id = Some("given".into());
    let rejection = Rejection {
        message: "too large".into(),
        validation_errors: Some(json(r#"{"amount":["too large"]}"#)),
    };
    let reply = bench.ok(Input::RejectUpdate(request, rejection));
    assert!(matches!(reply, Reply::UpdateAccepted { command: 2, id } if *id == *"given"));
    assert_eq!(bench.new_types(), ["UpdateRejected"]);
    let rejected = &bench.payloads("UpdateRejected")[0];
    assert_eq!(rejected["validation_errors"]["amount"][0], "too large");
    assert_eq!(bench.workflow_task(), None);
    assert_eq!(bench.state().open_updates(), 0);
}

/// A closed run takes no update and says how it closed.
#[test]
fn a_closed_run_takes_no_update() {
    let mut bench = Bench::after(vec![complete_workflow()]);
    match bench.refused(update("late")) {
        Refusal::NotActive(close) => assert_eq!(close.reason, CloseReason::Completed),
        other => panic!("{other:?}"),
    }
}

/// A caller's key is claimed with the update; taken, nothing is written.
#[test]
fn a_callers_key_is_claimed_once() {
    let keyed = || {
        let mut request = signal_request("change");
        request.request_id = Some("key-1".into());
        Input::Update(request)
    };
    let mut bench = Bench::after(vec![timer(60)]);
    bench.ok(keyed());
    assert_eq!(bench.lost(keyed()), Lost::Key);
    assert_eq!(bench.state().open_updates(), 1);
}
