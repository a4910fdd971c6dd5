//! The state of a run: the fold over its events and facts. Nothing about a run's logic is kept
//! anywhere else.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::payload::Payload;

use super::super::decision::{TimerKey, TimerKind};
use super::super::event::{Body, Event, Json};
use super::super::ids::{RunId, Step, TaskNo, TaskQueue, WorkerId};
use super::super::limits::{COMMANDS_SHOWN, RECEIPTS_KEPT};
use super::super::parallel::{Group, Member, Path, StepKind};
use super::super::retry::Policy;
use super::super::time::Timestamp;
use super::fact::{Begun, Command, Digest, Fact, Receipt, ReportKind, Resume, Signal};

/// Status of a run, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// No workflow task has been completed yet.
    Pending,
    /// A workflow task is open.
    Running,
    /// The run waits for something.
    Waiting,
    /// Closed by its own return, or continued as another run.
    Completed,
    /// Closed by its own failure or by a deadline.
    Failed,
    /// Closed by a cancel.
    Cancelled,
    /// Closed by a terminate.
    Terminated,
}

impl Status {
    /// Every status, in the order of its stored number.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Running,
        Self::Waiting,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Terminated,
    ];

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Terminated => "terminated",
        }
    }

    /// `running`, `completed` or `failed`.
    pub fn bucket(self) -> &'static str {
        match self {
            Self::Pending | Self::Running | Self::Waiting => "running",
            Self::Completed => "completed",
            Self::Failed | Self::Cancelled | Self::Terminated => "failed",
        }
    }

    /// The run is closed.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Pending | Self::Running | Self::Waiting)
    }

    /// The number it is stored as.
    pub fn number(self) -> i16 {
        match self {
            Self::Pending => 0,
            Self::Running => 1,
            Self::Waiting => 2,
            Self::Completed => 3,
            Self::Failed => 4,
            Self::Cancelled => 5,
            Self::Terminated => 6,
        }
    }

    /// The status that is stored as `number`.
    pub fn from_number(number: i16) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// Why a run is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// It returned.
    Completed,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It was terminated.
    Terminated,
    /// It continued as another run.
    Continued,
    /// Its deadline passed.
    TimedOut,
}

impl CloseReason {
    /// The word on the wire, `closed_reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Terminated => "terminated",
            Self::Continued => "continued",
            Self::TimedOut => "timed_out",
        }
    }

    /// The status of a run that closed for this reason.
    pub fn status(self) -> Status {
        match self {
            Self::Completed | Self::Continued => Status::Completed,
            Self::Failed | Self::TimedOut => Status::Failed,
            Self::Cancelled => Status::Cancelled,
            Self::Terminated => Status::Terminated,
        }
    }
}

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
    /// Why it was opened.
    pub resume: Resume,
    /// Failure reports in a row.
    pub failures: u32,
    /// A worker could not replay the history; the last failure's message says why.
    pub blocked: bool,
    /// What the last failure report said.
    pub last_failure: Option<Arc<str>>,
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
    /// The last hand-out that ended in a retry; nothing that comes under it counts any more.
    pub ended: u32,
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
    /// Open activities, by task.
    pub activities: BTreeMap<TaskNo, Arc<Activity>>,
    /// Open timers, by step.
    pub timers: BTreeMap<Step, Arc<Timer>>,
    /// Outermost groups that a worker may still send again, by base step.
    pub groups: BTreeMap<Step, Arc<Group>>,
    /// Signals that wait for the open workflow task to close.
    pub held: VecDeque<Arc<Signal>>,
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
    under_lease: Option<(TaskNo, WorkerId, u32)>,
}

impl RunState {
    /// The state before the first batch.
    pub fn new(id: RunId, begun: Begun) -> Self {
        Self {
            id,
            version: 0,
            last_progress_at: begun.started_at,
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
            activities: BTreeMap::new(),
            timers: BTreeMap::new(),
            groups: BTreeMap::new(),
            held: VecDeque::new(),
            signals: 0,
            commands: 0,
            recent_commands: VecDeque::new(),
            receipts: VecDeque::new(),
            close: None,
            archived: false,
            under_lease: None,
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
            TimerKind::ScheduleToStart => self
                .activities
                .get(&key.no)
                .is_some_and(|activity| activity.start_deadline().is_some()),
            TimerKind::ScheduleToClose => self
                .activities
                .get(&key.no)
                .is_some_and(|activity| activity.close_deadline().is_some()),
            TimerKind::RunDeadline => self.begun.run_deadline_at.is_some(),
            TimerKind::ExecutionDeadline => self.begun.execution_deadline_at.is_some(),
        }
    }

