//! The state of a run: the fold over its events and facts. Nothing about a run's logic is kept
//! anywhere else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::payload::Payload;

use super::super::command::{CancellationPolicy, ClosePolicy};
use super::super::event::Json;
use super::super::ids::{RunId, Step, TaskNo, TaskQueue, WorkerId, WorkflowId};
use super::super::parallel::{Group, Path, Resolution};
use super::super::retry::Policy;
use super::super::session;
use super::super::time::Timestamp;
use super::attributes::{Attributes, Memo};
use super::cancellation::{Cancellation, Stopped};
use super::decision::{TimerKey, TimerKind};
use super::fact::{Begun, Command, Digest, Receipt, ReportKind, Resume, Signal, Update};
use super::status::{CloseReason, Status};
use super::sticky::Kept;
use super::stream::Stream;

/// How a run closed.
#[derive(Clone, Debug)]
pub struct Close {
    /// Why.
    pub reason: CloseReason,
    /// When.
    pub at: Timestamp,
    /// The terminal event.
    pub event: u64,
    /// The result, of a run that returned.
    pub output: Option<Payload>,
    /// What went wrong, of a run that failed.
    pub failure: Option<CloseFailure>,
    /// The caller's words, or which deadline passed.
    pub detail: Option<Arc<str>>,
    /// The successor.
    pub continued_to: Option<RunId>,
    /// The hand-out of a workflow task that was live when the run was closed from outside.
    pub under_lease: Option<(TaskNo, WorkerId, u32)>,
}

/// What a failed run says about itself.
#[derive(Clone, Debug)]
pub struct CloseFailure {
    /// Human sentence.
    pub message: Arc<str>,
    /// The SDK's error type.
    pub kind: Option<Arc<str>>,
    /// The language's class.
    pub class: Option<Arc<str>>,
    /// Group of causes.
    pub category: Arc<str>,
    /// The workflow said that trying again is pointless.
    pub non_retryable: bool,
    /// The structured exception.
    pub exception: Option<Json>,
}

/// The open workflow task; a run has at most one.
#[derive(Clone, Debug)]
pub struct WorkflowTask {
    /// Its number.
    pub no: TaskNo,
    /// Why it was opened; an update task carries that update and nothing else.
    pub resume: Resume,
    /// Failure reports in a row.
    pub failures: u32,
    /// A worker could not replay the history; the last failure's message says why.
    pub blocked: bool,
    /// What the last failure report said.
    pub last_failure: Option<Arc<str>>,
}

impl WorkflowTask {
    /// It carries an update, and the workflow's own code does not run in it.
    pub fn is_for_update(&self) -> bool {
        matches!(self.resume, Resume::Update { .. })
    }
}

/// An open activity.
#[derive(Clone, Debug)]
pub struct Activity {
    /// Its task.
    pub no: TaskNo,
    /// Its step.
    pub step: Step,
    /// Registered type.
    pub activity_type: Arc<str>,
    /// Queue of its task.
    pub queue: TaskQueue,
    /// Encoded argument list.
    pub arguments: Option<Payload>,
    /// Retry rule and timeouts.
    pub policy: Option<Arc<Policy>>,
    /// The worker session that it runs in.
    pub session: Option<Arc<session::Options>>,
    /// Place in parallel groups.
    pub path: Option<Path>,
    /// When it was scheduled.
    pub scheduled_at: Timestamp,
    /// When the current attempt may be handed out.
    pub available_at: Timestamp,
    /// Failed attempts.
    pub failures: u32,
    /// The last hand-out that history shows.
    pub started: u32,
    /// Who got it.
    pub holder: Option<Arc<str>>,
    /// What a cancellation does to it.
    pub cancellation: CancellationPolicy,
    /// The last hand-out that ended in a retry; nothing that comes under it counts any more.
    pub ended: u32,
}

/// An activity that was cancelled while a worker may still run it.
#[derive(Clone, Debug)]
pub struct CancelledActivity {
    /// The event that says so.
    pub event: u64,
    /// The last hand-out that history shows; 0 when it shows none.
    pub attempt: u32,
    /// Who got it.
    pub holder: Option<Arc<str>>,
}

