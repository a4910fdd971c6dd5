//! Runs in memory: recent states with their versions, and their history while that is small. Bounded by
//! number and by bytes.
//!
//! A state here is never trusted further than the fence of the next write; dropping it is always safe.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::Core;
use super::error::Fault;
use super::grouped::Grouped;
use super::shared_read::SharedRead;
use crate::domain::decision::RunWrite;
use crate::domain::ids::RunId;
use crate::domain::run::{RunState, StoredBatch, fold};
use crate::matching::IdMap;
use crate::store::Store;
use crate::store::load::{self, Batch, News, Unread};

/// Runs that are remembered.
const RUNS_KEPT: usize = 20_000;
/// Of them, those that have ended. Few ask for one after its end, and memory that is used again at once costs
/// less than memory that was left alone for seconds.
const CLOSED_KEPT: usize = 128;
/// Runs that have ended and were used since, that are passed by to find one that was not.
const PASSED_BY: usize = 4;
/// Bytes that are remembered over all runs: of history, and of what callers and workers put into states.
const BYTES_KEPT: usize = 128 << 20;
/// A run that counts for more than this is large.
const LARGE: usize = 256 << 10;
/// Bytes that are remembered over all large runs. To read one again costs as much as to write it; small ones keep the rest.
const LARGE_BYTES_KEPT: usize = 80 << 20;
/// A run with more history than this is served from the database.
const HISTORY_BYTES_PER_RUN: u64 = 64 << 10;

/// Runs that one statement reads at most.
const READ_AT_ONCE: usize = 16;
/// How long a run waits to be read with others before it is read alone.
const TOGETHER: Duration = Duration::from_secs(1);

/// Reads of runs that this node does not know, or not as they are now.
pub(super) type Reads = Grouped<Unread, News>;

/// Starts to read runs.
pub(super) fn reads(store: &Store) -> Reads {
    let pool = store.reads.clone();
    Grouped::start(
        READ_AT_ONCE,
        |_| None,
        move |unread| {
            let pool = pool.clone();
            async move { Ok(load::batches_of_many(&pool, &unread).await?) }
        },
        |_, _| ready(()),
    )
}

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

/// A run with the bytes that it counts for.
struct Kept {
    cached: Cached,
    bytes: usize,
}

#[derive(Default)]
struct Memory {
    kept: Option<Kept>,
    /// It is no longer found under its run, and keeps nothing more.
    is_gone: bool,
}

impl Slot {
    /// Lets go of what it kept, and keeps nothing more.
    fn end(&self) -> Option<Kept> {
        let mut memory = lock(&self.memory);
        memory.is_gone = true;
        memory.kept.take()
    }

    /// Lets go of what it kept.
    fn take(&self) -> Option<Kept> {
        lock(&self.memory).kept.take()
    }

    /// Bytes of what it keeps.
    fn bytes(&self) -> usize {
        lock(&self.memory)
            .kept
            .as_ref()
            .map_or(0, |kept| kept.bytes)
    }

    fn known(&self) -> Option<Cached> {
        let memory = lock(&self.memory);
        memory.kept.as_ref().map(|kept| kept.cached.clone())
    }
}

struct Slot {
    run: RunId,
    memory: Mutex<Memory>,
    used: AtomicU64,
    moved: Notify,
    reads: SharedRead,
    /// The newest version that a read has found.
    found: AtomicU64,
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
    slots: Mutex<IdMap<RunId, Arc<Slot>>>,
    /// The runs that have ended, those first that were not used for longest, each with its use before it was
    /// looked at last.
    closed: Mutex<VecDeque<(RunId, u64)>>,
    uses: AtomicU64,
    bytes: AtomicUsize,
    /// Of them, those of large runs.
    large: AtomicUsize,
}

impl Cache {
    fn slot(&self, run: RunId) -> Arc<Slot> {
        let used = self.uses.fetch_add(1, Ordering::Relaxed);
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(&run) {
            slot.used.store(used, Ordering::Relaxed);
            return Arc::clone(slot);
        }
        if slots.len() >= RUNS_KEPT || self.bytes.load(Ordering::Relaxed) > BYTES_KEPT {
            self.evict(&mut slots);
        }
        let slot = Arc::new(Slot {
            run,
            memory: Mutex::default(),
            used: AtomicU64::new(used),
            moved: Notify::new(),
            reads: SharedRead::default(),
            found: AtomicU64::new(0),
        });
        slots.insert(run, Arc::clone(&slot));
        slot
    }