    /// The last event's number.
    pub fn last_event(&self) -> u64 {
        self.next_event - 1
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

    /// Folds one fact in.
    pub fn note(&mut self, fact: &Fact) {
        match fact {
            Fact::Begun(begun) => self.begun = Arc::new((**begun).clone()),
            Fact::Command(command) => {
                self.commands = command.n;
                push_bounded(
                    &mut self.recent_commands,
                    Arc::new(command.clone()),
                    COMMANDS_SHOWN,
                );
            }
            Fact::TaskOpened { no, resume } => {
                self.next_task = self.next_task.max(no + 1);
                self.workflow_task = Some(WorkflowTask {
                    no: *no,
                    resume: resume.clone(),
                    failures: 0,
                    blocked: false,
                    last_failure: None,
                });
            }
            Fact::TaskFailed {
                receipt,
                blocked,
                message,
            } => {
                self.keep(receipt);
                if let Some(task) = &mut self.workflow_task {
                    task.failures += 1;
                    task.blocked = *blocked;
                    task.last_failure = Some(Arc::clone(message));
                }
            }
            Fact::TaskDone { receipt, seen } => {
                self.keep(receipt);
                self.workflow_task = None;
                self.progressed = true;
                // A worker that saw a group finished never sends it again.
                self.groups
                    .retain(|_, group| group.finished_at().is_none_or(|at| at > *seen));
            }
            Fact::AttemptReported { receipt } => self.keep(receipt),
            Fact::SignalHeld(signal) => {
                self.signals += 1;
                self.held.push_back(Arc::new(signal.clone()));
            }
            Fact::ClosedUnderLease { no, owner, attempt } => {
                self.under_lease = Some((*no, owner.clone(), *attempt));
            }
            Fact::Archived => self.archived = true,
        }
    }

    fn keep(&mut self, receipt: &Receipt) {
        push_bounded(&mut self.receipts, Arc::new(receipt.clone()), RECEIPTS_KEPT);
    }

    /// Folds one event in. Events arrive in the order of their numbers.
    pub fn apply(&mut self, event: &Event) {
        self.next_event = event.sequence + 1;
        self.last_progress_at = event.recorded_at;
        match &event.body {
            Body::ActivityScheduled(scheduled) => {
                let keys = &scheduled.keys;
                let path = keys.group.path();
                self.record_step(keys.sequence, StepKind::Activity, path.as_ref());
                self.next_task = self.next_task.max(keys.activity_task_id.no + 1);
                self.activities.insert(
                    keys.activity_task_id.no,
                    Arc::new(Activity {
                        no: keys.activity_task_id.no,
                        step: keys.sequence,
                        activity_type: Arc::clone(&keys.activity_type),
                        queue: scheduled.activity.queue.clone(),
                        arguments: scheduled.activity.arguments.clone(),
                        policy: scheduled.activity.retry_policy.clone().map(Arc::new),
                        path,
                        scheduled_at: event.recorded_at,
                        available_at: event.recorded_at,
                        failures: 0,
                        started: 0,
                        ended: 0,
                    }),
                );
            }
            Body::ActivityStarted(started) => {
                self.change_activity(started.keys.activity_task_id.no, |activity| {
                    activity.started = started.attempt_number;
                });
            }
            Body::ActivityRetryScheduled(retry) => {
                self.change_activity(retry.keys.activity_task_id.no, |activity| {
                    activity.failures += 1;
                    activity.available_at = retry.retry_available_at;
                    activity.ended = retry.retry_after_attempt;
                });
            }
            Body::ActivityCompleted(end) => {
                self.end_activity(end.keys.activity_task_id.no, event, false)
            }
            Body::ActivityFailed(end) => {
                self.end_activity(end.keys.activity_task_id.no, event, true)
            }
            Body::ActivityTimedOut(end) => {
                self.end_activity(end.keys.activity_task_id.no, event, true)
            }
            Body::ActivityCancelled(end) => {
                self.end_activity(end.keys.activity_task_id.no, event, true)
            }
            Body::TimerScheduled(scheduled) => {
                let timer = &scheduled.timer;
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
            Body::TimerFired(fired) => {
                if let Some(timer) = self.timers.remove(&fired.timer.sequence) {
                    let resume = Resume::Timer { step: timer.step };
                    self.end_step(timer.path.as_ref(), event.sequence, false, resume);
                }
            }
            Body::TimerCancelled(cancelled) => {
                self.timers.remove(&cancelled.timer.sequence);
            }
            Body::SideEffectRecorded(effect) => self.next_step = effect.sequence + 1,
            Body::VersionMarkerRecorded(marker) => self.next_step = marker.sequence + 1,
            Body::SignalReceived(signal) => {
                let held = self.held.front().is_some_and(|held| {
                    signal.signal_id == super::signal::signal_id(held.run, held.n)
                });
                let released = if held { self.held.pop_front() } else { None };
                let (run, n) = match released {
                    Some(held) => (held.run, held.n),
                    None => {
                        self.signals += 1;
                        (self.id, self.commands)
                    }
                };
                self.wake(
                    event.sequence,
                    Resume::Signal {
                        run,
                        n,
                        name: Arc::clone(&signal.signal_name),
                    },
                );
            }
            Body::WorkflowCompleted(end) => self.end(event, CloseReason::Completed, |close| {
                close.output = Some(end.output.clone());
            }),
            Body::WorkflowFailed(end) => self.end(event, CloseReason::Failed, |close| {
                close.failure = Some(CloseFailure {
                    message: end.message.as_str().into(),
                    kind: end.exception_type.as_deref().map(Arc::from),
                    class: end.exception_class.as_deref().map(Arc::from),
                    category: end.failure_category.as_ref().into(),
                    non_retryable: end.non_retryable,
                    exception: end.exception.clone(),
                });
            }),
            Body::WorkflowCancelled(end) => self.end(event, CloseReason::Cancelled, |close| {
                close.detail.clone_from(&end.0.reason);
            }),
            Body::WorkflowTerminated(end) => self.end(event, CloseReason::Terminated, |close| {
                close.detail.clone_from(&end.0.reason);
            }),
            Body::WorkflowTimedOut(end) => self.end(event, CloseReason::TimedOut, |close| {
                close.detail = Some(end.timeout_kind.as_ref().into());
                close.failure = Some(CloseFailure {
                    message: end.message.as_str().into(),
                    kind: None,
                    class: Some(end.exception_class.as_ref().into()),
                    category: end.failure_category.as_ref().into(),
                    non_retryable: false,
                    exception: None,
                });
            }),
            Body::WorkflowContinuedAsNew(end) => {
                self.next_step = end.sequence + 1;
                self.end(event, CloseReason::Continued, |close| {
                    close.continued_to = Some(end.continued_to_run_id);
                });
            }
            Body::StartAccepted(_)
            | Body::WorkflowStarted(_)
            | Body::ActivityHeartbeatRecorded(_)
            | Body::CancelRequested(_)
            | Body::TerminateRequested(_)
            | Body::ArchiveRequested(_)
            | Body::WorkflowArchived(_) => {}
        }
    }

    fn record_step(&mut self, step: Step, kind: StepKind, path: Option<&Path>) {
        self.next_step = self.next_step.max(step.saturating_add(1));
        let Some(path) = path else { return };
        let outer = path.outermost();
        self.fan_out = self.fan_out.max(outer.parallel_group_size);
        let group = self
            .groups
            .entry(outer.parallel_group_base_sequence)
            .or_insert_with(|| Arc::new(Group::new(outer.parallel_group_size)));
        Arc::make_mut(group).record(
            outer.parallel_group_index,
            Member {
                kind,
                path: path.clone(),
            },
        );
    }

    fn change_activity(&mut self, no: TaskNo, change: impl FnOnce(&mut Activity)) {
        if let Some(activity) = self.activities.get_mut(&no) {
            change(Arc::make_mut(activity));
        }
    }

    fn end_activity(&mut self, no: TaskNo, event: &Event, failed: bool) {
        let Some(activity) = self.activities.remove(&no) else {
            return;
        };
        let resume = Resume::Activity {
            no,
            step: activity.step,
            activity_type: Arc::clone(&activity.activity_type),
            event: event.body.event_type().into(),
        };
        self.end_step(activity.path.as_ref(), event.sequence, failed, resume);
    }

    /// A step outside any group wakes the workflow. A leaf of a group wakes it when it failed, so
    /// that the code can react at once, or when it was the last one open.
    fn end_step(&mut self, path: Option<&Path>, sequence: u64, failed: bool, resume: Resume) {
        let finished = match path.map(|path| path.outermost().parallel_group_base_sequence) {
            None => true,
            Some(base) => match self.groups.get_mut(&base) {
                None => true,
                Some(group) => Arc::make_mut(group).close_leaf(sequence),
            },
        };
        if failed || finished {
            self.wake(sequence, resume);
        }
    }

    fn wake(&mut self, sequence: u64, resume: Resume) {
        self.last_wake = sequence;
        self.last_resume = Some(resume);
    }

    fn end(&mut self, event: &Event, reason: CloseReason, fill: impl FnOnce(&mut Close)) {
        let mut close = Close {
            reason,
            at: event.recorded_at,
            event: event.sequence,
            output: None,
            failure: None,
            detail: None,
            continued_to: None,
            under_lease: self.under_lease.take(),
        };
        fill(&mut close);
        self.close = Some(Arc::new(close));
        self.workflow_task = None;
        self.timers.clear();
        self.groups.clear();
        self.held.clear();
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T, bound: usize) {
    if queue.len() >= bound {
        queue.pop_front();
    }
    queue.push_back(item);
}
