//! Children: start, end, retries, timeouts, continue-as-new, and what closes with their parent.

use super::kit::*;
use crate::domain::command::{ClosePolicy, Command, ContinueAsNew, End};
use crate::domain::decision::{Relay, TimerKind};
use crate::domain::ids::RunId;
use crate::domain::run::{ChildClosed, ChildOutcome, CloseReason, Input, Refusal, Resume};

/// The child's run is the bench's; the parent is returned.
fn with_child(change: impl FnOnce(&mut crate::domain::command::StartChild)) -> (Bench, RunId) {
    let mut bench = Bench::after(vec![child_with(change)]);
    let run = bench.child_run(1);
    let parent = bench.visit(run);
    (bench, parent)
}

fn told_parent(bench: &Bench) -> Option<ChildOutcome> {
    match bench.relays() {
        [] => None,
        [Relay::ChildClosed { outcome, .. }] => Some((**outcome).clone()),
        other => panic!("{other:?}"),
    }
}

/// Rule: worker plane 6.3: the parent records `ChildWorkflowScheduled` and `ChildRunStarted`, the
/// child begins with `WorkflowStarted` and a ready task in the same commit.
#[test]
fn a_child_begins_with_its_call() {
    let mut bench = Bench::start_with(|request| {
        request.memo = json(r#"{"note":"kept"}"#);
        request.search_attributes = json(r#"{"Customer":"c-1"}"#);
        request.priority = 2;
    });
    bench.step(vec![child()]);
    assert_eq!(
        bench.new_types(),
        ["ChildWorkflowScheduled", "ChildRunStarted"]
    );
    let scheduled = bench.payloads("ChildWorkflowScheduled")[0].clone();
    assert_eq!(scheduled["sequence"], 1);
    assert_eq!(scheduled["parent_close_policy"], "abandon");
    assert_eq!(bench.workflow_task(), None);
    let run = bench.child_run(1);
    let parent = bench.visit(run);
    assert_eq!(bench.types(), ["WorkflowStarted"]);
    let started = &bench.payloads("WorkflowStarted")[0];
    assert_eq!(started["parent_workflow_run_id"], parent.to_string());
    assert_eq!(started["child_call_id"], scheduled["child_call_id"]);
    assert_eq!(started["memo"]["note"], "kept");
    assert_eq!(started["search_attributes"]["Customer"], "c-1");
    assert_eq!(bench.tasks().len(), 1);
    let begun = &bench.state().begun;
    assert_eq!((begun.priority, begun.run_number), (2, 1));
    assert_eq!(
        scheduled["child_workflow_instance_id"],
        begun.workflow_id.to_string()
    );
}

/// Each way a child ends is one event for the parent, and wakes it once.
#[test]
fn every_end_of_a_child_has_its_event() {
    let table = [
        (CloseReason::Completed, "ChildRunCompleted", None),
        (
            CloseReason::Failed,
            "ChildRunFailed",
            Some("child_workflow"),
        ),
        (CloseReason::TimedOut, "ChildRunFailed", Some("timeout")),
        (
            CloseReason::Cancelled,
            "ChildRunCancelled",
            Some("cancelled"),
        ),
        (
            CloseReason::Terminated,
            "ChildRunTerminated",
            Some("terminated"),
        ),
    ];
    for (reason, event, category) in table {
        let mut bench = Bench::after(vec![child()]);
        let run = bench.child_run(1);
        bench.end_child(1, reason);
        assert_eq!(bench.new_types(), [event]);
        let end = &bench.payloads(event)[0];
        assert_eq!(end["child_workflow_run_id"], run.to_string());
        assert_eq!(end["closed_reason"], reason.as_str());
        assert_eq!(end["failure_category"].as_str(), category);
        assert!(bench.state().children.is_empty());
        assert!(matches!(
            bench.state().workflow_task.clone().unwrap().resume,
            Resume::Child { step: 1, .. }
        ));
    }
}

/// Rule: worker plane 7.3 (5): a step ends once: a second word about a child, a word about another
/// run at its step, and a word to a closed parent change nothing.
#[test]
fn a_child_ends_once() {
    let mut bench = Bench::after(vec![child(), timer(60)]);
    let run = bench.child_run(1);
    let closed = |step, child| {
        Input::ChildClosed(ChildClosed {
            step,
            child,
            outcome: child_outcome(CloseReason::Completed),
        })
    };
    for nonsense in [closed(1, run_id(77)), closed(2, run), closed(3, run)] {
        assert!(matches!(bench.refused(nonsense), Refusal::NothingToDo));
    }
    let mut late = bench.clone();
    bench.ok(closed(1, run));
    assert!(matches!(
        bench.refused(closed(1, run)),
        Refusal::NothingToDo
    ));
    assert!(matches!(late.cancel(), Outcome::Committed(_)));
    assert!(matches!(late.refused(closed(1, run)), Refusal::NothingToDo));
}

/// A child tells its parent how it ended, in the commit that ends it.
#[test]
fn the_parent_is_told_of_the_end() {
    let (mut bench, parent) = with_child(|_| {});
    let first = bench.run;
    bench.step(vec![complete_workflow()]);
    match bench.relays() {
        [
            Relay::ChildClosed {
                parent: to,
                step: 1,
                child,
                outcome,
            },
        ] => {
            assert_eq!((*to, *child), (parent, first));
            assert_eq!(outcome.reason, CloseReason::Completed);
            assert_eq!(outcome.output.as_ref().unwrap().blob(), "result");
        }
        other => panic!("{other:?}"),
    }
    let (mut bench, _) = with_child(|_| {});
    bench.step(vec![fail_workflow()]);
    let outcome = told_parent(&bench).unwrap();
    assert_eq!(outcome.reason, CloseReason::Failed);
    assert_eq!(outcome.failure.unwrap().kind.as_deref(), Some("Broken"));
    for terminate in [false, true] {
        let (mut bench, _) = with_child(|_| {});
        let closed = if terminate {
            bench.terminate()
        } else {
            bench.cancel()
        };
        assert!(matches!(closed, Outcome::Committed(_)));
        let class = told_parent(&bench).unwrap().failure.unwrap().class.unwrap();
        let expected = if terminate {
            "WorkflowTerminated"
        } else {
            "WorkflowCancelled"
        };
        assert_eq!(&*class, expected);
    }
}

/// Rule: worker plane 8.8: a failed child is tried again as a new run of the same workflow, after
/// its backoff; the parent hears of the last try only.
#[test]
fn a_failed_child_is_tried_again() {
    let (mut bench, _) = with_child(|child| child.policy = Some(policy(3, &[5, 7])));
    let first = bench.run;
    let workflow_id = bench.state().begun.workflow_id.clone();
    for (attempt, backoff) in [(1, 5), (2, 7)] {
        bench.step(vec![fail_workflow()]);
        assert!(told_parent(&bench).is_none());
        let old = bench.run;
        let failed = bench.payloads("WorkflowFailed")[0].clone();
        bench.follow();
        assert_eq!(failed["retried_as_run_id"], bench.run.to_string());
        let begun = bench.state().begun.clone();
        assert_eq!(begun.workflow_id, workflow_id);
        assert_eq!(begun.retry_of, Some(old));
        assert_eq!(begun.run_number, attempt + 1);
        let parent = begun.parent.as_ref().unwrap();
        assert_eq!((parent.attempt, parent.first_run), (attempt + 1, first));
        let row = bench.row(1);
        assert_eq!(row.visible_at, bench.now.plus_seconds(backoff));
        assert_eq!(
            bench.payloads("WorkflowStarted")[0]["retry_attempt"],
            attempt + 1
        );
        bench.now = row.visible_at;
    }
    bench.step(vec![fail_workflow()]);
    assert!(bench.state().close.clone().unwrap().continued_to.is_none());
    match bench.relays() {
        [Relay::ChildClosed { child, .. }] => assert_eq!(*child, first, "its first run"),
        other => panic!("{other:?}"),
    }
}

/// Not tried again: what says so itself, a listed type, the end of the execution's time, and a
/// closing from outside.
#[test]
fn some_failures_are_final() {
    let is_tried_again = |bench: &Bench| {
        let close = bench.state().close.clone().unwrap();
        assert_eq!(close.continued_to.is_none(), told_parent(bench).is_some());
        close.continued_to.is_some()
    };
    let fails = |failure| Command::End(End::Fail(failure));
    let mut listed = policy(3, &[5]);
    listed.non_retryable_error_types = vec!["Declined".to_owned()];
    let final_itself = crate::domain::command::Failure {
        non_retryable: true,
        ..failure("Broken")
    };
    for (failure, again) in [
        (failure("Broken"), true),
        (failure("Declined"), false),
        (final_itself, false),
    ] {
        let (mut bench, _) = with_child(|child| child.policy = Some(listed.clone()));
        bench.step(vec![fails(failure)]);
        assert_eq!(is_tried_again(&bench), again);
    }
    for (execution, again) in [(6, true), (5, false)] {
        let (mut bench, _) = with_child(|child| {
            child.policy = Some(policy(3, &[5]));
            child.execution_timeout_seconds = Some(execution);
        });
        bench.step(vec![fail_workflow()]);
        assert_eq!(is_tried_again(&bench), again, "{execution} s");
    }
    let (mut bench, _) = with_child(|child| child.policy = Some(policy(3, &[5])));
    assert!(matches!(bench.terminate(), Outcome::Committed(_)));
    assert!(!is_tried_again(&bench));
}

/// A child that timed out is tried again with a fresh run deadline and the old execution deadline.
#[test]
fn a_timed_out_child_is_tried_again() {
    let (mut bench, _) = with_child(|child| {
        child.policy = Some(policy(2, &[5]));
        child.run_timeout_seconds = Some(10);
        child.execution_timeout_seconds = Some(100);
    });
    assert_eq!(
        bench.timers(),
        [
            (TimerKind::RunDeadline, 0, 10),
            (TimerKind::ExecutionDeadline, 0, 100)
        ]
    );
    bench.at(10).fire();
    assert_eq!(bench.new_types(), ["WorkflowTimedOut"]);
    bench.follow();
    assert_eq!(
        bench.timers(),
        [
            (TimerKind::RunDeadline, 0, 25),
            (TimerKind::ExecutionDeadline, 0, 100)
        ],
        "it begins after its backoff"
    );
    bench.at(25).fire();
    let outcome = told_parent(&bench).unwrap();
    assert_eq!(outcome.reason, CloseReason::TimedOut);
}

/// Rule: worker plane 6.3: a child that continues as new is the same child: its parent hears of the
/// end of the chain, by the first run.
#[test]
fn a_child_may_continue_as_new() {
    let (mut bench, parent) = with_child(|_| {});
    let first = bench.run;
    bench.step(vec![Command::End(End::ContinueAsNew(ContinueAsNew {
        arguments: Some(payload("next")),
        workflow_type: None,
        queue: None,
    }))]);
    assert!(told_parent(&bench).is_none());
    bench.follow();
    let link = bench.state().begun.parent.clone().unwrap();
    assert_eq!((link.run, link.first_run), (parent, first));
    bench.step(vec![complete_workflow()]);
    assert_eq!(told_parent(&bench).unwrap().reason, CloseReason::Completed);
}

/// Rule: worker plane 7.3 (6): a closing run closes its children as their calls say, before its
/// terminal event.
#[test]
fn children_close_with_their_parent() {
    let table: [(ClosePolicy, Option<&str>); 4] = [
        (ClosePolicy::Abandon, None),
        (ClosePolicy::RequestCancel, Some("cancel")),
        (ClosePolicy::Terminate, Some("terminate")),
        (ClosePolicy::RequestCancellation, Some("ask")),
    ];
    type Closing = fn(&mut Bench);
    let closings: [(Closing, &str); 5] = [
        (
            |b| drop(b.step(vec![complete_workflow()])),
            "WorkflowCompleted",
        ),
        (|b| drop(b.step(vec![fail_workflow()])), "WorkflowFailed"),
        (|b| drop(b.cancel()), "WorkflowCancelled"),
        (|b| drop(b.terminate()), "WorkflowTerminated"),
        (|b| drop(b.at(100).fire()), "WorkflowTimedOut"),
    ];
    for (policy, told) in table {
        for (closing, last) in closings {
            let mut bench = Bench::start_with(|request| request.run_timeout_seconds = Some(100));
            bench.step(vec![
                child_with(|child| child.close_policy = policy),
                timer(1),
            ]);
            bench.at(1).fire();
            let to = bench.state().children[&1].workflow_id.clone();
            closing(&mut bench);
            let types = bench.new_types();
            assert_eq!(*types.last().unwrap(), last);
            let applied = bench.payloads("ParentClosePolicyApplied");
            assert_eq!(
                applied.len(),
                usize::from(told.is_some()),
                "{policy:?} {last}"
            );
            let word = bench.relays().iter().map(|relay| match relay {
                Relay::Close {
                    terminate,
                    workflow_id,
                    ..
                } => {
                    assert_eq!(*workflow_id, to);
                    if *terminate { "terminate" } else { "cancel" }
                }
                Relay::RequestCancellation {
                    workflow_id,
                    context,
                    ..
                } => {
                    assert_eq!(*workflow_id, to);
                    assert!(context.cleanup_deadline_at > bench.now);
                    "ask"
                }
                Relay::ChildClosed { .. } => "closed",
            });
            assert_eq!(
                word.collect::<Vec<_>>(),
                told.into_iter().collect::<Vec<_>>()
            );
            assert!(bench.state().children.is_empty());
        }
    }
}

/// A child that has ended is nothing to close, and continue-as-new closes no child.
#[test]
fn only_open_children_close_and_not_on_continue_as_new() {
    let terminated = || child_with(|child| child.close_policy = ClosePolicy::Terminate);
    let mut bench = Bench::after(vec![terminated()]);
    bench.end_child(1, CloseReason::Completed);
    bench.step(vec![complete_workflow()]);
    assert_eq!(bench.new_types(), ["WorkflowCompleted"]);
    let mut bench = Bench::after(vec![terminated(), timer(1)]);
    bench.at(1).fire();
    bench.step(vec![continue_as_new()]);
    assert_eq!(bench.new_types(), ["WorkflowContinuedAsNew"]);
    assert_eq!(bench.relays().len(), 0);
}

/// A child in a group wakes when the group is whole, or fails at once.
#[test]
fn children_are_members_of_groups() {
    let members = || {
        vec![
            with_path(child(), vec![level(1, 2, 0)]),
            with_path(child(), vec![level(1, 2, 1)]),
        ]
    };
    let mut bench = Bench::after(members());
    bench.end_child(1, CloseReason::Completed);
    assert_eq!(bench.workflow_task(), None);
    bench.end_child(2, CloseReason::Completed);
    assert!(bench.workflow_task().is_some());
    let mut bench = Bench::after(members());
    bench.end_child(1, CloseReason::Failed);
    assert!(bench.workflow_task().is_some());
    bench.step(members());
    assert_eq!(bench.new_types(), [""; 0], "sent again in full, ignored");
    assert_eq!(bench.state().children.len(), 1);
}
