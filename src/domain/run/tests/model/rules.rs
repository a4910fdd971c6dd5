//! The reference model: what the rules say about one run, written without a look at the code.
//!
//! It keeps the plain list of what was recorded and works everything else out by reading it again:
//! what is open, what failed how often, what a worker has not seen. Slow and short.

use std::collections::{BTreeMap, VecDeque};

use crate::domain::decision::{TimerKey, TimerKind};
use crate::domain::ids::{Step, TaskNo, WorkerId};
use crate::domain::limits::Limits;
use crate::domain::parallel::{Path, PathEntry, StepKind};
use crate::domain::retry::Policy;
use crate::domain::run::{CloseReason, ObservedLease, ReportKind};
use crate::domain::time::Timestamp;

/// Something recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ev {
    pub kind: &'static str,
    /// 0 for what belongs to no step.
    pub step: Step,
    pub attempt: u32,
    /// Which signal it is.
    pub tag: String,
    /// Of a retry: when it may be handed out.
    pub until: Option<Timestamp>,
}

/// An activity or a timer, as its command asked for it.
#[derive(Clone, Debug)]
pub struct Made {
    pub kind: StepKind,
    pub path: Option<Path>,
    /// Task of an activity.
    pub no: TaskNo,
    pub policy: Option<Policy>,
    pub delay: u64,
    pub at: Timestamp,
}

/// The open workflow task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub no: TaskNo,
    pub failures: u32,
    pub blocked: bool,
}

/// A report that was recorded.
#[derive(Clone, Debug)]
pub struct Told {
    pub no: TaskNo,
    pub attempt: u32,
    pub owner: WorkerId,
    pub kind: ReportKind,
    pub digest: u64,
    pub created: Vec<TaskNo>,
    pub next: Option<TaskNo>,
}

/// Which hand-out of which task, in whose hands.
pub type Fence = (TaskNo, WorkerId, u32);

/// What a write needs of the task rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The holder's lease is live.
    Live(Fence),
    /// The holder has it, and one of its limits has passed.
    Ended(Fence),
    /// The holder has it, and the lease has run out.
    Dead(Fence),
    /// Nobody has it.
    Free(TaskNo),
}

/// What the rules say about an input.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// The possible answers: several when several rules refuse it.
    pub labels: Vec<String>,
    /// It is written.
    pub writes: bool,
    pub needs: Vec<Need>,
    pub successor: Option<Box<Model>>,
}

impl Said {
    pub fn refused(why: &str) -> Self {
        Self {
            labels: vec![format!("refused {why}")],
            ..Self::default()
        }
    }

    pub fn answered(what: &str) -> Self {
        Self {
            labels: vec![what.to_owned()],
            ..Self::default()
        }
    }

