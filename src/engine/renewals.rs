//! Renewals of leases, grouped: whatever queued up while the last statement ran goes into the next.

use std::collections::HashSet;

use tokio::sync::{mpsc, oneshot};

use super::error::Fault;
use crate::store::Store;
use crate::store::lease::{self, Renewal, Renewed};

/// Renewals that may wait; what is over is told to come back.
const QUEUE_BOUND: usize = 16_384;

type Answer = Result<Option<Renewed>, Fault>;

/// Where renewals go.
#[derive(Debug)]
pub(super) struct Renewals(mpsc::Sender<(Renewal, oneshot::Sender<Answer>)>);

impl Renewals {
    /// Starts the task that writes them, at most `batch` with one statement.
    pub fn start(store: Store, batch: usize) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_BOUND);
        tokio::spawn(run(store, receiver, batch));
        Self(sender)
    }

    /// Renews one lease; `None` when it is not the caller's or has run out.
    pub async fn renew(&self, renewal: Renewal) -> Answer {
        let (answer, outcome) = oneshot::channel();
        self.0
            .try_send((renewal, answer))
            .map_err(|_| Fault::Busy)?;
        outcome.await.unwrap_or(Err(Fault::Unavailable))
    }
}

async fn run(
    store: Store,
    mut queue: mpsc::Receiver<(Renewal, oneshot::Sender<Answer>)>,
    batch: usize,
) {
    let mut waiting = Vec::new();
    loop {
        if waiting.is_empty() && queue.recv_many(&mut waiting, batch).await == 0 {
            return;
        }
        // A task may be in a statement once; a second renewal of it waits for the next.
        let mut tasks = HashSet::new();
        let (batch, later): (Vec<_>, Vec<_>) = waiting
            .drain(..)
            .partition(|(renewal, _): &(Renewal, _)| tasks.insert(renewal.task));
        waiting = later;
        let (renewals, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        match lease::renew(&store.hot, &renewals).await {
            Ok(renewed) => {
                for (answer, renewed) in answers.into_iter().zip(renewed) {
                    let _ = answer.send(Ok(renewed));
                }
            }
            Err(error) => {
                let fault = Fault::from(error);
                for answer in answers {
                    let _ = answer.send(Err(fault));
                }
            }
        }
    }
}
