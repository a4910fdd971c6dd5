//! A world of workers, callers and two nodes around one workflow: it applies inputs to the modelled
//! database and to the reference model, and compares.

use std::collections::BTreeMap;

use super::super::kit::{Db, Held, Log, Lost, start_request, t0};
use super::compare;
use super::rng::Rng;
use super::rules::{Fence, Model, Need, Said};
use crate::domain::decision::{Decision, TimerKey};
use crate::domain::ids::{RunId, TaskNo, WorkerId};
use crate::domain::limits::Limits;
use crate::domain::routing::TaskKind;
use crate::domain::run::{Input, ObservedLease, RunState, Settings, Verdict, decide, start};
use crate::domain::time::Timestamp;

/// Counts for the summary.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub steps: u64,
    pub commits: u64,
    pub answers: u64,
    pub refusals: u64,
    pub lost: u64,
    pub merged: u64,
    /// How often each kind of input had each kind of outcome.
    pub outcomes: BTreeMap<String, u64>,
}

/// A decision on its way to the database.
pub struct InFlight {
    run: RunId,
    decision: Decision,
    input: Input,
    decided_at: Timestamp,
    said: Said,
    after: Model,
}

pub struct World {
    pub db: Db,
    pub models: BTreeMap<RunId, Model>,
    /// The runs of the workflow, oldest first.
    pub chain: Vec<RunId>,
    pub settings: Settings,
    pub now: Timestamp,
    pub rng: Rng,
    /// Every hand-out that ever was.
    pub holders: Vec<(RunId, TaskKind, Held)>,
    /// Reports that were sent.
    pub sent: Vec<(RunId, Input)>,
    /// Timer rows that maintenance removed as settled.
    pub discarded: BTreeMap<(RunId, TimerKey), Timestamp>,
    /// What the other node last read of each run.
    pub stale: BTreeMap<RunId, RunState>,
    pub in_flight: Vec<InFlight>,
    /// What a caller last saw of the lease on a workflow task.
    pub observed: BTreeMap<RunId, ObservedLease>,
    /// Signals that were accepted.
    pub accepted: Vec<String>,
    pub tags: u64,
    /// Polls may be waiting for what is opened.
    pub hand_offs: bool,
    pub stats: Stats,
    pub log: Option<Log>,
}

impl Stats {
    pub fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.commits += other.commits;
        self.answers += other.answers;
        self.refusals += other.refusals;
        self.lost += other.lost;
        self.merged += other.merged;
        for (outcome, times) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += times;
        }
    }
}

impl World {
    pub fn new(seed: u64, log: Option<Log>) -> Self {
        let mut rng = Rng::new(seed);
        let mut settings = Settings {
            workflow_task_lease_ms: 10_000,
            activity_lease_ms: 20_000,
            ..Settings::default()
        };
        if rng.percent(30) {
            settings.limits = Limits {
                pending_activities: rng.between(0, 5),
                pending_timers: rng.between(0, 4),
                pending_signals: rng.between(1, 4),
                command_batch: rng.between(4, 8),
                events_per_transaction: rng.between(4, 10),
                ..Limits::default()
            };
        }
        let mut request = start_request();
        if rng.percent(15) {
            request.run_timeout_seconds = Some(rng.between(10, 300));
        }
        if rng.percent(15) {
            request.execution_timeout_seconds = Some(rng.between(10, 500));
        }
        let run = RunId::new(t0(), u128::from(rng.next()));
        let (run_timeout, execution) = (
            request.run_timeout_seconds,
            request.execution_timeout_seconds,
        );
        let decision = start(run, request, t0(), &settings);
        let mut model = Model::new(
            settings.limits.clone(),
            1,
            &["StartAccepted", "WorkflowStarted"],
            t0(),
        );
        model.commands = 1;
        model.run_timeout = run_timeout;
        model.run_deadline = run_timeout.map(|seconds| t0().plus_seconds(seconds));
        model.execution_deadline = execution.map(|seconds| t0().plus_seconds(seconds));
        let mut world = Self {
            // The whole history is folded at the end; folding each batch on the way finds it sooner.
            db: Db {
                fold_every: 10,
                ..Db::default()
            },
            models: BTreeMap::from([(run, model)]),
            chain: vec![run],
            settings,
            now: t0(),
            rng,
            holders: Vec::new(),
            sent: Vec::new(),
            discarded: BTreeMap::new(),
            stale: BTreeMap::new(),
            in_flight: Vec::new(),
            observed: BTreeMap::new(),
            accepted: Vec::new(),
            tags: 0,
            hand_offs: true,
            stats: Stats::default(),
            log,
        };
        let handed = world.write(run, decision).unwrap();
        world.give(&handed);
        world.check(run);
        world
    }

