//! Cooperative cancellation: the request, its delivery, what it interrupts, the deadline of the
//! cleanup, and the word that a stopped activity has stopped.

use super::kit::*;
use crate::domain::command::{CancellationPolicy, ClosePolicy, Command, End, Failure};
use crate::domain::decision::{Relay, TimerKind};
use crate::domain::event::{CancellationContext, Delivery};
use crate::domain::features;
use crate::domain::run::{
    ActivityOutcome, CancellationRequest, CloseReason, Input, ObservedLease, OverdueKind, Refusal,
    Reply,
};

/// A run that waits at call 1, was asked to cancel, and whose cleanup may take 100 s.
fn asked(commands: Vec<Command>) -> Bench {
    let mut bench = Bench::after(commands);
    assert!(matches!(
        bench.request_cancellation(100),
        Outcome::Committed(Reply::CancellationRequested { duplicate: false })
    ));
    bench
}

fn cleaned_up() -> Command {
    Command::End(End::Fail(Failure {
        message: "cancelled".to_owned(),
        class: Some("durable.WorkflowCancelled".to_owned()),
        ..Failure::default()
    }))
}

fn context(bench: &Bench) -> CancellationContext {
    bench.state().cancellation.as_ref().unwrap().context.clone()
}

/// Rule: 1.20, 10.1: a request is one event, wakes the workflow, and sets the deadline.
#[test]
fn a_request_is_recorded_and_wakes() {
    let bench = asked(vec![timer(600)]);
    assert_eq!(bench.new_types(), ["CooperativeCancellationRequested"]);
    assert!(bench.workflow_task().is_some());
    assert_eq!(
        bench.timers(),
        [
            (TimerKind::User, 1, 600),
            (TimerKind::CleanupDeadline, 0, 100)
        ]
    );
    let requested = &bench.payloads("CooperativeCancellationRequested")[0];
    let context = &requested["cancellation"];
    assert_eq!(requested["workflow_command_id"], context["request_id"]);
    assert_eq!(
        context["schema"],
        "durable-workflow.cancellation-context/v1"
    );
    assert_eq!(context["root_request_id"], context["request_id"]);
    assert_eq!(context["lineage"].as_array().unwrap().len(), 1);
    assert_eq!(context["reason"], "no longer wanted");
    assert_ne!(bench.state().needs & features::CANCELLATION, 0);
}

/// Rule: 1.20, 10.1: a second request answers as a duplicate, also after the delivery; the deadline
/// stays.
#[test]
fn a_second_request_is_a_duplicate() {
    let mut bench = asked(vec![timer(600)]);
    for delivered in [false, true] {
        if delivered {
            bench.deliver(call("timer", 1));
        }
        let before = context(&bench);
        assert!(matches!(
            bench.request_cancellation(500),
            Outcome::Answered(Reply::CancellationRequested { duplicate: true })
        ));
        assert_eq!(format!("{:?}", context(&bench)), format!("{before:?}"));
    }
}

/// Rule: 1.20, 10.1: while a worker that cannot cooperate holds the task, the request is refused;
/// one that can is told by its heartbeat. Without a look at the lease nothing is decided.
#[test]
fn a_holder_that_cannot_cooperate_is_in_the_way() {
    let mut bench = Bench::start();
    bench.claim(1);
    let with = |lease| {
        Input::RequestCancellation(CancellationRequest {
            reason: None,
            cleanup_timeout_seconds: 100,
            parent: None,
            lease,
        })
    };
    assert!(matches!(
        bench.refused(with(ObservedLease::Unknown)),
        Refusal::LeaseNeeded
    ));
    assert_eq!(bench.lost(with(ObservedLease::Free)), Lost::Fence);
    let held = |live, knows| ObservedLease::Held {
        owner: "w1".into(),
        attempt: 1,
        live,
        knows,
    };
    assert!(matches!(
        bench.refused(with(held(true, features::MEMO))),
        Refusal::ClaimCannotCooperate { no: 1, attempt: 1 }
    ));
    bench.clone().ok(with(held(true, features::CANCELLATION)));
    // A dead lease is in nobody's way, and only a worker that knows takes the task next.
    bench.ok(with(held(false, 0)));
    assert_ne!(bench.row(1).task.routing.needs & features::CANCELLATION, 0);
}

