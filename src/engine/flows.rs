//! How many tasks were added to queues and dispatched from them in the last minute: counted in memory,
//! and told to the other nodes every few seconds.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Core, Engine, Fault};
use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::list::Flow;
use crate::matching::{IdMap, QueueKey};
use crate::store::flows;

/// Queues that are counted; while as many are busy, others are not.
const QUEUES_COUNTED: usize = 10_000;
/// Seconds of one count.
const SLOT_SECONDS: u64 = 5;
/// Counts that make a minute.
const SLOTS: usize = 12;

type Name = (Namespace, TaskQueue);

/// The last minute of a queue: a ring of counts.
#[derive(Clone, Debug, Default)]
struct Ring {
    /// The youngest count: its number since the start, and its place.
    newest: u64,
    slots: [Flow; SLOTS],
}

impl Ring {
    fn place(number: u64) -> usize {
        usize::try_from(number % SLOTS as u64).unwrap_or_default()
    }

    /// Empties what is more than a minute old at count `now`.
    fn turn(&mut self, now: u64) {
        let passed = now.saturating_sub(self.newest).min(SLOTS as u64);
        for back in 0..passed {
            self.slots[Self::place(now - back)] = Flow::default();
        }
        self.newest = self.newest.max(now);
    }

    fn add(&mut self, now: u64, flow: Flow) {
        self.turn(now);
        self.slots[Self::place(now)].add(flow);
    }

    fn sum(&self, now: u64) -> Flow {
        let mut ring = self.clone();
        ring.turn(now);
        let mut sum = Flow::default();
        for slot in ring.slots {
            sum.add(slot);
        }
        sum
    }
}

#[derive(Debug, Default)]
struct Counted {
    rings: IdMap<Name, Ring>,
    /// Queues whose counts other nodes were told and were not zero.
    told: HashSet<Name>,
}

/// Counts of this node.
#[derive(Debug)]
pub(super) struct Flows {
    start: Instant,
    counted: Mutex<Counted>,
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            counted: Mutex::default(),
        }
    }
}

impl Flows {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_secs() / SLOT_SECONDS
    }

    fn count(&self, key: &QueueKey, flow: Flow) {
        if key.kind.is_ask() {
            return;
        }
        let now = self.now();
        let name = (key.namespace.clone(), key.queue.clone());
        let mut counted = self.counted();
        if counted.rings.len() >= QUEUES_COUNTED && !counted.rings.contains_key(&name) {
            return;
        }
        counted.rings.entry(name).or_default().add(now, flow);
    }

    /// A task was opened.
    pub fn added(&self, key: &QueueKey) {
        self.count(
            key,
            Flow {
                added: 1,
                dispatched: 0,
            },
        );
    }

    /// A task was handed out.
    pub fn dispatched(&self, key: &QueueKey) {
        self.count(
            key,
            Flow {
                added: 0,
                dispatched: 1,
            },
        );
    }

    fn of(&self, namespace: &Namespace, queue: Option<&TaskQueue>) -> HashMap<TaskQueue, Flow> {
        let now = self.now();
        let wanted = |name: &Name| name.0 == *namespace && queue.is_none_or(|one| name.1 == *one);
        self.counted()
            .rings
            .iter()
            .filter(|(name, _)| wanted(name))
            .map(|(name, ring)| (name.1.clone(), ring.sum(now)))
            .collect()
    }

    /// What other nodes are to be told: what is not zero, and once what has become zero, which is then
    /// forgotten.
    fn to_tell(&self) -> Vec<(Namespace, TaskQueue, Flow)> {
        let now = self.now();
        let mut counted = self.counted();
        let Counted { rings, told } = &mut *counted;
        let mut news = Vec::new();
        rings.retain(|name, ring| {
            let flow = ring.sum(now);
            let is_busy = flow != Flow::default();
            if is_busy || told.contains(name) {
                news.push((name.0.clone(), name.1.clone(), flow));
            }
            if is_busy {
                told.insert(name.clone());
            } else {
                told.remove(name);
            }
            is_busy
        });
        news
    }
}

impl Engine {
    /// What was added and dispatched in the last minute on the queues of a namespace, or on one of them:
    /// on this node until now, on the others as they last told.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn flows(
        &self,
        namespace: &Namespace,
        queue: Option<&TaskQueue>,
    ) -> Result<HashMap<TaskQueue, Flow>, Fault> {
        let core = &self.core;
        let node = &core.settings.node;
        let mut all = flows::of_others(&core.store.reads, node, namespace, queue).await?;
        for (name, flow) in core.flows.of(namespace, queue) {
            all.entry(name).or_default().add(flow);
        }
        Ok(all)
    }

    /// Tells the other nodes what this one has counted.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn tell_flows(&self) -> Result<(), Fault> {
        let core: &Core = &self.core;
        let news = core.flows.to_tell();
        if !news.is_empty() {
            flows::write(&core.store.hot, &core.settings.node, &news).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(added: u64, dispatched: u64) -> Flow {
        Flow { added, dispatched }
    }

    #[test]
    fn a_ring_holds_one_minute() {
        let mut ring = Ring::default();
        for now in 0..30 {
            ring.add(now, flow(1, 2));
            let counts = (now + 1).min(SLOTS as u64);
            assert_eq!(ring.sum(now), flow(counts, 2 * counts));
        }
        assert_eq!(ring.sum(35), flow(6, 12));
        assert_eq!(ring.sum(41), flow(0, 0));
        ring.add(1_000, flow(3, 0));
        assert_eq!(ring.sum(1_000), flow(3, 0));
    }

    #[test]
    fn what_is_over_is_told_once_and_forgotten() {
        let flows = Flows::default();
        let key = QueueKey {
            kind: crate::domain::routing::TaskKind::Workflow,
            namespace: "n".into(),
            queue: "q".into(),
        };
        flows.added(&key);
        flows.dispatched(&key);
        let queue: TaskQueue = "q".into();
        assert_eq!(flows.of(&"n".into(), Some(&queue))[&queue], flow(1, 1));
        assert!(flows.of(&"m".into(), None).is_empty());
        assert_eq!(flows.to_tell(), [("n".into(), "q".into(), flow(1, 1))]);
        for ring in flows.counted().rings.values_mut() {
            *ring = Ring::default();
        }
        assert_eq!(flows.to_tell(), [("n".into(), "q".into(), flow(0, 0))]);
        assert!(flows.to_tell().is_empty());
        assert!(flows.counted().rings.is_empty());
    }
}
