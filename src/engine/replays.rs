//! A check for tests and doubts: the state that a write leaves in memory must be what its stored
//! history folds into, from nothing.

use std::sync::Arc;

use super::{Core, runs};
use crate::domain::run::RunState;

/// Compares a run in memory with its stored history, in the background. Whatever differs is logged and
/// counted.
pub(super) fn check(core: &Core, state: Arc<RunState>) {
    let Some(core) = core.me.upgrade() else {
        return;
    };
    core.runtime.clone().spawn(async move {
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
        metrics::counter!("dw_replay_checks_total", "outcome" => outcome).increment(1);
    });
}

async fn compare(core: &Core, state: &RunState) -> Result<bool, super::Fault> {
    let folded = runs::from_nothing(core, state.id, state.version).await?;
    // Every part of the state shows in its debug form, and payloads show their length.
    Ok(folded.is_some_and(|folded| format!("{folded:?}") == format!("{state:?}")))
}
