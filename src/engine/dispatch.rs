//! Claims in the order of hand-outs. A queue whose tasks are all alike is claimed from in one statement;
//! one where classes take turns, or where workers keep runs in memory, is looked at first.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Core, Fault};
use crate::domain::dispatch::{self, Candidate, Shares};
use crate::domain::ids::{TaskId, WorkerId};
use crate::domain::routing::{DEFAULT_PRIORITY, Poller, Profile, Routing, TaskKind};
use crate::domain::time::Timestamp;
use crate::matching::{IdMap, QueueKey};
use crate::store::claim::{self, Claimed};
use crate::store::dispatch::{After, Begin, look, take};
use crate::store::pool::Transaction;

/// Queues whose tasks are not all alike that are remembered; one that is forgotten is found again by its
/// next claim.
const QUEUES_KEPT: usize = 10_000;
/// Looks that one claim takes at most.
const LOOKS: usize = 8;

/// What is known of one queue.
#[derive(Clone, Debug, Default)]
struct Turn {
    shares: Shares,
    after: Option<After>,
}

/// Queues where more counts than priority and age, and what their classes have had on this node.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<IdMap<QueueKey, Turn>>);

impl Turns {
    fn map(&self) -> MutexGuard<'_, IdMap<QueueKey, Turn>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, key: &QueueKey) {
        let mut map = self.map();
        if map.len() >= QUEUES_KEPT && !map.contains_key(key) {
            map.clear();
        }
        map.entry(key.clone()).or_default();
    }

    /// Whether more than priority and age counts in a queue, as far as this node has seen.
    pub fn knows(&self, key: &QueueKey) -> bool {
        self.map().contains_key(key)
    }

    fn get(&self, key: &QueueKey) -> Option<Turn> {
        self.map().get(key).cloned()
    }

    fn forget(&self, key: &QueueKey) {
        self.map().remove(key);
    }

    fn change(&self, key: &QueueKey, change: impl FnOnce(&mut Turn)) {
        if let Some(turn) = self.map().get_mut(key) {
            change(turn);
        }
    }
}

/// A task was opened and waits.
pub(super) fn waits(core: &Core, routing: &Routing) {
    if routing.is_ranked() {
        core.turns.note(&QueueKey::from(routing));
    }
    if routing.is_ordered() {
        core.registry.saw(&QueueKey::from(routing), true);
    }
    if routing.priority != DEFAULT_PRIORITY {
        core.marks.ordered(&QueueKey::from(routing));
    }
}

/// Where statements run: on any connection, or inside a transaction.
pub(super) enum On<'a> {
    Any,
    This(&'a mut Transaction),
}

/// So many tasks were handed out at this time, the last of which had been ready since then.
fn waited(
    core: &Core,
    on: &On<'_>,
    key: &QueueKey,
    tasks: usize,
    at: Option<Timestamp>,
    last: Option<Timestamp>,
) {
    // In a transaction a limit of the operator's is looked at, and that is what tasks wait for.
    if let (On::Any, Some(at), Some(last)) = (on, at, last) {
        core.late.claimed(key, tasks, at.millis_since(last));
    }
}

/// Gives ready tasks to polls, in the order of hand-outs.
pub(super) async fn claim(
    core: &Core,
    key: &QueueKey,
    profile: &Profile,
    pollers: &[Poller],
    mut on: On<'_>,
) -> Result<Vec<Claimed>, Fault> {
    if core.turns.get(key).is_none() {
        let (hot, kind, namespace, queue) = (&core.store.hot, key.kind, &key.namespace, &key.queue);
        let looked = core.marks.look(key, profile);
        let from = looked.from();
        let plain = match &mut on {
            On::Any => claim::claim(hot, kind, namespace, queue, profile, pollers, from).await?,
            On::This(step) => {
                claim::claim(&mut ***step, kind, namespace, queue, profile, pollers, from).await?
            }
        };
        let is_ordered = plain.classes || plain.priorities;
        core.registry.saw(key, is_ordered);
        let last = plain.last.map(|last| last.ready_at);
        waited(core, &on, key, plain.claimed.len(), plain.at, last);
        if plain.priorities {
            core.marks.ordered(key);
        }
        if plain.classes {
            looked.reached(from);
        } else if plain.claimed.len() == pollers.len() {
            looked.reached(plain.last.unwrap_or(from));
        } else {
            looked.left_nothing(plain.at);
        }
        if plain.classes || plain.preferred {
            core.turns.note(key);
        }
        if !plain.classes {
            return Ok(plain.claimed);
        }
    }
    ranked(core, key, profile, pollers, on).await
}

