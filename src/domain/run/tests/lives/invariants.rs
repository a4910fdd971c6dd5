//! What holds after every commit of a run, and of whole histories at the end.

use std::collections::{BTreeMap, BTreeSet};

use super::super::kit::Stored;
use super::life::Life;
use super::replay;
use crate::domain::decision::{TimerKey, TimerKind};
use crate::domain::event::Body;
use crate::domain::features;
use crate::domain::run::{Held, MESSAGE_SIGNAL, RunState};
use crate::domain::time::Timestamp;

/// What holds after every commit. The database checks the fold, the numbers and the task rows.
pub fn after_commit(stored: &Stored, now: Timestamp) {
    let state = &stored.state;
    if let Some(close) = &state.close {
        assert!(state.workflow_task.is_none() && state.held.is_empty());
        assert!(state.children.is_empty() && state.update.is_none());
        assert!(stored.timers.is_empty(), "{:?}", stored.timers);
        assert_eq!(
            close.event,
            state.last_event(),
            "the terminal event is the last"
        );
        return;
    }
    has_its_rows(stored, now);
    is_not_stuck(state);
    assert_eq!(
        state.update.is_some(),
        state.is_in_update(),
        "an update in the history has the open task, and its task has an update"
    );
    if let Some(task) = &state.workflow_task {
        let needs = stored.tasks[&task.no].task.routing.needs;
        let cancellation = state.needs & features::CANCELLATION;
        assert_eq!(needs & features::CANCELLATION, cancellation);
    }
    for group in state.groups.values() {
        let open = (0u32..)
            .map_while(|index| group.member(index))
            .filter(|member| is_open(state, member.path.step().unwrap()))
            .count();
        assert_eq!(
            group.finished_at().is_some(),
            open == 0,
            "a group is over when nothing of it is open"
        );
    }
}

fn is_open(state: &RunState, step: u32) -> bool {
    state.timers.contains_key(&step)
        || state.children.contains_key(&step)
        || state.conditions.contains_key(&step)
        || state.signal_waits.contains_key(&step)
        || state.activities.values().any(|a| a.step == step)
}

/// What has a deadline has a row, unless the end of the open task decides about it.
fn has_its_rows(stored: &Stored, now: Timestamp) {
    let state = &stored.state;
    let mut expected: BTreeMap<TimerKey, Timestamp> = BTreeMap::new();
    let mut add = |kind, no, at: Option<Timestamp>| {
        expected.extend(at.map(|at| (TimerKey { kind, no }, at)));
    };
    add(TimerKind::RunDeadline, 0, state.begun.run_deadline_at);
    add(
        TimerKind::ExecutionDeadline,
        0,
        state.begun.execution_deadline_at,
    );
    let cleanup = state.cancellation.as_ref();
    let cleanup = cleanup.map(|cancellation| cancellation.context.cleanup_deadline_at);
    add(TimerKind::CleanupDeadline, 0, cleanup);
    for timer in state.timers.values() {
        add(TimerKind::User, timer.step, Some(timer.fire_at));
    }
    for wait in state.signal_waits.values() {
        add(TimerKind::SignalTimeout, wait.step, wait.deadline);
    }
    for condition in state.conditions.values() {
        let decided_later = state.workflow_task.is_some() && condition.opened_at < state.last_input;
        let at = condition.deadline.filter(|at| !decided_later || *at > now);
        add(TimerKind::ConditionTimeout, condition.step, at);
    }
    for activity in state.activities.values() {
        add(
            TimerKind::ScheduleToClose,
            activity.no,
            activity.close_deadline(),
        );
    }
    for (key, at) in expected {
        assert_eq!(stored.timers.get(&key), Some(&at), "the row of {key:?}");
    }
}

/// A run without a task has nothing that nobody will look at.
fn is_not_stuck(state: &RunState) {
    if state.workflow_task.is_some() {
        return;
    }
    assert!(state.held.is_empty(), "held, and no task is open");
    assert!(
        state.last_wake <= state.acted_on,
        "event {} woke the run, and no worker will see it",
        state.last_wake
    );
    assert!(
        !state
            .streams
            .values()
            .any(|stream| stream.wait.is_some() && stream.last > stream.delivered),
        "a message waits, and so does the workflow"
    );
    for signal in state.unapplied.iter() {
        let wait = state.signal_waits.values().find(|w| w.name == signal.name);
        assert!(wait.is_none(), "a signal and a wait for it: {wait:?}");
    }
}

