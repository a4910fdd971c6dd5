//! Message streams: positions, delivery to a workflow that waits, cursors, and the next run.

use super::kit::*;
use crate::domain::features;
use crate::domain::run::{
    Digest, Input, MESSAGE_SIGNAL, MessageRequest, Refusal, Reply, StreamReport,
};
use crate::payload::Payload;

/// `(stream, id, position)` of the delivered messages, or `(stream, "cursor", position)`.
fn delivered(bench: &Bench) -> Vec<(String, String, u64)> {
    bench
        .payloads("SignalReceived")
        .iter()
        .filter(|received| received["signal_name"] == MESSAGE_SIGNAL)
        .map(|received| {
            let blob = received["arguments"]["blob"].as_str().unwrap();
            let shown = Payload::new(crate::payload::Codec::Avro, blob)
                .shown(100_000)
                .unwrap();
            let message = &shown[0];
            let text = |key: &str| message[key].as_str().unwrap().to_owned();
            match message["through_position"].as_u64() {
                Some(position) => (text("stream_name"), "cursor".to_owned(), position),
                None => (
                    text("stream_name"),
                    text("message_id"),
                    message["position"].as_u64().unwrap(),
                ),
            }
        })
        .collect()
}

fn entry(stream: &str, id: &str, position: u64) -> (String, String, u64) {
    (stream.to_owned(), id.to_owned(), position)
}

/// A run that waits for the first message of `orders`.
fn waiting() -> Bench {
    let mut bench = Bench::start();
    bench.step_with(
        vec![wait_for(condition("message-stream:orders:0"))],
        streams(&[], &[("orders", 0)]),
    );
    assert!(bench.state().streams["orders"].wait.is_some());
    bench
}