impl Activity {
    /// End of all attempts.
    pub fn close_deadline(&self) -> Option<Timestamp> {
        let seconds = self.policy.as_ref()?.schedule_to_close_timeout?;
        Some(self.scheduled_at.plus_seconds(seconds))
    }

    /// The time by which the current attempt must be handed out.
    pub fn start_deadline(&self) -> Option<Timestamp> {
        let seconds = self.policy.as_ref()?.schedule_to_start_timeout?;
        Some(self.available_at.plus_seconds(seconds))
    }
}

/// An open user timer.
#[derive(Clone, Debug)]
pub struct Timer {
    /// Its step.
    pub step: Step,
    /// Seconds it was set for.
    pub delay_seconds: u64,
    /// When it goes off.
    pub fire_at: Timestamp,
    /// Place in parallel groups.
    pub path: Option<Path>,
}

/// What two openings of one wait for a condition have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionIdentity {
    /// The author's key.
    pub key: Option<Arc<str>>,
    /// Fingerprint of the condition's code.
    pub fingerprint: Option<Arc<str>>,
    /// The worker's name for the wait over all its openings.
    pub occurrence: Option<Arc<str>>,
}

/// An open wait for a condition.
#[derive(Clone, Debug)]
pub struct Condition {
    /// Its step.
    pub step: Step,
    /// What it waits for.
    pub identity: ConditionIdentity,
    /// Seconds it was opened for.
    pub timeout_seconds: Option<u64>,
    /// When it times out; with its timer's id this makes the timer's events.
    pub deadline: Option<Timestamp>,
    /// The event that opened it.
    pub opened_at: u64,
    /// Place in parallel groups.
    pub path: Option<Path>,
}

/// A wait for a condition that has timed out, until a finished task has seen that.
#[derive(Clone, Debug)]
pub struct Lapsed {
    /// What it waited for.
    pub identity: ConditionIdentity,
    /// The event that says so.
    pub event: u64,
}

/// An open wait for a signal.
#[derive(Clone, Debug)]
pub struct SignalWait {
    /// Its step.
    pub step: Step,
    /// Name of the signal.
    pub name: Arc<str>,
    /// Seconds it was opened for.
    pub timeout_seconds: Option<u64>,
    /// When it times out.
    pub deadline: Option<Timestamp>,
    /// Place in parallel groups.
    pub path: Option<Path>,
}

/// A child whose end the run has not heard of.
#[derive(Clone, Debug)]
pub struct Child {
    /// Its step.
    pub step: Step,
    /// The first of its runs, which all events name.
    pub run: RunId,
    /// Its workflow.
    pub workflow_id: WorkflowId,
    /// Its type.
    pub workflow_type: Arc<str>,
    /// What becomes of it when this run closes.
    pub close_policy: ClosePolicy,
    /// What a cancellation of this run does to it.
    pub cancellation: CancellationPolicy,
    /// Place in parallel groups.
    pub path: Option<Path>,
}

/// An input that waits for the open workflow task to close.
#[derive(Clone, Debug)]
pub enum Held {
    /// A signal.
    Signal(Signal),
    /// An update.
    Update(Update),
}

/// An update that has an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The update.
    pub update_id: Arc<str>,
    /// The event that holds the outcome.
    pub event: u64,
}

