//! A history read again by plain rules: which wait takes which signal, which member wins a selection,
//! when a wait for a condition may end, and what a delivered cancellation leaves behind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::kit::Stored;
use crate::domain::event::{Body, Event};
use crate::domain::ids::Step;
use crate::domain::parallel::Path;
use crate::domain::run::MESSAGE_SIGNAL;
use crate::domain::time::Timestamp;

/// A member of a selection as its events tell.
#[derive(Default)]
struct Member {
    open: u32,
    over: bool,
}

/// A selection as its events tell.
#[derive(Default)]
struct Selection {
    members: BTreeMap<Step, Member>,
    winner: Option<Step>,
}

/// The reader of one history.
#[derive(Default)]
struct Reader {
    /// Open waits for signals, by step.
    waits: BTreeMap<Step, String>,
    /// Signals that no wait took, oldest first: name and id.
    signals: VecDeque<(String, String)>,
    /// Open waits for conditions: the event that opened each.
    conditions: BTreeMap<Step, u64>,
    /// When each timer goes off.
    timers: BTreeMap<String, Timestamp>,
    /// The last input that may make a condition true.
    input: u64,
    paths: BTreeMap<Step, Path>,
    selections: BTreeMap<Step, Selection>,
    /// Steps that a delivered cancellation has interrupted.
    interrupted: BTreeSet<Step>,
}

/// Reads a history and holds it to the rules.
pub fn follows_the_rules(stored: &Stored) {
    let mut reader = Reader::default();
    for (place, event) in stored.events.iter().enumerate() {
        reader.read(event, &stored.events[place + 1..]);
    }
}

/// The path of an opening event.
fn opened(body: &Body) -> Option<(Step, Option<Path>)> {
    Some(match body {
        Body::ActivityScheduled(e) => (e.keys.sequence, e.keys.group.path()),
        Body::ChildWorkflowScheduled(e) => (e.keys.sequence, e.keys.group.path()),
        Body::ConditionWaitOpened(e) => (e.sequence, e.group.path()),
        Body::SignalWaitOpened(e) => (e.sequence, e.group.path()),
        Body::TimerScheduled(e) if e.timer.timer_kind.is_none() => {
            (e.timer.sequence, e.timer.group.path())
        }
        _ => return None,
    })
}

/// The step that an event ends, and whether it failed.
fn ended(body: &Body) -> Option<(Step, bool)> {
    Some(match body {
        Body::ActivityCompleted(e) => (e.keys.sequence, false),
        Body::ActivityFailed(e) => (e.keys.sequence, true),
        Body::ActivityTimedOut(e) => (e.keys.sequence, true),
        Body::ActivityCancelled(e) => (e.keys.sequence, true),
        Body::ChildRunCompleted(e) => (e.keys.sequence, false),
        Body::ChildRunFailed(e) => (e.0.keys.sequence, true),
        Body::ChildRunCancelled(e) => (e.0.keys.sequence, true),
        Body::ChildRunTerminated(e) => (e.0.keys.sequence, true),
        Body::ConditionWaitSatisfied(e) => (e.sequence, false),
        Body::ConditionWaitTimedOut(e) => (e.sequence, false),
        Body::SignalApplied(e) => (e.sequence, false),
        Body::TimerFired(e) if e.timer.condition.is_none() => (e.timer.sequence, false),
        _ => return None,
    })
}

/// Whether the batch of an event that is followed by `later` closes the run or delivers a
/// cancellation, and so decides no selection.
fn closes(event: &Event, later: &[Event]) -> bool {
    later
        .iter()
        .take_while(|next| next.recorded_at == event.recorded_at)
        .any(|next| {
            matches!(
                next.body.event_type(),
                "WorkflowCompleted"
                    | "WorkflowFailed"
                    | "WorkflowCancelled"
                    | "WorkflowTerminated"
                    | "WorkflowTimedOut"
                    | "WorkflowContinuedAsNew"
                    | "CooperativeCancellationDelivered"
            )
        })
}

