//! A task on its way to a poll. If it is dropped on the way, for whatever reason, its lease is given
//! back; only an answer that was written keeps it.

use tokio::sync::mpsc;

use crate::domain::ids::{TaskId, WorkerId};
use crate::domain::routing::TaskKind;
use crate::domain::time::Timestamp;

/// Give-backs that may wait to be written; what is over is left to the end of the lease.
const RELEASES_BOUND: usize = 65_536;

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

/// Where dropped grants go.
#[derive(Clone, Debug)]
pub struct Releases(mpsc::Sender<GrantedLease>);

impl Releases {
    /// A queue of leases to give back, and its reading end.
    pub fn new() -> (Self, mpsc::Receiver<GrantedLease>) {
        let (sender, receiver) = mpsc::channel(RELEASES_BOUND);
        (Self(sender), receiver)
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
            // When the queue is full the lease runs out by itself.
            let _ = self.releases.0.try_send(lease);
        }
    }
}
