//! Signals: accepted at once, recorded at the boundary of a workflow task, applied to a wait for their
//! name if there is one.

use std::sync::Arc;

use crate::payload::{Codec, Payload};

use super::super::command::OpenSignalWait;
use super::super::event::{
    Body, Event, SignalApplied, SignalReceived, SignalWaitOpened, TimerCancelled, TimerFired,
    TimerKeys, TimerScheduled,
};
use super::super::features;
use super::super::ids::{Part, RunId, Step, part_id};
use super::super::limits::LimitKind;
use super::super::parallel::{GroupFields, StepKind};
use super::decision::{TimerKey, TimerKind};
use super::draft::Draft;
use super::fact::{CommandKind, Digest, Fact, Resume, Signal};
use super::fold::StepEnd;
use super::outcome::{Refusal, Reply, Verdict};
use super::state::{Held, RunState, SignalWait};
use super::stream::MESSAGE_SIGNAL;
use super::workflow_task::within;

/// A signal or an update as the control plane took it.
#[derive(Clone, Debug)]
pub struct InputRequest {
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
    /// Id of an update that was given before, when its validation was asked for.
    pub update_id: Option<Arc<str>>,
}

/// Accepts a signal. While a workflow task is ready or leased it is held, because a worker binds a
/// signal to the wait that was open at that place in the history.
pub(super) fn accept(mut draft: Draft<'_>, request: InputRequest) -> Result<Verdict, Refusal> {
    if let Some(close) = &draft.state.close {
        return Err(Refusal::NotActive(Arc::clone(close)));
    }
    within(
        draft.state.held_signals() as u64 + 1,
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
        arguments: request.arguments.clone(),
    };
    if draft.state.workflow_task.is_some() {
        draft.note(Fact::SignalHeld(signal));
    } else {
        record(&mut draft, &signal);
        draft.wake();
    }
    draft.claim_key(CommandKind::Signal, request, n, None);
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::SignalAccepted { command: n },
    ))
}

/// Records a signal, and applies it to the oldest wait for its name.
pub(super) fn record(draft: &mut Draft<'_>, signal: &Signal) {
    let begun = Arc::clone(&draft.state.begun);
    draft.emit(SignalReceived {
        workflow_command_id: part_id(signal.run, Part::Command, signal.n),
        signal_id: signal.id(),
        workflow_instance_id: begun.workflow_id.clone(),
        workflow_run_id: draft.state.id,
        signal_name: Arc::clone(&signal.name),
        signal_wait_id: None,
        arguments: signal.arguments.clone(),
        payload_codec: Codec::Avro,
    });
    let wait = draft
        .state
        .signal_waits
        .values()
        .find(|wait| wait.name == signal.name)
        .cloned();
    if let Some(wait) = wait {
        apply(draft, signal, &wait);
    }
}

/// The value of an applied signal is its argument list as it was sent: a single argument that is a
/// list stays wrapped.
fn apply(draft: &mut Draft<'_>, signal: &Signal, wait: &SignalWait) {
    draft.emit(SignalApplied {
        workflow_command_id: part_id(signal.run, Part::Command, signal.n),
        signal_id: signal.id(),
        signal_name: Arc::clone(&signal.name),
        signal_wait_id: wait_id(draft.state.id, wait),
        sequence: wait.step,
        value: signal.arguments.clone(),
        arguments: signal.arguments.clone(),
        payload_codec: Codec::Avro,
        group: GroupFields::from(wait.path.as_ref()),
    });
    cancel_timer(draft, wait);
}

/// Opens a wait, which takes the oldest signal of its name that no wait has taken.
pub(super) fn open_wait(draft: &mut Draft<'_>, step: Step, command: OpenSignalWait) {
    let mut wait = SignalWait {
        step,
        name: command.name,
        timeout_seconds: command.timeout_seconds,
        deadline: None,
        path: command.path,
    };
    draft.emit(SignalWaitOpened {
        signal_name: Arc::clone(&wait.name),
        signal_wait_id: wait_id(draft.state.id, &wait),
        sequence: step,
        timeout_seconds: wait.timeout_seconds,
        group: GroupFields::from(wait.path.as_ref()),
    });
    let waiting = draft
        .state
        .unapplied
        .iter()
        .find(|signal| signal.name == wait.name)
        .cloned();
    if let Some(signal) = waiting {
        apply(draft, &signal, &wait);
        return;
    }
    let Some(seconds) = wait.timeout_seconds else {
        return;
    };
    let at = draft.now.plus_seconds(seconds);
    wait.deadline = Some(at);
    if let Some(timer) = timer_keys(draft.state.id, &wait) {
        draft.emit(TimerScheduled { timer });
    }
    if seconds > 0 {
        draft.set_timer(row(step), at);
    } else {
        time_out(draft, step);
    }
}

