//! Parked polls by queue. One is woken per task, the one that has waited longest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use super::grant::Grant;
use super::keys::{Ended, IdMap, QueueKey, WorkerKey};
use super::parked::{Parked, Slot, Word};
use super::recheck::{Due, pause};
use crate::domain::ids::Namespace;
use crate::domain::routing::{Poller, Profile, Routing, TaskKind};

/// Profiles that are remembered as having nothing to take, per queue.
const PROFILES_KEPT: usize = 64;
/// Queues that are remembered while nobody waits on them.
const IDLE_QUEUES_KEPT: usize = 10_000;

/// Polls of one queue that can take the same tasks.
#[derive(Debug)]
struct Group {
    profile: Profile,
    parked: BTreeMap<u64, Arc<Parked>>,
}

#[derive(Debug)]
struct Queue {
    groups: Vec<Group>,
    /// Profiles for which a look at the database found nothing more, and no hint came since. One that
    /// is being looked for counts already.
    empty_for: Vec<Profile>,
    /// A claim is under way, and looks again when it is done.
    claiming: bool,
    /// Ready tasks wait that only some workers may take: a poll that is parked looks again.
    picky: bool,
    /// Tasks of it differ in priority or class, so that a new one may have to wait for older ones.
    /// Unknown until the first claim has told.
    ordered: Option<bool>,
    recheck_at: Instant,
}

impl Queue {
    fn new(now: Instant) -> Self {
        Self {
            groups: Vec::new(),
            empty_for: Vec::new(),
            claiming: false,
            picky: false,
            ordered: None,
            recheck_at: now + pause(now),
        }
    }

    /// Whether polls of a profile may be given a task that has only now become ready: in a queue where
    /// order counts, and for one that must keep its turn, not while older ones may wait.
    fn hands_over(&self, profile: &Profile, in_turn: bool) -> bool {
        let is_plain = self.ordered == Some(false) && !in_turn;
        is_plain || !self.claiming && self.empty_for.contains(profile)
    }

    /// Remembers that nothing is left for a profile.
    fn is_empty_for(&mut self, profile: &Profile) {
        if self.empty_for.len() >= PROFILES_KEPT {
            // Those of parked polls stay, or their polls would claim for ever.
            let groups = &self.groups;
            self.empty_for
                .retain(|empty| groups.iter().any(|group| group.profile == *empty));
        }
        self.empty_for.push(profile.clone());
    }

    fn is_parked(&self) -> bool {
        self.groups.iter().any(|group| !group.parked.is_empty())
    }

    /// The group that a claim should serve next: of those that may find something, the one with the
    /// longest waiting poll.
    fn claimable(&self) -> Option<usize> {
        (0..self.groups.len())
            .filter(|place| !self.empty_for.contains(&self.groups[*place].profile))
            .filter_map(|place| Some((*self.groups[place].parked.keys().next()?, place)))
            .min()
            .map(|(_, place)| place)
    }

    fn begin_claim(&mut self) -> bool {
        if self.claiming || self.claimable().is_none() {
            return false;
        }
        self.claiming = true;
        true
    }
}

#[derive(Debug, Default)]
struct Inner {
    queues: IdMap<QueueKey, Queue>,
    workers: IdMap<WorkerKey, BTreeMap<u64, Arc<Parked>>>,
    /// Polls that have a name, by it: of each there is one, or a few while it is repeated.
    named: IdMap<(WorkerKey, Arc<str>), Vec<Arc<Parked>>>,
    next_ticket: u64,
    /// Polls for other tasks than queries, and those for queries.
    parked: [usize; 2],
    closed: bool,
}

/// All parked polls of this node.
#[derive(Debug, Default)]
pub struct Registry {
    inner: Mutex<Inner>,
}

/// A poll that a commit or claim has spoken for.
#[derive(Debug)]
pub struct Reserved {
    parked: Arc<Parked>,
}

