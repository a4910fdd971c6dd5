//! Decisions: what a run wants written, as values. Effects are net: at most one per row.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::event::{CancellationContext, Event};
use super::super::ids::{Namespace, RunId, Step, TaskNo, WorkerId, WorkflowId};
use super::super::lease::Hold;
use super::super::routing::{Routing, TaskKind};
use super::super::time::Timestamp;
use super::child::ChildOutcome;
use super::fact::{Digest, Fact};
use super::state::RunState;

/// A task as it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTask {
    /// Where it waits.
    pub routing: Routing,
    /// When it may be handed out.
    pub available_at: Timestamp,
    /// Milliseconds of one lease, renewed by heartbeats.
    pub lease_ms: u64,
    /// Milliseconds from hand-out to outcome.
    pub start_to_close_ms: Option<u64>,
    /// Milliseconds between heartbeats.
    pub heartbeat_ms: Option<u64>,
    /// The poll that the opening commit hands it to.
    pub handed_to: Option<HandOff>,
}

/// A poll that takes a task in the commit that opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOff {
    /// The worker.
    pub owner: WorkerId,
    /// The poll's id, if the worker gave one.
    pub poll_request_id: Option<Arc<str>>,
    /// Features that the worker knows.
    pub knows: i64,
}

/// What happens to one task row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEffect {
    /// It is written.
    Open(NewTask),
    /// It continues: ready again, unowned, from this time on. Hand-outs go on counting.
    Again {
        /// When it may be handed out.
        available_at: Timestamp,
    },
    /// It goes.
    Close,
}

/// What a timer row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerKind {
    /// A timer of the workflow; the number is its step.
    User,
    /// An activity must have been handed out; the number is its task.
    ScheduleToStart,
    /// An activity must have ended; the number is its task.
    ScheduleToClose,
    /// The run must have closed.
    RunDeadline,
    /// The whole execution must have closed.
    ExecutionDeadline,
    /// A wait for a condition must have ended; the number is its step.
    ConditionTimeout,
    /// A wait for a signal must have ended; the number is its step.
    SignalTimeout,
    /// The cleanup after a cancellation must have ended.
    CleanupDeadline,
}

impl TimerKind {
    const ALL: [Self; 8] = [
        Self::User,
        Self::ScheduleToStart,
        Self::ScheduleToClose,
        Self::RunDeadline,
        Self::ExecutionDeadline,
        Self::ConditionTimeout,
        Self::SignalTimeout,
        Self::CleanupDeadline,
    ];

    /// The number it is stored as.
    pub fn number(self) -> i16 {
        match self {
            Self::User => 0,
            Self::ScheduleToStart => 1,
            Self::ScheduleToClose => 2,
            Self::RunDeadline => 3,
            Self::ExecutionDeadline => 4,
            Self::ConditionTimeout => 5,
            Self::SignalTimeout => 6,
            Self::CleanupDeadline => 7,
        }
    }

    /// The kind that is stored as `number`.
    pub fn from_number(number: i16) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// A timer row of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerKey {
    /// What it is for.
    pub kind: TimerKind,
    /// Which one.
    pub no: u32,
}

/// What happens to one timer row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimerEffect {
    /// It is set, or set anew.
    Set(Timestamp),
    /// It goes.
    Cancel,
}

/// What one run has to tell another. It is written with the decision that says it and delivered
/// afterwards, at least once; the other run takes it once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relay {
    /// To the parent: a child has reached its end.
    ChildClosed {
        /// The run that made the child.
        parent: RunId,
        /// Step of the call there.
        step: Step,
        /// The child's first run.
        child: RunId,
        /// How it ended.
        outcome: Box<ChildOutcome>,
    },
    /// To a child, whatever run it is in: close.
    Close {
        /// Namespace of the child.
        namespace: Namespace,
        /// The child.
        workflow_id: WorkflowId,
        /// Terminate it; otherwise cancel it.
        terminate: bool,
        /// Why.
        reason: Arc<str>,
    },
    /// To a child, whatever run it is in: clean up and end.
    RequestCancellation {
        /// Namespace of the child.
        namespace: Namespace,
        /// The child.
        workflow_id: WorkflowId,
        /// The request that the parent has.
        context: Box<CancellationContext>,
    },
}