/// A closed run takes no request.
#[test]
fn a_closed_run_takes_no_request() {
    let mut bench = Bench::after(vec![complete_workflow()]);
    assert!(matches!(
        bench.request_cancellation(100),
        Outcome::Refused(Refusal::NotActive(_))
    ));
}

/// Rule: 1.20, 10.1: delivery closes what is open of the call, in the task's own lease, which goes
/// on; the call keeps its number and the cleanup goes on behind it.
#[test]
fn a_delivery_closes_the_interrupted_call() {
    let table: Vec<(&str, Command, &[&str])> = vec![
        (
            "activity",
            cancellable_activity("a", CancellationPolicy::TryCancel),
            &["ActivityCancelled"],
        ),
        ("activity", activity("a"), &["ActivityCancelled"]),
        (
            "activity",
            cancellable_activity("a", CancellationPolicy::Abandon),
            &[],
        ),
        ("timer", timer(600), &["TimerCancelled"]),
        ("condition", wait_for(condition("ready")), &[]),
        (
            "condition",
            wait_for(limited_condition("ready", "o-1", 600)),
            &["TimerCancelled"],
        ),
        ("signal", signal_wait("go", Some(600)), &["TimerCancelled"]),
        (
            "child",
            child_with(|child| child.cancellation = Some(CancellationPolicy::TryCancel)),
            &["ChildRunCancelled"],
        ),
        ("child", child(), &[]),
    ];
    for (kind, command, closed) in table {
        let mut bench = asked(vec![command]);
        let (task, reply) = bench.deliver(call(kind, 1));
        assert!(matches!(reply, Reply::CancellationDelivered));
        let types = bench.new_types();
        assert_eq!(types[..types.len() - 1], *closed, "{kind}");
        assert_eq!(types[types.len() - 1], "CooperativeCancellationDelivered");
        let delivered = &bench.payloads("CooperativeCancellationDelivered")[0];
        assert_eq!(delivered["sequence"], 1);
        assert_eq!(delivered["call_kind"], kind);
        assert_eq!(
            delivered["cancellation"],
            bench.payloads("CooperativeCancellationRequested")[0]["cancellation"]
        );
        let timers: Vec<TimerKind> = bench.timers().into_iter().map(|(kind, ..)| kind).collect();
        assert_eq!(timers, [TimerKind::CleanupDeadline], "{kind}");
        let state = bench.state();
        assert!(state.conditions.is_empty() && state.signal_waits.is_empty());
        bench.ok(task.complete(vec![side_effect()]));
        assert_eq!(bench.payloads("SideEffectRecorded")[0]["sequence"], 2);
    }
}

/// A call that was never opened keeps its number as well.
#[test]
fn a_call_that_was_not_opened_keeps_its_number() {
    let mut bench = Bench::start();
    bench.request_cancellation(100);
    let (task, _) = bench.deliver(parallel_call(1, 3));
    assert_eq!(bench.new_types(), ["CooperativeCancellationDelivered"]);
    bench.ok(task.complete(vec![side_effect()]));
    assert_eq!(bench.payloads("SideEffectRecorded")[0]["sequence"], 4);
}

/// Only what belongs to the call is closed.
#[test]
fn a_delivery_leaves_other_steps_alone() {
    let mut bench = asked(vec![timer(600), activity("a"), timer(700)]);
    bench.deliver(call("activity", 2));
    assert_eq!(
        bench.new_types(),
        ["ActivityCancelled", "CooperativeCancellationDelivered"]
    );
    assert_eq!(bench.state().timers.len(), 2);
}