/// The step of an event, and what the event is to it: 'o' opens, 'g' goes on, 'e' ends.
fn step_of(body: &Body) -> Option<(u32, char)> {
    Some(match body {
        Body::ActivityScheduled(e) => (e.keys.sequence, 'o'),
        Body::ActivityStarted(e) => (e.keys.sequence, 'g'),
        Body::ActivityHeartbeatRecorded(e) => (e.keys.sequence, 'g'),
        Body::ActivityRetryScheduled(e) => (e.keys.sequence, 'g'),
        Body::ActivityCompleted(e) => (e.keys.sequence, 'e'),
        Body::ActivityFailed(e) => (e.keys.sequence, 'e'),
        Body::ActivityTimedOut(e) => (e.keys.sequence, 'e'),
        Body::ActivityCancelled(e) => (e.keys.sequence, 'e'),
        Body::ChildWorkflowScheduled(e) => (e.keys.sequence, 'o'),
        Body::ChildRunStarted(e) => (e.keys.sequence, 'g'),
        Body::ChildRunCompleted(e) => (e.keys.sequence, 'e'),
        Body::ChildRunFailed(e) => (e.0.keys.sequence, 'e'),
        Body::ChildRunCancelled(e) => (e.0.keys.sequence, 'e'),
        Body::ChildRunTerminated(e) => (e.0.keys.sequence, 'e'),
        Body::ConditionWaitOpened(e) => (e.sequence, 'o'),
        Body::ConditionWaitSatisfied(e) => (e.sequence, 'e'),
        Body::ConditionWaitTimedOut(e) => (e.sequence, 'e'),
        Body::SignalWaitOpened(e) => (e.sequence, 'o'),
        Body::SignalApplied(e) => (e.sequence, 'e'),
        Body::SideEffectRecorded(e) => (e.sequence, 'o'),
        Body::VersionMarkerRecorded(e) => (e.sequence, 'o'),
        Body::SearchAttributesUpserted(e) => (e.sequence, 'o'),
        Body::MemoUpserted(e) => (e.sequence, 'o'),
        Body::TimerScheduled(e) if e.timer.timer_kind.is_none() => (e.timer.sequence, 'o'),
        Body::TimerFired(e) if e.timer.timer_kind.is_none() => (e.timer.sequence, 'e'),
        Body::TimerCancelled(e) if e.timer.timer_kind.is_none() => (e.timer.sequence, 'e'),
        // The end of a wait for a signal that no signal ended.
        Body::TimerFired(e) if e.timer.signal_wait_id.is_some() => (e.timer.sequence, 'e'),
        Body::WorkflowContinuedAsNew(e) => (e.sequence, 'o'),
        _ => return None,
    })
}

/// What holds of all histories once everything is at rest.
pub fn whole(life: &Life) {
    let mut applied = BTreeSet::new();
    let mut answered = BTreeSet::new();
    let mut recorded: BTreeSet<String> = BTreeSet::new();
    for run in &life.runs {
        let stored = life.db.run(*run);
        let state = &stored.state;
        assert_eq!(
            format!("{:?}", stored.folded()),
            format!("{state:?}"),
            "folded from nothing"
        );
        steps(stored);
        timers(stored);
        selections(stored);
        cancellations(stored);
        inputs(stored, &mut applied, &mut answered, &mut recorded);
        messages(stored);
        replay::follows_the_rules(stored);
        let parked = state
            .workflow_task
            .as_ref()
            .is_some_and(|task| task.blocked);
        for held in &state.held {
            assert!(parked, "at rest, and something is held");
            recorded.insert(match &**held {
                Held::Signal(signal) => signal.arguments.blob().to_string(),
                Held::Update(update) => update.arguments.blob().to_string(),
            });
        }
        assert!(parked || state.workflow_task.is_none(), "at rest");
        if !parked && state.close.is_none() {
            assert!(state.activities.is_empty() && state.timers.is_empty());
        }
    }
    let accepted: BTreeSet<String> = life.accepted.iter().cloned().collect();
    assert_eq!(
        recorded, accepted,
        "what was accepted is there, and no more"
    );
}

