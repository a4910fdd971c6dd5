//! The leases that this node granted and has not seen end: what a report needs to know about its
//! lease, and a repeated poll about its task, without reading the row. Forgetting an entry costs a
//! read, nothing else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::ids::TaskId;
use crate::domain::routing::{Poller, TaskKind};
use crate::matching::{GrantedLease, IdMap, WorkerKey};

/// Entries that are kept; beyond this everything is forgotten and read again when it is needed.
const KEPT: usize = 200_000;

/// A poll by the name that its worker gave it, to answer a repeat of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PollName {
    /// The kind that it is polled as.
    pub plane: TaskKind,
    pub worker: WorkerKey,
    pub id: Arc<str>,
}

/// What is known of a lease.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub kind: TaskKind,
    pub attempt: u32,
    /// Last event that a workflow task shows.
    pub seen: Option<u64>,
    /// It was renewed with a heartbeat, whose words are in the row.
    pub beats: bool,
    poll: Option<PollName>,
}

#[derive(Debug, Default)]
struct Held {
    tasks: IdMap<TaskId, Known>,
    polls: IdMap<PollName, (GrantedLease, Poller)>,
    /// Workers that registered here, each with its epoch, and as far as is known poll nowhere else: a
    /// registration begins without leases, so that all of theirs are known here.
    homes: IdMap<WorkerKey, u64>,
    /// Workers of which the other nodes were told that they poll here too, each with its epoch.
    guests: IdMap<WorkerKey, u64>,
}

impl Held {
    fn remove(&mut self, task: TaskId) {
        let poll = self.tasks.remove(&task).and_then(|known| known.poll);
        // A repeat may have been given another task under the same name.
        if let Some(poll) = poll
            && self
                .polls
                .get(&poll)
                .is_some_and(|(lease, _)| lease.task == task)
        {
            self.polls.remove(&poll);
        }
    }
}

/// Leases by task, and by the polls that were given them.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<Held>);

impl Leases {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A poll was given a lease; its name, if it has one.
    pub fn granted(&self, lease: &GrantedLease, poller: &Poller, poll: Option<PollName>) {
        let mut held = self.held();
        if held.tasks.len() >= KEPT {
            *held = Held::default();
        }
        held.remove(lease.task);
        if let Some(poll) = &poll {
            held.polls
                .insert(poll.clone(), (lease.clone(), poller.clone()));
        }
        held.tasks.insert(
            lease.task,
            Known {
                kind: lease.kind,
                attempt: lease.attempt,
                seen: lease.seen,
                beats: false,
                poll,
            },
        );
    }

    /// The lease that a poll of this name was given, and that poll.
    pub fn of_poll(&self, poll: &PollName) -> Option<(GrantedLease, Poller)> {
        self.held().polls.get(poll).cloned()
    }

    /// A worker registered here.
    pub fn settles(&self, worker: WorkerKey, epoch: u64) {
        let mut held = self.held();
        if held.homes.len() >= KEPT {
            held.homes.clear();
        }
        held.homes.insert(worker, epoch);
    }

    /// Whether every lease of a worker is known here, as far as this node has heard.
    pub fn is_home(&self, worker: &WorkerKey, epoch: u64) -> bool {
        self.held().homes.get(worker) == Some(&epoch)
    }

    /// A worker polls here that is not at home here. Whether the others are still to be told.
    pub fn visits(&self, worker: &WorkerKey, epoch: u64) -> bool {
        let mut held = self.held();
        if held.guests.len() >= KEPT {
            held.guests.clear();
        }
        held.guests.insert(worker.clone(), epoch) != Some(epoch)
    }

    /// A worker polls elsewhere, too.
    pub fn leaves(&self, worker: &WorkerKey) {
        self.held().homes.remove(worker);
    }

    /// Words of other nodes were missed.
    pub fn doubt_homes(&self) {
        self.held().homes.clear();
    }

    /// What is known of this hand-out of this task.
    pub fn known(&self, task: TaskId, attempt: u32) -> Option<Known> {
        self.held()
            .tasks
            .get(&task)
            .filter(|known| known.attempt == attempt)
            .cloned()
    }

    /// The holder was shown more of the history.
    pub fn shown(&self, task: TaskId, attempt: u32, seen: u64) {
        if let Some(known) = self.held().tasks.get_mut(&task)
            && known.attempt == attempt
        {
            known.seen = Some(seen);
        }
    }

    pub fn beat(&self, task: TaskId, attempt: u32) {
        if let Some(known) = self.held().tasks.get_mut(&task)
            && known.attempt == attempt
        {
            known.beats = true;
        }
    }

    pub fn closed(&self, task: TaskId) {
        self.held().remove(task);
    }
}