/// Rule: 1.20, 10.1: at most one delivery; the same again is answered, another one is refused.
#[test]
fn a_delivery_happens_once() {
    let mut bench = asked(vec![timer(600)]);
    let task = bench.claim(2);
    let id = bench.request_id();
    assert!(matches!(
        bench.refused(task.deliver("another", call("timer", 1))),
        Refusal::NoSuchCancellation
    ));
    let stranger = Held {
        owner: "w9".into(),
        ..task.clone()
    };
    assert_eq!(
        bench.lost(stranger.deliver(&id, call("timer", 1))),
        Lost::Fence
    );
    bench.ok(task.deliver(&id, call("timer", 1)));
    bench.answered(task.deliver(&id, call("timer", 1)));
    assert!(matches!(
        bench.refused(task.deliver(&id, call("timer", 2))),
        Refusal::OtherDelivery(_)
    ));
    bench.ok(task.complete(Vec::new()));
    assert!(matches!(
        bench.refused(task.deliver(&id, call("timer", 1))),
        Refusal::TaskNotOpen
    ));
}

/// Rule: 1.20, 10.1: an awaited activity is asked to stop and the task is given back; the end of the
/// activity, whichever it is, wakes the workflow, and then the delivery goes through.
#[test]
fn an_awaited_activity_holds_the_delivery_up() {
    type Ending = fn(&mut Bench, &Held);
    let endings: [(Ending, &str); 5] = [
        (
            |b, held| drop(b.ok(held.outcome(returned(), None))),
            "ActivityCompleted",
        ),
        (
            |b, held| {
                let failed = ActivityOutcome::Failed(failure("Cancelled"));
                b.ok(held.outcome(failed, None));
            },
            "ActivityCancelled",
        ),
        (
            |b, held| {
                b.at(20);
                b.ok(held.overdue(OverdueKind::StartToClose, None));
            },
            "ActivityCancelled",
        ),
        (
            |b, held| {
                b.now = b.row(2).lease.clone().unwrap().expires_at;
                b.ok(Input::CancelledHolderLost {
                    no: held.no,
                    attempt: held.attempt,
                    owner: held.owner.clone(),
                });
            },
            "ActivityCancelled",
        ),
        (|b, _| drop(b.at(50).fire()), "ActivityTimedOut"),
    ];
    for (end, event) in endings {
        let mut limits = policy(5, &[1]);
        limits.start_to_close_timeout = Some(20);
        limits.schedule_to_close_timeout = Some(50);
        let waited = CancellationPolicy::WaitCancellationCompleted;
        let mut bench = Bench::after(vec![limited_activity("a", waited, Some(limits))]);
        let held = bench.claim(2);
        bench.ok(held.started());
        bench.request_cancellation(400);
        let (task, reply) = bench.deliver(call("activity", 1));
        assert!(matches!(
            reply,
            Reply::CancellationWaits("cancellation_waiting_for_activity")
        ));
        assert_eq!(bench.new_types(), [""; 0]);
        assert!(bench.row(2).cancel, "its holder is asked to stop");
        assert_eq!(bench.workflow_task(), None, "the task is given back");
        assert!(matches!(
            bench.refused(task.complete(Vec::new())),
            Refusal::TaskNotOpen
        ));
        end(&mut bench, &held);
        assert_eq!(*bench.new_types().last().unwrap(), event);
        bench.deliver(call("activity", 1));
        assert_eq!(bench.new_types(), ["CooperativeCancellationDelivered"]);
        assert_eq!(bench.payloads("ActivityRetryScheduled").len(), 0);
    }
}

/// An activity that nobody runs is closed at once: it never was handed out, or waits for a retry.
#[test]
fn an_activity_that_nobody_runs_is_not_awaited() {
    let waited = CancellationPolicy::WaitCancellationCompleted;
    for tried in [false, true] {
        let mut bench = Bench::after(vec![limited_activity("a", waited, Some(policy(5, &[60])))]);
        if tried {
            bench.fail_activity(2, failure("Busy"));
        }
        bench.request_cancellation(100);
        let (_, reply) = bench.deliver(call("activity", 1));
        assert!(matches!(reply, Reply::CancellationDelivered), "{reply:?}");
        assert_eq!(
            bench.new_types(),
            ["ActivityCancelled", "CooperativeCancellationDelivered"]
        );
    }
}