/// Looks, chooses and takes, until every poll has a task or nothing is left.
async fn ranked(
    core: &Core,
    key: &QueueKey,
    profile: &Profile,
    pollers: &[Poller],
    mut on: On<'_>,
) -> Result<Vec<Claimed>, Fault> {
    debug_assert!(matches!(key.kind, TaskKind::Workflow | TaskKind::Activity));
    let hot = &core.store.hot;
    let (kind, namespace, queue) = (key.kind, &key.namespace, &key.queue);
    let mut claimed: Vec<Claimed> = Vec::new();
    // Tasks that others were faster with.
    let mut lost: HashSet<TaskId> = HashSet::new();
    let mut free: Vec<usize> = (0..pollers.len()).collect();
    let mut is_left = false;
    for _ in 0..LOOKS {
        let turn = core.turns.get(key).unwrap_or_default();
        let mark = core.marks.look(key, profile);
        let begin = Begin {
            after: turn.after.as_ref(),
            from: mark.from(),
        };
        let want = free.len();
        let looked = match &mut on {
            On::Any => look(hot, kind, namespace, queue, profile, want, begin).await,
            On::This(step) => {
                look(&mut ***step, kind, namespace, queue, profile, want, begin).await
            }
        };
        let mut seen = match looked {
            Ok(seen) => seen,
            Err(error) => {
                give_up(error, &claimed, &on)?;
                break;
            }
        };
        // What is left out below was seen as well.
        let cut_at = seen.window.cut_at();
        seen.window.leave_out(|task| lost.contains(&task));
        let window = &seen.window;
        let owners: Vec<&WorkerId> = free.iter().map(|place| &pollers[*place].owner).collect();
        let picks = dispatch::pick(&turn.shares, window, &owners);
        let chosen: Vec<(TaskId, &Poller)> = picks
            .iter()
            .map(|pick| {
                let task = window.candidates[pick.candidate].task;
                (task, &pollers[free[pick.poll]])
            })
            .collect();
        let mut taken = Vec::new();
        if !chosen.is_empty() {
            let took = match &mut on {
                On::Any => take(hot, profile, &chosen).await,
                On::This(step) => take(&mut ***step, profile, &chosen).await,
            };
            taken = match took {
                Ok(taken) => taken,
                Err(error) => {
                    give_up(error, &claimed, &on)?;
                    break;
                }
            };
        }
        let given: HashSet<usize> = taken.iter().map(|task| task.poller).collect();
        let is_default = |one: &Candidate| one.class.is_none() && one.priority == DEFAULT_PRIORITY;
        let is_ordered = seen.classes || !window.candidates.iter().all(is_default);
        core.registry.saw(key, is_ordered);
        if is_ordered {
            core.marks.ordered(key);
        }
        let ready = picks
            .iter()
            .enumerate()
            .filter(|(place, _)| given.contains(place));
        let last = ready
            .map(|(_, pick)| window.candidates[pick.candidate].ready_at)
            .max();
        waited(core, &on, key, taken.len(), seen.at, last);
        let left = window.first_left(|task| taken.iter().any(|given| given.task == task));
        match left.or(cut_at) {
            Some(position) => mark.reached(position),
            None => mark.left_nothing(seen.at),
        }
        core.turns.note(key);
        core.turns.change(key, |turn| {
            turn.after.clone_from(&seen.after);
            for (place, pick) in picks.iter().enumerate() {
                if given.contains(&place) {
                    turn.shares.charge(window, *pick);
                }
            }
        });
        lost.extend(
            chosen
                .iter()
                .enumerate()
                .filter(|(place, _)| !given.contains(place))
                .map(|(_, (task, _))| *task),
        );
        let served: HashSet<usize> = given.iter().map(|place| picks[*place].poll).collect();
        for mut task in taken {
            task.poller = free[picks[task.poller].poll];
            claimed.push(task);
        }
        let mut place = 0;
        free.retain(|_| {
            place += 1;
            !served.contains(&(place - 1))
        });
        let is_plain = !seen.classes && window.candidates.iter().all(|one| one.preferred.is_none());
        if is_plain && window.is_whole() {
            core.turns.forget(key);
        }
        is_left = !window.is_whole();
        let is_done = free.is_empty() || !is_left && picks.len() == given.len();
        if is_done {
            break;
        }
    }
    if is_left && !claimed.is_empty() {
        core.registry.more(key, profile);
    }
    Ok(claimed)
}

/// Ends a claim at an error: what was taken before must be handed over; inside a transaction it is undone.
fn give_up(error: sqlx::Error, claimed: &[Claimed], on: &On<'_>) -> Result<(), Fault> {
    if claimed.is_empty() || matches!(on, On::This(_)) {
        return Err(error.into());
    }
    tracing::warn!(error = %error, "a claim ended before all polls were served");
    Ok(())
}