/// Everything a decision needs to know about a run.
#[derive(Clone, Debug)]
pub struct RunState {
    /// The run.
    pub id: RunId,
    /// How often it has been written; the fence of the next write.
    pub version: u64,
    /// What it began with.
    pub begun: Arc<Begun>,
    /// Number of the next event.
    pub next_event: u64,
    /// Number of the next step.
    pub next_step: Step,
    /// Number of the next task.
    pub next_task: TaskNo,
    /// Bytes of history so far.
    pub history_bytes: u64,
    /// Largest parallel group so far.
    pub fan_out: u32,
    /// A workflow task has been completed.
    pub progressed: bool,
    /// When the history last grew.
    pub last_progress_at: Timestamp,
    /// The open workflow task.
    pub workflow_task: Option<WorkflowTask>,
    /// Last event that a workflow task must see.
    pub last_wake: u64,
    /// What that event was.
    pub last_resume: Option<Resume>,
    /// Last event that the workflow's code has acted on: what its last finished task had seen.
    pub acted_on: u64,
    /// Last event that may have made a condition true: a recorded signal or an applied update.
    pub last_input: u64,
    /// Open activities, by task.
    pub activities: BTreeMap<TaskNo, Arc<Activity>>,
    /// Activities that were cancelled while a worker may still run them.
    pub cancelled_activities: BTreeMap<TaskNo, CancelledActivity>,
    /// Open timers, by step.
    pub timers: BTreeMap<Step, Arc<Timer>>,
    /// Open children, by step.
    pub children: BTreeMap<Step, Arc<Child>>,
    /// Open waits for conditions, by step.
    pub conditions: BTreeMap<Step, Arc<Condition>>,
    /// Waits that timed out without any finished task having seen it.
    pub lapsed: Vec<Arc<Lapsed>>,
    /// Open waits for signals, by step.
    pub signal_waits: BTreeMap<Step, Arc<SignalWait>>,
    /// Names that the workflow has waited for in that way.
    pub awaited_names: Arc<BTreeSet<Arc<str>>>,
    /// Recorded signals that no wait has taken.
    pub unapplied: Arc<VecDeque<Arc<Signal>>>,
    /// Outermost groups that a worker may still send again, by base step.
    pub groups: BTreeMap<Step, Arc<Group>>,
    /// Inputs that wait for the open workflow task to close, in the order of their arrival.
    pub held: VecDeque<Arc<Held>>,
    /// The update that entered the history and has no outcome.
    pub update: Option<Arc<Update>>,
    /// The most recent updates that have one.
    pub answered: VecDeque<Answered>,
    /// The cancellation that was asked for with the workflow's cooperation.
    pub cancellation: Option<Arc<Cancellation>>,
    /// Cancelled activities that their workers have stopped.
    pub stopped: Vec<Stopped>,
    /// Message streams of the workflow.
    pub streams: Arc<BTreeMap<Arc<str>, Stream>>,
    /// Values that the workflow shows to callers.
    pub memo: Arc<Memo>,
    /// Values that callers search by.
    pub attributes: Arc<Attributes>,
    /// Features of the history that a worker must know to replay it, see [`super::features`].
    pub needs: i64,
    /// Who keeps it in memory.
    pub kept: Option<Arc<Kept>>,
    /// Signals accepted so far.
    pub signals: u64,
    /// Commands accepted so far.
    pub commands: u64,
    /// The most recent of them.
    pub recent_commands: VecDeque<Arc<Command>>,
    /// The most recent reports.
    pub receipts: VecDeque<Arc<Receipt>>,
    /// How it closed.
    pub close: Option<Arc<Close>>,
    /// It is exempt from retention.
    pub archived: bool,
    pub(super) under_lease: Option<(TaskNo, WorkerId, u32)>,
    /// A selection that the last event decided, to be recorded next.
    pub(super) resolution: Option<Resolution>,
}

impl RunState {
    /// The state before the first batch.
    pub fn new(id: RunId, begun: Begun) -> Self {
        Self {
            id,
            version: 0,
            last_progress_at: begun.started_at,
            memo: Arc::new(Memo::from_begun(&begun)),
            attributes: Arc::new(Attributes::from_json(&begun.search_attributes)),
            needs: 0,
            kept: None,
            begun: Arc::new(begun),
            next_event: 1,
            next_step: 1,
            next_task: 1,
            history_bytes: 0,
            fan_out: 0,
            progressed: false,
            workflow_task: None,
            last_wake: 0,
            last_resume: None,
            acted_on: 0,
            last_input: 0,
            activities: BTreeMap::new(),
            cancelled_activities: BTreeMap::new(),
            timers: BTreeMap::new(),
            children: BTreeMap::new(),
            conditions: BTreeMap::new(),
            lapsed: Vec::new(),
            signal_waits: BTreeMap::new(),
            awaited_names: Arc::default(),
            unapplied: Arc::default(),
            groups: BTreeMap::new(),
            held: VecDeque::new(),
            update: None,
            answered: VecDeque::new(),
            cancellation: None,
            stopped: Vec::new(),
            streams: Arc::default(),
            signals: 0,
            commands: 0,
            recent_commands: VecDeque::new(),
            receipts: VecDeque::new(),
            close: None,
            archived: false,
            under_lease: None,
            resolution: None,
        }
    }