impl Reserved {
    /// The poll.
    pub fn poller(&self) -> &Poller {
        &self.parked.poller
    }

    /// Features that its worker knows.
    pub fn knows(&self) -> i64 {
        self.parked.profile.knows
    }

    /// Gives it the task. When nobody waits any more, or the poll is to end, the grant is dropped,
    /// which gives it back.
    pub fn give(self, grant: Grant) {
        let mut slot = self.parked.slot();
        let _ = match std::mem::replace(&mut *slot, Slot::Over) {
            Slot::Reserved(word, None | Some(Ended::GivenUp)) | Slot::Waiting(word) => {
                word.send(Ok(grant))
            }
            Slot::Reserved(word, Some(why)) => word.send(Err(why)),
            Slot::Over => return,
        };
    }
}

/// A poll that waits; its end is awaited through this.
#[derive(Debug)]
pub struct Waiting {
    /// Resolves with a task, or with the reason why there is none.
    pub word: oneshot::Receiver<Word>,
    /// Takes the poll out when it is dropped.
    pub guard: Guard,
}

/// Takes a poll out of the registry when it is dropped.
#[derive(Debug)]
pub struct Guard {
    registry: Arc<Registry>,
    parked: Arc<Parked>,
}

impl Guard {
    /// Stops waiting. `false` when a task may be on its way: it comes, or the word that it does not.
    pub fn give_up(&self) -> bool {
        self.parked.give_up()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        {
            let mut slot = self.parked.slot();
            // A reserved poll keeps its sender: the task that comes finds nobody, and is given back.
            if matches!(*slot, Slot::Waiting(_)) {
                *slot = Slot::Over;
            }
        }
        let mut inner = self.registry.inner();
        inner.remove(&self.parked.keys, &self.parked);
        inner.forget(&self.parked);
    }
}

impl Inner {
    fn remove(&mut self, keys: &[QueueKey], parked: &Parked) {
        for key in keys {
            let Some(queue) = self.queues.get_mut(key) else {
                continue;
            };
            let group = queue
                .groups
                .iter_mut()
                .find(|group| group.profile == parked.profile);
            if let Some(group) = group {
                group.parked.remove(&parked.ticket);
            }
            queue.groups.retain(|group| !group.parked.is_empty());
        }
    }

    fn insert(&mut self, parked: &Arc<Parked>) {
        let now = Instant::now();
        let profile = &parked.profile;
        for key in &parked.keys {
            let queue = self
                .queues
                .entry(key.clone())
                .or_insert_with(|| Queue::new(now));
            let group = match queue
                .groups
                .iter()
                .position(|group| group.profile == *profile)
            {
                Some(place) => &mut queue.groups[place],
                None => {
                    queue.groups.push(Group {
                        profile: profile.clone(),
                        parked: BTreeMap::new(),
                    });
                    let last = queue.groups.len() - 1;
                    &mut queue.groups[last]
                }
            };
            group.parked.insert(parked.ticket, Arc::clone(parked));
        }
    }

    /// Lets a poll wait on its queues again, if it still waits and nothing ended it meanwhile.
    fn put_back(&mut self, parked: &Arc<Parked>) {
        {
            let mut slot = parked.slot();
            match std::mem::replace(&mut *slot, Slot::Over) {
                Slot::Reserved(word, None) if !word.is_closed() && !self.closed => {
                    *slot = Slot::Waiting(word);
                }
                Slot::Reserved(word, why) => {
                    let _ = word.send(Err(why.unwrap_or(Ended::Shutdown)));
                    return;
                }
                other => {
                    *slot = other;
                    return;
                }
            }
        }
        self.insert(parked);
    }

