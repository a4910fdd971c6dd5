//! What happens in a life: random actions of workers, callers and maintenance, then quiet until
//! nothing is left to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::kit::*;
use super::super::model::Rng;
use super::{code, invariants};
use crate::domain::command::{Command, End, Failure};
use crate::domain::decision::{Decision, Relay, TimerKey};
use crate::domain::ids::{RunId, TaskNo, WorkerId};
use crate::domain::lease::{AfterLoss, after_loss};
use crate::domain::routing::TaskKind;
use crate::domain::run::{
    ActivityOutcome, CancellationRequest, Input, ObservedLease, OverdueKind, Rejection, RunState,
    Settings, TaskFailure, Verdict, decide, start,
};
use crate::domain::time::Timestamp;

const ACTIONS: usize = 80;
/// So many runs, and no further child is started.
const MANY_RUNS: usize = 8;

/// Counts for the summary.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub runs: u64,
    pub commits: u64,
    pub answers: u64,
    pub refusals: u64,
    pub lost: u64,
    pub merged: u64,
    pub events: BTreeMap<&'static str, u64>,
}

impl Stats {
    pub fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.commits += other.commits;
        self.answers += other.answers;
        self.refusals += other.refusals;
        self.lost += other.lost;
        self.merged += other.merged;
        for (event, times) in other.events {
            *self.events.entry(event).or_default() += times;
        }
    }
}

pub struct Life {
    pub db: Db,
    /// Every run, oldest first.
    pub runs: Vec<RunId>,
    pub settings: Settings,
    pub now: Timestamp,
    pub rng: Rng,
    /// Words on their way, and how many of each run were picked up.
    pub relays: Vec<Relay>,
    pub heard: BTreeMap<RunId, usize>,
    /// Signals and updates that were accepted, by the tag in their arguments, in order.
    pub accepted: Vec<String>,
    /// What a caller last saw of a lease, and what the other node last read of a run.
    observed: BTreeMap<RunId, ObservedLease>,
    stale: BTreeMap<RunId, RunState>,
    tags: u64,
    hand_offs: bool,
    pub stats: Stats,
    log: Option<Log>,
}

impl Life {
    pub fn new(seed: u64, log: Option<Log>) -> Self {
        let mut rng = Rng::new(seed);
        let settings = Settings {
            workflow_task_lease_ms: 10_000,
            activity_lease_ms: 20_000,
            ..Settings::default()
        };
        let mut request = start_request();
        if rng.percent(15) {
            request.run_timeout_seconds = Some(rng.between(20, 200));
        }
        let run = RunId::new(t0(), u128::from(rng.next()));
        let decision = start(run, request, t0(), &settings);
        let mut life = Self {
            db: Db {
                // Every history is folded from nothing at the end.
                fold_every: 40,
                ..Db::default()
            },
            runs: vec![run],
            settings,
            now: t0(),
            rng,
            relays: Vec::new(),
            heard: BTreeMap::new(),
            accepted: Vec::new(),
            observed: BTreeMap::new(),
            stale: BTreeMap::new(),
            tags: 0,
            hand_offs: true,
            stats: Stats::default(),
            log,
        };
        life.write(decision).unwrap();
        life
    }

    /// A life: random actions, then quiet.
    pub fn live(&mut self) {
        for _ in 0..ACTIONS {
            self.act();
        }
        self.come_to_rest();
        invariants::whole(self);
        self.stats.runs = self.runs.len() as u64;
        for run in &self.runs {
            for event in &self.db.run(*run).events {
                *self
                    .stats
                    .events
                    .entry(event.body.event_type())
                    .or_default() += 1;
            }
        }
    }

    pub fn state(&self, run: RunId) -> &RunState {
        &self.db.run(run).state
    }

    fn note(&self, what: impl FnOnce() -> String) {
        if let Some(log) = &self.log {
            let line = format!("{:>8} ms  {}", self.now.millis_since(t0()), what());
            log.lock().unwrap().push(line);
        }
    }

