//! Signals: accepted at once, recorded at the boundary of a workflow task.

use std::sync::Arc;

use crate::payload::{Codec, Payload};

use super::super::decision::{Claim, RequestKey};
use super::super::event::SignalReceived;
use super::super::ids::{Part, RunId, part_id};
use super::super::limits::LimitKind;
use super::draft::Draft;
use super::fact::{CommandKind, Digest, Fact, Signal};
use super::outcome::{Refusal, Reply, Verdict};
use super::workflow_task::within;

/// A signal as the control plane took it.
#[derive(Clone, Debug)]
pub struct SignalRequest {
    /// Its name.
    pub name: Arc<str>,
    /// Encoded argument list.
    pub arguments: Payload,
    /// The caller's key.
    pub request_id: Option<Arc<str>>,
    /// Digest of name and arguments, to tell a repeat from another request under the same key.
    pub digest: Digest,
    /// The run that the caller named; empty when it named the workflow.
    pub run_target: Arc<str>,
}

/// The id of the signal that command `n` of `run` brought.
pub(super) fn signal_id(run: RunId, n: u64) -> String {
    part_id(run, Part::Signal, n)
}

/// Accepts a signal. While a workflow task is ready or leased it is held, because a worker binds a
/// signal to the wait that was open at that place in the history.
pub(super) fn accept(mut draft: Draft<'_>, request: SignalRequest) -> Result<Verdict, Refusal> {
    if let Some(close) = &draft.state.close {
        return Err(Refusal::NotActive(Arc::clone(close)));
    }
    within(
        draft.state.held.len() as u64 + 1,
        draft.settings.limits.pending_signals,
        LimitKind::PendingSignals,
    )?;
    let (n, _) = draft.command(
        CommandKind::Signal,
        Some(&request.name),
        request.request_id.as_deref(),
    );
    let signal = Signal {
        n,
        run: draft.state.id,
        name: Arc::clone(&request.name),
        arguments: request.arguments,
    };
    if draft.state.workflow_task.is_some() {
        draft.note(Fact::SignalHeld(signal));
    } else {
        record(&mut draft, &signal);
        draft.wake();
    }
    if let Some(request_id) = request.request_id {
        let begun = &draft.state.begun;
        draft.claim = Some(Claim::Request(RequestKey {
            namespace: begun.namespace.clone(),
            workflow_id: begun.workflow_id.clone(),
            kind: CommandKind::Signal.as_str(),
            request_id,
            name: request.name,
            digest: request.digest,
            run_target: request.run_target,
            command: n,
        }));
    }
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::SignalAccepted { command: n },
    ))
}

/// Records what was held, in the order of its arrival.
pub(super) fn release_held(draft: &mut Draft<'_>) {
    while let Some(signal) = draft.state.held.front().cloned() {
        record(draft, &signal);
    }
}

fn record(draft: &mut Draft<'_>, signal: &Signal) {
    let begun = Arc::clone(&draft.state.begun);
    draft.emit(SignalReceived {
        workflow_command_id: part_id(signal.run, Part::Command, signal.n),
        signal_id: signal_id(signal.run, signal.n),
        workflow_instance_id: begun.workflow_id.clone(),
        workflow_run_id: draft.state.id,
        signal_name: Arc::clone(&signal.name),
        signal_wait_id: None,
        arguments: signal.arguments.clone(),
        payload_codec: Codec::Avro,
    });
}
