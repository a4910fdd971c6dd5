//! The transition tables of the workflow language: what each input does in each state of the run, of
//! an activity, a child, an update, a wait, and a cancellation.

use super::kit::*;
use crate::domain::command::{CancellationPolicy, Command};
use crate::domain::decision::{TimerKey, TimerKind};
use crate::domain::run::{
    CancellationRequest, ChildClosed, CloseReason, Input, OverdueKind, Refusal, Rejection, Reply,
    TaskFailure,
};

/// One letter for each outcome: W written, A answered without a write, and for refusals a letter of
/// their reason.
fn letter(outcome: &Outcome) -> char {
    match outcome {
        Outcome::Committed(Reply::TimedOutInstead) => 'I',
        Outcome::Committed(Reply::CancellationWaits(_)) => 'P',
        Outcome::Committed(_) => 'W',
        Outcome::Answered(Reply::ClosedMeanwhile(_)) => 'M',
        Outcome::Answered(Reply::TooLate(_)) => 'E',
        Outcome::Answered(_) => 'A',
        Outcome::Refused(Refusal::NotActive(_)) => 'c',
        Outcome::Refused(Refusal::RunClosed(_)) => 'r',
        Outcome::Refused(Refusal::NotClosed) => 'o',
        Outcome::Refused(Refusal::NothingToDo) => '-',
        Outcome::Refused(Refusal::UnknownTask) => 'u',
        Outcome::Refused(Refusal::TaskNotOpen) => 't',
        Outcome::Refused(Refusal::StaleAttempt) => 's',
        Outcome::Refused(Refusal::AlreadyReported(_)) => 'd',
        Outcome::Refused(Refusal::InvalidCommands(_)) => 'i',
        Outcome::Refused(Refusal::NoSuchCancellation) => 'n',
        Outcome::Refused(Refusal::OtherDelivery(_)) => 'x',
        Outcome::Lost(Lost::Fence) => 'f',
        other => panic!("no letter for {other:?}"),
    }
}

fn row(bench: &Bench, inputs: impl IntoIterator<Item = Input>) -> String {
    inputs
        .into_iter()
        .map(|input| letter(&bench.clone().put(input)))
        .collect()
}

fn made(mut bench: Bench, then: impl FnOnce(&mut Bench)) -> Bench {
    then(&mut bench);
    bench
}

/// A run that waits for a timer, which is due in 600 s.
fn waiting() -> Bench {
    Bench::after(vec![timer(600)])
}

fn closed(end: Command) -> Bench {
    Bench::after(vec![end])
}

/// Signal, update, rejected update, message, message again; request of a cancellation; cancel,
/// terminate, archive, repair; an unknown child's end, the due timers.
fn run_inputs(bench: &Bench) -> [Input; 12] {
    let lease = bench.observe();
    let rejection = Rejection {
        message: "no".into(),
        validation_errors: None,
    };
    let request = || close_request(lease.clone());
    [
        signal("go"),
        update("change"),
        Input::RejectUpdate(signal_request("change"), rejection),
        message("orders", "one"),
        Input::MessageRepeated {
            stream: "orders".into(),
            id: "one".into(),
        },
        Input::RequestCancellation(CancellationRequest {
            reason: None,
            cleanup_timeout_seconds: 100,
            parent: None,
            lease: lease.clone(),
        }),
        Input::Cancel(request()),
        Input::Terminate(request()),
        Input::Archive(request()),
        Input::Repair(request()),
        Input::ChildClosed(ChildClosed {
            step: 7,
            child: run_id(7),
            outcome: child_outcome(CloseReason::Completed),
        }),
        Input::TimersDue {
            keys: bench.stored().timers.keys().copied().collect(),
            lease,
        },
    ]
}

