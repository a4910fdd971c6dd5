//! Runs in memory: recent states with their versions, and one line of inputs per run.
//!
//! Inputs for one run that wait together are decided in order on one state and written as one. A
//! state here is never trusted further than the fence of the next write; dropping it is always safe.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::Core;
use super::error::{ApplyError, Fault};
use super::write::{Written, write};
use crate::domain::decision::{Decision, RunWrite};
use crate::domain::ids::RunId;
use crate::domain::run::{Input, Refusal, Reply, RunState, StoredBatch, Verdict, decide, fold};
use crate::domain::time::Timestamp;
use crate::store::load;

/// Runs that are remembered.
const RUNS_KEPT: usize = 20_000;
/// Bytes of history that are remembered, over all runs.
const HISTORY_BYTES_KEPT: usize = 64 << 20;
/// A run with more history than this is served from the database.
const HISTORY_BYTES_PER_RUN: u64 = 64 << 10;
/// Inputs that are written as one.
const MERGED_INPUTS: usize = 64;
/// Tries before a contended run is given up.
const TRIES: usize = 8;
/// Inputs that may wait for one run.
const INBOX_BOUND: usize = 10_000;

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

/// An input that was taken.
#[derive(Clone, Debug)]
pub struct Applied {
    /// What the caller is told.
    pub reply: Reply,
    /// The run afterwards.
    pub state: Arc<RunState>,
    /// When, in database time.
    pub at: Timestamp,
}

type Answer = Result<Applied, ApplyError>;

struct Job {
    input: Input,
    answer: oneshot::Sender<Answer>,
}

#[derive(Default)]
struct Inbox {
    jobs: VecDeque<Job>,
    draining: bool,
}

struct Slot {
    run: RunId,
    inbox: Mutex<Inbox>,
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
pub(super) struct Runs {
    slots: Mutex<HashMap<RunId, Arc<Slot>>>,
    uses: AtomicU64,
    history_bytes: AtomicUsize,
}

impl Runs {
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
            inbox: Mutex::default(),
            cached: Mutex::default(),
            used: AtomicU64::new(used),
            moved: Notify::new(),
        });
        slots.insert(run, Arc::clone(&slot));
        slot
    }

    /// Drops the least recently used quarter; runs with inputs in line stay.
    fn evict(&self, slots: &mut HashMap<RunId, Arc<Slot>>) {
        let mut uses: Vec<u64> = slots
            .values()
            .map(|slot| slot.used.load(Ordering::Relaxed))
            .collect();
        uses.sort_unstable();
        let horizon = uses.get(uses.len() / 4).copied().unwrap_or(0);
        slots.retain(|_, slot| {
            slot.used.load(Ordering::Relaxed) > horizon || lock(&slot.inbox).draining
        });
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
            state: Arc::new(write.next.clone()),
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
    let slot = core.runs.slot(run);
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
    let slot = core.runs.slot(run);
    let known = lock(&slot.cached).clone();
    match known {
        Some(cached) if cached.state.version >= version => Ok(Some(cached)),
        _ => refresh(core, &slot).await,
    }
}

/// The run as the database has it now.
pub(super) async fn newest(core: &Core, run: RunId) -> Result<Option<Cached>, Fault> {
    refresh(core, &core.runs.slot(run)).await
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
    core.runs.keep(slot, cached.clone());
    Ok(Some(cached))
}

/// Gives an input to a run and waits for what comes of it. Dropping the future ends the waiting, not
/// the input.
pub(super) async fn apply(core: &Arc<Core>, run: RunId, input: Input) -> Answer {
    let slot = core.runs.slot(run);
    let (answer, outcome) = oneshot::channel();
    {
        let mut inbox = lock(&slot.inbox);
        if inbox.jobs.len() >= INBOX_BOUND {
            return Err(Fault::Busy.into());
        }
        inbox.jobs.push_back(Job { input, answer });
        if !inbox.draining {
            inbox.draining = true;
            let core = Arc::clone(core);
            let slot = Arc::clone(&slot);
            core.clone()
                .runtime
                .spawn(async move { drain(&core, &slot).await });
        }
    }
    outcome.await.unwrap_or(Err(ApplyError::Fault(Fault::Bug)))
}

async fn drain(core: &Core, slot: &Slot) {
    loop {
        let jobs: Vec<Job> = {
            let mut inbox = lock(&slot.inbox);
            if inbox.jobs.is_empty() {
                inbox.draining = false;
                return;
            }
            let count = inbox.jobs.len().min(MERGED_INPUTS);
            inbox.jobs.drain(..count).collect()
        };
        process(core, slot, jobs).await;
    }
}

/// How one round went for one input.
enum Said {
    /// It waits for the round's write.
    Decided(Reply),
    /// It was refused on the round's state.
    Refused(Refusal),
    /// It goes into the next round.
    Deferred,
}