/// An awaited child is asked once, under a request of its own below the parent's; its end wakes.
#[test]
fn an_awaited_child_holds_the_delivery_up() {
    let waited = CancellationPolicy::WaitCancellationCompleted;
    let mut bench = asked(vec![child_with(|child| child.cancellation = Some(waited))]);
    let (_, reply) = bench.deliver(call("child", 1));
    assert!(matches!(
        reply,
        Reply::CancellationWaits("cancellation_waiting_for_child")
    ));
    bench.ok(signal("meanwhile"));
    bench.deliver(call("child", 1));
    let [Relay::RequestCancellation { context: sent, .. }] = bench.relays() else {
        panic!("asked once: {:?}", bench.relays());
    };
    let (sent, own) = ((**sent).clone(), context(&bench));
    assert_eq!(sent.request_id, own.request_id);
    let run = bench.child_run(1);
    let parent = bench.visit(run);
    bench.request_from_parent(sent);
    let below = context(&bench);
    assert_eq!(below.parent_request_id, Some(own.request_id.clone()));
    assert_eq!(below.root_request_id, own.request_id);
    assert_ne!(below.request_id, own.request_id);
    assert_eq!(below.cleanup_deadline_at, own.cleanup_deadline_at);
    let runs: Vec<_> = below.lineage.iter().map(|l| l.workflow_run_id).collect();
    assert_eq!(runs, [parent, run]);
    bench.visit(parent);
    bench.end_child(1, CloseReason::Cancelled);
    bench.deliver(call("child", 1));
    assert_eq!(bench.new_types(), ["CooperativeCancellationDelivered"]);
}

/// What is awaited may be one of a group, whose other members are still open: its end brings the
/// delivery on all the same.
#[test]
fn an_awaited_member_of_a_group_brings_the_delivery_on() {
    let waited = CancellationPolicy::WaitCancellationCompleted;
    let leaves = || {
        [
            cancellable_activity("a", waited),
            child_with(|child| child.cancellation = Some(waited)),
        ]
    };
    for place in 0..2 {
        let member = leaves()[place].clone();
        let mut bench = Bench::after(vec![
            with_path(member, vec![level(1, 2, 0)]),
            with_path(timer(600), vec![level(1, 2, 1)]),
        ]);
        let held = (place == 0).then(|| {
            let held = bench.claim(2);
            bench.ok(held.started());
            held
        });
        bench.request_cancellation(100);
        let (_, reply) = bench.deliver(parallel_call(1, 2));
        assert!(matches!(reply, Reply::CancellationWaits(_)));
        match held {
            Some(held) => drop(bench.ok(held.outcome(returned(), None))),
            None => drop(bench.end_child(1, CloseReason::Completed)),
        }
        assert!(bench.workflow_task().is_some(), "it can be delivered now");
        bench.deliver(parallel_call(1, 2));
        assert_eq!(
            bench.new_types(),
            ["TimerCancelled", "CooperativeCancellationDelivered"]
        );
    }
}

/// Inputs that came while the task was leased are not lost when it is given back.
#[test]
fn held_inputs_survive_a_task_that_is_given_back() {
    let waited = CancellationPolicy::WaitCancellationCompleted;
    let mut bench = asked(vec![child_with(|child| child.cancellation = Some(waited))]);
    bench.ok(signal("one"));
    let id = bench.update("change");
    bench.deliver(call("child", 1));
    assert_eq!(bench.signals(), ["one"]);
    bench.deliver(call("child", 1));
    assert_eq!(bench.new_types(), ["UpdateAccepted"]);
    bench.step(vec![complete_update(&id)]);
    assert!(bench.state().held.is_empty());
}

/// Nor is a message of a stream that the workflow waits for.
#[test]
fn a_message_survives_a_task_that_is_given_back() {
    let waited = CancellationPolicy::WaitCancellationCompleted;
    let mut bench = Bench::start();
    bench.step_with(
        vec![child_with(|child| child.cancellation = Some(waited))],
        streams(&[], &[("orders", 0)]),
    );
    bench.request_cancellation(100);
    bench.ok(message("orders", "one"));
    bench.deliver(call("child", 1));
    assert_eq!(bench.new_types(), ["SignalReceived"]);
    assert!(bench.workflow_task().is_some());
}

