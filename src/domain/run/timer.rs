//! User timers, and what happens when timer rows come due.

use super::super::command::StartTimer;
use super::super::event::{Body, Event, TimerCancelled, TimerFired, TimerKeys, TimerScheduled};
use super::decision::{TimerKey, TimerKind};
use std::sync::Arc;

use super::super::ids::{Part, Step, part_id};
use super::super::parallel::{GroupFields, StepKind};
use super::close::{self, ObservedLease};
use super::draft::Draft;
use super::fact::Resume;
use super::fold::StepEnd;
use super::outcome::{Refusal, Reply, Verdict};
use super::state::{RunState, Timer};
use super::{Settings, activity};
use super::{cancellation, condition, signal};

/// Records a timer. One without delay is fired by the caller in the same decision.
pub(super) fn schedule(draft: &mut Draft<'_>, step: Step, command: StartTimer) {
    let timer = Timer {
        step,
        delay_seconds: command.delay_seconds,
        fire_at: draft.now.plus_seconds(command.delay_seconds),
        path: command.path,
    };
    let keys = keys(&draft.state, &timer);
    draft.emit(TimerScheduled { timer: keys });
    if timer.delay_seconds > 0 {
        draft.set_timer(row(step), timer.fire_at);
    }
}

/// Fires the timers of this completion that have no delay.
pub(super) fn fire_immediate(draft: &mut Draft<'_>) {
    let now = draft.now;
    let due: Vec<Step> = draft
        .state
        .timers
        .values()
        .filter(|timer| timer.delay_seconds == 0 && timer.fire_at <= now)
        .map(|timer| timer.step)
        .collect();
    for step in due {
        fire(draft, step);
    }
}

fn fire(draft: &mut Draft<'_>, step: Step) -> bool {
    let Some(timer) = draft.state.timers.get(&step).cloned() else {
        return false;
    };
    let timer = keys(&draft.state, &timer);
    let fired_at = draft.now;
    draft.emit(TimerFired { timer, fired_at });
    true
}

/// Drops every open timer, with an event each, and those that limit waits.
pub(super) fn cancel_all(draft: &mut Draft<'_>) {
    let open: Vec<_> = draft.state.timers.values().cloned().collect();
    for timer in open {
        cancel(draft, &timer);
    }
    let conditions: Vec<_> = draft.state.conditions.values().cloned().collect();
    for wait in conditions {
        condition::cancel_timer(draft, &wait);
    }
    let waits: Vec<_> = draft.state.signal_waits.values().cloned().collect();
    for wait in waits {
        signal::cancel_timer(draft, &wait);
    }
}

/// Drops a timer, with an event.
pub(super) fn cancel(draft: &mut Draft<'_>, timer: &Timer) {
    let keys = keys(&draft.state, timer);
    let cancelled_at = draft.now;
    draft.emit(TimerCancelled {
        timer: keys,
        cancelled_at,
    });
    draft.effects.cancel(row(timer.step));
}

/// Removes the rows of all open timers; the run closes by itself and records nothing for them.
pub(super) fn drop_rows(draft: &mut Draft<'_>) {
    let state = &draft.state;
    let timers = state
        .timers
        .values()
        .filter(|timer| timer.delay_seconds > 0);
    let conditions = state
        .conditions
        .values()
        .filter(|wait| wait.deadline.is_some());
    let waits = state
        .signal_waits
        .values()
        .filter(|wait| wait.deadline.is_some());
    let rows: Vec<TimerKey> = timers
        .map(|timer| row(timer.step))
        .chain(conditions.map(|wait| condition::row(wait.step)))
        .chain(waits.map(|wait| signal::row(wait.step)))
        .collect();
    for key in rows {
        draft.effects.cancel(key);
    }
}

/// Timer rows came due. A row whose matter is settled is only removed.
pub(super) fn due(
    mut draft: Draft<'_>,
    keys: &[TimerKey],
    lease: &ObservedLease,
) -> Result<Verdict, Refusal> {
    let mut moved = false;
    for key in keys {
        if draft.state.close.is_some() {
            break;
        }
        moved |= one_due(&mut draft, *key, lease)?;
    }
    if !moved {
        return Err(Refusal::NothingToDo);
    }
    draft.wake();
    Ok(Verdict::Commit(Box::new(draft.finish()), Reply::Done))
}

