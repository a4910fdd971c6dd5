//! Attempts that were claimed from a backlog enter the history a moment later, unless their outcome
//! is faster and brings the start along.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Core, runs};
use crate::domain::ids::{TaskId, WorkerId};
use crate::domain::run::Input;
use crate::matching::GrantedLease;

/// Starts that may wait to be written; what is over enters the history with its outcome.
const PENDING_BOUND: usize = 16_384;
/// How long an outcome has to be faster.
const GRACE: Duration = Duration::from_millis(50);

/// An attempt that history does not show yet.
#[derive(Debug)]
pub(super) struct Start {
    task: TaskId,
    attempt: u32,
    owner: WorkerId,
}

/// Where claimed attempts are noted.
#[derive(Debug)]
pub(super) struct Starts(mpsc::Sender<Start>);

impl Starts {
    pub fn new() -> (Self, mpsc::Receiver<Start>) {
        let (sender, receiver) = mpsc::channel(PENDING_BOUND);
        (Self(sender), receiver)
    }

    pub fn note(&self, lease: &GrantedLease) {
        // When the queue is full the start enters the history with its outcome.
        let _ = self.0.try_send(Start {
            task: lease.task,
            attempt: lease.attempt,
            owner: lease.owner.clone(),
        });
    }
}

/// Writes the starts of attempts that are still running after the grace.
pub(super) async fn run(core: Arc<Core>, mut starts: mpsc::Receiver<Start>) {
    let mut batch = Vec::new();
    loop {
        if starts.recv_many(&mut batch, PENDING_BOUND).await == 0 {
            return;
        }
        tokio::time::sleep(GRACE).await;
        for start in batch.drain(..) {
            // The outcome was faster, or the lease is gone.
            if core.leases.known(start.task, start.attempt).is_none() {
                continue;
            }
            let core = Arc::clone(&core);
            core.clone().runtime.spawn(async move {
                let input = Input::AttemptStarted {
                    no: start.task.no,
                    attempt: start.attempt,
                    owner: start.owner,
                };
                // Whatever comes of it, the outcome of the attempt settles the matter.
                let _ = runs::apply(&core, start.task.run, input).await;
            });
        }
    }
}