    /// A poll of the worker that the task is best given to.
    fn preferred(&self, key: &QueueKey, routing: &Routing, in_turn: bool) -> Option<Arc<Parked>> {
        let worker = WorkerKey {
            namespace: key.namespace.clone(),
            worker: routing.preferred.as_ref()?.worker.clone(),
        };
        let queue = self.queues.get(key)?;
        let polls = self.workers.get(&worker)?;
        let waits = |parked: &&Arc<Parked>| {
            parked.keys.contains(key)
                && parked.profile.may_take(routing)
                && queue.hands_over(&parked.profile, in_turn)
                && matches!(*parked.slot(), Slot::Waiting(_))
        };
        polls.values().find(waits).cloned()
    }

    fn longest_waiting(
        &self,
        key: &QueueKey,
        routing: &Routing,
        in_turn: bool,
    ) -> Option<Arc<Parked>> {
        let queue = self.queues.get(key)?;
        let may =
            |profile: &Profile| profile.may_take(routing) && queue.hands_over(profile, in_turn);
        let groups = queue.groups.iter().filter(|group| may(&group.profile));
        groups
            .filter_map(|group| group.parked.values().next())
            .min_by_key(|parked| parked.ticket)
            .cloned()
    }

    fn forget(&mut self, parked: &Parked) {
        if let Some(polls) = self.workers.get_mut(&parked.worker)
            && polls.remove(&parked.ticket).is_some()
        {
            self.parked[parked.pool()] -= 1;
            if polls.is_empty() {
                self.workers.remove(&parked.worker);
            }
        }
        if let Some(name) = parked.name()
            && let Some(namesakes) = self.named.get_mut(&name)
        {
            namesakes.retain(|other| other.ticket != parked.ticket);
            if namesakes.is_empty() {
                self.named.remove(&name);
            }
        }
    }
}

impl Registry {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls that wait now: those for queries, or all others.
    pub fn parked(&self, queries: bool) -> usize {
        self.inner().parked[usize::from(queries)]
    }

    /// Polls of one worker that wait now.
    pub fn parked_by(&self, worker: &WorkerKey) -> usize {
        self.inner().workers.get(worker).map_or(0, BTreeMap::len)
    }

    /// Workers whose polls wait now.
    pub fn workers(&self) -> Vec<WorkerKey> {
        self.inner().workers.keys().cloned().collect()
    }

    /// Parks a poll on all of its queues. `None` when the server stops.
    pub fn park(
        self: &Arc<Self>,
        keys: Vec<QueueKey>,
        worker: WorkerKey,
        epoch: u64,
        profile: Profile,
        poller: Poller,
    ) -> Option<Waiting> {
        let (sender, word) = oneshot::channel();
        let mut inner = self.inner();
        if inner.closed {
            return None;
        }
        inner.next_ticket += 1;
        let parked = Arc::new(Parked {
            ticket: inner.next_ticket,
            worker: worker.clone(),
            epoch,
            poller,
            profile,
            keys,
            slot: Mutex::new(Slot::Waiting(sender)),
        });
        inner.insert(&parked);
        if let Some(name) = parked.name() {
            let namesakes = inner.named.entry(name).or_default();
            for other in namesakes.iter().filter(|other| other.keys == parked.keys) {
                other.end(Ended::Repeated);
            }
            namesakes.push(Arc::clone(&parked));
        }
        let others = inner.workers.entry(worker).or_default();
        others.insert(parked.ticket, Arc::clone(&parked));
        inner.parked[parked.pool()] += 1;
        if inner.queues.len() > IDLE_QUEUES_KEPT {
            inner
                .queues
                .retain(|_, queue| queue.claiming || queue.is_parked());
        }
        drop(inner);
        Some(Waiting {
            word,
            guard: Guard {
                registry: Arc::clone(self),
                parked,
            },
        })
    }