    /// Drops the least recently used quarter.
    fn evict(&self, slots: &mut IdMap<RunId, Arc<Slot>>) {
        let mut uses: Vec<u64> = slots
            .values()
            .map(|slot| slot.used.load(Ordering::Relaxed))
            .collect();
        uses.sort_unstable();
        let horizon = uses.get(uses.len() / 4).copied().unwrap_or(0);
        slots.retain(|_, slot| {
            let stays = slot.used.load(Ordering::Relaxed) > horizon;
            if !stays {
                slot.end();
            }
            stays
        });
        let (mut bytes, mut large) = (0, 0);
        for slot in slots.values() {
            let kept = slot.bytes();
            bytes += kept;
            large += large_part(kept);
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        self.large.store(large, Ordering::Relaxed);
    }

    /// Forgets the least recently used large runs until half of their bytes are left.
    fn forget_large(&self) {
        let mut found: Vec<(u64, Arc<Slot>)> = lock(&self.slots)
            .values()
            .filter(|slot| slot.bytes() > LARGE)
            .map(|slot| (slot.used.load(Ordering::Relaxed), Arc::clone(slot)))
            .collect();
        found.sort_unstable_by_key(|(used, _)| *used);
        for (_, slot) in found {
            if self.large.load(Ordering::Relaxed) <= LARGE_BYTES_KEPT / 2 {
                break;
            }
            if let Some(kept) = slot.take() {
                self.let_go(kept.bytes);
            }
        }
    }

    /// Remembers a run, unless something newer is remembered.
    fn keep(&self, slot: &Slot, cached: Cached) {
        let kept = Kept {
            bytes: bytes(&cached),
            cached,
        };
        let mut memory = lock(&slot.memory);
        if memory.is_gone {
            return;
        }
        let known = &mut memory.kept;
        let is_closed = kept.cached.state.close.is_some();
        let was_closed = known
            .as_ref()
            .is_some_and(|known| known.cached.state.close.is_some());
        let mut has_closed = false;
        if known
            .as_ref()
            .is_none_or(|known| known.cached.state.version <= kept.cached.state.version)
        {
            // Nobody works on a closed run: a large one is not worth its memory.
            let is_kept = !is_closed || kept.bytes <= LARGE;
            has_closed = is_kept && is_closed && !was_closed;
            let before = if is_kept {
                self.bytes.fetch_add(kept.bytes, Ordering::Relaxed);
                self.large
                    .fetch_add(large_part(kept.bytes), Ordering::Relaxed);
                known.replace(kept)
            } else {
                known.take()
            };
            if let Some(before) = before {
                self.let_go(before.bytes);
            }
        }
        drop(memory);
        if has_closed {
            self.make_room(slot);
        }
        if self.large.load(Ordering::Relaxed) > LARGE_BYTES_KEPT {
            self.forget_large();
        }
    }

    /// A run that has ended is kept: another one is not, if there are too many.
    fn make_room(&self, slot: &Slot) {
        let mut closed = lock(&self.closed);
        closed.push_back((slot.run, slot.used.load(Ordering::Relaxed)));
        let mut passed_by = 0;
        while closed.len() > CLOSED_KEPT
            && let Some((run, before)) = closed.pop_front()
        {
            let used = lock(&self.slots)
                .get(&run)
                .map(|slot| slot.used.load(Ordering::Relaxed));
            match used {
                Some(used) if used != before && passed_by < PASSED_BY => {
                    closed.push_back((run, used));
                    passed_by += 1;
                }
                _ => self.remove(run),
            }
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
        self.slot(run).known()
    }

    /// What is remembered of a run may be wrong.
    pub fn forget(&self, run: RunId) {
        if let Some(kept) = self.slot(run).take() {
            self.let_go(kept.bytes);
        }
    }

    /// A run that is gone is remembered no more.
    pub fn remove(&self, run: RunId) {
        let slot = lock(&self.slots).remove(&run);
        if let Some(kept) = slot.and_then(|slot| slot.end()) {
            self.let_go(kept.bytes);
        }
    }

    /// Drops the runs that are remembered in such a state.
    pub fn forget_where(&self, is_useless: impl Fn(&RunState) -> bool) {
        let mut bytes = 0;
        lock(&self.slots).retain(|_, slot| {
            let useless = slot.known().is_some_and(|known| is_useless(&known.state));
            if useless {
                bytes += slot.end().map_or(0, |kept| kept.bytes);
            }
            !useless
        });
        self.let_go(bytes);
    }

    /// Bytes are remembered no more. The sum may be off for a moment while an eviction counts anew.
    fn let_go(&self, bytes: usize) {
        for (sum, bytes) in [(&self.bytes, bytes), (&self.large, large_part(bytes))] {
            let _ = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| {
                Some(sum.saturating_sub(bytes))
            });
        }
    }

    /// Something to wait on for the next write of a run.
    pub fn watch(&self, run: RunId) -> Watch {
        Watch(self.slot(run))
    }
}

/// What a run counts for among the large ones.
fn large_part(bytes: usize) -> usize {
    if bytes > LARGE { bytes } else { 0 }
}

fn bytes(cached: &Cached) -> usize {
    let history = cached.history.as_ref().map_or(0, |_| {
        usize::try_from(cached.state.history_bytes).unwrap_or(usize::MAX)
    });
    history.saturating_add(cached.state.held_bytes())
}

/// Drops the text of a write whose run is served from the database.
pub(super) fn let_go_of_text(write: &mut RunWrite) {
    if write.next.history_bytes > HISTORY_BYTES_PER_RUN {
        write.text = None;
    }
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
    read(core, run, |_| true).await
}

/// The run at `version` at least; an older memory is caught up from the database. None when it is removed
/// meanwhile: what is left of a history then is not the run.
pub(super) async fn at_least(
    core: &Core,
    run: RunId,
    version: u64,
) -> Result<Option<Cached>, Fault> {
    let found = read(core, run, |known| known.state.version >= version).await?;
    if found
        .as_ref()
        .is_some_and(|found| found.state.version < version)
    {
        core.cache.remove(run);
        return Ok(None);
    }
    Ok(found)
}

/// The run as the database has it now.
pub(super) async fn newest(core: &Core, run: RunId) -> Result<Option<Cached>, Fault> {
    read(core, run, |_| false).await
}

/// The run from memory if that is good enough; else it is read, unless another read finds it so meanwhile or begins
/// after the question.
async fn read(
    core: &Core,
    run: RunId,
    is_good: impl Fn(&Cached) -> bool,
) -> Result<Option<Cached>, Fault> {
    let slot = &*core.cache.slot(run);
    let good = slot.known().filter(&is_good);
    if good.is_some() {
        return Ok(good);
    }
    let known = |is_new| {
        let known = slot.known()?;
        // What was read may be forgotten, and something older kept after it.
        let is_newest = known.state.version >= slot.found.load(Ordering::SeqCst);
        (is_newest && (is_new || is_good(&known))).then_some(known)
    };
    slot.reads
        .read(|is_new| known(is_new).map(Some), async {
            let found = refresh(core, slot).await?;
            let version = found.as_ref().map_or(0, |found| found.state.version);
            slot.found.fetch_max(version, Ordering::SeqCst);
            Ok(found)
        })
        .await
}

/// The run at `version`, folded from its first batch on.
pub(super) async fn from_nothing(
    core: &Core,
    run: RunId,
    version: u64,
) -> Result<Option<RunState>, Fault> {
    let mut state: Option<RunState> = None;
    loop {
        let unread = unread(run, state.as_ref());
        let (batches, more) = load::batches_after(&core.store.reads, unread).await?;
        for batch in batches {
            if batch.version > version {
                return Ok(state);
            }
            state = Some(follow(run, state, &batch)?);
        }
        if !more {
            return Ok(state);
        }
    }
}

/// What is not known of a run.
fn unread(run: RunId, state: Option<&RunState>) -> Unread {
    Unread {
        run,
        version: state.map_or(0, |state| state.version),
        next_event: state.map_or(0, |state| state.next_event),
    }
}

fn follow(run: RunId, state: Option<RunState>, batch: &Batch) -> Result<RunState, Fault> {
    let stored = StoredBatch {
        version: batch.version,
        events: &batch.events,
        journal: &batch.journal,
    };
    Ok(fold(run, state, stored)?)
}

/// Reads the batches that are new and folds them in, a part of them at a time.
async fn refresh(core: &Core, slot: &Slot) -> Result<Option<Cached>, Fault> {
    let remembered = slot.known();
    metrics::counter!("dw_run_loads_total").increment(1);
    let mut history = match &remembered {
        Some(cached) => cached.history.as_ref().map(|history| (**history).clone()),
        None => Some(CachedHistory::default()),
    };
    let mut state = remembered.as_ref().map(|cached| (*cached.state).clone());
    let before = state.as_ref().map(|state| state.version);
    // Most runs are small, and many move between nodes when one is lost or when workers poll at several.
    let first = unread(slot.run, state.as_ref());
    let (mut batches, mut more) = match timeout(TOGETHER, core.reads.ask(first)).await {
        Ok(Ok(news)) => news,
        // Whatever is wrong with the others or with their connection need not be wrong with this one.
        _ => load::batches_after(&core.store.reads, first).await?,
    };
    loop {
        for batch in batches {
            let next = follow(slot.run, state, &batch)?;
            if next.history_bytes > HISTORY_BYTES_PER_RUN {
                history = None;
            }
            if let Some(history) = &mut history
                && batch.count > 0
            {
                let last = batch.first_event + u64::from(batch.count) - 1;
                history
                    .batches
                    .push((batch.first_event, last, batch.events));
            }
            state = Some(next);
        }
        if !more {
            break;
        }
        let unread = unread(slot.run, state.as_ref());
        (batches, more) = load::batches_after(&core.store.reads, unread).await?;
    }
    if state.as_ref().map(|state| state.version) == before {
        return Ok(remembered);
    }
    let Some(state) = state else { return Ok(None) };
    let cached = Cached {
        history: history.map(Arc::new),
        state: Arc::new(state),
    };
    core.cache.keep(slot, cached.clone());
    Ok(Some(cached))
}

#[cfg(test)]
mod tests;