    fn write(&mut self, decision: Decision) -> Result<(), Lost> {
        let run = decision.run_id();
        let (rng, hand_offs) = (&mut self.rng, self.hand_offs);
        let mut polls = |_: RunId, _: TaskNo, _: TaskKind| {
            (hand_offs && rng.percent(20)).then(|| WorkerId::from("parked"))
        };
        let commit = self.db.commit(decision, self.now, &mut polls)?;
        self.stats.commits += 1;
        self.observed.remove(&run);
        invariants::after_commit(self.db.run(run), self.now);
        for created in commit.created {
            invariants::after_commit(self.db.run(created), self.now);
            self.runs.push(created);
        }
        Ok(())
    }

    /// An input is decided on the newest state, and written if it leads to a write. Returns whether
    /// it was.
    pub fn apply(&mut self, run: RunId, input: Input) -> bool {
        self.try_on_stale_state(run, &input);
        let accepted = tag_of(&input);
        let decided = decide(self.state(run), input.clone(), self.now, &self.settings);
        self.note(|| {
            let place = self.runs.iter().position(|of| *of == run);
            let said = match &decided {
                Ok(Verdict::Commit(_, reply) | Verdict::Answer(reply)) => format!("{reply:?}"),
                Err(refusal) => format!("refused {refusal:?}"),
            };
            format!("run {place:?}: {input:?} -> {said}")
        });
        match decided {
            Err(_) => self.stats.refusals += 1,
            Ok(Verdict::Answer(_)) => self.stats.answers += 1,
            Ok(Verdict::Commit(decision, _)) => {
                let types: Vec<_> = decision
                    .write
                    .events
                    .iter()
                    .map(|event| event.body.event_type())
                    .collect();
                let lost = self.write(*decision).err();
                self.note(|| format!("  {lost:?} {types:?}"));
                if lost.is_some() {
                    self.stats.lost += 1;
                    return false;
                }
                self.accepted.extend(accepted);
                return true;
            }
        }
        false
    }

    /// The other node decides on what it last read; if the run has moved since, nothing is written.
    fn try_on_stale_state(&mut self, run: RunId, input: &Input) {
        if self.rng.percent(5) {
            let state = self.state(run).clone();
            self.stale.insert(run, state);
        }
        let Some(stale) = self.stale.get(&run) else {
            return;
        };
        if stale.version == self.state(run).version || !self.rng.percent(20) {
            return;
        }
        if let Ok(Verdict::Commit(decision, _)) =
            decide(stale, input.clone(), self.now, &self.settings)
        {
            let lost = self.db.commit(*decision, self.now, &mut |_, _, _| None);
            assert_eq!(lost.err(), Some(Lost::Version), "the run has moved");
            self.stats.lost += 1;
        }
    }

    fn some_run(&mut self) -> RunId {
        let open: Vec<RunId> = self
            .runs
            .iter()
            .copied()
            .filter(|r| self.is_open(*r))
            .collect();
        let from = if self.rng.percent(95) && !open.is_empty() {
            &open
        } else {
            &self.runs
        };
        *self.rng.pick(from).unwrap()
    }

    fn is_open(&self, run: RunId) -> bool {
        self.state(run).close.is_none()
    }

    fn act(&mut self) {
        let run = self.some_run();
        match self.rng.below(100) {
            0..=24 => self.claim_some(run),
            25..=32 => self.pass_some_time(),
            33..=35 => self.lose_some(run),
            36..=39 => self.sweep(run),
            40 | 41 => {
                let lease = self.db.run(run).observe(self.now);
                self.observed.insert(run, lease);
            }
            42..=45 => self.deliver_some_word(),
            46 | 47 => self.together(run),
            _ => {
                if let Some(input) = self.some_input(run) {
                    self.apply(run, input);
                }
            }
        }
    }

    // Rows.

    fn ready(&self, run: RunId) -> Vec<TaskNo> {
        let tasks = &self.db.run(run).tasks;
        tasks
            .iter()
            .filter(|(_, row)| row.lease.is_none() && row.visible_at <= self.now)
            .map(|(no, _)| *no)
            .collect()
    }

    fn claim_some(&mut self, run: RunId) {
        let ready = self.ready(run);
        if let Some(no) = self.rng.pick(&ready).copied() {
            let owner = WorkerId::from(["w1", "w2"][self.rng.below(2)]);
            self.db.claim(run, no, &owner, self.now).unwrap();
            self.note(|| format!("{owner} claims {no}"));
        }
    }

