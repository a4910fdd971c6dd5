//! The database as the commit door uses it: versions, keys, task and timer rows, and their fences.
//!
//! It holds every commit to two promises that nothing else needs to repeat: folding what was stored
//! gives the state that was kept, and the rows are those that the state says.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::decision::{
    Claim, Decision, FIRST_ATTEMPT, HandOff, NewTask, Relay, RunWrite, TaskEffect, TimerEffect,
    TimerKey,
};
use crate::domain::event::Event;
use crate::domain::ids::{RunId, TaskNo, WorkerId};
use crate::domain::lease::Hold;
use crate::domain::routing::TaskKind;
use crate::domain::run::{Beat, ObservedLease, RunState, StoredBatch, fold};
use crate::domain::time::Timestamp;

/// Every feature of a history.
pub const EVERYTHING: i64 = i64::MAX;

/// A lease on a row.
#[derive(Clone, Debug)]
pub struct Lease {
    pub owner: WorkerId,
    pub expires_at: Timestamp,
    pub start_to_close_at: Option<Timestamp>,
    pub heartbeat_due_at: Option<Timestamp>,
    /// Last event that the holder of a workflow task was shown.
    pub seen: u64,
    /// Features that the holder knows.
    pub knows: i64,
}

impl Lease {
    /// When the first of its limits is reached.
    pub fn ends_at(&self) -> Timestamp {
        [self.start_to_close_at, self.heartbeat_due_at]
            .into_iter()
            .flatten()
            .fold(self.expires_at, Timestamp::min)
    }
}

/// A task row.
#[derive(Clone, Debug)]
pub struct Row {
    pub kind: TaskKind,
    pub visible_at: Timestamp,
    /// Hand-outs so far.
    pub attempt: u32,
    pub lease: Option<Lease>,
    pub beat: Option<Beat>,
    /// Its holder is asked to stop.
    pub cancel: bool,
    /// The task as it was opened.
    pub task: NewTask,
}

impl Row {
    fn open(task: &NewTask, now: Timestamp, seen: u64) -> Self {
        let mut row = Self {
            kind: task.routing.kind,
            visible_at: task.available_at,
            attempt: 0,
            lease: None,
            beat: None,
            cancel: false,
            task: task.clone(),
        };
        if let Some(to) = &task.handed_to {
            row.hand_out(&to.owner, now, seen, to.knows);
            assert_eq!(row.attempt, FIRST_ATTEMPT);
        }
        row
    }

    fn hand_out(&mut self, owner: &WorkerId, now: Timestamp, seen: u64, knows: i64) {
        self.attempt += 1;
        self.beat = None;
        self.lease = Some(Lease {
            owner: owner.clone(),
            expires_at: now.plus_millis(self.task.lease_ms),
            start_to_close_at: self.task.start_to_close_ms.map(|ms| now.plus_millis(ms)),
            heartbeat_due_at: self.task.heartbeat_ms.map(|ms| now.plus_millis(ms)),
            seen,
            knows,
        });
    }

    /// The lease of this holder and hand-out.
    fn held_by(&self, owner: &WorkerId, attempt: u32) -> Option<&Lease> {
        let lease = self.lease.as_ref()?;
        (lease.owner == *owner && self.attempt == attempt).then_some(lease)
    }

    fn fits(&self, hold: &Hold, now: Timestamp) -> bool {
        match hold {
            Hold::Live { owner, attempt } => self
                .held_by(owner, *attempt)
                .is_some_and(|lease| lease.expires_at > now),
            Hold::Seen { owner, attempt } => self.held_by(owner, *attempt).is_some(),
            Hold::Overdue { owner, attempt } => self
                .held_by(owner, *attempt)
                .is_some_and(|lease| lease.ends_at() <= now),
            Hold::Free => self.lease.is_none(),
        }
    }
}

/// A run as it is stored.
#[derive(Clone, Debug)]
pub struct Stored {
    pub state: RunState,
    /// Events and journal of each batch.
    pub batches: Vec<(String, String)>,
    pub events: Vec<Event>,
    pub tasks: BTreeMap<TaskNo, Row>,
    pub timers: BTreeMap<TimerKey, Timestamp>,
    /// What was told to other runs, in the order of the events that say so.
    pub relays: Vec<Relay>,
}

impl Stored {
    /// The state that all batches lead to, folded from nothing.
    pub fn folded(&self) -> RunState {
        let mut state = None;
        for (place, (events, journal)) in self.batches.iter().enumerate() {
            let version = place as u64 + 1;
            let batch = StoredBatch {
                version,
                events,
                journal,
            };
            state = Some(fold(self.state.id, state, batch).unwrap());
        }
        state.unwrap()
    }