impl Reader {
    fn read(&mut self, event: &Event, later: &[Event]) {
        if let Some((step, path)) = opened(&event.body) {
            assert!(!self.interrupted.contains(&step), "{event:?}");
            self.open(step, path);
        }
        match &event.body {
            Body::SignalReceived(e) => {
                self.input = event.sequence;
                if *e.signal_name != *MESSAGE_SIGNAL {
                    let signal = (e.signal_name.to_string(), e.signal_id.clone());
                    let wait = self.waits.iter().find(|(_, name)| **name == signal.0);
                    let wait = wait.map(|(step, _)| *step);
                    self.signals.push_back(signal.clone());
                    takes(later, wait.map(|step| (step, signal.1)));
                }
            }
            Body::SignalWaitOpened(e) => {
                let name = e.signal_name.to_string();
                let signal = self.signals.iter().find(|(of, _)| *of == name);
                takes(later, signal.map(|(_, id)| (e.sequence, id.clone())));
                self.waits.insert(e.sequence, name);
            }
            Body::SignalApplied(e) => {
                self.signals.retain(|(_, id)| *id != e.signal_id);
                assert!(self.waits.remove(&e.sequence).is_some(), "{e:?}");
            }
            Body::UpdateApplied(_) => self.input = event.sequence,
            Body::ConditionWaitOpened(e) => {
                self.conditions.insert(e.sequence, event.sequence);
            }
            Body::ConditionWaitSatisfied(e) => {
                let opened = self.conditions.remove(&e.sequence).unwrap();
                assert!(self.input > opened, "satisfied without newer input: {e:?}");
            }
            Body::ConditionWaitTimedOut(e) => {
                assert!(self.conditions.remove(&e.sequence).is_some());
            }
            Body::TimerScheduled(e) => {
                self.timers
                    .insert(e.timer.timer_id.clone(), e.timer.fire_at);
            }
            Body::TimerFired(e) => {
                assert!(self.timers[&e.timer.timer_id] <= event.recorded_at);
                assert!(!self.interrupted.contains(&e.timer.sequence), "{e:?}");
                self.waits.remove(&e.timer.sequence);
            }
            Body::SelectionOperationCancelled(e) => {
                let base = e.member_base_sequence;
                for selection in self.selections.values_mut() {
                    if let Some(member) = selection.members.get_mut(&base) {
                        assert!(!member.over, "given up after its end: {e:?}");
                        member.over = true;
                    }
                }
                for step in base..base + e.member_size {
                    self.conditions.remove(&step);
                    self.waits.remove(&step);
                }
            }
            Body::CooperativeCancellationDelivered(e) => {
                let (first, span) = e.delivery.range();
                for step in first..first + span {
                    self.conditions.remove(&step);
                    self.waits.remove(&step);
                    self.selections.remove(&step);
                    self.interrupted.insert(step);
                }
            }
            _ => {}
        }
        if let Some((step, failed)) = ended(&event.body) {
            self.end(step, failed, event, later);
        }
    }

    fn open(&mut self, step: Step, path: Option<Path>) {
        let Some(path) = path else { return };
        let outer = path.outermost();
        if let Some(member) = &outer.member {
            self.selections
                .entry(outer.parallel_group_base_sequence)
                .or_default()
                .members
                .entry(member.selection_member_base_sequence)
                .or_insert(Member {
                    open: member.selection_member_size,
                    over: false,
                });
        }
        self.paths.insert(step, path);
    }

    /// The first member of a selection to fail, or to end in full, wins, and the next event says so.
    fn end(&mut self, step: Step, failed: bool, event: &Event, later: &[Event]) {
        let said = match later.first().map(|next| &next.body) {
            Some(Body::SelectionResolved(e)) => Some(e),
            _ => None,
        };
        let outer = self.paths.get(&step).map(Path::outermost);
        let won = outer.and_then(|outer| {
            let base = outer.member.as_ref()?.selection_member_base_sequence;
            let selection = self
                .selections
                .get_mut(&outer.parallel_group_base_sequence)?;
            let member = selection.members.get_mut(&base)?;
            member.open -= 1;
            if member.over || !(failed || member.open == 0) {
                return None;
            }
            member.over = true;
            let first = selection.winner.is_none();
            selection.winner.get_or_insert(base);
            first.then_some(base)
        });
        if won.is_some() && said.is_none() {
            assert!(closes(event, later), "undecided by {event:?}");
            return;
        }
        assert_eq!(said.map(|e| e.member_base_sequence), won, "{event:?}");
        if let Some(e) = said {
            let outcome = if failed { "failed" } else { "completed" };
            assert_eq!(e.outcome, outcome);
        }
    }
}

/// The next event applies this signal to this wait, or none.
fn takes(later: &[Event], expected: Option<(Step, String)>) {
    let found = match later.first().map(|next| &next.body) {
        Some(Body::SignalApplied(e)) => Some((e.sequence, e.signal_id.clone())),
        _ => None,
    };
    assert_eq!(found, expected, "the wait and the signal that it takes");
}