/// Net effects on the rows of one run.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    tasks: BTreeMap<TaskNo, TaskEffect>,
    timers: BTreeMap<TimerKey, TimerEffect>,
    relays: BTreeMap<u64, Relay>,
    marks: BTreeMap<TaskNo, Mark>,
}

/// What changes of a task row that stays as it is otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Features that the next holder must know.
    pub needs: Option<i64>,
    /// Its holder is asked to stop.
    pub cancel: bool,
    /// The code that could not replay the history; a worker with other code may try at once.
    pub blocked_by: Option<Arc<str>>,
}

impl Effects {
    /// Effects on task rows, by number.
    pub fn tasks(&self) -> &BTreeMap<TaskNo, TaskEffect> {
        &self.tasks
    }

    /// Effects on timer rows.
    pub fn timers(&self) -> &BTreeMap<TimerKey, TimerEffect> {
        &self.timers
    }

    /// Task rows that stay and change, by number.
    pub fn marks(&self) -> &BTreeMap<TaskNo, Mark> {
        &self.marks
    }

    /// Lets only workers take a task that know these features.
    pub fn require(&mut self, no: TaskNo, needs: i64) {
        match self.tasks.get_mut(&no) {
            Some(TaskEffect::Open(task)) => task.routing.needs = needs,
            _ => self.marks.entry(no).or_default().needs = Some(needs),
        }
    }

    /// Asks the holder of a task to stop.
    pub fn ask_to_cancel(&mut self, no: TaskNo) {
        self.marks.entry(no).or_default().cancel = true;
    }

    /// Notes which code could not replay the history of a task's run.
    pub fn blocked_by(&mut self, no: TaskNo, code: Arc<str>) {
        self.marks.entry(no).or_default().blocked_by = Some(code);
    }

    /// What other runs are told, by the event that says so here.
    pub fn relays(&self) -> &BTreeMap<u64, Relay> {
        &self.relays
    }

    /// Tells another run something because of event `event`.
    pub fn relay(&mut self, event: u64, relay: Relay) {
        self.relays.insert(event, relay);
    }

    /// Opens a task.
    pub fn open(&mut self, no: TaskNo, task: NewTask) {
        self.tasks.insert(no, TaskEffect::Open(task));
    }

    /// Makes a task ready again.
    pub fn again(&mut self, no: TaskNo, at: Timestamp) {
        match self.tasks.get_mut(&no) {
            Some(TaskEffect::Open(task)) => {
                task.available_at = at;
                task.handed_to = None;
            }
            _ => {
                self.tasks
                    .insert(no, TaskEffect::Again { available_at: at });
            }
        }
    }

    /// Closes a task. One that this write opens is then never written.
    pub fn close(&mut self, no: TaskNo) {
        self.marks.remove(&no);
        if matches!(self.tasks.get(&no), Some(TaskEffect::Open(_))) {
            self.tasks.remove(&no);
        } else {
            self.tasks.insert(no, TaskEffect::Close);
        }
    }

    /// Sets a timer, or sets it anew.
    pub fn set(&mut self, key: TimerKey, at: Timestamp) {
        self.timers.insert(key, TimerEffect::Set(at));
    }

    /// Cancels a timer.
    pub fn cancel(&mut self, key: TimerKey) {
        self.timers.insert(key, TimerEffect::Cancel);
    }

    /// The poll that takes task `no`, to be filled in.
    pub fn opened_mut(&mut self, no: TaskNo) -> Option<&mut NewTask> {
        match self.tasks.get_mut(&no) {
            Some(TaskEffect::Open(task)) => Some(task),
            _ => None,
        }
    }