    /// What a caller who looks sees of the lease on the open workflow task.
    pub fn observe(&self, now: Timestamp) -> ObservedLease {
        let row = self
            .state
            .workflow_task
            .as_ref()
            .and_then(|task| self.tasks.get(&task.no));
        match row.and_then(|row| Some((row.lease.as_ref()?, row.attempt))) {
            None => ObservedLease::Free,
            Some((lease, attempt)) => ObservedLease::Held {
                owner: lease.owner.clone(),
                attempt,
                live: lease.expires_at > now,
                knows: lease.knows,
            },
        }
    }
}

/// Why a decision was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The run has moved.
    Version,
    /// A task row is not as the decision needs it.
    Fence,
    /// A key is taken.
    Key,
}

/// What a commit did to the deciding run.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Place of its first event in [`Stored::events`].
    pub first: usize,
    /// Runs that came into being.
    pub created: Vec<RunId>,
}

/// The modelled database.
#[derive(Clone, Debug, Default)]
pub struct Db {
    pub runs: BTreeMap<RunId, Stored>,
    /// How often a batch is folded to be compared with the kept state; 0 is always.
    pub fold_every: u64,
    pub workflows: BTreeSet<String>,
    pub requests: BTreeSet<String>,
}

impl Db {
    pub fn run(&self, run: RunId) -> &Stored {
        &self.runs[&run]
    }

    fn refuses(&self, decision: &Decision, now: Timestamp) -> Option<Lost> {
        let stored = self.runs.get(&decision.run_id());
        if stored.map_or(0, |stored| stored.state.version) != decision.write.base {
            return Some(Lost::Version);
        }
        let fences_hold = decision.fences.iter().all(|fence| {
            stored
                .and_then(|stored| stored.tasks.get(&fence.no))
                .is_some_and(|row| row.fits(&fence.hold, now))
        });
        if !fences_hold {
            return Some(Lost::Fence);
        }
        let taken = match &decision.claim {
            None => false,
            Some(Claim::Workflow) => self
                .workflows
                .contains(decision.write.next.begun.workflow_id.as_str()),
            Some(Claim::Request(key)) => self.requests.contains(&*key.request_id),
        };
        taken.then_some(Lost::Key)
    }

    /// Writes a decision at time `now`, if everything that it builds on still holds. `polls` says
    /// which opened tasks find a waiting poll.
    pub fn commit(
        &mut self,
        mut decision: Decision,
        now: Timestamp,
        polls: &mut dyn FnMut(RunId, TaskNo, TaskKind) -> Option<WorkerId>,
    ) -> Result<Commit, Lost> {
        for write in decision.writes_mut() {
            let run = write.next.id;
            let ready: Vec<(TaskNo, TaskKind)> = write
                .opened()
                .filter(|(_, task)| task.available_at <= now)
                .map(|(no, task)| (no, task.routing.kind))
                .collect();
            for (no, kind) in ready {
                if let Some(owner) = polls(run, no, kind) {
                    let to = HandOff {
                        owner,
                        poll_request_id: None,
                        knows: EVERYTHING,
                    };
                    write.hand_over(no, to, now);
                }
            }
        }
        if let Some(lost) = self.refuses(&decision, now) {
            return Err(lost);
        }
        match &decision.claim {
            None => {}
            Some(Claim::Workflow) => {
                let id = decision.write.next.begun.workflow_id.to_string();
                self.workflows.insert(id);
            }
            Some(Claim::Request(key)) => {
                self.requests.insert(key.request_id.to_string());
            }
        }
        let created = decision.created.iter().map(|write| write.next.id).collect();
        let first = self.write(decision.write, now);
        for write in decision.created {
            assert_eq!(write.base, 0, "only new runs are created with another");
            self.write(write, now);
        }
        Ok(Commit { first, created })
    }