    /// The kinds of task that a waiting poll of the same id takes, if they are others.
    pub fn contradicted(&self, namespace: &Namespace, poller: &Poller) -> Option<Arc<[TaskKind]>> {
        let name = poller.poll_request_id.clone()?;
        let worker = WorkerKey {
            namespace: namespace.clone(),
            worker: poller.owner.clone(),
        };
        let inner = self.inner();
        let namesakes = inner.named.get(&(worker, name))?;
        namesakes
            .iter()
            .find(|parked| {
                parked.poller.contradicts(poller) && !matches!(*parked.slot(), Slot::Over)
            })
            .map(|parked| Arc::clone(&parked.poller.kinds))
    }

    /// Whether a poll waits that may take such a task.
    pub fn has_taker(&self, routing: &Routing) -> bool {
        let inner = self.inner();
        inner
            .queues
            .get(&QueueKey::from(routing))
            .is_some_and(|queue| {
                queue
                    .groups
                    .iter()
                    .any(|group| !group.parked.is_empty() && group.profile.may_take(routing))
            })
    }

    /// Says whether tasks of a queue were seen that differ in priority or class.
    pub fn saw(&self, key: &QueueKey, ordered: bool) {
        if let Some(queue) = self.inner().queues.get_mut(key) {
            queue.ordered = Some(ordered || queue.ordered == Some(true));
        }
    }

    /// Whether what becomes ready now goes to polls at once, also while a claim is under way.
    pub fn is_plain(&self, key: &QueueKey) -> bool {
        let inner = self.inner();
        let queue = inner.queues.get(key);
        queue.is_some_and(|queue| queue.ordered == Some(false) && !queue.picky)
    }

    /// Speaks for a poll that may take such a task: one of the worker that keeps its run in memory, or
    /// the one that has waited longest. `in_turn` is for a task before which older ones come that wait for a
    /// claim.
    pub fn reserve(&self, routing: &Routing, in_turn: bool) -> Option<Reserved> {
        let key = QueueKey::from(routing);
        let mut inner = self.inner();
        loop {
            let parked = inner
                .preferred(&key, routing, in_turn)
                .or_else(|| inner.longest_waiting(&key, routing, in_turn))?;
            // Taken out of this queue only; its other queues see that it is spoken for.
            inner.remove(std::slice::from_ref(&key), &parked);
            if parked.reserve() {
                return Some(Reserved { parked });
            }
        }
    }

    /// Lets a poll wait on that was spoken for and got nothing. Returns the queues to claim from:
    /// something may have become ready there while the poll seemed not to wait.
    #[must_use]
    pub fn put_back(&self, reserved: Reserved) -> Vec<QueueKey> {
        let mut inner = self.inner();
        inner.put_back(&reserved.parked);
        let mut wanted = Vec::new();
        for key in &reserved.parked.keys {
            if inner.queues.get_mut(key).is_some_and(Queue::begin_claim) {
                wanted.push(key.clone());
            }
        }
        wanted
    }

    /// Says whether ready tasks wait in a queue that only some workers may take.
    pub fn picky(&self, key: &QueueKey, is_picky: bool) {
        if let Some(queue) = self.inner().queues.get_mut(key) {
            queue.picky = is_picky;
        }
    }

    /// Says that a queue may have ready tasks in the database. Returns whether a claim should be
    /// started: polls wait, and none is under way.
    #[must_use]
    pub fn backlog(&self, key: &QueueKey) -> bool {
        let mut inner = self.inner();
        // A queue that is not known here is looked at as soon as somebody waits on it.
        inner.queues.get_mut(key).is_some_and(|queue| {
            queue.empty_for.clear();
            queue.begin_claim()
        })
    }

    /// Whether a claim should be started for a poll that has just been parked.
    #[must_use]
    pub fn wants_claim(&self, key: &QueueKey) -> bool {
        self.inner().queues.get_mut(key).is_some_and(|queue| {
            if queue.picky {
                queue.empty_for.clear();
            }
            queue.begin_claim()
        })
    }

