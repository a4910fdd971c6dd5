//! A bench: one run on the modelled database, driven by inputs at chosen times.

use std::collections::BTreeSet;

use serde_json::Value;

use super::db::{Commit, Db, Lost, Row, Stored};
use super::make::{at, close_request, run_id, start_request, t0};
use crate::domain::command::{Command, Failure};
use crate::domain::decision::{TimerKey, TimerKind};
use crate::domain::ids::{RunId, Step, TaskNo, WorkerId};
use crate::domain::lease::{AfterLoss, after_loss};
use crate::domain::routing::TaskKind;
use crate::domain::run::{
    ActivityOutcome, ActivityReport, Beat, Digest, Input, ObservedLease, Overdue, OverdueKind,
    Refusal, Reply, ReportKind, RunState, Settings, StartRequest, StreamReport, TaskFailure,
    Verdict, WorkflowTaskReport, decide, start,
};
use crate::domain::time::Timestamp;
use crate::payload::Payload;

/// A task in somebody's hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub no: TaskNo,
    pub attempt: u32,
    pub owner: WorkerId,
    /// Last event that a workflow task showed.
    pub seen: u64,
}

impl Held {
    /// Fence and body of a report on a workflow task.
    pub fn report(&self, digest: u64) -> WorkflowTaskReport {
        WorkflowTaskReport {
            no: self.no,
            attempt: self.attempt,
            owner: self.owner.clone(),
            digest: Digest(digest),
            seen: self.seen,
        }
    }

    pub fn complete(&self, commands: Vec<Command>) -> Input {
        Input::CompleteWorkflowTask {
            report: self.report(1),
            commands,
            streams: StreamReport::default(),
            keep: None,
        }
    }

    pub fn fail(&self, failure: TaskFailure) -> Input {
        Input::FailWorkflowTask {
            report: self.report(1),
            failure,
            code: None,
        }
    }

    pub fn outcome(&self, outcome: ActivityOutcome, beat: Option<Beat>) -> Input {
        Input::ReportActivity(ActivityReport {
            no: self.no,
            attempt: self.attempt,
            owner: self.owner.clone(),
            digest: Digest(1),
            outcome,
            beat,
        })
    }

    pub fn overdue(&self, kind: OverdueKind, beat: Option<Beat>) -> Input {
        Input::Overdue(Overdue {
            no: self.no,
            attempt: self.attempt,
            owner: self.owner.clone(),
            kind,
            beat,
        })
    }

    pub fn started(&self) -> Input {
        Input::AttemptStarted {
            no: self.no,
            attempt: self.attempt,
            owner: self.owner.clone(),
        }
    }

    pub fn give_up(&self) -> Input {
        Input::GiveUp {
            no: self.no,
            attempt: self.attempt,
            owner: self.owner.clone(),
        }
    }
}

/// What came of an input.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It was written, then answered.
    Committed(Reply),
    /// It was answered at once.
    Answered(Reply),
    /// It was refused.
    Refused(Refusal),
    /// It was decided, and the database did not take it.
    Lost(Lost),
}

/// The parts of an answer to a report: what, opened tasks, next task, and whether it is a repeat.
pub fn reported(reply: &Reply) -> (ReportKind, Vec<TaskNo>, Option<TaskNo>, bool) {
    match reply {
        Reply::Reported {
            report,
            created,
            next,
            duplicate,
        } => (*report, created.clone(), *next, *duplicate),
        other => panic!("not an answer to a report: {other:?}"),
    }
}

/// One run, driven by inputs.
#[derive(Clone)]
pub struct Bench {
    pub db: Db,
    pub run: RunId,
    pub now: Timestamp,
    pub settings: Settings,
    /// Workers whose polls are parked, by kind of task.
    pub parked: Vec<(TaskKind, WorkerId)>,
    /// Place of the last commit's first event.
    first: usize,
}

impl Bench {
    /// A run that has just been started.
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub fn start_with(change: impl FnOnce(&mut StartRequest)) -> Self {
        Self::with(Settings::default(), change)
    }

    pub fn with(settings: Settings, change: impl FnOnce(&mut StartRequest)) -> Self {
        let mut request = start_request();
        change(&mut request);
        let run = run_id(1);
        let mut bench = Self {
            db: Db::default(),
            run,
            now: t0(),
            settings,
            parked: Vec::new(),
            first: 0,
        };
        let decision = start(run, request, bench.now, &bench.settings);
        bench.commit(decision).unwrap();
        bench
    }