    fn leased(&self, run: RunId) -> Vec<(TaskNo, TaskKind, Held)> {
        let tasks = &self.db.run(run).tasks;
        tasks
            .iter()
            .filter_map(|(no, row)| {
                let lease = row.lease.as_ref()?;
                let held = Held {
                    no: *no,
                    attempt: row.attempt,
                    owner: lease.owner.clone(),
                    seen: lease.seen,
                };
                Some((*no, row.kind, held))
            })
            .collect()
    }

    fn holder(&mut self, run: RunId, kind: TaskKind) -> Option<Held> {
        let mut leased = self.leased(run);
        leased.retain(|(_, of, _)| *of == kind);
        let mut held = self.rng.pick(&leased)?.2.clone();
        if self.rng.percent(3) {
            match self.rng.below(3) {
                0 => held.owner = WorkerId::from("forger"),
                1 => held.attempt += 1,
                _ => held.no += 1,
            }
        }
        Some(held)
    }

    fn lose_some(&mut self, run: RunId) {
        let leased = self.leased(run);
        if let Some((no, ..)) = self.rng.pick(&leased) {
            self.give_back(run, *no);
        }
    }

    fn give_back(&mut self, run: RunId, no: TaskNo) {
        let attempt = self.db.run(run).tasks[&no].attempt;
        if let AfterLoss::Again(delay) = after_loss(attempt) {
            self.note(|| format!("{no} is given back"));
            self.db.give_back(run, no, delay, self.now);
        }
    }

    fn pass_some_time(&mut self) {
        let ms = match self.rng.below(4) {
            0 => self.rng.between(0, 50),
            1 | 2 => self.rng.between(500, 4_000),
            _ => self.next_moment().map_or(0, |at| at.millis_since(self.now)),
        };
        self.now = self.now.plus_millis(ms);
        self.note(|| format!("{ms} ms pass"));
    }

    /// When something will be due.
    fn next_moment(&self) -> Option<Timestamp> {
        let rows = self.runs.iter().flat_map(|run| {
            let stored = self.db.run(*run);
            let tasks = stored.tasks.values().map(|row| {
                let lease = row.lease.as_ref();
                lease.map_or(row.visible_at, |lease| lease.ends_at())
            });
            stored.timers.values().copied().chain(tasks)
        });
        // A parked task waits for an operator, until the end of time.
        let horizon = t0().plus_seconds(1_000_000_000);
        rows.filter(|at| *at > self.now && *at < horizon).min()
    }

    // Inputs.

    fn lease(&mut self, run: RunId) -> ObservedLease {
        let truth = self.db.run(run).observe(self.now);
        match self.rng.below(12) {
            0 => ObservedLease::Unknown,
            1 => self.observed.get(&run).cloned().unwrap_or(truth),
            2 => match truth {
                ObservedLease::Held {
                    owner,
                    attempt,
                    live,
                    ..
                } => ObservedLease::Held {
                    owner,
                    attempt,
                    live,
                    knows: 0,
                },
                other => other,
            },
            _ => truth,
        }
    }

    fn tag(&mut self) -> String {
        self.tags += 1;
        format!("{:06}", self.tags)
    }