fn one_due(draft: &mut Draft<'_>, key: TimerKey, lease: &ObservedLease) -> Result<bool, Refusal> {
    let now = draft.now;
    match key.kind {
        TimerKind::User => {
            let due = draft
                .state
                .timers
                .get(&key.no)
                .is_some_and(|t| t.fire_at <= now);
            if due {
                draft.effects.cancel(key);
                fire(draft, key.no);
            }
            Ok(due)
        }
        TimerKind::CleanupDeadline => cancellation::deadline_passed(draft, lease),
        TimerKind::ConditionTimeout => Ok(condition::timeout_due(draft, key.no)),
        TimerKind::SignalTimeout => Ok(signal::timeout_due(draft, key.no)),
        TimerKind::ScheduleToStart => Ok(activity::start_deadline_passed(draft, key.no)),
        TimerKind::ScheduleToClose => Ok(activity::close_deadline_passed(draft, key.no)),
        TimerKind::RunDeadline | TimerKind::ExecutionDeadline => {
            close::deadline_passed(draft, lease)
        }
    }
}

fn row(step: Step) -> TimerKey {
    TimerKey {
        kind: TimerKind::User,
        no: step,
    }
}

fn keys(state: &RunState, timer: &Timer) -> TimerKeys {
    TimerKeys {
        timer_id: part_id(state.id, Part::Timer, timer.step.into()),
        sequence: timer.step,
        delay_seconds: timer.delay_seconds,
        fire_at: timer.fire_at,
        timer_kind: None,
        condition: None,
        signal_wait_id: None,
        signal_name: None,
        group: GroupFields::from(timer.path.as_ref()),
    }
}

/// Whether another timer fits.
pub(super) fn check_limit(draft: &Draft<'_>, settings: &Settings) -> Result<(), Refusal> {
    super::workflow_task::within(
        draft.state.timers.len() as u64 + 1,
        settings.limits.pending_timers,
        super::super::limits::LimitKind::PendingTimers,
    )
}

impl RunState {
    pub(super) fn apply_to_timer(&mut self, event: &Event) {
        match &event.body {
            Body::TimerScheduled(scheduled) => {
                let timer = &scheduled.timer;
                if let Some(condition) = self.conditions.get_mut(&timer.sequence) {
                    Arc::make_mut(condition).deadline = Some(timer.fire_at);
                } else if let Some(wait) = self.signal_waits.get_mut(&timer.sequence) {
                    Arc::make_mut(wait).deadline = Some(timer.fire_at);
                } else {
                    let path = timer.group.path();
                    self.record_step(timer.sequence, StepKind::Timer, path.as_ref());
                    self.timers.insert(
                        timer.sequence,
                        Arc::new(Timer {
                            step: timer.sequence,
                            delay_seconds: timer.delay_seconds,
                            fire_at: timer.fire_at,
                            path,
                        }),
                    );
                }
            }
            Body::TimerFired(fired) => {
                let step = fired.timer.sequence;
                if let Some(timer) = self.timers.remove(&step) {
                    self.end_step(
                        event,
                        StepEnd {
                            path: timer.path.as_ref(),
                            failed: false,
                            identity: &fired.timer.timer_id,
                            resume: Resume::Timer { step },
                        },
                    );
                } else if let Some(wait) = self.signal_waits.remove(&step) {
                    self.end_signal_wait(&wait, event);
                }
            }
            Body::TimerCancelled(cancelled) => {
                let step = cancelled.timer.sequence;
                if let Some(path) = self.timers.remove(&step).and_then(|t| t.path.clone()) {
                    self.close_quietly(path.outermost().parallel_group_base_sequence, step);
                }
                // A wait may outlive its timer while its run closes; the timer ends only once.
                if let Some(condition) = self.conditions.get_mut(&step) {
                    Arc::make_mut(condition).deadline = None;
                }
                if let Some(wait) = self.signal_waits.get_mut(&step) {
                    Arc::make_mut(wait).deadline = None;
                }
            }
            _ => {}
        }
    }
}
