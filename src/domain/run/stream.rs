//! Message streams: ordered input that belongs to the workflow and outlives its runs, delivered as a
//! reserved signal while the workflow waits for it, and acknowledged by its completions (worker plane
//! 1.14 to 1.20, section 5).

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::payload::{Codec, Payload};

use super::super::event::{MessageCursorAdvanced, SignalReceived};
use super::super::ids::{Part, RunId, part_id};
use super::super::limits::LimitKind;
use super::super::time::Timestamp;
use super::decision::{Claim, RequestKey};
use super::draft::Draft;
use super::fact::{CommandKind, Digest, Fact};
use super::outcome::{Refusal, Reply, Verdict};
use super::state::RunState;
use super::workflow_task::within;

/// The signal that carries messages; callers may not send it.
pub const MESSAGE_SIGNAL: &str = "__durable_workflow_message_stream";
const MESSAGE_SCHEMA: &str = "durable-workflow.v2.message-stream.message";
const CURSOR_SCHEMA: &str = "durable-workflow.v2.message-stream.cursor";

/// A message of a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    /// Its place in the stream, from 1.
    pub position: u64,
    /// The caller's name for it, unique in the stream.
    pub id: Arc<str>,
    /// The run that accepted it.
    pub run: RunId,
    /// The command that brought it there.
    pub n: u64,
    /// Its encoded content.
    pub payload: Payload,
}

/// A stream of a workflow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Stream {
    /// Position of the last message.
    pub last: u64,
    /// Position up to which the workflow has taken messages.
    pub cursor: u64,
    /// Position up to which this run was shown messages.
    #[serde(skip)]
    pub delivered: u64,
    /// The workflow waits for a message behind this position.
    #[serde(skip)]
    pub wait: Option<StreamWait>,
    /// Messages that the workflow has not taken, in order.
    pub pending: VecDeque<Arc<Message>>,
    /// Messages that came again with the same content.
    pub duplicates: u64,
    /// The last message that was sent.
    pub last_id: Option<Arc<str>>,
    /// When.
    pub last_at: Option<Timestamp>,
    /// It had been sent before.
    pub last_was_duplicate: bool,
}

/// A workflow that waits for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamWait {
    /// It has all messages up to this position.
    pub after: u64,
    /// Since when it waits.
    pub since: Timestamp,
}

/// A message as the control plane took it.
#[derive(Clone, Debug)]
pub struct MessageRequest {
    /// The stream.
    pub stream: Arc<str>,
    /// The caller's name for the message.
    pub id: Arc<str>,
    /// Its encoded content.
    pub payload: Payload,
    /// Digest of the content.
    pub digest: Digest,
}

/// What a completion says about streams, in the order it was sent.
#[derive(Clone, Debug, Default)]
pub struct StreamReport {
    /// Stream, and the position up to which the workflow has taken messages.
    pub cursors: Vec<(Arc<str>, u64)>,
    /// Stream, and the position behind which the workflow waits for a message.
    pub waits: Vec<(Arc<str>, u64)>,
}

/// The key under which a message of a stream is known.
pub fn message_key(stream: &str, id: &str) -> String {
    format!("{stream}\u{1f}{id}")
}

/// Accepts a message.
pub(super) fn accept(mut draft: Draft<'_>, request: MessageRequest) -> Result<Verdict, Refusal> {
    if let Some(close) = &draft.state.close {
        return Err(Refusal::NotActive(Arc::clone(close)));
    }
    let known = draft.state.streams.get(&request.stream);
    let (last, waiting) = known.map_or((0, 0), |stream| (stream.last, stream.pending.len()));
    within(
        waiting as u64 + 1,
        draft.settings.limits.pending_signals,
        LimitKind::PendingSignals,
    )?;
    let (n, _) = draft.command(CommandKind::Message, Some(&request.stream), None);
    let position = last + 1;
    draft.note(Fact::MessageTaken {
        stream: Arc::clone(&request.stream),
        message: Message {
            position,
            id: Arc::clone(&request.id),
            run: draft.state.id,
            n,
            payload: request.payload,
        },
        at: draft.now,
    });
    if draft.state.workflow_task.is_none() && deliver(&mut draft) {
        draft.wake();
    }
    let begun = &draft.state.begun;
    draft.claim = Some(Claim::Request(RequestKey {
        namespace: begun.namespace.clone(),
        workflow_id: begun.workflow_id.clone(),
        kind: CommandKind::Message.as_str(),
        request_id: message_key(&request.stream, &request.id).into(),
        name: request.stream,
        digest: request.digest,
        run_target: "".into(),
        command: n,
        made_id: Some(position.to_string().into()),
    }));
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::MessageTaken { position },
    ))
}