    /// Polls that wait on a queue.
    pub fn waiting(&self, key: &QueueKey) -> usize {
        let inner = self.inner();
        let queue = inner.queues.get(key);
        queue.map_or(0, |queue| {
            queue.groups.iter().map(|group| group.parked.len()).sum()
        })
    }

    /// Polls for the next claim on a queue: some that can take the same tasks, at most `limit`, the
    /// longest waiting first. Unless [`Registry::more`] or a hint says otherwise meanwhile, the claim
    /// is taken to leave nothing for them. `None` ends the claiming.
    pub fn next_claim(&self, key: &QueueKey, limit: usize) -> Option<(Profile, Vec<Reserved>)> {
        let mut inner = self.inner();
        let queue = inner.queues.get_mut(key)?;
        while let Some(place) = queue.claimable() {
            let group = &mut queue.groups[place];
            let profile = group.profile.clone();
            let mut reserved = Vec::new();
            while reserved.len() < limit {
                let Some((_, parked)) = group.parked.pop_first() else {
                    break;
                };
                if parked.reserve() {
                    reserved.push(Reserved { parked });
                }
            }
            queue.groups.retain(|group| !group.parked.is_empty());
            if !reserved.is_empty() {
                queue.is_empty_for(&profile);
                return Some((profile, reserved));
            }
        }
        queue.claiming = false;
        None
    }

    /// After a claim that every poll got something from: there may be more.
    pub fn more(&self, key: &QueueKey, profile: &Profile) {
        if let Some(queue) = self.inner().queues.get_mut(key) {
            queue.empty_for.retain(|empty| empty != profile);
        }
    }

    /// After a claim that failed: its polls wait on, and the next look or hint tries again.
    pub fn stop_claiming(&self, key: &QueueKey, profile: &Profile, polls: Vec<Reserved>) {
        let mut inner = self.inner();
        for reserved in polls {
            inner.put_back(&reserved.parked);
        }
        if let Some(queue) = inner.queues.get_mut(key) {
            queue.empty_for.retain(|empty| empty != profile);
            queue.claiming = false;
        }
    }

    /// Queues with parked polls and without a claim whose slow re-check is due.
    pub fn due_for_recheck(&self, now: Instant) -> Vec<Due> {
        let mut due = Vec::new();
        for (key, queue) in &mut self.inner().queues {
            if queue.recheck_at <= now {
                queue.recheck_at = now + pause(now);
                if queue.claiming {
                    // The claim goes on to those that it would have left out.
                    queue.empty_for.clear();
                } else if queue.is_parked() {
                    due.push(Due {
                        key: key.clone(),
                        profiles: queue.groups.iter().map(|one| one.profile.clone()).collect(),
                        claims: queue.picky || queue.claimable().is_some(),
                    });
                }
            }
        }
        due
    }

    /// Says that every queue may have ready tasks, because hints were lost. Returns those to claim from.
    pub fn all_backlog(&self) -> Vec<QueueKey> {
        let mut wanted = Vec::new();
        for (key, queue) in &mut self.inner().queues {
            queue.empty_for.clear();
            if queue.begin_claim() {
                wanted.push(key.clone());
            }
        }
        wanted
    }

    /// Ends the parked polls of one worker that were admitted before its registration of this epoch.
    pub fn end_worker(&self, worker: &WorkerKey, epoch: u64, why: Ended) {
        let polls: Vec<_> = self
            .inner()
            .workers
            .get(worker)
            .map(|polls| {
                let older = polls.values().filter(|parked| parked.epoch < epoch);
                older.cloned().collect()
            })
            .unwrap_or_default();
        for parked in polls {
            parked.end(why);
        }
    }

    /// Ends all parked polls and takes no more.
    pub fn close(&self) {
        let mut inner = self.inner();
        inner.closed = true;
        let polls: Vec<_> = inner
            .workers
            .values()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect();
        drop(inner);
        for parked in polls {
            parked.end(Ended::Shutdown);
        }
    }
}