/// Every state of a run with every input from outside.
#[test]
fn every_input_to_a_run() {
    let blocked = |bench: &mut Bench| {
        let task = bench.claim(1);
        bench.ok(task.fail(TaskFailure::Blocked("nondeterministic".into())));
    };
    let cases: Vec<(&str, Bench, &str)> = vec![
        ("task ready", Bench::start(), "WWWW-WWWoA--"),
        (
            "task leased",
            made(Bench::start(), |b| drop(b.claim(1))),
            "WWWW-WWWoA--",
        ),
        (
            "task blocked",
            made(Bench::start(), blocked),
            "WWWW-WWWoW--",
        ),
        (
            "task given up",
            made(Bench::start(), |b| {
                let task = b.claim(1);
                b.now = b.row(1).lease.clone().unwrap().expires_at;
                b.ok(task.give_up());
            }),
            "WWWW-WWWoW--",
        ),
        ("waiting", waiting(), "WWWW-WWWoA--"),
        (
            "waiting, timer due",
            made(waiting(), |b| b.now = at(600)),
            "WWWW-WWWoA-W",
        ),
        (
            "in an update",
            made(waiting(), |b| drop(b.update("change"))),
            "WWWW-WWWoA--",
        ),
        (
            "a stream",
            made(waiting(), |b| drop(b.ok(message("orders", "zero")))),
            "WWWWWWWWoA--",
        ),
        (
            "cancellation asked",
            made(waiting(), |b| drop(b.request_cancellation(100))),
            "WWWW-AWWoA--",
        ),
        (
            "cancellation delivered",
            made(waiting(), |b| {
                b.request_cancellation(100);
                b.deliver(call("timer", 1));
            }),
            "WWWW-AWWoA--",
        ),
        (
            "cleanup overdue",
            made(waiting(), |b| {
                b.request_cancellation(100);
                b.at(100);
            }),
            "WWWW-AWWoA-W",
        ),
        ("completed", closed(complete_workflow()), "cccc-cccWc--"),
        ("failed", closed(fail_workflow()), "cccc-cccWc--"),
        ("continued", closed(continue_as_new()), "cccc-cccWc--"),
        (
            "cancelled",
            made(waiting(), |b| drop(b.cancel())),
            "cccc-cccWc--",
        ),
        (
            "terminated",
            made(waiting(), |b| drop(b.terminate())),
            "cccc-cccWc--",
        ),
        (
            "timed out",
            made(
                Bench::start_with(|request| request.run_timeout_seconds = Some(10)),
                |b| drop(b.at(10).fire()),
            ),
            "cccc-cccWc--",
        ),
        (
            "archived",
            made(closed(complete_workflow()), |b| drop(b.ok(archive()))),
            "cccc-cccAc--",
        ),
    ];
    for (state, bench, expected) in cases {
        assert_eq!(row(&bench, run_inputs(&bench)), expected, "{state}");
    }
}

/// Every state of an activity with: its start shown, completed, failed, overdue, given up, its
/// cancelled holder lost, its holder's word that it has stopped.
#[test]
fn every_input_to_an_activity() {
    let waited = CancellationPolicy::WaitCancellationCompleted;
    let begin = |policy: CancellationPolicy| {
        let mut limits = super::kit::policy(3, &[60]);
        limits.start_to_close_timeout = Some(20);
        Bench::after(vec![limited_activity("a", policy, Some(limits))])
    };
    let started = |b: &mut Bench| {
        let held = b.claim(2);
        b.ok(held.started());
    };
    let asked = |b: &mut Bench| {
        started(b);
        b.request_cancellation(100);
        b.deliver(call("activity", 1));
    };
    let cases: Vec<(&str, Bench, &str)> = vec![
        ("ready", begin(waited), "fffff--"),
        (
            "leased",
            made(begin(waited), |b| drop(b.claim(2))),
            "WWWff--",
        ),
        ("started", made(begin(waited), started), "-WWff--"),
        (
            "past its limit",
            made(begin(waited), |b| {
                started(b);
                b.at(20);
            }),
            "-WWWW--",
        ),
        (
            "waits for a retry",
            made(begin(waited), |b| drop(b.fail_activity(2, failure("Busy")))),
            "-dA----",
        ),
        ("asked to cancel", made(begin(waited), asked), "-WWffW-"),
        (
            "asked, past its limit",
            made(begin(waited), |b| {
                asked(b);
                b.at(20);
            }),
            "-WWWWW-",
        ),
        (
            "cancelled",
            made(begin(CancellationPolicy::TryCancel), asked),
            "-ss---W",
        ),
        (
            "abandoned",
            made(begin(CancellationPolicy::Abandon), asked),
            "-WWff--",
        ),
        (
            "completed",
            made(begin(waited), |b| drop(b.run_activity(2))),
            "-Ad----",
        ),
        (
            "run completed",
            made(begin(waited), |b| {
                started(b);
                b.ok(signal("go"));
                b.step(vec![complete_workflow()]);
            }),
            "-EE----",
        ),
        (
            "run cancelled",
            made(begin(waited), |b| {
                started(b);
                b.cancel();
            }),
            "-rr---W",
        ),
    ];
    for (state, bench, expected) in cases {
        let held = Held {
            no: 2,
            attempt: 1,
            owner: "w1".into(),
            seen: 0,
        };
        let failed = crate::domain::run::ActivityOutcome::Failed(failure("Busy"));
        let inputs = [
            held.started(),
            held.outcome(returned(), None),
            held.outcome(failed, None),
            held.overdue(OverdueKind::StartToClose, None),
            held.give_up(),
            Input::CancelledHolderLost {
                no: 2,
                attempt: 1,
                owner: "w1".into(),
            },
            Input::CallbackStopped { no: 2, attempt: 1 },
        ];
        assert_eq!(row(&bench, inputs), expected, "{state}");
    }
}