/// The timeout of a wait came due. Returns whether anything is written.
pub(super) fn timeout_due(draft: &mut Draft<'_>, step: Step) -> bool {
    let now = draft.now;
    let due = draft
        .state
        .signal_waits
        .get(&step)
        .is_some_and(|wait| wait.deadline.is_some_and(|at| at <= now));
    if due {
        draft.effects.cancel(row(step));
        time_out(draft, step);
    }
    due
}

fn time_out(draft: &mut Draft<'_>, step: Step) {
    let wait = draft.state.signal_waits.get(&step).cloned();
    let timer = wait.and_then(|wait| timer_keys(draft.state.id, &wait));
    if let Some(timer) = timer {
        let fired_at = draft.now;
        draft.emit(TimerFired { timer, fired_at });
    }
}

/// Cancels the timeout of a wait, with an event, if it has one.
pub(super) fn cancel_timer(draft: &mut Draft<'_>, wait: &SignalWait) {
    if let Some(timer) = timer_keys(draft.state.id, wait) {
        let cancelled_at = draft.now;
        draft.emit(TimerCancelled {
            timer,
            cancelled_at,
        });
        draft.effects.cancel(row(wait.step));
    }
}

/// The row of a wait's timeout.
pub(super) fn row(step: Step) -> TimerKey {
    TimerKey {
        kind: TimerKind::SignalTimeout,
        no: step,
    }
}

fn wait_id(run: RunId, wait: &SignalWait) -> String {
    part_id(run, Part::Wait, wait.step.into())
}

fn timer_keys(run: RunId, wait: &SignalWait) -> Option<TimerKeys> {
    Some(TimerKeys {
        timer_id: part_id(run, Part::Timer, wait.step.into()),
        sequence: wait.step,
        delay_seconds: wait.timeout_seconds?,
        fire_at: wait.deadline?,
        timer_kind: Some("signal_timeout".into()),
        condition: None,
        signal_wait_id: Some(wait_id(run, wait)),
        signal_name: Some(Arc::clone(&wait.name)),
        group: GroupFields::from(wait.path.as_ref()),
    })
}

impl RunState {
    pub(super) fn apply_to_signals(&mut self, event: &Event) {
        match &event.body {
            Body::SignalReceived(received) if *received.signal_name == *MESSAGE_SIGNAL => {
                self.needs |= features::STREAMS;
                self.last_input = event.sequence;
                self.wake(event.sequence, Resume::Unseen);
            }
            Body::SignalReceived(received) => {
                let signal = match self.held.front().map(|held| &**held) {
                    Some(Held::Signal(held)) if held.id() == received.signal_id => {
                        let held = held.clone();
                        self.held.pop_front();
                        held
                    }
                    _ => {
                        self.signals += 1;
                        Signal {
                            n: self.commands,
                            run: self.id,
                            name: Arc::clone(&received.signal_name),
                            arguments: received.arguments.clone(),
                        }
                    }
                };
                self.last_input = event.sequence;
                let resume = Resume::Signal {
                    n: signal.n,
                    run: signal.run,
                    name: Arc::clone(&signal.name),
                };
                Arc::make_mut(&mut self.unapplied).push_back(Arc::new(signal));
                self.wake(event.sequence, resume);
            }
            Body::SignalWaitOpened(opened) => {
                let path = opened.group.path();
                self.record_step(opened.sequence, StepKind::SignalWait, path.as_ref());
                if !self.awaited_names.contains(&opened.signal_name) {
                    Arc::make_mut(&mut self.awaited_names).insert(Arc::clone(&opened.signal_name));
                }
                self.signal_waits.insert(
                    opened.sequence,
                    Arc::new(SignalWait {
                        step: opened.sequence,
                        name: Arc::clone(&opened.signal_name),
                        timeout_seconds: opened.timeout_seconds,
                        deadline: None,
                        path,
                    }),
                );
            }
            Body::SignalApplied(applied) => {
                Arc::make_mut(&mut self.unapplied).retain(|s| s.id() != applied.signal_id);
                if let Some(wait) = self.signal_waits.remove(&applied.sequence) {
                    self.end_signal_wait(&wait, event);
                }
            }
            _ => {}
        }
    }

    pub(super) fn end_signal_wait(&mut self, wait: &SignalWait, event: &Event) {
        self.end_step(
            event,
            StepEnd {
                path: wait.path.as_ref(),
                failed: false,
                identity: &part_id(self.id, Part::Wait, wait.step.into()),
                resume: Resume::SignalWait {
                    step: wait.step,
                    name: Arc::clone(&wait.name),
                    event: event.body.event_type().into(),
                },
            },
        );
    }
}
