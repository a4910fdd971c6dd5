//! Tasks that become ready later: their queues are looked at when the moment comes.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::keys::QueueKey;

/// Moments that are remembered; what is over is found by the slow re-check.
const WAKES_BOUND: usize = 100_000;
/// Moments this close together count as one.
const GRAIN: Duration = Duration::from_millis(10);

/// Moments at which queues are to be looked at.
#[derive(Debug)]
pub struct Wakes {
    start: Instant,
    due: Mutex<BTreeSet<(u64, OrderedKey)>>,
    sooner: Notify,
}

/// A queue key with an order, so that equal moments of a queue are kept once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OrderedKey(i16, String, String);

impl OrderedKey {
    fn of(key: &QueueKey) -> Self {
        Self(
            key.kind.number(),
            key.namespace.to_string(),
            key.queue.to_string(),
        )
    }

    fn key(self) -> Option<QueueKey> {
        Some(QueueKey {
            kind: crate::domain::routing::TaskKind::from_number(self.0)?,
            namespace: self.1.into(),
            queue: self.2.into(),
        })
    }
}

impl Default for Wakes {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            due: Mutex::default(),
            sooner: Notify::new(),
        }
    }
}

impl Wakes {
    fn due(&self) -> MutexGuard<'_, BTreeSet<(u64, OrderedKey)>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the queue in `delay`, not before.
    pub fn set(&self, key: &QueueKey, delay: Duration) {
        let grain = GRAIN.as_millis();
        let at = (self.start.elapsed() + delay).as_millis().div_ceil(grain) * grain;
        let at = u64::try_from(at).unwrap_or(u64::MAX);
        let mut due = self.due();
        if due.len() >= WAKES_BOUND {
            return;
        }
        let first = due.first().is_none_or(|(first, _)| at < *first);
        due.insert((at, OrderedKey::of(key)));
        drop(due);
        if first {
            self.sooner.notify_one();
        }
    }

    /// Waits until queues are to be looked at, and says which.
    pub async fn next(&self) -> Vec<QueueKey> {
        loop {
            let sooner = self.sooner.notified();
            let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
            let next = {
                let mut due = self.due();
                let later = due.split_off(&(now + 1, OrderedKey(0, String::new(), String::new())));
                let ready = std::mem::replace(&mut *due, later);
                if !ready.is_empty() {
                    return ready.into_iter().filter_map(|(_, key)| key.key()).collect();
                }
                due.first().map(|(at, _)| *at)
            };
            match next {
                None => sooner.await,
                Some(at) => {
                    let wait = Duration::from_millis(at - now);
                    tokio::select! {
                        () = sooner => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }
}
