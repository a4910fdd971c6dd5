//! Waits for conditions, which only a worker can evaluate: opened, found to be over, timed out.
//!
//! A wait is over as soon as a finished task has seen input that is newer than the wait (worker
//! plane, Precedence; the SDKs' replay depends on it). A workflow that still waits opens it again.

use std::sync::Arc;

use super::super::command::OpenConditionWait;
use super::super::event::{
    Body, ConditionKeys, ConditionWaitOpened, ConditionWaitSatisfied, ConditionWaitTimedOut, Event,
    TimerCancelled, TimerFired, TimerKeys, TimerScheduled,
};
use super::super::features;
use super::super::ids::{Part, RunId, Step, part_id};
use super::super::parallel::{GroupFields, StepKind};
use super::super::time::Timestamp;
use super::decision::{TimerKey, TimerKind};
use super::draft::Draft;
use super::fact::Resume;
use super::fold::StepEnd;
use super::state::{Condition, ConditionIdentity, Lapsed, RunState};

/// Deadlines of waits that are over, for the same wait if it is opened again.
#[derive(Default)]
pub(super) struct Carried(Vec<(ConditionIdentity, Timestamp)>);

impl Carried {
    /// The deadline of the first opening. Without an occurrence two openings cannot be told from two
    /// waits, and each counts its own time.
    fn deadline(&self, identity: &ConditionIdentity) -> Option<Timestamp> {
        identity.occurrence.as_ref()?;
        self.0
            .iter()
            .find(|(carried, _)| carried == identity)
            .map(|(_, deadline)| *deadline)
    }
}

/// A task that had seen events up to `seen` is done: waits older than the input it saw are over.
pub(super) fn settle(draft: &mut Draft<'_>, seen: u64) -> Carried {
    let input = draft.state.last_input;
    let mut carried = Carried::default();
    if input > seen {
        return carried;
    }
    let over: Vec<Arc<Condition>> = draft
        .state
        .conditions
        .values()
        .filter(|condition| condition.opened_at < input)
        .cloned()
        .collect();
    for condition in over {
        draft.emit(ConditionWaitSatisfied {
            condition: keys(draft.state.id, &condition),
            sequence: condition.step,
            timeout_seconds: condition.timeout_seconds,
            timer_id: timer_id(draft.state.id, &condition),
            workflow_signal_id: None,
            signal_name: None,
            group: GroupFields::from(condition.path.as_ref()),
        });
        cancel_timer(draft, &condition);
        if let Some(deadline) = condition.deadline {
            carried.0.push((condition.identity.clone(), deadline));
        }
    }
    carried
}

/// Whether the command repeats a wait that is still open, or one that timed out without the worker
/// having seen it. Such a command is ignored.
pub(super) fn is_repeat(draft: &Draft<'_>, command: &OpenConditionWait, seen: u64) -> bool {
    let identity = ConditionIdentity::from(command);
    let open =
        |condition: &Arc<Condition>| condition.path.is_none() && condition.identity == identity;
    command.path.is_none()
        && (draft.state.conditions.values().any(open)
            || draft
                .state
                .lapsed
                .iter()
                .any(|lapsed| lapsed.event > seen && lapsed.identity == identity))
}

/// Opens a wait.
pub(super) fn open(
    draft: &mut Draft<'_>,
    step: Step,
    command: OpenConditionWait,
    carried: &Carried,
) {
    let identity = ConditionIdentity::from(&command);
    let deadline = command
        .timeout_seconds
        .filter(|seconds| *seconds > 0)
        .map(|seconds| {
            carried
                .deadline(&identity)
                .unwrap_or_else(|| draft.now.plus_seconds(seconds))
        });
    let condition = Condition {
        step,
        identity,
        timeout_seconds: command.timeout_seconds,
        deadline,
        opened_at: draft.state.next_event,
        path: command.path,
    };
    draft.emit(ConditionWaitOpened {
        condition: keys(draft.state.id, &condition),
        sequence: step,
        timeout_seconds: condition.timeout_seconds,
        group: GroupFields::from(condition.path.as_ref()),
    });
    if let (Some(timer), Some(at)) = (timer_keys(draft.state.id, &condition), deadline) {
        draft.emit(TimerScheduled { timer });
        draft.set_timer(row(step), at);
    }
}

/// Times out what is overdue at the end of a task; see [`timeout_due`].
pub(super) fn time_out_overdue(draft: &mut Draft<'_>) {
    let now = draft.now;
    let overdue: Vec<Step> = draft
        .state
        .conditions
        .values()
        .filter(|condition| condition.deadline.is_some_and(|at| at <= now))
        .map(|condition| condition.step)
        .collect();
    for step in overdue {
        time_out(draft, step);
    }
}