    pub fn note(&self, what: impl FnOnce() -> String) {
        if let Some(log) = &self.log {
            let line = format!("{:>8} ms  {}", self.now.millis_since(t0()), what());
            log.lock().unwrap().push(line);
        }
    }

    pub fn run(&self) -> RunId {
        self.chain[self.chain.len() - 1]
    }

    pub fn model(&self, run: RunId) -> &Model {
        &self.models[&run]
    }

    pub fn state(&self, run: RunId) -> &RunState {
        &self.db.run(run).state
    }

    /// Commits, with a poll waiting for some of what is opened. Returns what was handed over.
    fn write(
        &mut self,
        run: RunId,
        decision: Decision,
    ) -> Result<Vec<(RunId, TaskNo, TaskKind)>, Lost> {
        let mut handed = Vec::new();
        let (rng, hand_offs) = (&mut self.rng, self.hand_offs);
        let mut polls = |run: RunId, no: TaskNo, kind: TaskKind| {
            (hand_offs && rng.percent(25)).then(|| {
                handed.push((run, no, kind));
                WorkerId::from("parked")
            })
        };
        match self.db.commit(decision, self.now, &mut polls) {
            Ok(commit) => {
                self.stats.commits += 1;
                self.chain.extend(commit.created);
                self.observed.remove(&run);
                Ok(handed)
            }
            Err(lost) => {
                self.stats.lost += 1;
                Err(lost)
            }
        }
    }

    fn give(&mut self, handed: &[(RunId, TaskNo, TaskKind)]) {
        for (run, no, kind) in handed {
            if let Some(model) = self.models.get_mut(run) {
                model.handed_over(*no);
            }
            self.hold(*run, *no, *kind);
        }
    }

    /// Remembers who holds a task.
    pub fn hold(&mut self, run: RunId, no: TaskNo, kind: TaskKind) {
        let row = &self.db.run(run).tasks[&no];
        let lease = row.lease.as_ref().unwrap();
        let held = Held {
            no,
            attempt: row.attempt,
            owner: lease.owner.clone(),
            seen: lease.seen,
        };
        self.holders.push((run, kind, held));
    }

    /// Whether the rows are as a write needs them.
    fn has(&self, run: RunId, need: &Need) -> bool {
        let row = |no: &TaskNo| self.db.run(run).tasks.get(no);
        let lease = |fence: &Fence| {
            let (no, owner, attempt) = fence;
            row(no)
                .filter(|row| row.attempt == *attempt)
                .and_then(|row| row.lease.as_ref())
                .filter(|lease| lease.owner == *owner)
        };
        match need {
            Need::Live(fence) => lease(fence).is_some_and(|lease| lease.expires_at > self.now),
            Need::Ended(fence) => lease(fence).is_some_and(|lease| lease.ends_at() <= self.now),
            Need::Dead(fence) => lease(fence).is_some_and(|lease| lease.expires_at <= self.now),
            Need::Free(no) => row(no).is_some_and(|row| row.lease.is_none()),
        }
    }

    /// An input reaches a node, is decided, and is written if it leads to a write.
    pub fn apply(&mut self, run: RunId, input: Input) -> Result<(), Lost> {
        self.stats.steps += 1;
        self.try_on_stale_state(run, &input);
        match self.decide(run, &input) {
            None => Ok(()),
            Some(flight) if self.rng.percent(5) && self.in_flight.len() < 4 => {
                self.note(|| "  … stays on its way".to_owned());
                self.in_flight.push(flight);
                Ok(())
            }
            Some(flight) => self.land(flight),
        }
    }

    /// The other node decides on what it last read; if the run has moved since, nothing is written.
    fn try_on_stale_state(&mut self, run: RunId, input: &Input) {
        if self.rng.percent(10) {
            let state = self.state(run).clone();
            self.stale.insert(run, state);
        }
        let Some(stale) = self.stale.get(&run) else {
            return;
        };
        if stale.version == self.state(run).version || !self.rng.percent(30) {
            return;
        }
        if let Ok(Verdict::Commit(decision, _)) =
            decide(stale, input.clone(), self.now, &self.settings)
        {
            let lost = self.db.commit(*decision, self.now, &mut |_, _, _| None);
            assert_eq!(
                lost.err(),
                Some(Lost::Version),
                "a stale decision must not be written"
            );
            self.stats.lost += 1;
        }
    }