/// Every state of a child with every way it can end.
#[test]
fn every_end_of_a_child() {
    let kept = || Bench::after(vec![child(), timer(600)]);
    let cases: Vec<(&str, Bench, &str)> = vec![
        ("open", kept(), "WWWWW"),
        (
            "open, task leased",
            made(kept(), |b| {
                b.ok(signal("go"));
                b.claim(2);
            }),
            "WWWWW",
        ),
        (
            "ended",
            made(kept(), |b| drop(b.end_child(1, CloseReason::Failed))),
            "-----",
        ),
        (
            "given up by a selection",
            {
                let commands = select(1, vec![vec![child()], vec![timer(600)]]);
                let mut bench = Bench::after(commands.clone());
                bench.ok(signal("go"));
                let cancel = give_up_member(&commands[0], bench.child_run(1).to_string());
                bench.step(vec![Command::CancelSelection(cancel)]);
                bench
            },
            "-----",
        ),
        (
            "abandoned by a delivery",
            made(kept(), |b| {
                b.request_cancellation(100);
                b.deliver(call("child", 1));
            }),
            "WWWWW",
        ),
        (
            "cancelled by a delivery",
            made(
                Bench::after(vec![child_with(|child| {
                    child.cancellation = Some(CancellationPolicy::TryCancel);
                })]),
                |b| {
                    b.request_cancellation(100);
                    b.deliver(call("child", 1));
                },
            ),
            "-----",
        ),
        ("parent closed", made(kept(), |b| drop(b.cancel())), "-----"),
    ];
    for (state, bench, expected) in cases {
        let scheduled = bench.payloads("ChildWorkflowScheduled")[0].clone();
        let run = scheduled["child_workflow_run_id"].as_str().unwrap();
        let child = run.parse().unwrap();
        let inputs = [
            CloseReason::Completed,
            CloseReason::Failed,
            CloseReason::Cancelled,
            CloseReason::Terminated,
            CloseReason::TimedOut,
        ]
        .map(|reason| {
            Input::ChildClosed(ChildClosed {
                step: 1,
                child,
                outcome: child_outcome(reason),
            })
        });
        assert_eq!(row(&bench, inputs), expected, "{state}");
    }
}

/// Every state of an update with: answered, failed, answered with something else, not answered, task
/// failed; by the worker that holds the open task.
#[test]
fn every_answer_to_an_update() {
    let in_its_task = || {
        let mut bench = waiting();
        let id = bench.update("change");
        (bench, id)
    };
    let held_behind = || {
        let mut bench = waiting();
        bench.ok(signal("go"));
        let id = bench.update("change");
        (bench, id)
    };
    let answered = || {
        let (mut bench, id) = in_its_task();
        bench.step(vec![complete_update(&id)]);
        (bench, id)
    };
    let failed = || {
        let (mut bench, id) = in_its_task();
        bench.step(vec![fail_update(&id)]);
        bench.ok(signal("go"));
        (bench, id)
    };
    let behind_another = || {
        let (mut bench, _) = in_its_task();
        let id = bench.update("change");
        (bench, id)
    };
    let cases: Vec<(&str, (Bench, String), &str)> = vec![
        ("in its task", in_its_task(), "WWiWW"),
        ("held behind a signal", held_behind(), "iiiWW"),
        ("held behind another", behind_another(), "iiiWW"),
        ("answered", answered(), "iiiWW"),
        ("failed", failed(), "iiiWW"),
    ];
    for (state, (mut bench, id), expected) in cases {
        let held = bench.claim(bench.workflow_task().unwrap());
        let inputs = [
            held.complete(vec![complete_update(&id)]),
            held.complete(vec![fail_update(&id)]),
            held.complete(vec![complete_update("no such update")]),
            held.complete(Vec::new()),
            held.fail(TaskFailure::Other("no handler".into())),
        ];
        assert_eq!(row(&bench, inputs), expected, "{state}");
    }
}