    fn write(&mut self, mut write: RunWrite, now: Timestamp) -> usize {
        let mut sealed = Vec::new();
        let events = write.seal(&mut sealed).unwrap();
        let sealed = String::from_utf8(sealed).unwrap();
        let (events, journal) = sealed.split_at(events);
        let run = write.next.id;
        let before = self.runs.get(&run).map(|stored| &stored.state);
        assert_eq!(
            write.first_event,
            before.map_or(1, |state| state.next_event)
        );
        if self.fold_every == 0
            || write.next.version.is_multiple_of(self.fold_every)
            || before.is_none()
        {
            let batch = StoredBatch {
                version: write.base + 1,
                events,
                journal,
            };
            let folded = fold(run, before.cloned(), batch).unwrap();
            assert_eq!(
                format!("{folded:?}"),
                format!("{:?}", write.next),
                "folding the batch must give the state that was kept"
            );
        }
        let stored = self.runs.entry(run).or_insert_with(|| Stored {
            state: (*write.next).clone(),
            batches: Vec::new(),
            events: Vec::new(),
            tasks: BTreeMap::new(),
            timers: BTreeMap::new(),
            relays: Vec::new(),
        });
        let first = stored.events.len();
        stored.batches.push((events.to_owned(), journal.to_owned()));
        stored.events.append(&mut write.events);
        stored.state = std::sync::Arc::unwrap_or_clone(write.next);
        for (no, effect) in write.effects.tasks() {
            match effect {
                TaskEffect::Open(task) => {
                    let seen = stored.state.last_event();
                    let old = stored.tasks.insert(*no, Row::open(task, now, seen));
                    assert!(old.is_none(), "task {no} was open already");
                }
                TaskEffect::Again { available_at } => {
                    let row = stored
                        .tasks
                        .get_mut(no)
                        .expect("a task that continues is open");
                    row.visible_at = *available_at;
                    row.lease = None;
                    row.beat = None;
                }
                TaskEffect::Close => {
                    let old = stored.tasks.remove(no);
                    assert!(old.is_some(), "task {no} was not open");
                }
            }
        }
        for (no, mark) in write.effects.marks() {
            let row = stored.tasks.get_mut(no);
            let row = row.expect("a task that is marked is open");
            row.cancel |= mark.cancel;
            if let Some(needs) = mark.needs {
                row.task.routing.needs = needs;
            }
        }
        stored
            .relays
            .extend(write.effects.relays().values().cloned());
        for (key, effect) in write.effects.timers() {
            match effect {
                TimerEffect::Set(at) => {
                    stored.timers.insert(*key, *at);
                }
                TimerEffect::Cancel => {
                    stored.timers.remove(key);
                }
            }
        }
        audit(stored);
        first
    }

    /// A poll takes a ready task. The run does not move.
    pub fn claim(
        &mut self,
        run: RunId,
        no: TaskNo,
        owner: &WorkerId,
        now: Timestamp,
    ) -> Option<u32> {
        let stored = self.runs.get_mut(&run)?;
        let seen = stored.state.last_event();
        let row = stored.tasks.get_mut(&no)?;
        if row.lease.is_some() || row.visible_at > now {
            return None;
        }
        row.hand_out(owner, now, seen, EVERYTHING);
        Some(row.attempt)
    }

    /// A holder renews its lease, an activity's with a heartbeat. The run does not move.
    pub fn beat(&mut self, run: RunId, no: TaskNo, beat: Beat, now: Timestamp) -> bool {
        let Some(row) = self
            .runs
            .get_mut(&run)
            .and_then(|stored| stored.tasks.get_mut(&no))
        else {
            return false;
        };
        let (lease_ms, heartbeat_ms) = (row.task.lease_ms, row.task.heartbeat_ms);
        let Some(lease) = row.lease.as_mut().filter(|lease| lease.expires_at > now) else {
            return false;
        };
        lease.expires_at = now.plus_millis(lease_ms);
        if row.kind == TaskKind::Activity {
            lease.heartbeat_due_at = heartbeat_ms.map(|ms| now.plus_millis(ms));
            row.beat = Some(beat);
        }
        true
    }

    /// A lease ends without a report; the task is ready again after `delay_ms`. The run does not move.
    pub fn give_back(&mut self, run: RunId, no: TaskNo, delay_ms: u64, now: Timestamp) {
        let stored = self.runs.get_mut(&run).unwrap();
        let row = stored.tasks.get_mut(&no).unwrap();
        row.lease = None;
        row.visible_at = now.plus_millis(delay_ms);
    }
}

/// The rows of a run are those that its state says, and its history has no gap.
fn audit(stored: &Stored) {
    let state = &stored.state;
    assert_eq!(
        state.version,
        stored.batches.len() as u64,
        "one version per batch"
    );
    for (place, event) in stored.events.iter().enumerate() {
        assert_eq!(event.sequence, place as u64 + 1, "events are dense from 1");
    }
    assert_eq!(state.next_event, stored.events.len() as u64 + 1);
    let open: BTreeSet<TaskNo> = if state.close.is_some() {
        BTreeSet::new()
    } else {
        let workflow = state.workflow_task.as_ref().map(|task| task.no);
        state.activities.keys().copied().chain(workflow).collect()
    };
    let rows: BTreeSet<TaskNo> = stored.tasks.keys().copied().collect();
    assert_eq!(rows, open, "task rows are what is open");
    for key in stored.timers.keys() {
        assert!(
            state.expects(*key),
            "timer row {key:?} has lost its meaning"
        );
    }
}
