//! The leases that this node granted and has not seen end: what a report needs to know about its
//! lease without reading the row. Forgetting an entry costs a read, nothing else.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::ids::{TaskId, WorkerId};
use crate::matching::GrantedLease;

/// Entries that are kept; beyond this everything is forgotten and read again when it is needed.
const KEPT: usize = 200_000;

/// What is known of a lease.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub owner: WorkerId,
    pub attempt: u32,
    /// Last event that a workflow task shows.
    pub seen: Option<u64>,
    /// It was renewed with a heartbeat, whose words are in the row.
    pub beats: bool,
}

/// Leases by task.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<HashMap<TaskId, Known>>);

impl Leases {
    fn map(&self) -> MutexGuard<'_, HashMap<TaskId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn granted(&self, lease: &GrantedLease) {
        let mut map = self.map();
        if map.len() >= KEPT {
            map.clear();
        }
        map.insert(
            lease.task,
            Known {
                owner: lease.owner.clone(),
                attempt: lease.attempt,
                seen: lease.seen,
                beats: false,
            },
        );
    }

    /// What is known of this hand-out of this task.
    pub fn known(&self, task: TaskId, attempt: u32) -> Option<Known> {
        self.map()
            .get(&task)
            .filter(|known| known.attempt == attempt)
            .cloned()
    }

    /// The last hand-out of this task that was made here.
    pub fn last(&self, task: TaskId) -> Option<Known> {
        self.map().get(&task).cloned()
    }

    /// The holder was shown more of the history.
    pub fn shown(&self, task: TaskId, attempt: u32, seen: u64) {
        if let Some(known) = self.map().get_mut(&task)
            && known.attempt == attempt
        {
            known.seen = Some(seen);
        }
    }

    pub fn beat(&self, task: TaskId, attempt: u32) {
        if let Some(known) = self.map().get_mut(&task)
            && known.attempt == attempt
        {
            known.beats = true;
        }
    }

    pub fn closed(&self, task: TaskId) {
        self.map().remove(&task);
    }
}