/// Nor is the time limit of a wait whose end the task was to decide.
#[test]
fn an_overdue_wait_ends_with_a_task_that_is_given_back() {
    let waited = CancellationPolicy::WaitCancellationCompleted;
    let mut bench = asked(vec![
        child_with(|child| child.cancellation = Some(waited)),
        wait_for(limited_condition("ready", "o-1", 20)),
    ]);
    bench.step(Vec::new());
    bench.ok(signal("go"));
    bench.at(20).fire();
    assert_eq!(bench.new_types(), [""; 0], "its task decides");
    bench.deliver(call("child", 1));
    assert_eq!(bench.new_types(), ["TimerFired", "ConditionWaitTimedOut"]);
}

/// A task that carries an update and is given back answers it: no update is left without an outcome.
#[test]
fn a_given_back_update_task_leaves_no_update_open() {
    let waited = CancellationPolicy::WaitCancellationCompleted;
    let mut bench = Bench::after(vec![child_with(|child| child.cancellation = Some(waited))]);
    bench.update("change");
    bench.request_cancellation(100);
    let (_, reply) = bench.deliver(call("child", 1));
    assert!(matches!(reply, Reply::CancellationWaits(_)));
    assert_eq!(bench.payloads("UpdateCompleted").len(), 1);
    assert_eq!(bench.state().open_updates(), 0);
}

/// Rule: 1.20, 10.1: a cleanup ends with the workflow's failure of the cancelled kind; the run then
/// closes as cancelled under the request. Before a delivery, that is a failure like any other.
#[test]
fn a_cleanup_ends_as_cancelled() {
    let mut bench = asked(vec![timer(600)]);
    let (task, _) = bench.deliver(call("timer", 1));
    bench.ok(task.complete(vec![activity("cleanup")]));
    bench.run_activity(3);
    bench.step(vec![cleaned_up()]);
    assert_eq!(bench.new_types(), ["WorkflowCancelled"]);
    assert_eq!(
        bench.payloads("WorkflowCancelled")[0]["workflow_command_id"],
        bench.request_id()
    );
    assert_eq!(bench.timers(), []);
    assert_eq!(
        bench.state().close.as_ref().unwrap().reason,
        CloseReason::Cancelled
    );
    let mut bench = asked(vec![timer(600)]);
    bench.step(vec![cleaned_up()]);
    assert_eq!(bench.new_types(), ["WorkflowFailed"]);
}

/// Rule: 1.20, 10.1: a cleanup that outlives its deadline is closed; the deadline needs a look at
/// the lease, and a report of the holder that is cut off is told so.
#[test]
fn a_cleanup_has_a_deadline() {
    let mut bench = asked(vec![
        timer(600),
        child_with(|child| {
            child.close_policy = ClosePolicy::Terminate;
        }),
    ]);
    bench.at(90);
    let (task, _) = bench.deliver(call("timer", 1));
    bench.at(99);
    assert!(matches!(
        bench.fire(),
        Outcome::Refused(Refusal::NothingToDo)
    ));
    bench.at(100).fire();
    assert_eq!(
        bench.new_types(),
        ["ParentClosePolicyApplied", "WorkflowCancelled"]
    );
    assert_eq!(bench.tasks(), []);
    assert_eq!(bench.timers(), []);
    assert!(matches!(
        bench.answered(task.complete(vec![side_effect()])),
        Reply::ClosedMeanwhile(_)
    ));
}

