//! Counters of what happens for every task, as handles: looking one up by its labels costs more than counting.

use metrics::Counter;

use crate::domain::routing::TaskKind;

/// The handles, made when the engine starts.
pub(super) struct Counters {
    pub committed: Counter,
    pub refused: Counter,
    pub failed: Counter,
    handoffs: [Counter; TaskKind::ALL.len()],
    claims: [Counter; TaskKind::ALL.len()],
}

impl Counters {
    pub fn new() -> Self {
        let commits = |outcome| metrics::counter!("dw_commits_total", "outcome" => outcome);
        Self {
            committed: commits("committed"),
            refused: commits("refused"),
            failed: commits("failed"),
            handoffs: TaskKind::ALL
                .map(|kind| metrics::counter!("dw_handoffs_total", "kind" => kind.as_str())),
            claims: TaskKind::ALL
                .map(|kind| metrics::counter!("dw_claims_total", "kind" => kind.as_str())),
        }
    }

    /// Tasks that a commit handed to waiting polls.
    pub fn handoffs(&self, kind: TaskKind) -> &Counter {
        &self.handoffs[place(kind)]
    }

    /// Tasks that were claimed.
    pub fn claims(&self, kind: TaskKind) -> &Counter {
        &self.claims[place(kind)]
    }
}

fn place(kind: TaskKind) -> usize {
    let known = TaskKind::ALL.iter().position(|known| *known == kind);
    known.unwrap_or_default()
}
