//! A check for tests and doubts: the state that a write leaves in memory must be what its stored
//! history folds into, from nothing.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Core, Fault, cache};
use crate::domain::run::RunState;

/// States that may wait to be compared; what is over is not compared.
const PENDING_BOUND: usize = 4_096;

/// Where written states go when they are to be compared.
#[derive(Debug)]
pub(super) struct Replays(Option<mpsc::Sender<Arc<RunState>>>);

impl Replays {
    /// The sending and the reading end; nothing is taken when the check is off.
    pub fn new(on: bool) -> (Self, mpsc::Receiver<Arc<RunState>>) {
        let (sender, receiver) = mpsc::channel(PENDING_BOUND);
        (Self(on.then_some(sender)), receiver)
    }

    /// Has a written state compared.
    pub fn check(&self, state: &RunState) {
        if let Some(waiting) = &self.0
            && waiting.try_send(Arc::new(state.clone())).is_err()
        {
            count("skipped");
        }
    }
}

/// Compares one state after the other. Whatever differs is logged and counted.
pub(super) async fn run(core: Arc<Core>, mut waiting: mpsc::Receiver<Arc<RunState>>) {
    while let Some(state) = waiting.recv().await {
        let outcome = match compare(&core, &state).await {
            Ok(true) => "equal",
            Ok(false) => {
                tracing::error!(run = %state.id, version = state.version, "replay: memory and history differ");
                "different"
            }
            Err(error) => {
                tracing::error!(error = %error, run = %state.id, "replay: history cannot be folded");
                "failed"
            }
        };
        count(outcome);
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("dw_replay_checks_total", "outcome" => outcome).increment(1);
}

async fn compare(core: &Core, state: &RunState) -> Result<bool, Fault> {
    let folded = cache::from_nothing(core, state.id, state.version).await?;
    // Every part of the state shows in its debug form, and payloads show their length.
    Ok(folded.is_some_and(|folded| format!("{folded:?}") == format!("{state:?}")))
}
