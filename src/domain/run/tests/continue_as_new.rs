//! Continue-as-new: the successor in the same commit, and what it inherits.

use super::kit::*;
use crate::domain::decision::TimerKind;
use crate::domain::run::{CloseReason, Input, Refusal, ReportKind};

fn long_lived() -> Bench {
    Bench::start_with(|request| {
        request.memo = json(r#"{"note":"kept"}"#);
        request.search_attributes = json(r#"{"Customer":"c-1"}"#);
        request.business_key = Some("b-1".into());
        request.execution_timeout_seconds = Some(100);
        request.run_timeout_seconds = Some(40);
        request.priority = 2;
    })
}

/// The old run points to the new one and the new one back; numbers count up.
#[test]
fn the_runs_point_to_each_other() {
    let mut bench = long_lived();
    let reply = bench.step(vec![side_effect(), continue_as_new()]);
    assert_eq!(
        reported(&reply),
        (ReportKind::Completed, vec![], None, false)
    );
    assert_eq!(
        bench.new_types(),
        ["SideEffectRecorded", "WorkflowContinuedAsNew"]
    );
    let close = bench.state().close.clone().unwrap();
    assert_eq!(close.reason, CloseReason::Continued);
    let continued = &bench.payloads("WorkflowContinuedAsNew")[0];
    assert_eq!(continued["sequence"], 2);
    assert_eq!(continued["continued_to_run_number"], 2);
    assert_eq!(
        continued["continued_to_run_id"],
        close.continued_to.unwrap().to_string()
    );
    let old = bench.run;
    bench.follow();
    assert_eq!(
        bench.types(),
        ["WorkflowStarted"],
        "a continued run is not accepted again"
    );
    let started = &bench.payloads("WorkflowStarted")[0];
    assert_eq!(started["continued_from_run_id"], old.to_string());
    assert_eq!(started["run_number"], 2);
    assert!(started["workflow_command_id"].is_null());
    assert_eq!(bench.tasks().len(), 1);
    bench.step(vec![continue_as_new()]);
    bench.follow();
    assert_eq!(bench.state().begun.run_number, 3);
}

/// Memo, search attributes and the rest of the start are inherited; the execution deadline is kept,
/// the run deadline starts anew.
#[test]
fn the_successor_inherits_and_its_run_deadline_is_fresh() {
    let mut bench = long_lived();
    bench.at(30);
    bench.step(vec![continue_as_new()]);
    assert_eq!(bench.timers(), [], "the old run keeps no deadline");
    bench.follow();
    assert_eq!(
        bench.timers(),
        [
            (TimerKind::RunDeadline, 0, 70),
            (TimerKind::ExecutionDeadline, 0, 100)
        ]
    );
    let started = &bench.payloads("WorkflowStarted")[0];
    assert_eq!(started["memo"]["note"], "kept");
    assert_eq!(started["search_attributes"]["Customer"], "c-1");
    assert_eq!(started["business_key"], "b-1");
    assert_eq!(
        started["execution_deadline_at"],
        "2026-07-18T00:41:40.000000Z"
    );
    let begun = &bench.state().begun;
    assert_eq!(
        begun.input.blob(),
        "input",
        "the same input, when the command names none"
    );
    assert_eq!(&*begun.workflow_type, "orders.checkout");
    assert_eq!(bench.row(1).task.routing.priority, 2);
}

/// What is open in the old run goes, also what the same completion opened; the successor starts at
/// step 1 with nothing open.
#[test]
fn what_is_open_stays_behind() {
    let mut bench = Bench::after(vec![activity("a"), timer(60), activity("b")]);
    bench.run_activity(2);
    bench.step(vec![activity("c"), continue_as_new()]);
    assert_eq!(bench.tasks(), []);
    assert_eq!(bench.timers(), []);
    bench.follow();
    assert_eq!(bench.state().next_step, 1);
    assert!(bench.state().activities.is_empty() && bench.state().timers.is_empty());
}

/// The old run takes no signal, and says where the workflow goes on.
#[test]
fn the_old_run_points_callers_to_the_new_one() {
    let mut bench = Bench::after(vec![continue_as_new()]);
    match bench.refused(signal("late")) {
        Refusal::NotActive(close) => assert!(close.continued_to.is_some()),
        other => panic!("{other:?}"),
    }
}

/// The same decision made twice makes the same successor, so a lost race leaves no second one.
#[test]
fn the_successor_is_derived() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    let input = || -> Input { task.complete(vec![continue_as_new()]) };
    let ids: Vec<_> = (0..2)
        .map(|_| {
            match crate::domain::run::decide(bench.state(), input(), bench.now, &bench.settings) {
                Ok(crate::domain::run::Verdict::Commit(decision, _)) => decision.created[0].next.id,
                other => panic!("{other:?}"),
            }
        })
        .collect();
    assert_eq!(ids[0], ids[1]);
}