    /// These effects, then `later` ones.
    pub fn then(&mut self, later: Self) {
        for (no, effect) in later.tasks {
            match effect {
                TaskEffect::Open(task) => self.open(no, task),
                TaskEffect::Again { available_at } => self.again(no, available_at),
                TaskEffect::Close => self.close(no),
            }
        }
        self.timers.extend(later.timers);
        self.relays.extend(later.relays);
        for (no, mark) in later.marks {
            if let Some(needs) = mark.needs {
                self.require(no, needs);
            }
            if mark.cancel {
                self.ask_to_cancel(no);
            }
            if let Some(code) = mark.blocked_by {
                self.blocked_by(no, code);
            }
        }
    }
}

/// A fence on a task row of the deciding run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The task.
    pub no: TaskNo,
    /// What must be true of its row.
    pub hold: Hold,
}

/// A key that the write claims for good; if it is taken, nothing is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The workflow id of a start.
    Workflow,
    /// A caller's command key.
    Request(RequestKey),
}

/// A caller's command key and what it stood for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// Namespace of the workflow.
    pub namespace: Namespace,
    /// The workflow.
    pub workflow_id: WorkflowId,
    /// Kind of command.
    pub kind: &'static str,
    /// The caller's key.
    pub request_id: Arc<str>,
    /// Name of the signal or update.
    pub name: Arc<str>,
    /// Digest of its arguments.
    pub digest: Digest,
    /// The run that the caller named; empty when it named the workflow.
    pub run_target: Arc<str>,
    /// Number of the command in the run that took it.
    pub command: u64,
    /// Id of what it made, for an update.
    pub made_id: Option<Arc<str>>,
}

/// Events and facts of one write.
#[derive(Clone, Debug)]
pub struct Batch {
    run: RunId,
    namespace: Namespace,
    events: Vec<Event>,
    facts: Vec<(u64, Fact)>,
}

impl Batch {
    /// Writes it into `out`, in place of what that held: the events as [`Event::write_all`] writes them, then the
    /// facts as a JSON array of `[event number, fact]`. Returns how many bytes the events take.
    ///
    /// # Errors
    /// A payload cannot be written as JSON, which no value of these types provokes.
    pub fn write(&self, out: &mut Vec<u8>) -> serde_json::Result<usize> {
        write_batch(self.run, &self.namespace, &self.events, &self.facts, out)
    }
}

fn write_batch(
    run: RunId,
    namespace: &Namespace,
    events: &[Event],
    facts: &[(u64, Fact)],
    out: &mut Vec<u8>,
) -> serde_json::Result<usize> {
    out.clear();
    Event::write_all(run, namespace, events, out)?;
    let length = out.len();
    serde_json::to_writer(out, facts)?;
    Ok(length)
}

/// What is written for one run.
#[derive(Clone, Debug)]
pub struct RunWrite {
    /// The version that the run must still have; 0 for a run that does not exist yet.
    pub base: u64,
    /// First event of the batch.
    pub first_event: u64,
    /// Events to append.
    pub events: Vec<Event>,
    /// Facts to append, each with the number of the event that follows it.
    pub facts: Vec<(u64, Fact)>,
    /// Effects on tasks and timers.
    pub effects: Effects,
    /// The state after the write.
    pub next: Arc<RunState>,
    /// The events as they are stored and served, once they are sealed.
    pub text: Option<Arc<str>>,
}

impl RunWrite {
    /// Writes the batch out as [`Batch::write`] does, and counts its bytes in the next state. Called once, when
    /// nothing more is added.
    ///
    /// # Errors
    /// A payload cannot be written as JSON, which no value of these types provokes.
    pub fn seal(&mut self, out: &mut Vec<u8>) -> serde_json::Result<usize> {
        let begun = &self.next.begun;
        let length = write_batch(
            self.next.id,
            &begun.namespace,
            &self.events,
            &self.facts,
            out,
        )?;
        let events = std::str::from_utf8(&out[..length])
            .map_err(<serde_json::Error as serde::ser::Error>::custom)?;
        self.text = Some(events.into());
        Arc::make_mut(&mut self.next).history_bytes += length as u64;
        Ok(length)
    }