    /// A run whose first workflow task was completed with these commands.
    pub fn after(commands: Vec<Command>) -> Self {
        let mut bench = Self::start();
        let task = bench.claim(1);
        bench.ok(task.complete(commands));
        bench
    }

    pub fn stored(&self) -> &Stored {
        self.db.run(self.run)
    }

    pub fn state(&self) -> &RunState {
        &self.stored().state
    }

    pub fn row(&self, no: TaskNo) -> &Row {
        &self.stored().tasks[&no]
    }

    /// Moves the clock to `seconds` after the beginning.
    pub fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = at(seconds);
        self
    }

    fn commit(&mut self, decision: crate::domain::decision::Decision) -> Result<Commit, Lost> {
        let parked = &mut self.parked;
        let mut polls = |_: RunId, _: TaskNo, kind: TaskKind| {
            let place = parked.iter().position(|(wants, _)| *wants == kind)?;
            Some(parked.remove(place).1)
        };
        let commit = self.db.commit(decision, self.now, &mut polls)?;
        self.first = commit.first;
        Ok(commit)
    }

    /// Decides an input and writes what was decided.
    pub fn put(&mut self, input: Input) -> Outcome {
        match decide(self.state(), input, self.now, &self.settings) {
            Err(refusal) => Outcome::Refused(refusal),
            Ok(Verdict::Answer(reply)) => Outcome::Answered(reply),
            Ok(Verdict::Commit(decision, reply)) => match self.commit(*decision) {
                Ok(_) => Outcome::Committed(reply),
                Err(lost) => Outcome::Lost(lost),
            },
        }
    }

    /// An input that is written.
    pub fn ok(&mut self, input: Input) -> Reply {
        match self.put(input) {
            Outcome::Committed(reply) => reply,
            other => panic!("was not written: {other:?}"),
        }
    }

    /// An input that is answered without a write.
    pub fn answered(&mut self, input: Input) -> Reply {
        match self.put(input) {
            Outcome::Answered(reply) => reply,
            other => panic!("was not just answered: {other:?}"),
        }
    }

    /// An input that is refused.
    pub fn refused(&mut self, input: Input) -> Refusal {
        match self.put(input) {
            Outcome::Refused(refusal) => refusal,
            other => panic!("was not refused: {other:?}"),
        }
    }

    /// An input whose decision the database does not take.
    pub fn lost(&mut self, input: Input) -> Lost {
        match self.put(input) {
            Outcome::Lost(lost) => lost,
            other => panic!("was not lost: {other:?}"),
        }
    }

    /// A worker takes a ready task.
    pub fn claim(&mut self, no: TaskNo) -> Held {
        self.claim_as(no, "w1")
    }

    pub fn claim_as(&mut self, no: TaskNo, owner: &str) -> Held {
        let owner = WorkerId::from(owner);
        let attempt = self.db.claim(self.run, no, &owner, self.now);
        let attempt = attempt
            .unwrap_or_else(|| panic!("task {no} cannot be claimed: {:?}", self.stored().tasks));
        self.held(no, attempt)
    }

    /// Who holds a task, as a report names it.
    pub fn held(&self, no: TaskNo, attempt: u32) -> Held {
        let lease = self.row(no).lease.as_ref().unwrap();
        Held {
            no,
            attempt,
            owner: lease.owner.clone(),
            seen: lease.seen,
        }
    }

    /// The holder of `no` falls silent until its lease has run out, and the task is ready again.
    pub fn lose(&mut self, no: TaskNo) {
        let row = self.row(no);
        let ends = row.lease.as_ref().unwrap().expires_at;
        let after = after_loss(row.attempt);
        self.now = self.now.max(ends);
        match after {
            AfterLoss::Again(delay) => {
                self.db.give_back(self.run, no, delay, self.now);
                self.now = self.now.plus_millis(delay);
            }
            AfterLoss::GiveUp => panic!("task {no} was handed out too often"),
        }
    }

    /// Fires every timer row that is due.
    pub fn fire(&mut self) -> Outcome {
        let keys: Vec<TimerKey> = self
            .stored()
            .timers
            .iter()
            .filter(|(_, due)| **due <= self.now)
            .map(|(key, _)| *key)
            .collect();
        let lease = self.stored().observe(self.now);
        self.put(Input::TimersDue { keys, lease })
    }

    /// A worker takes activity task `no` and returns.
    pub fn run_activity(&mut self, no: TaskNo) -> Reply {
        let held = self.claim(no);
        self.ok(held.outcome(returned(), None))
    }

    /// A worker takes activity task `no` and fails.
    pub fn fail_activity(&mut self, no: TaskNo, failure: Failure) -> Reply {
        let held = self.claim(no);
        self.ok(held.outcome(ActivityOutcome::Failed(failure), None))
    }

    /// A worker takes the open workflow task and completes it.
    pub fn step(&mut self, commands: Vec<Command>) -> Reply {
        let held = self.claim(self.workflow_task().unwrap());
        self.ok(held.complete(commands))
    }

    pub fn cancel(&mut self) -> Outcome {
        let lease = self.stored().observe(self.now);
        self.put(Input::Cancel(close_request(lease)))
    }

    pub fn terminate(&mut self) -> Outcome {
        let lease = self.stored().observe(self.now);
        self.put(Input::Terminate(close_request(lease)))
    }

    /// The types of all events.
    pub fn types(&self) -> Vec<&'static str> {
        types(&self.stored().events)
    }

    /// The types of the events of the last commit.
    pub fn new_types(&self) -> Vec<&'static str> {
        types(&self.stored().events[self.first..])
    }

    /// Open tasks.
    pub fn tasks(&self) -> Vec<(TaskNo, TaskKind)> {
        self.stored()
            .tasks
            .iter()
            .map(|(no, row)| (*no, row.kind))
            .collect()
    }

    /// The open workflow task.
    pub fn workflow_task(&self) -> Option<TaskNo> {
        self.state().workflow_task.as_ref().map(|task| task.no)
    }

    /// Timer rows, with the seconds after the beginning at which they are due.
    pub fn timers(&self) -> Vec<(TimerKind, u32, u64)> {
        self.stored()
            .timers
            .iter()
            .map(|(key, due)| (key.kind, key.no, due.millis_since(t0()) / 1_000))
            .collect()
    }

    /// Event number `sequence` as it is served.
    pub fn served(&self, sequence: usize) -> Value {
        let texts: Vec<&str> = self
            .stored()
            .batches
            .iter()
            .map(|(events, _)| events.as_str())
            .filter(|events| !events.is_empty())
            .collect();
        let all: Vec<Value> = serde_json::from_str(&format!("[{}]", texts.join(","))).unwrap();
        all[sequence - 1].clone()
    }

    /// The payloads of all events of a type, as they are served.
    pub fn payloads(&self, event_type: &str) -> Vec<Value> {
        (1..=self.stored().events.len())
            .map(|sequence| self.served(sequence))
            .filter(|event| event["event_type"] == event_type)
            .map(|event| event["payload"].clone())
            .collect()
    }

    /// The step numbers that opening events carry, in order.
    pub fn steps(&self) -> Vec<Step> {
        let opening = BTreeSet::from([
            "ActivityScheduled",
            "TimerScheduled",
            "SideEffectRecorded",
            "VersionMarkerRecorded",
            "WorkflowContinuedAsNew",
        ]);
        (1..=self.stored().events.len())
            .map(|sequence| self.served(sequence))
            .filter(|event| opening.contains(event["event_type"].as_str().unwrap()))
            .map(|event| u32::try_from(event["payload"]["sequence"].as_u64().unwrap()).unwrap())
            .collect()
    }

    /// The names of the recorded signals, in order.
    pub fn signals(&self) -> Vec<String> {
        self.payloads("SignalReceived")
            .iter()
            .map(|payload| payload["signal_name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The run that continued from this one takes its place on the bench.
    pub fn follow(&mut self) {
        let close = self.state().close.clone().unwrap();
        self.run = close.continued_to.unwrap();
        self.first = 0;
    }

    /// What is seen of the lease on the open workflow task.
    pub fn observe(&self) -> ObservedLease {
        self.stored().observe(self.now)
    }
}

/// An activity that returned.
pub fn returned() -> ActivityOutcome {
    ActivityOutcome::Completed(Payload::null())
}

fn types(events: &[crate::domain::event::Event]) -> Vec<&'static str> {
    events.iter().map(|event| event.body.event_type()).collect()
}
