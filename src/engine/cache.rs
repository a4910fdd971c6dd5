//! Runs in memory: recent states with their versions, and their history while that is small.
//!
//! A state here is never trusted further than the fence of the next write; dropping it is always safe.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Core;
use super::error::Fault;
use crate::domain::decision::RunWrite;
use crate::domain::ids::RunId;
use crate::domain::run::{RunState, StoredBatch, fold};
use crate::store::load;

/// Runs that are remembered.
const RUNS_KEPT: usize = 20_000;
/// Bytes of history that are remembered, over all runs.
const HISTORY_BYTES_KEPT: usize = 64 << 20;
/// A run with more history than this is served from the database.
const HISTORY_BYTES_PER_RUN: u64 = 64 << 10;

/// Events of a run as they are stored, for pages that need no database.
#[derive(Clone, Debug, Default)]
pub(super) struct CachedHistory {
    /// First event, last event and text of each batch.
    pub batches: Vec<(u64, u64, Arc<str>)>,
}

/// A run as it was at one version.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub state: Arc<RunState>,
    /// Its whole history, when that is small.
    pub history: Option<Arc<CachedHistory>>,
}

struct Slot {
    run: RunId,
    cached: Mutex<Option<Cached>>,
    used: AtomicU64,
    moved: Notify,
}

/// Tells when this node writes a run. A run that was forgotten meanwhile tells nothing, so whoever
/// waits looks again from time to time.
pub(super) struct Watch(Arc<Slot>);

impl Watch {
    /// The next write. Whoever must not miss one enables the future before looking at the run.
    pub fn moved(&self) -> tokio::sync::futures::Notified<'_> {
        self.0.moved.notified()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All runs of this node's memory.
#[derive(Default)]
pub(super) struct Cache {
    slots: Mutex<HashMap<RunId, Arc<Slot>>>,
    uses: AtomicU64,
    history_bytes: AtomicUsize,
}

impl Cache {
    fn slot(&self, run: RunId) -> Arc<Slot> {
        let used = self.uses.fetch_add(1, Ordering::Relaxed);
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(&run) {
            slot.used.store(used, Ordering::Relaxed);
            return Arc::clone(slot);
        }
        if slots.len() >= RUNS_KEPT
            || self.history_bytes.load(Ordering::Relaxed) > HISTORY_BYTES_KEPT
        {
            self.evict(&mut slots);
        }
        let slot = Arc::new(Slot {
            run,
            cached: Mutex::default(),
            used: AtomicU64::new(used),
            moved: Notify::new(),
        });
        slots.insert(run, Arc::clone(&slot));
        slot
    }

    /// Drops the least recently used quarter.
    fn evict(&self, slots: &mut HashMap<RunId, Arc<Slot>>) {
        let mut uses: Vec<u64> = slots
            .values()
            .map(|slot| slot.used.load(Ordering::Relaxed))
            .collect();
        uses.sort_unstable();
        let horizon = uses.get(uses.len() / 4).copied().unwrap_or(0);
        slots.retain(|_, slot| slot.used.load(Ordering::Relaxed) > horizon);
        let bytes = slots
            .values()
            .filter_map(|slot| lock(&slot.cached).clone())
            .map(|cached| history_bytes(&cached))
            .sum();
        self.history_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Remembers a run, unless something newer is remembered.
    fn keep(&self, slot: &Slot, cached: Cached) {
        let bytes = history_bytes(&cached);
        let mut known = lock(&slot.cached);
        if known
            .as_ref()
            .is_none_or(|known| known.state.version <= cached.state.version)
        {
            let before = known
                .replace(cached)
                .map_or(0, |before| history_bytes(&before));
            self.history_bytes.fetch_add(bytes, Ordering::Relaxed);
            let _ = self
                .history_bytes
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| {
                    Some(sum.saturating_sub(before))
                });
        }
    }

    /// Remembers a run that this node has just written.
    pub fn written(&self, write: &RunWrite, base: Option<&Cached>) {
        let history = extend_history(write, base);
        let cached = Cached {
            state: Arc::clone(&write.next),
            history: history.map(Arc::new),
        };
        let slot = self.slot(write.next.id);
        self.keep(&slot, cached);
        slot.moved.notify_waiters();
    }

    /// Another node has written a run: whoever waits for it looks again.
    pub fn heard_of(&self, run: RunId) {
        let slot = lock(&self.slots).get(&run).cloned();
        if let Some(slot) = slot {
            slot.moved.notify_waiters();
        }
    }