    /// Status, as clients see it.
    pub fn status(&self) -> Status {
        match &self.close {
            Some(close) => close.reason.status(),
            None if !self.progressed => Status::Pending,
            None if self.workflow_task.is_some() => Status::Running,
            None => Status::Waiting,
        }
    }

    /// What an open run waits for, in the contract's words.
    pub fn wait_kind(&self) -> Option<&'static str> {
        if self.close.is_some() {
            None
        } else if self.workflow_task.is_some() {
            Some("workflow-task")
        } else if !self.activities.is_empty() {
            Some("activity")
        } else if !self.children.is_empty() {
            Some("child")
        } else if !self.conditions.is_empty() {
            Some("condition")
        } else if !self.timers.is_empty() {
            Some("timer")
        } else {
            Some("signal")
        }
    }

    /// Whether a timer row of this kind and number still has a meaning.
    pub fn expects(&self, key: TimerKey) -> bool {
        if self.close.is_some() {
            return false;
        }
        match key.kind {
            TimerKind::User => self.timers.contains_key(&key.no),
            TimerKind::ConditionTimeout => self.conditions.contains_key(&key.no),
            TimerKind::SignalTimeout => self.signal_waits.contains_key(&key.no),
            TimerKind::ScheduleToStart => self
                .activities
                .get(&key.no)
                .is_some_and(|activity| activity.start_deadline().is_some()),
            TimerKind::ScheduleToClose => self
                .activities
                .get(&key.no)
                .is_some_and(|activity| activity.close_deadline().is_some()),
            TimerKind::CleanupDeadline => self.cancellation.is_some(),
            TimerKind::RunDeadline => self.begun.run_deadline_at.is_some(),
            TimerKind::ExecutionDeadline => self.begun.execution_deadline_at.is_some(),
        }
    }

    /// The last event's number.
    pub fn last_event(&self) -> u64 {
        self.next_event - 1
    }

    /// The open workflow task carries an update.
    pub fn is_in_update(&self) -> bool {
        self.workflow_task
            .as_ref()
            .is_some_and(WorkflowTask::is_for_update)
    }

    /// Signals that are held.
    pub fn held_signals(&self) -> usize {
        self.held
            .iter()
            .filter(|held| matches!(***held, Held::Signal(_)))
            .count()
    }

    /// Updates without an outcome, recorded or held.
    pub fn open_updates(&self) -> usize {
        self.held.len() - self.held_signals() + usize::from(self.update.is_some())
    }

    /// An update without an outcome, by its id.
    pub fn open_update(&self, id: &str) -> Option<&Update> {
        let held = self.held.iter().filter_map(|held| match &**held {
            Held::Update(update) => Some(update),
            Held::Signal(_) => None,
        });
        self.update
            .as_deref()
            .into_iter()
            .chain(held)
            .find(|update| *update.id == *id)
    }

    /// The report that was recorded for this hand-out of this task.
    pub fn receipt(&self, no: TaskNo, attempt: u32) -> Option<&Arc<Receipt>> {
        self.receipts
            .iter()
            .rev()
            .find(|receipt| receipt.no == no && receipt.attempt == attempt)
    }

    /// Whether a report under this fence was the last thing this task heard: same body, same words.
    pub fn is_repeat(
        receipt: &Receipt,
        owner: &WorkerId,
        report: ReportKind,
        digest: Digest,
    ) -> bool {
        receipt.owner == *owner && receipt.report == report && receipt.digest == digest
    }
}
