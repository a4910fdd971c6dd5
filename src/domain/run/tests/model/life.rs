//! What happens in a world: random actions, then quiet until nothing is left to do.

use super::super::kit::{Db, Held, Stored, json, t0};
use super::compare;
use super::inputs::outlived;
use super::world::World;
use crate::domain::decision::{Decision, TimerKey, TimerKind};
use crate::domain::ids::{RunId, TaskNo, WorkerId};
use crate::domain::lease::{AfterLoss, after_loss};
use crate::domain::routing::TaskKind;
use crate::domain::run::{
    ActivityOutcome, Beat, CloseRequest, Input, OverdueKind, TaskFailure, Verdict, decide,
};
use crate::domain::time::Timestamp;
use crate::payload::Payload;

const ACTIONS: usize = 100;
/// Actions on a workflow that has closed; they find little to do.
const ACTIONS_AFTER: usize = 18;

impl World {
    /// A life: random actions, then quiet.
    pub fn live(&mut self) {
        let mut after = 0;
        for _ in 0..ACTIONS {
            self.act();
            let run = self.run();
            after += usize::from(self.state(run).close.is_some());
            if after > ACTIONS_AFTER {
                break;
            }
        }
        for flight in std::mem::take(&mut self.in_flight) {
            let _ = self.land(flight);
        }
        self.come_to_rest();
        self.check_the_end();
    }

    fn act(&mut self) {
        let run = self.some_run();
        match self.rng.below(100) {
            0..=20 => self.claim_some(),
            21..=29 => self.pass_some_time(),
            30..=33 => self.beat_some(),
            34..=36 => self.lose_some(),
            37..=40 => self.sweep(run),
            41..=43 => {
                let lease = self.db.run(run).observe(self.now);
                self.observed.insert(run, lease);
            }
            44..=46 if !self.in_flight.is_empty() => {
                let flight = self.in_flight.remove(0);
                let _ = self.land(flight);
            }
            47..=49 => self.together(run),
            _ => {
                if let Some((run, input)) = self.some_input(run) {
                    let is_report = matches!(
                        input,
                        Input::CompleteWorkflowTask { .. }
                            | Input::FailWorkflowTask { .. }
                            | Input::ReportActivity(_)
                    );
                    if is_report {
                        self.sent.push((run, input.clone()));
                    }
                    let _ = self.apply(run, input);
                }
            }
        }
    }

    fn some_input(&mut self, run: RunId) -> Option<(RunId, Input)> {
        let input = match self.rng.below(1_000) {
            0..=369 => self.completion(run),
            370..=449 => self.task_failure(run),
            450..=629 => self.activity_report(run),
            630..=689 => self.attempt_started(run),
            690..=799 => Some(self.signal()),
            800..=803 => {
                let request = self.close_request(run);
                Some(Input::Cancel(request))
            }
            804..=807 => {
                let request = self.close_request(run);
                Some(Input::Terminate(request))
            }
            808..=817 => {
                let request = self.close_request(run);
                Some(Input::Archive(request))
            }
            818..=909 => self.timers_due(run),
            910..=949 => self.overdue(run),
            950..=952 => self.give_up_workflow_task(run),
            _ => return self.resent(),
        };
        Some((run, input?))
    }

    fn close_request(&mut self, run: RunId) -> CloseRequest {
        CloseRequest {
            reason: None,
            request_id: None,
            lease: self.some_lease(run),
        }
    }

    // What moves rows and not the run.

    fn claim_some(&mut self) {
        let run = self.some_run();
        let ready: Vec<TaskNo> = self.ready(run);
        let worker = ["w1", "w2"][self.rng.below(2)];
        if let Some(no) = self.rng.pick(&ready).copied() {
            self.claim(run, no, worker);
        }
    }

    fn ready(&self, run: RunId) -> Vec<TaskNo> {
        let tasks = &self.db.run(run).tasks;
        tasks
            .iter()
            .filter(|(_, row)| row.lease.is_none() && row.visible_at <= self.now)
            .map(|(no, _)| *no)
            .collect()
    }

    fn claim(&mut self, run: RunId, no: TaskNo, worker: &str) {
        let owner = WorkerId::from(worker);
        let version = self.state(run).version;
        let attempt = self.db.claim(run, no, &owner, self.now);
        self.note(|| format!("{worker} claims {no}: {attempt:?}"));
        let kind = self.db.run(run).tasks[&no].kind;
        self.hold(run, no, kind);
        assert_eq!(self.state(run).version, version);
    }

    fn pass_some_time(&mut self) {
        let ms = match self.rng.below(20) {
            0..=5 => self.rng.between(0, 50),
            6..=13 => self.rng.between(500, 3_000),
            14..=18 => {
                let next = self.next_moment();
                next.map_or(0, |at| at.millis_since(self.now))
            }
            _ => self.rng.between(5_000, 40_000),
        };
        self.now = self.now.plus_millis(ms);
        self.note(|| format!("{ms} ms pass"));
    }