/// A step opens once, with a higher number than those before it, and ends at most once.
fn steps(stored: &Stored) {
    let mut last = 0;
    let mut open = BTreeSet::new();
    for event in &stored.events {
        let Some((step, what)) = step_of(&event.body) else {
            continue;
        };
        let name = event.body.event_type();
        match what {
            'o' => {
                assert!(step > last, "{name} opens step {step} behind {last}");
                last = step;
                open.insert(step);
            }
            'g' => assert!(open.contains(&step), "{name} of step {step}, not open"),
            _ => assert!(open.remove(&step), "{name} ends step {step}, not open"),
        }
    }
    assert!(last < stored.state.next_step);
}

/// A timer is scheduled once and ends at most once.
fn timers(stored: &Stored) {
    let mut open = BTreeSet::new();
    for event in &stored.events {
        match &event.body {
            Body::TimerScheduled(e) => assert!(open.insert(e.timer.timer_id.clone())),
            Body::TimerFired(e) => assert!(open.remove(&e.timer.timer_id), "{e:?}"),
            Body::TimerCancelled(e) => assert!(open.remove(&e.timer.timer_id), "{e:?}"),
            _ => {}
        }
    }
}

/// A selection is decided once, right behind the event that decides it; a member is given up once.
fn selections(stored: &Stored) {
    let mut decided = BTreeSet::new();
    let mut given_up = BTreeSet::new();
    for pair in stored.events.windows(2) {
        match &pair[1].body {
            Body::SelectionResolved(e) => {
                assert!(decided.insert(e.selection_group_id.clone()));
                assert_eq!(e.resolution_event_type, pair[0].body.event_type());
            }
            Body::SelectionOperationCancelled(e) => {
                assert!(given_up.insert(e.member_base_sequence));
            }
            _ => {}
        }
    }
}

/// A cancellation is asked for once, and delivered at most once, behind that.
fn cancellations(stored: &Stored) {
    let types: Vec<&str> = stored
        .events
        .iter()
        .map(|event| event.body.event_type())
        .filter(|name| name.starts_with("CooperativeCancellation"))
        .collect();
    let both = [
        "CooperativeCancellationRequested",
        "CooperativeCancellationDelivered",
    ];
    assert_eq!(types, both[..types.len().min(2)]);
}

/// A signal or an update is recorded once in a run, in the order of arrival; it is applied or
/// answered once in all runs.
fn inputs(
    stored: &Stored,
    applied: &mut BTreeSet<String>,
    answered: &mut BTreeSet<String>,
    recorded: &mut BTreeSet<String>,
) {
    let mut last = String::new();
    let mut open = BTreeSet::new();
    for event in &stored.events {
        let tag = match &event.body {
            Body::SignalReceived(e) if *e.signal_name != *MESSAGE_SIGNAL => e.arguments.blob(),
            Body::UpdateAccepted(e) => {
                assert!(open.insert(e.keys.update_id.clone()));
                e.arguments.blob()
            }
            Body::SignalApplied(e) => {
                assert!(applied.insert(e.signal_id.clone()), "applied twice: {e:?}");
                continue;
            }
            Body::UpdateCompleted(e) => {
                assert!(open.remove(&e.keys.update_id), "not open: {e:?}");
                assert!(answered.insert(e.keys.update_id.to_string()));
                continue;
            }
            _ => continue,
        };
        assert!(tag > last.as_str(), "{tag} behind {last}");
        last = tag.to_string();
        recorded.insert(last.clone());
    }
    let waits = stored.state.update.iter().map(|update| update.id.clone());
    assert!(open.into_iter().eq(waits), "every update has an outcome");
}

/// Cursors go up, and what lies behind them is kept.
fn messages(stored: &Stored) {
    let mut cursors: BTreeMap<String, u64> = BTreeMap::new();
    for event in &stored.events {
        if let Body::MessageCursorAdvanced(e) = &event.body {
            assert!(e.new_position > e.previous_position);
            let before = cursors.insert(e.stream_key.to_string(), e.new_position);
            assert!(before.is_none_or(|before| before == e.previous_position));
        }
    }
    for stream in stored.state.streams.values() {
        let positions: Vec<u64> = stream.pending.iter().map(|m| m.position).collect();
        let expected: Vec<u64> = (stream.cursor + 1..=stream.last).collect();
        assert_eq!(positions, expected, "what was not taken is kept");
        assert!(stream.cursor <= stream.delivered && stream.delivered <= stream.last);
    }
}