    pub fn written(what: String, needs: Vec<Need>) -> Self {
        Self {
            labels: vec![what],
            writes: true,
            needs,
            successor: None,
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Model {
    pub history: Vec<Ev>,
    pub made: BTreeMap<Step, Made>,
    pub tasks: TaskNo,
    pub open: Option<Open>,
    /// When each open task may be handed out.
    pub ready: BTreeMap<TaskNo, Timestamp>,
    pub held: VecDeque<String>,
    pub told: Vec<Told>,
    pub commands: u64,
    pub closed: Option<CloseReason>,
    /// The fence that was live at the close.
    pub cut_off: Option<Fence>,
    pub archived: bool,
    pub run_timeout: Option<u64>,
    pub run_deadline: Option<Timestamp>,
    pub execution_deadline: Option<Timestamp>,
    pub number: u32,
    /// The most that a worker had seen when it closed a task.
    pub seen: usize,
    pub limits: Limits,
}

impl Model {
    pub fn new(limits: Limits, number: u32, first: &[&'static str], now: Timestamp) -> Self {
        let mut model = Self {
            history: Vec::new(),
            made: BTreeMap::new(),
            tasks: 0,
            open: None,
            ready: BTreeMap::new(),
            held: VecDeque::new(),
            told: Vec::new(),
            commands: 0,
            closed: None,
            cut_off: None,
            archived: false,
            run_timeout: None,
            run_deadline: None,
            execution_deadline: None,
            number,
            seen: 0,
            limits,
        };
        for kind in first {
            model.record(kind, 0, 0);
        }
        model.open_task(now);
        model
    }

    pub fn record(&mut self, kind: &'static str, step: Step, attempt: u32) {
        self.history.push(Ev {
            kind,
            step,
            attempt,
            tag: String::new(),
            until: None,
        });
    }

    pub fn open_task(&mut self, now: Timestamp) -> TaskNo {
        self.tasks += 1;
        self.open = Some(Open {
            no: self.tasks,
            failures: 0,
            blocked: false,
        });
        self.ready.insert(self.tasks, now);
        self.tasks
    }

    // What the history says.

    pub fn has_ended(&self, step: Step) -> bool {
        self.ended_by(step, self.history.len())
    }

    fn ended_by(&self, step: Step, place: usize) -> bool {
        self.history[..place].iter().any(|ev| {
            ev.step == step
                && matches!(
                    ev.kind,
                    "ActivityCompleted"
                        | "ActivityFailed"
                        | "ActivityTimedOut"
                        | "ActivityCancelled"
                        | "TimerFired"
                        | "TimerCancelled"
                )
        })
    }

    fn is_open(&self, kind: StepKind) -> impl Iterator<Item = (Step, &Made)> {
        self.made
            .iter()
            .filter(move |(step, made)| made.kind == kind && !self.has_ended(**step))
            .map(|(step, made)| (*step, made))
    }

    /// Open activities by step; none once the run has closed.
    pub fn activities(&self) -> Vec<(Step, Made)> {
        self.is_open(StepKind::Activity)
            .map(|(step, made)| (step, made.clone()))
            .collect()
    }

    pub fn timers(&self) -> Vec<(Step, Made)> {
        self.is_open(StepKind::Timer)
            .map(|(step, made)| (step, made.clone()))
            .collect()
    }

    pub fn activity(&self, no: TaskNo) -> Option<(Step, Made)> {
        self.activities()
            .into_iter()
            .find(|(_, made)| made.no == no)
    }

    fn of<'a>(&'a self, step: Step, kind: &'static str) -> impl Iterator<Item = &'a Ev> {
        self.history
            .iter()
            .filter(move |ev| ev.step == step && ev.kind == kind)
    }

    pub fn failures(&self, step: Step) -> u32 {
        u32::try_from(self.of(step, "ActivityRetryScheduled").count()).unwrap()
    }

    /// The last attempt that history shows.
    pub fn shown(&self, step: Step) -> u32 {
        let shown = self.of(step, "ActivityStarted").map(|ev| ev.attempt);
        shown.max().unwrap_or(0)
    }

    /// Whether an attempt is over by what history says: a later one was shown, or it was retried.
    /// Hand-outs count from 1.
    pub fn is_over(&self, step: Step, attempt: u32) -> bool {
        let retried = self
            .of(step, "ActivityRetryScheduled")
            .any(|ev| ev.attempt >= attempt);
        attempt == 0 || retried || self.shown(step) > attempt
    }

    /// When the current attempt may be handed out.
    pub fn available(&self, step: Step) -> Timestamp {
        let retry = self.of(step, "ActivityRetryScheduled").last();
        retry.and_then(|ev| ev.until).unwrap_or(self.made[&step].at)
    }

    pub fn start_deadline(&self, step: Step) -> Option<Timestamp> {
        let seconds = self.made[&step]
            .policy
            .as_ref()?
            .schedule_to_start_timeout?;
        Some(self.available(step).plus_seconds(seconds))
    }

    pub fn close_deadline(&self, step: Step) -> Option<Timestamp> {
        let made = &self.made[&step];
        let seconds = made.policy.as_ref()?.schedule_to_close_timeout?;
        Some(made.at.plus_seconds(seconds))
    }

    pub fn next_step(&self) -> Step {
        self.history.iter().map(|ev| ev.step).max().unwrap_or(0) + 1
    }

    fn outer(&self, step: Step) -> Option<&PathEntry> {
        Some(self.made.get(&step)?.path.as_ref()?.outermost())
    }

    /// The place at which a group's last leaf ended, counted from 1.
    fn group_end(&self, outer: &PathEntry) -> Option<usize> {
        let base = outer.parallel_group_base_sequence;
        let leaves = base..base + outer.parallel_group_size;
        (1..=self.history.len())
            .find(|place| leaves.clone().all(|leaf| self.ended_by(leaf, *place)))
    }

    /// Whether a worker that closed a task has seen this group end.
    pub fn is_settled(&self, outer: &PathEntry) -> bool {
        self.group_end(outer).is_some_and(|end| end <= self.seen)
    }

    fn wakes(&self, place: usize) -> bool {
        let ev = &self.history[place - 1];
        match ev.kind {
            "SignalReceived" | "ActivityFailed" | "ActivityTimedOut" => true,
            "ActivityCompleted" | "TimerFired" => match self.outer(ev.step) {
                None => true,
                Some(outer) => self.group_end(outer).is_some_and(|end| end <= place),
            },
            _ => false,
        }
    }

    /// The last thing that a worker must see, counted from 1.
    pub fn newest_wake(&self) -> usize {
        (1..=self.history.len())
            .rev()
            .find(|place| self.wakes(*place))
            .unwrap_or(0)
    }

    /// Opens a task if something after `from` must be seen.
    pub fn wake(&mut self, from: usize, now: Timestamp) -> Option<TaskNo> {
        let wakes = self.newest_wake() > from;
        (wakes && self.open.is_none() && self.closed.is_none()).then(|| self.open_task(now))
    }

    pub fn is_past_deadline(&self, now: Timestamp) -> bool {
        [self.run_deadline, self.execution_deadline]
            .into_iter()
            .flatten()
            .any(|at| at <= now)
    }

    /// The timer rows that must be there.
    pub fn rows(&self) -> BTreeMap<TimerKey, Timestamp> {
        let mut rows = BTreeMap::new();
        if self.closed.is_some() {
            return rows;
        }
        let mut row = |kind, no, at: Option<Timestamp>| {
            rows.extend(at.map(|at| (TimerKey { kind, no }, at)));
        };
        row(TimerKind::RunDeadline, 0, self.run_deadline);
        row(TimerKind::ExecutionDeadline, 0, self.execution_deadline);
        for (step, made) in self.timers() {
            row(
                TimerKind::User,
                step,
                Some(made.at.plus_seconds(made.delay)),
            );
        }
        for (step, made) in self.activities() {
            row(
                TimerKind::ScheduleToStart,
                made.no,
                self.start_deadline(step),
            );
            row(
                TimerKind::ScheduleToClose,
                made.no,
                self.close_deadline(step),
            );
        }
        rows
    }

    // What closes a run.

    pub fn release(&mut self) {
        while let Some(tag) = self.held.pop_front() {
            self.record("SignalReceived", 0, 0);
            self.history.last_mut().unwrap().tag = tag;
        }
    }

    pub fn close(&mut self, reason: CloseReason, kind: &'static str, step: Step) {
        self.record(kind, step, 0);
        self.closed = Some(reason);
        self.open = None;
        self.ready.clear();
    }

    /// What a closing from outside records for what is open.
    pub fn drop_open(&mut self) {
        for (step, _) in self.activities() {
            self.record("ActivityCancelled", step, self.shown(step));
        }
        for (step, _) in self.timers() {
            self.record("TimerCancelled", step, 0);
        }
        self.release();
    }

    /// Who is cut off by a closing from outside, and what that needs; a refusal when it is not known.
    pub fn cut_off(&mut self, lease: &ObservedLease) -> Result<Vec<Need>, Said> {
        let Some(open) = &self.open else {
            return Ok(Vec::new());
        };
        match lease {
            ObservedLease::Unknown => Err(Said::refused("LeaseNeeded")),
            ObservedLease::Free => Ok(vec![Need::Free(open.no)]),
            ObservedLease::Held {
                owner,
                attempt,
                live,
                ..
            } => {
                if self.report_of(open.no, *attempt).is_some() {
                    return Err(Said::refused("LeaseNeeded"));
                }
                let fence = (open.no, owner.clone(), *attempt);
                if *live {
                    self.cut_off = Some(fence.clone());
                    Ok(vec![Need::Live(fence)])
                } else {
                    Ok(vec![Need::Dead(fence)])
                }
            }
        }
    }

    pub fn report_of(&self, no: TaskNo, attempt: u32) -> Option<&Told> {
        self.told
            .iter()
            .rev()
            .find(|told| told.no == no && told.attempt == attempt)
    }
}