    /// When something will be due.
    fn next_moment(&self) -> Option<Timestamp> {
        let mut moments = Vec::new();
        for run in &self.chain {
            let stored = self.db.run(*run);
            moments.extend(stored.timers.values().copied());
            for row in stored.tasks.values() {
                moments.push(
                    row.lease
                        .as_ref()
                        .map_or(row.visible_at, |lease| lease.ends_at()),
                );
            }
        }
        // A parked task waits for an operator, until the end of time.
        let horizon = t0().plus_seconds(1_000_000_000);
        moments.retain(|at| *at > self.now && *at < horizon);
        moments.into_iter().min()
    }

    fn beat_some(&mut self) {
        let run = self.run();
        let leased: Vec<TaskNo> = self.leased(run);
        if let Some(no) = self.rng.pick(&leased).copied() {
            let beat = Beat {
                at: self.now,
                details: Some(json("{\"done\":1}")),
            };
            let renewed = self.db.beat(run, no, beat, self.now);
            self.note(|| format!("heartbeat of {no}: {renewed}"));
        }
    }

    fn leased(&self, run: RunId) -> Vec<TaskNo> {
        let tasks = &self.db.run(run).tasks;
        let leased = tasks.iter().filter(|(_, row)| row.lease.is_some());
        leased.map(|(no, _)| *no).collect()
    }

    /// A worker goes away and its task is given back.
    fn lose_some(&mut self) {
        let run = self.run();
        let leased = self.leased(run);
        if let Some(no) = self.rng.pick(&leased).copied() {
            self.give_back(run, no);
        }
    }

    fn give_back(&mut self, run: RunId, no: TaskNo) {
        let attempt = self.db.run(run).tasks[&no].attempt;
        let delay = match after_loss(attempt) {
            AfterLoss::Again(delay) => delay,
            AfterLoss::GiveUp => return,
        };
        self.note(|| format!("{no} is given back for {delay} ms"));
        self.db.give_back(run, no, delay, self.now);
    }

    // Maintenance.

    /// One pass over the leases of a run.
    fn sweep(&mut self, run: RunId) {
        for no in self.leased(run) {
            let Some(row) = self.db.run(run).tasks.get(&no).cloned() else {
                continue;
            };
            let Some(lease) = row
                .lease
                .clone()
                .filter(|lease| lease.ends_at() <= self.now)
            else {
                continue;
            };
            let held = Held {
                no,
                attempt: row.attempt,
                owner: lease.owner.clone(),
                seen: lease.seen,
            };
            let past = |at: Option<Timestamp>| at.is_some_and(|at| at <= self.now);
            let late = if past(lease.heartbeat_due_at) {
                Some(OverdueKind::Heartbeat)
            } else if past(lease.start_to_close_at) {
                Some(OverdueKind::StartToClose)
            } else {
                None
            };
            let input = match late {
                Some(kind) => outlived(&held, kind, row.beat.clone()),
                None if after_loss(row.attempt) == AfterLoss::GiveUp => held.give_up(),
                None => {
                    self.give_back(run, no);
                    continue;
                }
            };
            let _ = self.apply(run, input);
        }
    }

    /// One pass over the due timer rows of a run, as maintenance makes it.
    fn fire(&mut self, run: RunId) {
        let due = |world: &Self| -> Vec<TimerKey> {
            let timers = &world.db.run(run).timers;
            timers
                .iter()
                .filter(|(_, at)| **at <= world.now)
                .map(|(key, _)| *key)
                .collect()
        };
        for key in due(self) {
            let lease = self.db.run(run).observe(self.now);
            let keys = vec![key];
            let taken = self.apply(run, Input::TimersDue { keys, lease }).is_err();
            for flight in std::mem::take(&mut self.in_flight) {
                let _ = self.land(flight);
            }
            // A task that was taken was started in time; the row has had its day.
            if taken && key.kind == TimerKind::ScheduleToStart {
                let timers = &mut self.db.runs.get_mut(&run).unwrap().timers;
                if let Some(at) = timers.remove(&key) {
                    self.discarded.insert((run, key), at);
                }
            }
        }
    }

    // Decisions that are merged.