/// What an input records, in a word each.
fn recorded(bench: &Bench, input: Input) -> String {
    let mut bench = bench.clone();
    match bench.put(input) {
        Outcome::Committed(_) => bench.new_types().join(" "),
        other => letter(&other).to_string(),
    }
}

fn due(bench: &Bench, kind: TimerKind) -> Input {
    Input::TimersDue {
        keys: vec![TimerKey { kind, no: 1 }],
        lease: bench.observe(),
    }
}

/// Every state of a wait for a condition with: its timeout, a signal, and the end of the open task
/// without commands or with the same wait again.
#[test]
fn every_input_to_a_condition() {
    let wait = || wait_for(limited_condition("ready", "o-1", 60));
    let open = || Bench::after(vec![wait()]);
    let over = "ConditionWaitSatisfied TimerCancelled";
    let again = format!("{over} ConditionWaitOpened TimerScheduled");
    let lapsed = "TimerFired ConditionWaitTimedOut";
    let cases: Vec<(&str, Bench, [&str; 4])> = vec![
        ("open", open(), ["-", "SignalReceived", "", ""]),
        (
            "open, due",
            made(open(), |b| b.now = at(60)),
            [lapsed, "SignalReceived", "", ""],
        ),
        (
            "input is there",
            made(open(), |b| drop(b.ok(signal("go")))),
            ["-", "", over, &again],
        ),
        (
            "input is there, due",
            made(open(), |b| {
                b.at(60);
                b.ok(signal("go"));
            }),
            ["", "", over, "AGAIN AND OVER"],
        ),
        (
            "timed out",
            made(open(), |b| drop(b.at(60).fire())),
            ["-", "", "", "ANOTHER"],
        ),
        (
            "satisfied",
            made(open(), |b| {
                b.ok(signal("go"));
                b.step(Vec::new());
            }),
            ["-", "SignalReceived", "", ""],
        ),
        (
            "run closed",
            made(open(), |b| drop(b.cancel())),
            ["-", "c", "", ""],
        ),
    ];
    let again_and_over = format!("{again} {lapsed}");
    for (state, mut bench, expected) in cases {
        let mut found = vec![
            recorded(&bench, due(&bench, TimerKind::ConditionTimeout)),
            recorded(&bench, signal("more")),
        ];
        let task = bench.workflow_task().map(|no| bench.claim(no));
        for commands in [Vec::new(), vec![wait()]] {
            found.push(task.as_ref().map_or_else(String::new, |task| {
                recorded(&bench, task.complete(commands))
            }));
        }
        let expected = expected.map(|words| match words {
            "AGAIN AND OVER" => again_and_over.clone(),
            "ANOTHER" => "ConditionWaitOpened TimerScheduled".to_owned(),
            words => words.to_owned(),
        });
        assert_eq!(found, expected, "{state}");
    }
}

