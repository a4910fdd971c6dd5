//! History events: their JSON, written once and served as it is.
//!
//! Keys are those of the contract's history. A key without a value is left out, except where a
//! reader relies on `null`.

mod activity;
mod cancellation;
mod child;
mod marker;
mod timer;
mod update;
mod wait;
mod workflow;

pub use activity::*;
pub use cancellation::*;
pub use child::*;
pub use marker::*;
pub use timer::*;
pub use update::*;
pub use wait::*;
pub use workflow::*;

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::ids::{IdText, Namespace, Part, RunId, TaskId, number_text, part_text};
use super::time::Timestamp;

/// JSON that is stored and given back without being looked into.
pub type Json = Arc<RawValue>;

/// A word of the contract: a constant when written, owned when read back.
pub type Word = Cow<'static, str>;

/// One event of a run.
#[derive(Clone, Debug)]
pub struct Event {
    /// Dense place in the history, from 1.
    pub sequence: u64,
    /// When it was decided.
    pub recorded_at: Timestamp,
    /// The workflow task whose completion wrote it.
    pub task: Option<TaskId>,
    /// The control-plane command that wrote it, by its number.
    pub command: Option<u64>,
    /// What happened.
    pub body: Body,
}

macro_rules! bodies {
    ($($name:ident),* $(,)?) => {
        /// What happened; the name is the event's `event_type`.
        #[derive(Clone, Debug)]
        #[allow(missing_docs, reason = "each variant is named like its payload, which is documented")]
        pub enum Body { $($name(Box<$name>)),* }

        impl Body {
            /// The event's name on the wire.
            pub fn event_type(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name)),* }
            }

            fn write_payload(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
                match self { $(Self::$name(payload) => serde_json::to_writer(out, payload)),* }
            }

            fn read(event_type: &str, payload: &RawValue) -> serde_json::Result<Self> {
                match event_type {
                    $(stringify!($name) => serde_json::from_str(payload.get()).map(Self::$name),)*
                    other => Err(serde::de::Error::custom(format_args!("unknown event type {other}"))),
                }
            }
        }

        $(impl From<$name> for Body {
            fn from(payload: $name) -> Self { Self::$name(Box::new(payload)) }
        })*
    };
}

bodies! {
    StartAccepted, WorkflowStarted, WorkflowContinuedAsNew,
    ActivityScheduled, ActivityStarted, ActivityHeartbeatRecorded, ActivityRetryScheduled,
    ActivityCompleted, ActivityFailed, ActivityTimedOut, ActivityCancelled,
    TimerScheduled, TimerFired, TimerCancelled,
    ChildWorkflowScheduled, ChildRunStarted, ChildRunCompleted, ChildRunFailed, ChildRunCancelled,
    ChildRunTerminated, ParentClosePolicyApplied,
    ConditionWaitOpened, ConditionWaitSatisfied, ConditionWaitTimedOut,
    SignalReceived, SignalWaitOpened, SignalApplied,
    UpdateAccepted, UpdateRejected, UpdateApplied, UpdateCompleted,
    SideEffectRecorded, VersionMarkerRecorded, SearchAttributesUpserted, MemoUpserted,
    SelectionResolved, SelectionOperationCancelled, MessageCursorAdvanced,
    CooperativeCancellationRequested, CooperativeCancellationDelivered,
    CancelRequested, TerminateRequested, RepairRequested, ArchiveRequested,
    WorkflowCompleted, WorkflowFailed, WorkflowCancelled, WorkflowTerminated, WorkflowTimedOut,
    WorkflowArchived,
}

/// An event as it is read back; keys that the fold does not need are left.
#[derive(Deserialize)]
struct Stored<'a> {
    sequence: u64,
    recorded_at: Timestamp,
    #[serde(borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// An id, which holds nothing that JSON escapes, or `null`.
fn write_id(id: Option<&str>, out: &mut Vec<u8>) {
    match id {
        Some(id) => {
            out.push(b'"');
            out.extend_from_slice(id.as_bytes());
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
}

impl Event {
    /// Appends the events of one batch as the text that is stored and served: JSON objects separated by
    /// commas, without brackets, so that batches join into a page by concatenation.
    ///
    /// # Errors
    /// A payload cannot be written as JSON, which no value of these types provokes.
    pub fn write_all(
        run: RunId,
        namespace: &Namespace,
        events: &[Self],
        out: &mut Vec<u8>,
    ) -> serde_json::Result<()> {
        for (place, event) in events.iter().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            event.write_head(run, namespace, out);
            event.body.write_payload(out)?;
            out.push(b'}');
        }
        Ok(())
    }

    /// Everything before the payload. Neither namespaces nor words of the contract hold characters that JSON escapes.
    /// Put together by hand, since every event of every run passes here.
    fn write_head(&self, run: RunId, namespace: &Namespace, out: &mut Vec<u8>) {
        /// Bytes that most heads take.
        const HEAD: usize = 352;
        out.reserve(HEAD);
        let time = self.recorded_at.text();
        // A cancellation keeps its id over runs, and readers compare both places.
        let own = self.command.map(|n| part_text(run, Part::Command, n));
        let command = match &self.body {
            Body::CooperativeCancellationRequested(body) => Some(&*body.workflow_command_id),
            Body::CooperativeCancellationDelivered(body) => Some(&*body.workflow_command_id),
            _ => own.as_ref().map(IdText::as_str),
        };
        let task = self.task.map(TaskId::text);
        for piece in [
            br#"{"id":""#.as_slice(),
            part_text(run, Part::Event, self.sequence)
                .as_str()
                .as_bytes(),
            br#"","sequence":"#,
            number_text(self.sequence).as_str().as_bytes(),
            br#","event_type":""#,
            self.body.event_type().as_bytes(),
            br#"","namespace":""#,
            namespace.as_str().as_bytes(),
            br#"","recorded_at":""#,
            &time,
            br#"","timestamp":""#,
            &time,
            br#"","workflow_task_id":"#,
        ] {
            out.extend_from_slice(piece);
        }
        write_id(task.as_ref().map(IdText::as_str), out);
        out.extend_from_slice(br#","workflow_command_id":"#);
        write_id(command, out);
        out.extend_from_slice(br#","principal":null,"payload":"#);
    }

    /// Reads the events of one batch back. Task and command are not read, since the fold has no
    /// use for them.
    ///
    /// # Errors
    /// The text is not what [`Event::write_all`] writes.
    pub fn read_all(events: &str) -> serde_json::Result<Vec<Self>> {
        let listed = format!("[{events}]");
        let stored: Vec<Stored<'_>> = serde_json::from_str(&listed)?;
        stored
            .into_iter()
            .map(|event| {
                Ok(Self {
                    sequence: event.sequence,
                    recorded_at: event.recorded_at,
                    task: None,
                    command: None,
                    body: Body::read(&event.event_type, event.payload)?,
                })
            })
            .collect()
    }
}