    /// The run as it is remembered.
    pub fn known(&self, run: RunId) -> Option<Cached> {
        let slot = self.slot(run);
        let known = lock(&slot.cached);
        known.clone()
    }

    /// What is remembered of a run may be wrong.
    pub fn forget(&self, run: RunId) {
        *lock(&self.slot(run).cached) = None;
    }

    /// Something to wait on for the next write of a run.
    pub fn watch(&self, run: RunId) -> Watch {
        Watch(self.slot(run))
    }
}

fn history_bytes(cached: &Cached) -> usize {
    cached.history.as_ref().map_or(0, |_| {
        usize::try_from(cached.state.history_bytes).unwrap_or(usize::MAX)
    })
}

/// The history after a write, if all of it is known and small.
fn extend_history(write: &RunWrite, base: Option<&Cached>) -> Option<CachedHistory> {
    if write.next.history_bytes > HISTORY_BYTES_PER_RUN {
        return None;
    }
    let mut history = if write.base == 0 {
        CachedHistory::default()
    } else {
        (**base?.history.as_ref()?).clone()
    };
    if !write.events.is_empty() {
        let text = Arc::clone(write.text.as_ref()?);
        history
            .batches
            .push((write.first_event, write.next.last_event(), text));
    }
    Some(history)
}

/// The run, from memory if it is there, whatever its age.
pub(super) async fn recent(core: &Core, run: RunId) -> Result<Option<Cached>, Fault> {
    let slot = core.cache.slot(run);
    let known = lock(&slot.cached).clone();
    match known {
        Some(cached) => Ok(Some(cached)),
        None => refresh(core, &slot).await,
    }
}

/// The run at `version` at least; an older memory is caught up from the database.
pub(super) async fn at_least(
    core: &Core,
    run: RunId,
    version: u64,
) -> Result<Option<Cached>, Fault> {
    let slot = core.cache.slot(run);
    let known = lock(&slot.cached).clone();
    match known {
        Some(cached) if cached.state.version >= version => Ok(Some(cached)),
        _ => refresh(core, &slot).await,
    }
}

/// The run as the database has it now.
pub(super) async fn newest(core: &Core, run: RunId) -> Result<Option<Cached>, Fault> {
    refresh(core, &core.cache.slot(run)).await
}

/// The run at `version`, folded from its first batch on.
pub(super) async fn from_nothing(
    core: &Core,
    run: RunId,
    version: u64,
) -> Result<Option<RunState>, Fault> {
    let mut state = None;
    for batch in load::batches_after(&core.store.reads, run, 0, 0).await? {
        if batch.version > version {
            break;
        }
        state = Some(fold(
            run,
            state,
            StoredBatch {
                version: batch.version,
                events: &batch.events,
                journal: &batch.journal,
            },
        )?);
    }
    Ok(state)
}

/// Reads the batches that are new and folds them in.
async fn refresh(core: &Core, slot: &Slot) -> Result<Option<Cached>, Fault> {
    let known = lock(&slot.cached).clone();
    let (version, next_event) = known.as_ref().map_or((0, 0), |known| {
        (known.state.version, known.state.next_event)
    });
    let batches = load::batches_after(&core.store.reads, slot.run, version, next_event).await?;
    metrics::counter!("dw_run_loads_total").increment(1);
    if batches.is_empty() {
        return Ok(known);
    }
    let mut history = match &known {
        Some(known) => known.history.as_ref().map(|history| (**history).clone()),
        None => Some(CachedHistory::default()),
    };
    let mut state = known.map(|known| (*known.state).clone());
    for batch in batches {
        state = Some(fold(
            slot.run,
            state,
            StoredBatch {
                version: batch.version,
                events: &batch.events,
                journal: &batch.journal,
            },
        )?);
        if let Some(history) = &mut history
            && batch.count > 0
        {
            let last = batch.first_event + u64::from(batch.count) - 1;
            history
                .batches
                .push((batch.first_event, last, batch.events));
        }
    }
    let Some(state) = state else { return Ok(None) };
    let cached = Cached {
        history: history
            .filter(|_| state.history_bytes <= HISTORY_BYTES_PER_RUN)
            .map(Arc::new),
        state: Arc::new(state),
    };
    core.cache.keep(slot, cached.clone());
    Ok(Some(cached))
}
