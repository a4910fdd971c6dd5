//! Queues whose tasks are late: polls wait for them in numbers, and still are handed what was ready long ago, so
//! that not the workers but this server or its database is the limit. New workflows would only wait there.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::domain::routing::TaskKind;
use crate::matching::{IdMap, QueueKey};

/// A task that was ready for so long when it was handed out is late.
const LATE_MS: u64 = 1_000;
/// Polls that one claim served at least. Where workers are the limit, each poll is served as it comes.
const MANY: usize = 4;
/// How long a queue counts as late after such a claim.
const REMEMBERED: Duration = Duration::from_secs(1);
/// Queues that are remembered.
const QUEUES_KEPT: usize = 1_000;

/// The queues that are late on this node, and until when.
#[derive(Debug, Default)]
pub(super) struct Late(Mutex<IdMap<QueueKey, Instant>>);

impl Late {
    fn map(&self) -> MutexGuard<'_, IdMap<QueueKey, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim gave this many tasks of a queue, the last of which had been ready for so long.
    pub fn claimed(&self, key: &QueueKey, tasks: usize, waited_ms: u64) {
        // Starts are about workflow tasks only.
        if key.kind != TaskKind::Workflow || tasks < MANY || waited_ms < LATE_MS {
            return;
        }
        let now = Instant::now();
        let mut map = self.map();
        if map.len() >= QUEUES_KEPT {
            map.retain(|_, until| *until > now);
        }
        if map.len() < QUEUES_KEPT || map.contains_key(key) {
            map.insert(key.clone(), now + REMEMBERED);
        }
    }

    /// Whether the queue is late.
    pub fn is(&self, key: &QueueKey) -> bool {
        let until = self.map().get(key).copied();
        until.is_some_and(|until| until > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_late_when_many_polls_are_handed_old_tasks() {
        let key = |queue: &str| QueueKey {
            kind: TaskKind::Workflow,
            namespace: "default".into(),
            queue: queue.into(),
        };
        let late = Late::default();
        late.claimed(&key("workers-are-the-limit"), MANY - 1, 60_000);
        late.claimed(&key("in-time"), 100, LATE_MS - 1);
        late.claimed(&key("late"), MANY, LATE_MS);
        assert!(!late.is(&key("workers-are-the-limit")));
        assert!(!late.is(&key("in-time")));
        assert!(late.is(&key("late")));
        for n in 0..2 * QUEUES_KEPT {
            late.claimed(&key(&n.to_string()), MANY, LATE_MS);
        }
        assert_eq!(late.map().len(), QUEUES_KEPT);
    }
}