    /// The batch apart from the rest, to be written out once more. Payloads are shared.
    pub fn batch(&self) -> Batch {
        Batch {
            run: self.next.id,
            namespace: self.next.begun.namespace.clone(),
            events: self.events.clone(),
            facts: self.facts.clone(),
        }
    }

    /// Hands an opened task to a waiting poll: the row is written leased, and an activity's start
    /// enters the history with it. Does nothing when the task is not opened by this write.
    pub fn hand_over(&mut self, no: TaskNo, to: HandOff, now: Timestamp) {
        let Some(task) = self.effects.opened_mut(no) else {
            return;
        };
        let owner = to.owner.clone();
        task.handed_to = Some(to);
        if task.routing.kind == TaskKind::Activity {
            let event = super::activity::started_event(&self.next, no, FIRST_ATTEMPT, &owner, now);
            if let Some(event) = event {
                Arc::make_mut(&mut self.next).apply(&event);
                self.events.push(event);
            }
        }
    }

    /// Tasks that this write opens for anyone, with their rows.
    pub fn opened(&self) -> impl Iterator<Item = (TaskNo, &NewTask)> {
        self.effects
            .tasks
            .iter()
            .filter_map(|(no, effect)| match effect {
                TaskEffect::Open(task) => Some((*no, task)),
                _ => None,
            })
    }
}

/// The hand-out that happens in the commit that opens a task.
pub const FIRST_ATTEMPT: u32 = 1;

/// What a run decided.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The deciding run.
    pub write: RunWrite,
    /// Runs that come into being with it.
    pub created: Vec<RunWrite>,
    /// Fences on task rows of the deciding run.
    pub fences: Vec<Fence>,
    /// A key that it claims.
    pub claim: Option<Claim>,
}

impl Decision {
    /// This decision and `later`, which was made on the state that this one leads to, as one.
    /// Neither may claim a key if both would.
    pub fn then(mut self, later: Self) -> Self {
        self.write.events.extend(later.write.events);
        self.write.facts.extend(later.write.facts);
        self.write.effects.then(later.write.effects);
        let version = self.write.next.version;
        self.write.next = later.write.next;
        Arc::make_mut(&mut self.write.next).version = version;
        self.created.extend(later.created);
        for fence in later.fences {
            if !self.fences.contains(&fence) {
                self.fences.push(fence);
            }
        }
        self.claim = self.claim.or(later.claim);
        self
    }

    /// The deciding run's id.
    pub fn run_id(&self) -> RunId {
        self.write.next.id
    }

    /// All runs that are written.
    pub fn writes(&self) -> impl Iterator<Item = &RunWrite> {
        std::iter::once(&self.write).chain(&self.created)
    }

    /// All runs that are written, to be changed.
    pub fn writes_mut(&mut self) -> impl Iterator<Item = &mut RunWrite> {
        std::iter::once(&mut self.write).chain(&mut self.created)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: i64) -> Timestamp {
        Timestamp::from_micros(n)
    }

    #[test]
    fn effects_are_net() {
        let user = TimerKey {
            kind: TimerKind::User,
            no: 1,
        };
        let mut effects = Effects::default();
        effects.cancel(user);
        effects.set(user, at(2));
        assert_eq!(effects.timers()[&user], TimerEffect::Set(at(2)));
        effects.again(4, at(3));
        effects.ask_to_cancel(4);
        effects.close(4);
        assert_eq!(effects.tasks()[&4], TaskEffect::Close);
        assert!(effects.marks().is_empty(), "a row that goes is not changed");
    }

    #[test]
    fn numbers_come_back() {
        for kind in TimerKind::ALL {
            assert_eq!(TimerKind::from_number(kind.number()), Some(kind));
        }
        for kind in [TaskKind::Workflow, TaskKind::Activity] {
            assert_eq!(TaskKind::from_number(kind.number()), Some(kind));
        }
    }
}