/// A message came again with the same content; that is counted.
pub(super) fn repeated(
    mut draft: Draft<'_>,
    stream: Arc<str>,
    id: Arc<str>,
) -> Result<Verdict, Refusal> {
    if draft.state.close.is_some() || !draft.state.streams.contains_key(&stream) {
        return Err(Refusal::NothingToDo);
    }
    let at = draft.now;
    draft.note(Fact::MessageRepeated { stream, id, at });
    Ok(Verdict::Commit(Box::new(draft.finish()), Reply::Done))
}

/// Moves cursors and notes waits, as a completion says; before its commands.
pub(super) fn report(draft: &mut Draft<'_>, report: StreamReport) -> Result<(), Refusal> {
    for (place, (stream, through)) in report.cursors.into_iter().enumerate() {
        let known = draft.state.streams.get(&stream);
        let (cursor, delivered) = known.map_or((0, 0), |s| (s.cursor, s.delivered));
        if through <= cursor {
            continue;
        }
        if through > delivered {
            return Err(Refusal::InvalidStreams {
                field: format!("message_stream_cursors.{place}.through_position"),
                why: format!("this run was shown messages up to position {delivered} only"),
            });
        }
        draft.emit(MessageCursorAdvanced {
            stream_key: stream,
            previous_position: cursor,
            new_position: through,
        });
    }
    let mut waits = Vec::new();
    for (place, (stream, after)) in report.waits.into_iter().enumerate() {
        let known = draft.state.streams.get(&stream);
        let (cursor, delivered) = known.map_or((0, 0), |s| (s.cursor, s.delivered));
        if after != cursor {
            return Err(Refusal::InvalidStreams {
                field: format!("message_stream_waits.{place}.after_position"),
                why: format!("the cursor of the stream is at {cursor}"),
            });
        }
        if delivered <= after {
            waits.push((stream, after));
        }
    }
    let waited = draft.state.streams.values().any(|s| s.wait.is_some());
    if waited || !waits.is_empty() {
        let since = draft.now;
        draft.note(Fact::StreamsWaited { waits, since });
    }
    Ok(())
}

/// Whether a message waits that the workflow waits for.
pub(super) fn is_due(state: &RunState) -> bool {
    state
        .streams
        .values()
        .any(|stream| stream.wait.is_some() && stream.last > stream.delivered)
}

/// Records the messages that the workflow waits for. Returns whether there were any. A run that does
/// not wait for a stream is not woken for it: an SDK could not answer such a task.
pub(super) fn deliver(draft: &mut Draft<'_>) -> bool {
    let due: Vec<Arc<str>> = draft
        .state
        .streams
        .iter()
        .filter(|(_, stream)| stream.wait.is_some() && stream.last > stream.delivered)
        .map(|(name, _)| Arc::clone(name))
        .collect();
    for stream in &due {
        deliver_all(draft, stream);
    }
    !due.is_empty()
}

fn deliver_all(draft: &mut Draft<'_>, name: &Arc<str>) {
    let Some(stream) = draft.state.streams.get(name) else {
        return;
    };
    let (delivered, through) = (stream.delivered, stream.last);
    let messages: Vec<Arc<Message>> = stream
        .pending
        .iter()
        .filter(|message| message.position > delivered)
        .cloned()
        .collect();
    draft.note(Fact::MessagesDelivered {
        stream: Arc::clone(name),
        through,
    });
    for message in messages {
        let argument = json!({
            "schema": MESSAGE_SCHEMA,
            "stream_name": name,
            "message_id": message.id,
            "position": message.position,
            "payload_envelope": message.payload,
        });
        record(
            draft,
            argument,
            part_id(message.run, Part::Command, message.n),
        );
    }
}