/// Decides inputs in order and writes what they decided; again, when others were faster.
async fn process(core: &Core, slot: &Slot, jobs: Vec<Job>) {
    let mut waiting: VecDeque<Job> = jobs.into();
    let mut tries = 0;
    let mut fresh = false;
    // After a refused write of several inputs each is written alone, so that one lost lease does not
    // cost its neighbours.
    let mut alone = false;
    while !waiting.is_empty() {
        tries += 1;
        if tries > TRIES {
            answer_all(waiting, &ApplyError::Fault(Fault::Contended));
            return;
        }
        let known = lock(&slot.cached).clone();
        let loaded = match known {
            Some(cached) => Ok(Some(cached)),
            None => {
                fresh = true;
                refresh(core, slot).await
            }
        };
        let cached = match loaded {
            Ok(Some(cached)) => cached,
            Ok(None) => return answer_all(waiting, &ApplyError::NoSuchRun),
            Err(fault) => return answer_all(waiting, &ApplyError::Fault(fault)),
        };
        let take = if alone { 1 } else { waiting.len() };
        let round: Vec<Job> = waiting.drain(..take).collect();
        let (decision, said) = decide_round(core, &cached.state, &round);
        let rejected = said.iter().any(|said| !matches!(said, Said::Decided(_)));
        if (decision.is_none() || rejected) && !fresh {
            // A state from memory may be behind; nothing is refused on its word.
            fresh = true;
            put_front(&mut waiting, round);
            if let Err(fault) = refresh(core, slot).await {
                return answer_all(waiting, &ApplyError::Fault(fault));
            }
            tries -= 1;
            continue;
        }
        let Some(mut decision) = decision else {
            let left = answer(round, said, &cached.state, core.clock.now());
            put_front(&mut waiting, left);
            continue;
        };
        match write(core, &mut decision, Some(&cached)).await {
            Ok(Written::Committed(at)) => {
                let state = Arc::new(decision.write.next);
                let left = answer(round, said, &state, at);
                put_front(&mut waiting, left);
                tries = 0;
            }
            Ok(Written::Refused) => {
                metrics::counter!("dw_commit_conflicts_total").increment(1);
                let before = cached.state.version;
                let single = round.len() == 1;
                put_front(&mut waiting, round);
                match refresh(core, slot).await {
                    Ok(Some(now)) if now.state.version == before && single => {
                        // The run did not move: it was the lease or the key.
                        if let Some(job) = waiting.pop_front() {
                            let _ = job.answer.send(Err(ApplyError::FenceLost));
                        }
                        tries = 0;
                    }
                    Ok(_) => {}
                    Err(fault) => return answer_all(waiting, &ApplyError::Fault(fault)),
                }
                alone = true;
                fresh = true;
            }
            Err(fault) => {
                if fault == Fault::Unknown {
                    *lock(&slot.cached) = None;
                }
                put_front(&mut waiting, round);
                return answer_all(waiting, &ApplyError::Fault(fault));
            }
        }
    }
}

/// Decides the inputs of one round, each on the state that those before it lead to.
fn decide_round(core: &Core, state: &RunState, round: &[Job]) -> (Option<Decision>, Vec<Said>) {
    let now = core.clock.now();
    let mut merged: Option<Decision> = None;
    let mut said = Vec::with_capacity(round.len());
    for job in round {
        let state = merged.as_ref().map_or(state, |merged| &merged.write.next);
        said.push(
            match decide(state, job.input.clone(), now, &core.settings.run) {
                Ok(Verdict::Answer(reply)) => Said::Decided(reply),
                Ok(Verdict::Commit(decision, reply)) => {
                    let both_claim = decision.claim.is_some()
                        && merged.as_ref().is_some_and(|merged| merged.claim.is_some());
                    if both_claim {
                        Said::Deferred
                    } else {
                        merged = Some(match merged.take() {
                            None => *decision,
                            Some(merged) => merged.then(*decision),
                        });
                        Said::Decided(reply)
                    }
                }
                Err(refusal) => Said::Refused(refusal),
            },
        );
    }
    (merged, said)
}

/// Answers a round, and returns what goes into the next one.
fn answer(round: Vec<Job>, said: Vec<Said>, state: &Arc<RunState>, at: Timestamp) -> Vec<Job> {
    let mut left = Vec::new();
    for (job, said) in round.into_iter().zip(said) {
        let answer = match said {
            Said::Decided(reply) => Ok(Applied {
                reply,
                state: Arc::clone(state),
                at,
            }),
            Said::Refused(refusal) => Err(ApplyError::Refused(refusal)),
            Said::Deferred => {
                left.push(job);
                continue;
            }
        };
        let _ = job.answer.send(answer);
    }
    left
}

fn answer_all(jobs: impl IntoIterator<Item = Job>, error: &ApplyError) {
    for job in jobs {
        let _ = job.answer.send(Err(error.clone()));
    }
}

fn put_front(waiting: &mut VecDeque<Job>, jobs: Vec<Job>) {
    for job in jobs.into_iter().rev() {
        waiting.push_front(job);
    }
}