/// Every state of a wait for a signal with: its timeout, a signal of its name, one of another.
#[test]
fn every_input_to_a_signal_wait() {
    let open = || Bench::after(vec![signal_wait("go", Some(60))]);
    let taken = "SignalReceived SignalApplied TimerCancelled";
    let cases: Vec<(&str, Bench, [&str; 3])> = vec![
        ("open", open(), ["-", taken, "SignalReceived"]),
        (
            "open, due",
            made(open(), |b| b.now = at(60)),
            ["TimerFired", taken, "SignalReceived"],
        ),
        (
            "open, a task is open",
            made(open(), |b| drop(b.ok(signal("other")))),
            ["-", "", ""],
        ),
        (
            "taken",
            made(open(), |b| drop(b.ok(signal("go")))),
            ["-", "", ""],
        ),
        (
            "taken and seen",
            made(open(), |b| {
                b.ok(signal("go"));
                b.step(Vec::new());
            }),
            ["-", "SignalReceived", "SignalReceived"],
        ),
        (
            "timed out and seen",
            made(open(), |b| {
                b.at(60).fire();
                b.step(Vec::new());
            }),
            ["-", "SignalReceived", "SignalReceived"],
        ),
        (
            "interrupted",
            made(open(), |b| {
                b.request_cancellation(100);
                let (task, _) = b.deliver(call("signal", 1));
                b.ok(task.complete(vec![timer(600)]));
            }),
            ["-", "SignalReceived", "SignalReceived"],
        ),
        (
            "run closed",
            made(open(), |b| drop(b.cancel())),
            ["-", "c", "c"],
        ),
    ];
    for (state, bench, expected) in cases {
        let found = [
            recorded(&bench, due(&bench, TimerKind::SignalTimeout)),
            recorded(&bench, signal("go")),
            recorded(&bench, signal("other")),
        ];
        assert_eq!(found, expected, "{state}");
    }
}

/// Every state of a cancellation with: another request; a delivery, at another call, under another
/// id, by a stranger; the deadline of the cleanup.
#[test]
fn every_input_to_a_cancellation() {
    let awaited = || {
        Bench::after(vec![child_with(|child| {
            child.cancellation = Some(CancellationPolicy::WaitCancellationCompleted);
        })])
    };
    let asked = |b: &mut Bench| drop(b.request_cancellation(20));
    let cases: Vec<(&str, Bench, &str)> = vec![
        (
            "none",
            made(waiting(), |b| drop(b.ok(signal("go")))),
            "Wnnnn-",
        ),
        ("asked", made(waiting(), asked), "AWWnf-"),
        (
            "asked, overdue",
            made(waiting(), |b| {
                asked(b);
                b.at(20);
            }),
            "AWWnfW",
        ),
        (
            "asked, a child is awaited",
            made(awaited(), asked),
            "APWnf-",
        ),
        (
            "waits for a child",
            made(awaited(), |b| {
                asked(b);
                b.deliver(call("child", 1));
                b.ok(signal("go"));
            }),
            "APWnf-",
        ),
        (
            "delivered",
            made(waiting(), |b| {
                asked(b);
                let (task, _) = b.deliver(call("child", 1));
                b.ok(task.complete(Vec::new()));
                b.ok(signal("go"));
            }),
            "AAxnA-",
        ),
        (
            "delivered, overdue",
            made(waiting(), |b| {
                asked(b);
                let (task, _) = b.deliver(call("child", 1));
                b.ok(task.complete(Vec::new()));
                b.ok(signal("go"));
                b.at(20);
            }),
            "AAxnAW",
        ),
        (
            "closed",
            made(waiting(), |b| {
                asked(b);
                b.cancel();
            }),
            "crrrr-",
        ),
    ];
    for (state, mut bench, expected) in cases {
        let held = match bench.workflow_task() {
            Some(no) => bench.claim(no),
            None => Held {
                no: 1,
                attempt: 1,
                owner: "w1".into(),
                seen: 0,
            },
        };
        let id = match &bench.state().cancellation {
            Some(_) => bench.request_id(),
            None => "none".to_owned(),
        };
        let stranger = Held {
            owner: "w9".into(),
            ..held.clone()
        };
        let lease = bench.observe();
        let inputs = [
            Input::RequestCancellation(CancellationRequest {
                reason: None,
                cleanup_timeout_seconds: 20,
                parent: None,
                lease: lease.clone(),
            }),
            held.deliver(&id, call("child", 1)),
            held.deliver(&id, call("timer", 2)),
            held.deliver("another", call("child", 1)),
            stranger.deliver(&id, call("child", 1)),
            Input::TimersDue {
                keys: vec![TimerKey {
                    kind: TimerKind::CleanupDeadline,
                    no: 0,
                }],
                lease,
            },
        ];
        assert_eq!(row(&bench, inputs), expected, "{state}");
    }
}