/// A cancellation that was not delivered moves to the successor, with its deadline; one that was
/// delivered has been heard.
#[test]
fn an_undelivered_cancellation_moves_to_the_successor() {
    for delivered in [false, true] {
        let mut bench = asked(vec![timer(600)]);
        let id = bench.request_id();
        if delivered {
            let (task, _) = bench.deliver(call("timer", 1));
            bench.ok(task.complete(vec![continue_as_new()]));
        } else {
            bench.step(vec![continue_as_new()]);
        }
        bench.at(10).follow();
        if delivered {
            assert!(bench.state().cancellation.is_none());
            continue;
        }
        assert_eq!(
            bench.types(),
            ["WorkflowStarted", "CooperativeCancellationRequested"]
        );
        assert_eq!(bench.request_id(), id);
        assert_eq!(context(&bench).lineage[0].workflow_run_id, bench.run);
        assert_eq!(bench.timers(), [(TimerKind::CleanupDeadline, 0, 100)]);
        assert_ne!(bench.row(1).task.routing.needs & features::CANCELLATION, 0);
        bench.deliver(call("timer", 1));
    }
}

/// A child that was told to cancel is not tried again, whatever its cleanup ends in.
#[test]
fn a_child_that_heard_of_its_cancellation_is_not_tried_again() {
    let mut parent = Bench::after(vec![child_with(|child| {
        child.policy = Some(policy(5, &[1]));
        child.run_timeout_seconds = Some(50);
    })]);
    let run = parent.child_run(1);
    parent.visit(run);
    for times_out in [false, true] {
        let mut bench = parent.clone();
        bench.request_cancellation(100);
        let (task, _) = bench.deliver(call("timer", 1));
        if times_out {
            bench.at(50).fire();
        } else {
            bench.ok(task.complete(vec![fail_workflow()]));
        }
        let close = bench.state().close.clone().unwrap();
        assert!(close.continued_to.is_none(), "{:?}", bench.new_types());
        assert!(matches!(bench.relays(), [Relay::ChildClosed { .. }]));
    }
}

/// Rule: 1.20, 10.3: a worker's word that a cancelled activity has stopped is kept once.
#[test]
fn a_stopped_activity_is_acknowledged_once() {
    let mut bench = Bench::after(vec![activity("a")]);
    let held = bench.claim(2);
    bench.ok(held.started());
    let stopped = Input::CallbackStopped { no: 2, attempt: 1 };
    assert!(matches!(
        bench.refused(stopped.clone()),
        Refusal::NothingToDo
    ));
    bench.request_cancellation(100);
    bench.deliver(call("activity", 1));
    bench.at(5);
    let first = at(5);
    match bench.ok(stopped.clone()) {
        Reply::StopAcknowledged { duplicate, at } => assert_eq!((duplicate, at), (false, first)),
        other => panic!("{other:?}"),
    }
    bench.at(9);
    match bench.answered(stopped) {
        Reply::StopAcknowledged { duplicate, at } => assert_eq!((duplicate, at), (true, first)),
        other => panic!("{other:?}"),
    }
}

/// The range of a delivery is the operation's when one is named.
#[test]
fn a_handle_names_an_earlier_operation() {
    let members = select(1, vec![vec![activity("a")], vec![timer(600)]]);
    let mut bench = Bench::after(members);
    bench.run_activity(2);
    bench.step(Vec::new());
    bench.request_cancellation(100);
    let (task, _) = bench.deliver(Delivery {
        operation_sequence: Some(2),
        ..call("selection_handle", 3)
    });
    assert_eq!(
        bench.new_types(),
        ["TimerCancelled", "CooperativeCancellationDelivered"]
    );
    assert_eq!(bench.payloads("SelectionResolved").len(), 1);
    bench.ok(task.complete(vec![side_effect()]));
    assert_eq!(bench.payloads("SideEffectRecorded")[0]["sequence"], 4);
    bench.ok(signal("go"));
    bench.step(Vec::new());
    assert!(bench.state().groups.is_empty());
}

/// A delivery into a selection that nobody has won decides nothing.
#[test]
fn a_delivery_decides_no_selection() {
    let mut bench = asked(select(1, vec![vec![activity("a")], vec![timer(600)]]));
    bench.deliver(parallel_call(1, 2));
    assert_eq!(
        bench.new_types(),
        [
            "ActivityCancelled",
            "TimerCancelled",
            "CooperativeCancellationDelivered"
        ]
    );
    assert!(bench.state().groups.is_empty());
}
