//! Queues with parked polls of which nobody has told anything for a while: one question for all of them, and a claim
//! where something is ready.

use std::time::{Duration, Instant};

use super::{Engine, claims};
use crate::domain::dispatch::Position;
use crate::matching::Due;
use crate::store::ready::{self, Place};

/// Queues that one question is about.
const ASKED_ABOUT: usize = 1_000;
/// How long an answer is waited for. Without one, each queue is claimed from.
const PATIENCE: Duration = Duration::from_secs(2);

impl Engine {
    /// Looks at the queues whose slow re-check is due.
    pub async fn recheck_queues(&self) {
        let core = &self.core;
        let (claimed, asked): (Vec<Due>, Vec<Due>) = core
            .registry
            .due_for_recheck(Instant::now())
            .into_iter()
            // Where classes take turns, the question could walk over all that is for later.
            .partition(|due| due.claims || core.turns.knows(&due.key));
        for due in &claimed {
            claims::ready(core, &due.key, Position::END);
        }
        for some in asked.chunks(ASKED_ABOUT) {
            self.recheck(some).await;
        }
    }

    async fn recheck(&self, queues: &[Due]) {
        let core = &self.core;
        let began = Instant::now();
        let places: Vec<Place> = queues
            .iter()
            .map(|due| claims::place(&due.key, core.marks.begin_for(&due.key, &due.profiles)))
            .collect();
        let asked = tokio::time::timeout(PATIENCE, ready::ready(&core.store.hot, &places)).await;
        let Ok(Ok(found)) = asked else {
            let error = asked
                .ok()
                .and_then(Result::err)
                .map(|error| error.to_string());
            tracing::warn!(
                error,
                queues = queues.len(),
                "queues are claimed from unasked"
            );
            for due in queues {
                claims::ready(core, &due.key, Position::END);
            }
            return;
        };
        let from_start = queues
            .iter()
            .zip(&places)
            .filter(|(_, place)| place.from == Position::START);
        let count = u32::try_from(queues.len()).unwrap_or(u32::MAX).max(1);
        core.marks
            .looked(from_start.map(|(due, _)| &due.key), began.elapsed() / count);
        for (place, at) in found {
            if let Some(due) = queues.get(place) {
                claims::ready(core, &due.key, at);
            }
        }
    }
}