    fn some_input(&mut self, run: RunId) -> Option<Input> {
        let roll = self.rng.below(1_000);
        Some(match roll {
            0..=329 => {
                let held = self.holder(run, TaskKind::Workflow)?;
                let state = self.db.run(run).state.clone();
                let children = self.runs.len() < MANY_RUNS;
                let commands = code::commands(&mut self.rng, &state, children);
                let streams = code::stream_report(&mut self.rng, &state);
                self.tags += 1;
                let mut report = held.report(self.tags);
                report.seen = held.seen;
                Input::CompleteWorkflowTask {
                    report,
                    commands,
                    streams,
                    keep: None,
                }
            }
            330..=369 => {
                let held = self.holder(run, TaskKind::Workflow)?;
                let failure = match self.rng.below(5) {
                    0..=2 => TaskFailure::WaitingForHistory,
                    3 => TaskFailure::Other("no handler".into()),
                    _ => TaskFailure::Blocked("nondeterministic".into()),
                };
                self.tags += 1;
                Input::FailWorkflowTask {
                    report: held.report(self.tags),
                    failure,
                    code: None,
                }
            }
            370..=489 => {
                let held = self.holder(run, TaskKind::Activity)?;
                let outcome = match self.rng.below(3) {
                    0 => ActivityOutcome::Failed(failure("Busy")),
                    _ => returned(),
                };
                held.outcome(outcome, None)
            }
            490..=529 => self.holder(run, TaskKind::Activity)?.started(),
            530..=629 => {
                let mut request = signal_request(code::signal_name(&mut self.rng));
                request.arguments = payload(&self.tag());
                Input::Signal(request)
            }
            630..=689 => {
                let mut request = signal_request("change");
                request.arguments = payload(&self.tag());
                if self.rng.percent(10) {
                    let rejection = Rejection {
                        message: "no".into(),
                        validation_errors: None,
                    };
                    return Some(Input::RejectUpdate(request, rejection));
                }
                Input::Update(request)
            }
            690..=749 => {
                let stream = code::stream_name(&mut self.rng);
                message(stream, &self.tag())
            }
            750..=769 => Input::RequestCancellation(CancellationRequest {
                reason: None,
                cleanup_timeout_seconds: self.rng.between(5, 60),
                parent: None,
                lease: self.lease(run),
            }),
            770..=849 => self.delivery(run)?,
            850..=854 => Input::Cancel(close_request(self.lease(run))),
            855..=858 => Input::Terminate(close_request(self.lease(run))),
            859..=868 => Input::Repair(close_request(self.lease(run))),
            869..=878 => {
                let no = *self.state(run).cancelled_activities.keys().next()?;
                Input::CallbackStopped { no, attempt: 1 }
            }
            _ => {
                let stored = self.db.run(run);
                let mut keys: Vec<TimerKey> = stored.timers.keys().copied().collect();
                let now = self.now;
                if self.rng.percent(90) {
                    keys.retain(|key| stored.timers[key] <= now);
                }
                if self.rng.percent(50) {
                    keys.truncate(1);
                }
                let lease = self.lease(run);
                Input::TimersDue { keys, lease }
            }
        })
    }

    fn delivery(&mut self, run: RunId) -> Option<Input> {
        let state = self.db.run(run).state.clone();
        let id = Arc::clone(&state.cancellation.as_ref()?.context.request_id);
        let held = self.holder(run, TaskKind::Workflow)?;
        let call = code::interrupted_call(&mut self.rng, &state);
        Some(held.deliver(&id, call))
    }

    // Maintenance.

    /// One pass over the leases of a run.
    fn sweep(&mut self, run: RunId) {
        for (no, kind, held) in self.leased(run) {
            let Some(row) = self.db.run(run).tasks.get(&no).cloned() else {
                continue;
            };
            let Some(lease) = row.lease.clone() else {
                continue;
            };
            if lease.ends_at() > self.now {
                continue;
            }
            let late = lease.start_to_close_at.is_some_and(|at| at <= self.now);
            let input = if late {
                held.overdue(OverdueKind::StartToClose, None)
            } else if row.cancel && kind == TaskKind::Activity {
                Input::CancelledHolderLost {
                    no,
                    attempt: held.attempt,
                    owner: held.owner.clone(),
                }
            } else if after_loss(row.attempt) == AfterLoss::GiveUp {
                held.give_up()
            } else {
                self.give_back(run, no);
                continue;
            };
            self.apply(run, input);
        }
    }

    fn fire(&mut self, run: RunId) {
        let due: Vec<TimerKey> = {
            let timers = &self.db.run(run).timers;
            let due = timers.iter().filter(|(_, at)| **at <= self.now);
            due.map(|(key, _)| *key).collect()
        };
        for key in due {
            let lease = self.db.run(run).observe(self.now);
            let keys = vec![key];
            self.apply(run, Input::TimersDue { keys, lease });
            let is_late = |row: &super::super::kit::Stored| row.timers.get(&key).copied();
            // A task that was taken was started in time; the row has had its day.
            if key.kind == crate::domain::decision::TimerKind::ScheduleToStart
                && is_late(self.db.run(run)).is_some_and(|at| at <= self.now)
            {
                self.db.runs.get_mut(&run).unwrap().timers.remove(&key);
            }
        }
    }