/// The timeout of a wait came due. Returns whether anything is written.
///
/// While a task is open that may have seen newer input, the wait may be over already, and only that
/// task's report can tell; then the row goes, and the end of the task decides.
pub(super) fn timeout_due(draft: &mut Draft<'_>, step: Step) -> bool {
    let now = draft.now;
    let Some(condition) = draft.state.conditions.get(&step) else {
        return false;
    };
    if condition.deadline.is_none_or(|at| at > now) {
        return false;
    }
    if draft.state.workflow_task.is_some() && condition.opened_at < draft.state.last_input {
        draft.effects.cancel(row(step));
    } else {
        time_out(draft, step);
    }
    true
}

fn time_out(draft: &mut Draft<'_>, step: Step) {
    let Some(condition) = draft.state.conditions.get(&step).cloned() else {
        return;
    };
    let run = draft.state.id;
    if let Some(timer) = timer_keys(run, &condition) {
        let fired_at = draft.now;
        draft.emit(TimerFired { timer, fired_at });
    }
    draft.effects.cancel(row(step));
    draft.emit(ConditionWaitTimedOut {
        condition: keys(run, &condition),
        sequence: step,
        timeout_seconds: condition.timeout_seconds,
        timer_id: timer_id(run, &condition),
        group: GroupFields::from(condition.path.as_ref()),
    });
}

/// Cancels the timeout of a wait, with an event, if it has one.
pub(super) fn cancel_timer(draft: &mut Draft<'_>, condition: &Condition) {
    if let Some(timer) = timer_keys(draft.state.id, condition) {
        let cancelled_at = draft.now;
        draft.emit(TimerCancelled {
            timer,
            cancelled_at,
        });
        draft.effects.cancel(row(condition.step));
    }
}

/// The row of a wait's timeout.
pub(super) fn row(step: Step) -> TimerKey {
    TimerKey {
        kind: TimerKind::ConditionTimeout,
        no: step,
    }
}

fn keys(run: RunId, condition: &Condition) -> ConditionKeys {
    ConditionKeys {
        condition_wait_id: part_id(run, Part::Wait, condition.step.into()),
        condition_key: condition.identity.key.clone(),
        condition_definition_fingerprint: condition.identity.fingerprint.clone(),
        condition_wait_occurrence_id: condition.identity.occurrence.clone(),
    }
}

fn timer_id(run: RunId, condition: &Condition) -> Option<String> {
    condition.deadline?;
    Some(part_id(run, Part::Timer, condition.step.into()))
}

fn timer_keys(run: RunId, condition: &Condition) -> Option<TimerKeys> {
    Some(TimerKeys {
        timer_id: timer_id(run, condition)?,
        sequence: condition.step,
        delay_seconds: condition.timeout_seconds?,
        fire_at: condition.deadline?,
        timer_kind: Some("condition_timeout".into()),
        condition: Some(keys(run, condition)),
        signal_wait_id: None,
        signal_name: None,
        group: GroupFields::from(condition.path.as_ref()),
    })
}

impl From<&OpenConditionWait> for ConditionIdentity {
    fn from(command: &OpenConditionWait) -> Self {
        Self {
            key: command.key.clone(),
            fingerprint: command.fingerprint.clone(),
            occurrence: command.occurrence.clone(),
        }
    }
}

impl RunState {
    pub(super) fn apply_to_condition(&mut self, event: &Event) {
        match &event.body {
            Body::ConditionWaitOpened(opened) => {
                let path = opened.group.path();
                let identity = ConditionIdentity::from(&opened.condition);
                self.record_step(opened.sequence, StepKind::Condition, path.as_ref());
                if identity.occurrence.is_some() {
                    self.needs |= features::OCCURRENCE;
                }
                self.conditions.insert(
                    opened.sequence,
                    Arc::new(Condition {
                        step: opened.sequence,
                        identity,
                        timeout_seconds: opened.timeout_seconds,
                        deadline: None,
                        opened_at: event.sequence,
                        path,
                    }),
                );
            }
            Body::ConditionWaitSatisfied(satisfied) => {
                // The task in which this is found out goes on by itself, so it wakes nobody, unless
                // the wait is one of several.
                if let Some(condition) = self.conditions.remove(&satisfied.sequence)
                    && condition.path.is_some()
                {
                    self.end_condition(&condition, event);
                }
            }
            Body::ConditionWaitTimedOut(lapsed) => {
                if let Some(condition) = self.conditions.remove(&lapsed.sequence) {
                    self.lapsed.push(Arc::new(Lapsed {
                        identity: condition.identity.clone(),
                        event: event.sequence,
                    }));
                    self.end_condition(&condition, event);
                }
            }
            _ => {}
        }
    }

    fn end_condition(&mut self, condition: &Condition, event: &Event) {
        self.end_step(
            event,
            StepEnd {
                path: condition.path.as_ref(),
                failed: false,
                identity: &part_id(self.id, Part::Wait, condition.step.into()),
                resume: Resume::Condition {
                    step: condition.step,
                },
            },
        );
    }
}

impl From<&ConditionKeys> for ConditionIdentity {
    fn from(keys: &ConditionKeys) -> Self {
        Self {
            key: keys.condition_key.clone(),
            fingerprint: keys.condition_definition_fingerprint.clone(),
            occurrence: keys.condition_wait_occurrence_id.clone(),
        }
    }
}