/// In a run that succeeds another one: its streams, where the workflow stands in each, and what it has
/// not taken.
pub(super) fn carry_over(draft: &mut Draft<'_>, streams: Vec<(Arc<str>, Stream)>) {
    for (name, stream) in streams {
        let (cursor, waiting) = (stream.cursor, !stream.pending.is_empty());
        draft.note(Fact::StreamCarried {
            stream: Arc::clone(&name),
            carried: Box::new(stream),
        });
        if cursor > 0 {
            let argument = json!({
                "schema": CURSOR_SCHEMA,
                "stream_name": name,
                "through_position": cursor,
            });
            let command = part_id(draft.state.id, Part::Command, 0);
            record(draft, argument, command);
        }
        if waiting {
            deliver_all(draft, &name);
        }
    }
}

fn record(draft: &mut Draft<'_>, argument: serde_json::Value, command: String) {
    let begun = Arc::clone(&draft.state.begun);
    // Positions stay below 2^63, and the depth is fixed, so this value always has an encoding.
    let arguments =
        Payload::from_json(&json!([argument])).unwrap_or_else(|_| Payload::empty_list());
    let signal_id = draft.next_part(Part::Message);
    draft.emit(SignalReceived {
        workflow_command_id: command,
        signal_id,
        workflow_instance_id: begun.workflow_id.clone(),
        workflow_run_id: draft.state.id,
        signal_name: MESSAGE_SIGNAL.into(),
        signal_wait_id: None,
        arguments,
        payload_codec: Codec::Avro,
    });
}

impl RunState {
    /// The streams of the workflow, for the run that comes after this one.
    pub(super) fn streams_to_carry(&self) -> Vec<(Arc<str>, Stream)> {
        self.streams
            .iter()
            .map(|(name, stream)| (Arc::clone(name), stream.clone()))
            .collect()
    }

    pub(super) fn note_on_streams(&mut self, fact: &Fact) {
        let streams = Arc::make_mut(&mut self.streams);
        match fact {
            Fact::MessageTaken {
                stream,
                message,
                at,
            } => {
                let stream = streams.entry(Arc::clone(stream)).or_default();
                stream.last = message.position;
                stream.last_id = Some(Arc::clone(&message.id));
                stream.last_at = Some(*at);
                stream.last_was_duplicate = false;
                stream.pending.push_back(Arc::new(message.clone()));
            }
            Fact::MessageRepeated { stream, id, at } => {
                let stream = streams.entry(Arc::clone(stream)).or_default();
                stream.duplicates += 1;
                stream.last_id = Some(Arc::clone(id));
                stream.last_at = Some(*at);
                stream.last_was_duplicate = true;
            }
            Fact::MessagesDelivered { stream, through } => {
                let stream = streams.entry(Arc::clone(stream)).or_default();
                stream.delivered = *through;
                stream.wait = None;
            }
            Fact::StreamsWaited { waits, since } => {
                for stream in streams.values_mut() {
                    stream.wait = None;
                }
                for (name, after) in waits {
                    streams.entry(Arc::clone(name)).or_default().wait = Some(StreamWait {
                        after: *after,
                        since: *since,
                    });
                }
            }
            Fact::StreamCarried { stream, carried } => {
                streams.insert(
                    Arc::clone(stream),
                    Stream {
                        delivered: carried.cursor,
                        // The wait was the other run's.
                        wait: None,
                        ..(**carried).clone()
                    },
                );
            }
            _ => {}
        }
    }

    pub(super) fn advance_cursor(&mut self, advanced: &MessageCursorAdvanced) {
        let streams = Arc::make_mut(&mut self.streams);
        let stream = streams.entry(Arc::clone(&advanced.stream_key)).or_default();
        stream.cursor = advanced.new_position;
        stream
            .pending
            .retain(|message| message.position > advanced.new_position);
    }
}