/// Rule: 1.15, section 5: positions count up in each stream, from 1.
#[test]
fn positions_are_dense_in_each_stream() {
    let mut bench = Bench::after(vec![timer(60)]);
    for (stream, id, expected) in [("a", "x", 1), ("b", "x", 1), ("a", "y", 2), ("a", "z", 3)] {
        match bench.ok(message(stream, id)) {
            Reply::MessageTaken { position } => assert_eq!(position, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bench.workflow_task(), None, "nobody waits for a message");
    assert_eq!(bench.state().streams["a"].pending.len(), 3);
    assert_eq!(bench.state().needs & features::STREAMS, 0);
}

/// A workflow that waits gets the message at once, as the reserved signal, and the message ends its
/// wait for the condition like any signal.
#[test]
fn a_waiting_workflow_gets_its_message() {
    let mut bench = waiting();
    bench.ok(message("orders", "one"));
    assert_eq!(bench.new_types(), ["SignalReceived"]);
    assert_eq!(delivered(&bench), [entry("orders", "one", 1)]);
    assert_ne!(bench.state().needs & features::STREAMS, 0);
    assert!(bench.state().streams["orders"].wait.is_none());
    bench.step_with(vec![side_effect()], streams(&[("orders", 1)], &[]));
    assert_eq!(
        bench.new_types(),
        [
            "ConditionWaitSatisfied",
            "MessageCursorAdvanced",
            "SideEffectRecorded"
        ]
    );
    let advanced = &bench.payloads("MessageCursorAdvanced")[0];
    assert_eq!(advanced["stream_key"], "orders");
    assert_eq!(advanced["previous_position"], 0);
    assert_eq!(advanced["new_position"], 1);
    assert!(bench.state().streams["orders"].pending.is_empty());
}

/// Messages of another stream, and messages while a task is open, wait.
#[test]
fn messages_wait_for_the_boundary() {
    let mut bench = waiting();
    bench.ok(message("other", "x"));
    assert_eq!(bench.workflow_task(), None);
    bench.ok(signal("go"));
    bench.ok(message("orders", "one"));
    bench.ok(message("orders", "two"));
    assert_eq!(delivered(&bench).len(), 0);
    bench.step_with(vec![side_effect()], streams(&[], &[("orders", 0)]));
    assert_eq!(
        delivered(&bench),
        [entry("orders", "one", 1), entry("orders", "two", 2)]
    );
    assert!(bench.workflow_task().is_some());
    bench.step_with(
        vec![side_effect()],
        streams(&[("orders", 2)], &[("orders", 2)]),
    );
    assert_eq!(bench.workflow_task(), None);
    bench.ok(message("orders", "three"));
    assert_eq!(delivered(&bench).len(), 3, "each once");
}

/// A message that came before anybody waited is delivered when the workflow begins to wait.
#[test]
fn an_early_message_is_delivered_to_a_late_wait() {
    let mut bench = Bench::start();
    bench.ok(message("orders", "one"));
    bench.step_with(
        vec![wait_for(condition("message-stream:orders:0"))],
        streams(&[], &[("orders", 0)]),
    );
    assert_eq!(bench.new_types(), ["ConditionWaitOpened", "SignalReceived"]);
    assert!(bench.workflow_task().is_some());
}

/// Rule: 1.15: a cursor goes up to what this run was shown, a smaller one changes nothing, and a wait
/// stands behind the cursor; what is not so is refused with its field.
#[test]
fn cursors_and_waits_are_checked() {
    let mut bench = waiting();
    bench.ok(message("orders", "one"));
    bench.ok(message("orders", "two"));
    let task = bench.claim(2);
    let refused = |bench: &mut Bench, report: StreamReport| -> String {
        match bench.refused(task.complete_with(vec![side_effect()], report)) {
            Refusal::InvalidStreams { field, .. } => field,
            other => panic!("{other:?}"),
        }
    };
    let field = refused(&mut bench, streams(&[("orders", 2)], &[]));
    assert_eq!(field, "message_stream_cursors.0.through_position");
    let field = refused(&mut bench, streams(&[("orders", 1), ("none", 1)], &[]));
    assert_eq!(field, "message_stream_cursors.1.through_position");
    let field = refused(&mut bench, streams(&[("orders", 1)], &[("orders", 0)]));
    assert_eq!(field, "message_stream_waits.0.after_position");
    bench.ok(task.complete_with(
        vec![side_effect()],
        streams(&[("orders", 1)], &[("orders", 1)]),
    ));
    assert_eq!(bench.state().streams["orders"].cursor, 1);
    bench.step_with(vec![side_effect()], streams(&[("orders", 1)], &[]));
    assert_eq!(bench.payloads("MessageCursorAdvanced").len(), 1);
}

/// A wait that a completion does not repeat is over.
#[test]
fn waits_are_those_of_the_last_completion() {
    let mut bench = waiting();
    bench.ok(signal("go"));
    bench.step(vec![side_effect()]);
    bench.ok(message("orders", "one"));
    assert_eq!(bench.workflow_task(), None);
}

/// A repeated message is counted and not delivered again.
#[test]
fn a_repeat_is_counted() {
    let mut bench = waiting();
    let again = |id: &str| Input::MessageRepeated {
        stream: "orders".into(),
        id: id.into(),
    };
    bench.ok(message("orders", "one"));
    assert_eq!(bench.lost(message("orders", "one")), Lost::Key);
    bench.ok(again("one"));
    let stream = &bench.state().streams["orders"];
    assert_eq!((stream.duplicates, stream.last), (1, 1));
    assert!(stream.last_was_duplicate);
    assert_eq!(delivered(&bench).len(), 1);
    let unknown = Input::MessageRepeated {
        stream: "none".into(),
        id: "one".into(),
    };
    assert!(matches!(bench.refused(unknown), Refusal::NothingToDo));
    assert!(matches!(bench.cancel(), Outcome::Committed(_)));
    assert!(matches!(bench.refused(again("one")), Refusal::NothingToDo));
    assert!(matches!(
        bench.refused(message("orders", "late")),
        Refusal::NotActive(_)
    ));
}

/// Rule: 1.15: a successor is told where each stream stands, then gets what was not taken, in order,
/// once; positions go on counting.
#[test]
fn streams_move_to_the_successor() {
    let mut bench = waiting();
    for id in ["one", "two", "three"] {
        bench.ok(message("orders", id));
    }
    bench.ok(message("other", "x"));
    bench.step_with(vec![continue_as_new()], streams(&[("orders", 1)], &[]));
    bench.follow();
    assert_eq!(
        delivered(&bench),
        [
            entry("orders", "cursor", 1),
            entry("orders", "two", 2),
            entry("orders", "three", 3),
            entry("other", "x", 1)
        ]
    );
    assert_eq!(bench.tasks().len(), 1);
    match bench.ok(message("orders", "four")) {
        Reply::MessageTaken { position } => assert_eq!(position, 4),
        other => panic!("{other:?}"),
    }
    bench.step_with(
        vec![wait_for(condition("message-stream:orders:3"))],
        streams(&[("orders", 3), ("other", 1)], &[("orders", 3)]),
    );
    assert_eq!(delivered(&bench).len(), 5);
    assert_eq!(
        *delivered(&bench).last().unwrap(),
        entry("orders", "four", 4)
    );
}

/// The successor does not wait where the run before it did: a message for it opens no task.
#[test]
fn a_wait_does_not_move_to_the_successor() {
    let mut bench = waiting();
    bench.ok(signal("go"));
    let task = bench.claim(2);
    bench.ok(task.complete_with(
        vec![wait_for(condition("other")), continue_as_new()],
        streams(&[], &[("orders", 0)]),
    ));
    bench.follow();
    assert!(bench.state().streams["orders"].wait.is_none());
    bench.step(vec![timer(60)]);
    bench.ok(message("orders", "one"));
    assert_eq!(delivered(&bench).len(), 0);
}

/// What a completion says about streams is not the word of an update's task.
#[test]
fn an_update_task_moves_no_cursor() {
    let mut bench = waiting();
    let id = bench.update("change");
    bench.step_with(vec![fail_update(&id)], streams(&[], &[]));
    assert!(bench.state().streams["orders"].wait.is_some());
    bench.ok(message("orders", "one"));
    assert_eq!(delivered(&bench).len(), 1);
}

/// A stream holds so many messages that the workflow has not taken.
#[test]
fn pending_messages_are_limited() {
    let mut settings = crate::domain::run::Settings::default();
    settings.limits.pending_signals = 2;
    let mut bench = Bench::with(settings, |_| {});
    let keyed = |id: &str| {
        Input::Message(MessageRequest {
            stream: "orders".into(),
            id: id.into(),
            payload: payload("x"),
            digest: Digest(7),
        })
    };
    bench.ok(keyed("one"));
    bench.ok(keyed("two"));
    assert!(matches!(
        bench.refused(keyed("three")),
        Refusal::Limit {
            current: 3,
            configured: 2,
            ..
        }
    ));
}

/// The reserved signal is no step of a wait for a signal by name.
#[test]
fn a_message_is_no_signal_to_wait_for() {
    let mut bench = Bench::start();
    bench.step_with(
        vec![
            signal_wait("go", None),
            wait_for(condition("message-stream:orders:0")),
        ],
        streams(&[], &[("orders", 0)]),
    );
    bench.ok(message("orders", "one"));
    assert_eq!(bench.state().signal_waits.len(), 1);
    assert!(bench.state().unapplied.is_empty());
    assert_eq!(bench.state().signals, 0, "callers sent none");
}