    // Decisions that are merged.

    /// Inputs that wait together are decided on one state and written as one; that must come to the
    /// same as one by one.
    fn together(&mut self, run: RunId) {
        let mut merged: Option<Decision> = None;
        let mut inputs = Vec::new();
        for _ in 0..self.rng.between(2, 3) {
            let Some(input) = self.some_input(run) else {
                continue;
            };
            let state = merged
                .as_ref()
                .map_or(self.state(run), |merged| &merged.write.next);
            let decided = decide(state, input.clone(), self.now, &self.settings);
            let Ok(Verdict::Commit(decision, _)) = decided else {
                continue;
            };
            if decision.claim.is_some() && merged.as_ref().is_some_and(|m| m.claim.is_some()) {
                continue;
            }
            inputs.push(input);
            merged = Some(match merged.take() {
                None => *decision,
                Some(merged) => merged.then(*decision),
            });
        }
        let Some(merged) = merged else { return };
        let mut db = self.db.clone();
        let is_written = db.commit(merged, self.now, &mut |_, _, _| None).is_ok();
        self.note(|| format!("{} together, written: {is_written}", inputs.len()));
        if !is_written {
            return;
        }
        self.stats.merged += 1;
        self.hand_offs = false;
        let all = inputs.into_iter().all(|input| self.apply(run, input));
        self.hand_offs = true;
        if all {
            let text = |stored: &Stored| {
                let mut state = stored.state.clone();
                state.version = 0;
                state.history_bytes = 0;
                format!("{state:?} {:?} {:?}", stored.tasks, stored.timers)
            };
            assert_eq!(
                text(self.db.run(run)),
                text(db.run(run)),
                "merged and one by one"
            );
        }
    }

    // The end.

    /// Everybody does what is left to do, until nothing is.
    fn come_to_rest(&mut self) {
        for _ in 0..3_000 {
            let before = self.stats.commits;
            self.hear();
            for relay in std::mem::take(&mut self.relays) {
                self.deliver_word(relay);
            }
            for run in self.runs.clone() {
                self.fire(run);
                self.sweep(run);
                for no in self.ready(run) {
                    self.db.claim(run, no, &"last".into(), self.now).unwrap();
                }
                for (no, kind, held) in self.leased(run) {
                    let live = self.db.run(run).tasks.get(&no).is_some_and(|row| {
                        let lease = row.lease.as_ref();
                        lease.is_some_and(|lease| lease.expires_at > self.now)
                    });
                    if live {
                        self.finish(run, kind, &held);
                    }
                }
            }
            if self.stats.commits != before {
                continue;
            }
            match self.next_moment() {
                Some(at) => self.now = at,
                None => return,
            }
        }
        panic!("it never comes to rest");
    }

    fn finish(&mut self, run: RunId, kind: TaskKind, held: &Held) {
        if kind == TaskKind::Activity {
            self.apply(run, held.outcome(returned(), None));
            return;
        }
        let state = self.state(run).clone();
        let in_update = state.is_in_update();
        let cancellation = state.cancellation.as_ref();
        if let Some(cancellation) = cancellation.filter(|_| !in_update) {
            if cancellation.delivered.is_none() {
                let id = Arc::clone(&cancellation.context.request_id);
                let call = code::interrupted_call(&mut self.rng, &state);
                self.apply(run, held.deliver(&id, call));
                return;
            }
            let end = Command::End(End::Fail(Failure {
                class: Some("WorkflowCancelled".to_owned()),
                ..failure("Cancelled")
            }));
            self.apply(run, held.complete(vec![end]));
            return;
        }
        let answer = state
            .update
            .as_ref()
            .map(|update| complete_update(&update.id));
        self.apply(run, held.complete(answer.into_iter().collect()));
    }
}

/// The tag of a signal or an update.
fn tag_of(input: &Input) -> Option<String> {
    match input {
        Input::Signal(request) | Input::Update(request) => {
            Some(request.arguments.blob().to_string())
        }
        _ => None,
    }
}
