//! A task on its way to a poll. If it is dropped on the way, for whatever reason, its lease is given
//! back; only an answer that was written keeps it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::domain::ids::{TaskId, WorkerId};
use crate::domain::routing::TaskKind;
use crate::domain::time::Timestamp;

/// Give-backs that may wait to be written; what is over is left to the end of the lease.
const RELEASES_BOUND: usize = 65_536;
/// Hand-outs that are remembered as being on their way back.
const RETURNING_KEPT: usize = 1_024;

/// A lease that a poll was given.
#[derive(Clone, Debug)]
pub struct GrantedLease {
    /// The task.
    pub task: TaskId,
    /// Workflow or activity.
    pub kind: TaskKind,
    /// The holder.
    pub owner: WorkerId,
    /// The hand-out.
    pub attempt: u32,
    /// Last event that a workflow task shows.
    pub seen: Option<u64>,
    /// When.
    pub leased_at: Timestamp,
    /// End of the lease.
    pub lease_expires_at: Timestamp,
    /// End of the attempt.
    pub start_to_close_at: Option<Timestamp>,
    /// Time of the next heartbeat at the latest.
    pub heartbeat_due_at: Option<Timestamp>,
}

#[cfg(test)]
impl GrantedLease {
    /// A first lease of a workflow task of this number, given and over at these microseconds.
    pub fn of_task(no: u32, at: i64) -> Self {
        let at = Timestamp::from_micros(at);
        Self {
            task: TaskId {
                run: crate::domain::ids::RunId::new(Timestamp::from_micros(1), 1),
                no,
            },
            kind: TaskKind::Workflow,
            owner: "w".into(),
            attempt: 1,
            seen: None,
            leased_at: at,
            lease_expires_at: at,
            start_to_close_at: None,
            heartbeat_due_at: None,
        }
    }
}

/// A hand-out: its task and the attempt, which never goes back.
type HandOut = (TaskId, u32);

/// Where dropped grants go.
#[derive(Clone, Debug)]
pub struct Releases {
    queue: mpsc::Sender<GrantedLease>,
    /// The last ones that were dropped, in order.
    returning: Arc<Mutex<VecDeque<HandOut>>>,
}

impl Releases {
    /// A queue of leases to give back, and its reading end.
    pub fn new() -> (Self, mpsc::Receiver<GrantedLease>) {
        let (queue, receiver) = mpsc::channel(RELEASES_BOUND);
        let returning = Arc::default();
        (Self { queue, returning }, receiver)
    }

    /// Whether a lease is being given back or was: no poll is to be told it again, though its row may still say so.
    pub fn is_returning(&self, lease: &GrantedLease) -> bool {
        let hand_out = (lease.task, lease.attempt);
        self.returning().contains(&hand_out)
    }

    fn returning(&self) -> MutexGuard<'_, VecDeque<HandOut>> {
        self.returning
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn take_back(&self, lease: GrantedLease) {
        {
            let mut returning = self.returning();
            if returning.len() == RETURNING_KEPT {
                returning.pop_front();
            }
            returning.push_back((lease.task, lease.attempt));
        }
        // When the queue is full the lease runs out by itself.
        let _ = self.queue.try_send(lease);
    }
}

/// A lease that is given back when this is dropped, unless it was delivered.
#[derive(Debug)]
pub struct Grant {
    lease: Option<GrantedLease>,
    releases: Releases,
}

impl Grant {
    /// Guards a lease.
    pub fn new(lease: GrantedLease, releases: Releases) -> Self {
        Self {
            lease: Some(lease),
            releases,
        }
    }

    /// The lease.
    pub fn lease(&self) -> Option<&GrantedLease> {
        self.lease.as_ref()
    }

    /// The answer was written: the worker holds the lease from now on.
    pub fn delivered(&mut self) {
        self.lease = None;
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.releases.take_back(lease);
        }
    }
}