    /// Decides on the newest state and compares the answer with the rules.
    pub fn decide(&mut self, run: RunId, input: &Input) -> Option<InFlight> {
        let mut after = self.model(run).clone();
        let said = after.react(input, self.now);
        let decided = decide(self.state(run), input.clone(), self.now, &self.settings);
        let label = compare::label(&decided);
        self.note(|| format!("{} -> {label}", compare::describe(run, input)));
        assert!(
            said.labels.contains(&label),
            "the rules say {:?}, the run says {label:?}",
            said.labels
        );
        let outcome = compare::outcome(input, &label);
        *self.stats.outcomes.entry(outcome).or_default() += 1;
        match decided {
            Err(_) => {
                self.stats.refusals += 1;
                None
            }
            Ok(Verdict::Answer(_)) => {
                self.stats.answers += 1;
                None
            }
            Ok(Verdict::Commit(decision, _)) => {
                assert!(said.writes);
                Some(InFlight {
                    run,
                    decision: *decision,
                    input: input.clone(),
                    decided_at: self.now,
                    said,
                    after,
                })
            }
        }
    }

    /// A decision reaches the database.
    pub fn land(&mut self, flight: InFlight) -> Result<(), Lost> {
        let InFlight {
            run,
            decision,
            input,
            decided_at,
            said,
            after,
        } = flight;
        let moved = decision.write.base != self.state(run).version;
        let has_all = said.needs.iter().all(|need| self.has(run, need));
        let live = self.live_lease(run);
        let before = self.db.run(run).events.len();
        let handed = match self.write(run, decision) {
            Ok(handed) => handed,
            Err(lost) => {
                self.note(|| format!("  … lost: {lost:?}"));
                match lost {
                    Lost::Version => assert!(moved),
                    Lost::Fence => assert!(!has_all, "the rows were as the rules need them"),
                    Lost::Key => panic!("no key is used twice"),
                }
                return Err(lost);
            }
        };
        assert!(!moved && has_all, "the rules need {:?}", said.needs);
        if let Input::Signal(request) = &input {
            self.accepted.push(request.arguments.blob().to_string());
        }
        let closes = self.model(run).closed.is_none() && after.closed.is_some();
        if closes && decided_at == self.now {
            self.check_cut_off(run, &after, live);
        }
        let news: Vec<TaskNo> = after
            .ready
            .iter()
            .filter(|(no, at)| self.model(run).ready.get(no) != Some(at))
            .map(|(no, _)| *no)
            .collect();
        self.models.insert(run, after);
        if let Some(successor) = said.successor {
            self.models.insert(self.run(), *successor);
        }
        self.give(&handed);
        compare::events(self.model(run), self.db.run(run), before);
        for no in news {
            compare::readiness(self.model(run), self.db.run(run), no);
        }
        self.check(run);
        let newest = self.run();
        if newest != run {
            self.check(newest);
        }
        Ok(())
    }

    fn live_lease(&self, run: RunId) -> Option<Fence> {
        let stored = self.db.run(run);
        let no = stored.state.workflow_task.as_ref()?.no;
        let row = &stored.tasks[&no];
        let lease = row
            .lease
            .as_ref()
            .filter(|lease| lease.expires_at > self.now)?;
        Some((no, lease.owner.clone(), row.attempt))
    }

    /// A closing that is not the workflow's own remembers the lease that was live, if one was.
    fn check_cut_off(&self, run: RunId, after: &Model, live: Option<Fence>) {
        use crate::domain::run::CloseReason as Reason;
        let outside = matches!(
            after.closed,
            Some(Reason::Cancelled | Reason::Terminated | Reason::TimedOut)
        );
        if outside {
            let close = self.state(run).close.clone().unwrap();
            assert_eq!(
                close.under_lease, live,
                "the lease that was live at the close"
            );
        }
    }

    fn check(&self, run: RunId) {
        compare::state(self.model(run), self.db.run(run), |key, at| {
            self.discarded.get(&(run, key)) == Some(&at)
        });
    }
}
