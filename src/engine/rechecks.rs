//! Queues with parked polls of which nobody has told anything for a while: one question for all of them, and a claim
//! where something is ready.

use std::time::Instant;

use super::{Engine, Fault, claims};
use crate::matching::QueueKey;
use crate::store::ready::{self, Place};

/// Queues that one question is about.
const ASKED_ABOUT: usize = 1_000;

impl Engine {
    /// Looks at the queues whose slow re-check is due.
    ///
    /// # Errors
    /// [`Fault`]; the queues are due again soon.
    pub async fn recheck_queues(&self) -> Result<(), Fault> {
        let core = &self.core;
        let mut quiet = Vec::new();
        for key in core.registry.due_for_recheck() {
            // After a claim that failed, or where only some workers may take what is ready.
            if core.registry.wants_claim(&key) {
                claims::start(core, key);
            } else {
                quiet.push(key);
            }
        }
        for keys in quiet.chunks(ASKED_ABOUT) {
            self.recheck(keys).await?;
        }
        Ok(())
    }

    async fn recheck(&self, keys: &[QueueKey]) -> Result<(), Fault> {
        let core = &self.core;
        let began = Instant::now();
        let mut from_start = Vec::new();
        let mut places = Vec::with_capacity(keys.len());
        for key in keys {
            let (from, is_whole) = core.marks.begin_for_all(key);
            if is_whole {
                from_start.push(key);
            }
            places.push(Place {
                namespace: &key.namespace,
                queue: &key.queue,
                kind: key.kind,
                from,
            });
        }
        let found = ready::ready(&core.store.hot, &places).await?;
        core.marks.looked(from_start.into_iter(), began.elapsed());
        for (place, at) in found {
            if let Some(key) = keys.get(place) {
                claims::ready(core, key, at);
            }
        }
        Ok(())
    }
}