    /// Inputs that wait together are decided on one state and written as one; that must come to the
    /// same as one by one.
    fn together(&mut self, run: RunId) {
        let count = self.rng.between(2, 4);
        let mut inputs = Vec::new();
        for _ in 0..count {
            if let Some((of, input)) = self.some_input(run)
                && of == run
            {
                inputs.push(input);
            }
        }
        let mut merged: Option<Decision> = None;
        let mut labels = Vec::new();
        inputs.retain(|input| {
            let state = merged
                .as_ref()
                .map_or(self.state(run), |merged| &merged.write.next);
            let decided = decide(state, input.clone(), self.now, &self.settings);
            if let Ok(Verdict::Commit(decision, _)) = &decided {
                let both_claim = decision.claim.is_some()
                    && merged.as_ref().is_some_and(|merged| merged.claim.is_some());
                if both_claim {
                    return false;
                }
                merged = Some(match merged.take() {
                    None => (**decision).clone(),
                    Some(merged) => merged.then((**decision).clone()),
                });
            }
            labels.push(compare::label(&decided));
            true
        });
        let Some(merged) = merged else { return };
        let mut db = self.db.clone();
        let from = self.db.run(run).events.len();
        let is_written = db.commit(merged, self.now, &mut |_, _, _| None).is_ok();
        self.note(|| format!("{} together, written: {is_written}", inputs.len()));
        if !is_written {
            return;
        }
        self.stats.merged += 1;
        for (input, label) in inputs.iter().zip(labels) {
            self.stats.steps += 1;
            let mut rules = self.model(run).clone();
            let said = rules.react(input, self.now);
            assert!(
                said.labels.contains(&label),
                "merged: {label}, one by one: {:?}",
                said.labels
            );
            if let Some(flight) = self.decide(run, input) {
                self.hand_offs = false;
                let landed = self.land(flight);
                self.hand_offs = true;
                assert!(
                    landed.is_ok(),
                    "what is written together is written one by one"
                );
            }
        }
        self.is_same(&db, run, from);
        let newest = self.run();
        if newest != run {
            self.is_same(&db, newest, 0);
        }
    }

    /// The same rows, new events and state as in `db`, apart from what counts commits.
    fn is_same(&self, db: &Db, run: RunId, from: usize) {
        let (one, other) = (self.db.run(run), db.run(run));
        let text = |stored: &Stored| {
            let mut state = stored.state.clone();
            state.version = 0;
            state.history_bytes = 0;
            let events = &stored.events[from..];
            format!(
                "{state:?} {events:?} {:?} {:?}",
                stored.tasks, stored.timers
            )
        };
        assert_eq!(text(one), text(other), "merged and one by one");
    }

    // The end.

    /// Everybody does what is left to do, until nothing is.
    fn come_to_rest(&mut self) {
        for turn in 0..2_000 {
            let version: u64 = self.chain.iter().map(|run| self.state(*run).version).sum();
            let runs = self.chain.clone();
            for run in runs {
                self.fire(run);
                self.sweep(run);
                for no in self.ready(run) {
                    self.claim(run, no, "last");
                }
                for no in self.leased(run) {
                    self.finish(run, no, turn);
                }
            }
            for flight in std::mem::take(&mut self.in_flight) {
                let _ = self.land(flight);
            }
            let now: u64 = self.chain.iter().map(|run| self.state(*run).version).sum();
            if now != version {
                continue;
            }
            match self.next_moment() {
                Some(at) => self.now = at,
                None => return,
            }
        }
        panic!("it never comes to rest");
    }

    fn finish(&mut self, run: RunId, no: TaskNo, turn: usize) {
        let Some(row) = self.db.run(run).tasks.get(&no).cloned() else {
            return;
        };
        let Some(lease) = row
            .lease
            .clone()
            .filter(|lease| lease.expires_at > self.now)
        else {
            return;
        };
        let held = Held {
            no,
            attempt: row.attempt,
            owner: lease.owner,
            seen: lease.seen,
        };
        let input = match row.kind {
            TaskKind::Activity => {
                held.outcome(ActivityOutcome::Completed(Payload::null()), row.beat)
            }
            TaskKind::Workflow if turn.is_multiple_of(2) => held.complete(Vec::new()),
            _ => held.fail(TaskFailure::WaitingForHistory),
        };
        let _ = self.apply(run, input);
    }

    fn check_the_end(&self) {
        let mut recorded = Vec::new();
        for run in &self.chain {
            let stored = self.db.run(*run);
            compare::history(stored);
            let model = self.model(*run);
            recorded.extend(
                model
                    .history
                    .iter()
                    .filter(|ev| ev.kind == "SignalReceived")
                    .map(|ev| ev.tag.clone()),
            );
            let parked = model.open.as_ref().is_some_and(|open| open.blocked);
            if parked {
                recorded.extend(model.held.iter().cloned());
            } else {
                assert!(model.open.is_none() && model.held.is_empty(), "at rest");
            }
            let open = model.closed.is_none();
            assert!(
                !open || model.activities().is_empty() && model.timers().is_empty(),
                "at rest"
            );
        }
        let mut accepted = self.accepted.clone();
        accepted.sort();
        recorded.sort();
        assert_eq!(
            recorded, accepted,
            "every accepted signal is there exactly once"
        );
    }
}
