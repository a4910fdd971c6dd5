//! From a decision to what is durable: waiting polls are spoken for, the commit is made, and what it
//! opened is given out.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::cache::Cached;
use super::claims::poll_name;
use super::error::Fault;
use super::{Core, claims, dispatch, in_turn};
use crate::domain::decision::{Decision, FIRST_ATTEMPT, HandOff, TaskEffect, TimerEffect};
use crate::domain::dispatch::Position;
use crate::domain::event::Body;
use crate::domain::ids::{TaskId, TaskNo};
use crate::domain::routing::{Routing, TaskKind};
use crate::domain::time::Timestamp;
use crate::matching::{Grant, GrantedLease, QueueKey, Reserved};
use crate::store::commit::Outcome;
use crate::store::item::Item;

/// What became of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It is durable, since this time of the database.
    Committed(Timestamp),
    /// A fence did not hold.
    Refused,
}

/// Who wants a decision to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A caller, who can be told to come back.
    Asked,
    /// A caller who starts a workflow on a queue whose tasks are late, and can be told the same.
    Late,
    /// It is due.
    Due,
}

/// A poll that an opened task was promised to.
struct Promise {
    poll: Reserved,
    task: TaskId,
    key: QueueKey,
}

/// How far this node's idea of the database's time may be behind.
const CLOCK_BEHIND_MS: u64 = 50;

/// Makes a decision durable, remembers the runs that it wrote, and gives out what it opened. `base` is
/// the deciding run before the decision, if it existed.
///
/// Must run to its end once begun: it is called from work that is [driven](super::driven) to its end.
pub(super) async fn write(
    core: &Core,
    decision: &mut Decision,
    base: Option<&Cached>,
    cause: Cause,
) -> Result<Written, Fault> {
    let now = core.clock.now();
    let (mut promises, offered) = if cause == Cause::Late {
        // Older tasks wait for these polls, and the commit for its turn.
        (Vec::new(), Vec::new())
    } else {
        promise(core, decision, now)
    };
    let item = Item::new(decision).map(|mut item| {
        for offered in &offered {
            offered.put_into(core, &mut item);
        }
        item
    });
    // Kept for pages from memory only, and large ones are not.
    for write in decision.writes_mut() {
        super::cache::let_go_of_text(write);
    }
    let outcome = match item {
        Err(error) => Err(error.into()),
        Ok(item) => {
            let outcome = match cause {
                Cause::Asked => core.lanes.commit(item).await,
                Cause::Late => core.lanes.commit_giving_way(item).await,
                Cause::Due => Ok(core.lanes.commit_due(item).await),
            };
            outcome.map_err(|_| Fault::Busy)
        }
    };
    for offered in offered {
        promises.extend(offered.taken(decision, now));
    }
    let written = match outcome {
        Err(fault) => Err(fault),
        Ok(Outcome::Committed(at)) => Ok(Written::Committed(at)),
        Ok(Outcome::Refused) => Ok(Written::Refused),
        Ok(Outcome::Crowded) => Err(Fault::Busy),
        Ok(Outcome::Closed(closed)) => Err(closed.into()),
        Ok(Outcome::Failed) => Err(Fault::Bug),
        Ok(Outcome::Unreached) => Err(Fault::Unavailable),
        Ok(Outcome::Unknown) => Err(Fault::Unknown),
    };
    let counter = match written {
        Ok(Written::Committed(_)) => &core.counters.committed,
        Ok(Written::Refused) => &core.counters.refused,
        Err(_) => &core.counters.failed,
    };
    counter.increment(1);
    match written {
        Ok(Written::Committed(at)) => {
            core.clock.observe(at);
            // Before anybody is given a task of these runs: whoever gets it looks here first.
            core.cache.written(&decision.write, base);
            for created in &decision.created {
                core.cache.written(created, None);
            }
            for write in decision.writes() {
                core.replays.check(&write.next);
            }
            keep(core, decision, promises, at);
            announce(core, decision, at);
            if let Some(base) = base {
                announce_room(core, decision, base);
            }
        }
        _ => {
            if written == Err(Fault::Unknown) {
                announce_unknown(core, decision);
                let leases = promises
                    .iter()
                    .filter_map(|promise| promised(decision, promise, now))
                    .collect();
                give_back_unheard(core, leases);
            }
            for promise in promises {
                claims::put_back(core, promise.poll);
            }
        }
    }
    written
}

/// Gives back leases that a commit may have granted whose answer was lost: their polls never hear of
/// them. One that the same commit, tried again, grants later stays.
fn give_back_unheard(core: &Core, leases: Vec<GrantedLease>) {
    let granted_by = core.clock.now().plus_millis(CLOCK_BEHIND_MS);
    if let Some(core) = core.me.upgrade() {
        core.runtime.clone().spawn(async move {
            super::give_back(&core, &leases, Some(granted_by)).await;
        });
    }
}

/// Speaks for a waiting poll for each task that is opened ready. Workflow tasks that nobody waits for now are offered
/// again when the commit begins; an activity's start is an event, which has its place by then.
fn promise(
    core: &Core,
    decision: &mut Decision,
    now: Timestamp,
) -> (Vec<Promise>, Vec<OfferedTask>) {
    let (mut promises, mut offered) = (Vec::new(), Vec::new());
    if !core.settings.hand_off {
        return (promises, offered);
    }
    let in_turn = in_turn::only(core);
    for (place, write) in decision.writes_mut().enumerate() {
        let opened: Vec<TaskNo> = write
            .opened()
            .filter(|(_, task)| task.available_at <= now)
            .map(|(no, _)| no)
            .collect();
        for no in opened {
            let Some(task) = write.effects.opened_mut(no) else {
                continue;
            };
            if task.routing.session.is_some() || core.limits(task.routing.kind).any() {
                // Whether a worker may own the session, and whether a limit leaves room, is for a claim to
                // find out.
                continue;
            }
            let id = TaskId {
                run: write.next.id,
                no,
            };
            if let Some(poll) = core.registry.reserve(&task.routing, in_turn) {
                let key = QueueKey::from(&task.routing);
                write.hand_over(no, hand_off(&poll), now);
                promises.push(Promise {
                    poll,
                    task: id,
                    key,
                });
            } else if task.routing.kind == TaskKind::Workflow {
                offered.push(OfferedTask {
                    place,
                    task: id,
                    routing: task.routing.clone(),
                    poll: Arc::default(),
                });
            }
        }
    }
    (promises, offered)
}

fn hand_off(poll: &Reserved) -> HandOff {
    HandOff {
        owner: poll.poller().owner.clone(),
        poll_request_id: poll.poller().poll_request_id.clone(),
        knows: poll.knows(),
    }
}

/// A workflow task that is offered again when its commit begins: a poll that comes until then needs no claim.
struct OfferedTask {
    /// Of its run among the writes of the decision.
    place: usize,
    task: TaskId,
    routing: Routing,
    /// The poll that was found.
    poll: Arc<Mutex<Option<Reserved>>>,
}

impl OfferedTask {
    fn put_into(&self, core: &Core, item: &mut Item) {
        let (core, routing) = (Weak::clone(&core.me), self.routing.clone());
        let found = Arc::clone(&self.poll);
        let offer = move || {
            let poll = core.upgrade()?.registry.reserve(&routing, true)?;
            let to = hand_off(&poll);
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(poll);
            Some(to)
        };
        item.offer(self.place, self.task.no, Box::new(offer));
    }

    /// The promise that it was taken with, noted in the decision.
    fn taken(self, decision: &mut Decision, now: Timestamp) -> Option<Promise> {
        let mut found = self.poll.lock().unwrap_or_else(PoisonError::into_inner);
        let poll = found.take()?;
        debug_assert_eq!(self.routing.kind, TaskKind::Workflow, "history is written");
        if let Some(write) = decision.writes_mut().nth(self.place) {
            write.hand_over(self.task.no, hand_off(&poll), now);
        }
        Some(Promise {
            poll,
            task: self.task,
            key: QueueKey::from(&self.routing),
        })
    }
}

/// Keeps the promises of a commit.
fn keep(core: &Core, decision: &Decision, promises: Vec<Promise>, at: Timestamp) {
    for promise in promises {
        let Some(lease) = promised(decision, &promise, at) else {
            continue;
        };
        let name = poll_name(&promise.key, promise.poll.poller());
        core.leases.granted(&lease, promise.poll.poller(), name);
        core.flows.dispatched(&promise.key);
        core.counters.handoffs(lease.kind).increment(1);
        promise.poll.give(Grant::new(lease, core.releases.clone()));
    }
}

/// The lease that a promise comes to, granted at this time.
fn promised(decision: &Decision, promise: &Promise, at: Timestamp) -> Option<GrantedLease> {
    let task = promise.task;
    let write = decision.writes().find(|write| write.next.id == task.run)?;
    let (_, row) = write.opened().find(|(no, _)| *no == task.no)?;
    Some(GrantedLease {
        task,
        kind: row.routing.kind,
        owner: promise.poll.poller().owner.clone(),
        attempt: FIRST_ATTEMPT,
        seen: (row.routing.kind == TaskKind::Workflow).then(|| write.next.last_event()),
        leased_at: at,
        lease_expires_at: at.plus_millis(row.lease_ms),
        start_to_close_at: row.start_to_close_ms.map(|ms| at.plus_millis(ms)),
        heartbeat_due_at: row.heartbeat_ms.map(|ms| at.plus_millis(ms)),
    })
}

/// Tells whoever may take it of what became ready, here and on other nodes, and maintenance of the
/// next deadline.
fn announce(core: &Core, decision: &Decision, at: Timestamp) {
    for write in decision.writes() {
        core.outbox.send(write);
        if write
            .events
            .iter()
            .any(|event| matches!(event.body, Body::UpdateCompleted(_)))
        {
            core.hints.moved(write.next.id);
        }
        for effect in write.effects.timers().values() {
            if let TimerEffect::Set(due) = effect {
                core.alarms.timer_in(due.millis_since(at));
            }
        }
        for no in write.effects.marks().keys() {
            // A claim that came by while its row was locked has passed it.
            if let Some(key) = queue_of(&write.next, *no) {
                claims::became_ready(core, &key, Position::START);
            }
        }
        for (no, effect) in write.effects.tasks() {
            match effect {
                TaskEffect::Close => core.leases.closed(TaskId {
                    run: write.next.id,
                    no: *no,
                }),
                TaskEffect::Again { available_at } => {
                    if let Some(key) = queue_of(&write.next, *no) {
                        let priority = write.next.begun.priority;
                        let position = Position::of_age(priority, *available_at);
                        ready_at(core, &key, position, at);
                    }
                }
                TaskEffect::Open(task) => {
                    let key = QueueKey::from(&task.routing);
                    core.flows.added(&key);
                    if task.handed_to.is_some() {
                        let ends = task.start_to_close_ms.into_iter().chain(task.heartbeat_ms);
                        core.alarms.lease_in(ends.fold(task.lease_ms, u64::min));
                    } else {
                        dispatch::waits(core, &task.routing);
                        let priority = task.routing.priority;
                        let position = Position::of_age(priority, task.available_at);
                        ready_at(core, &key, position, at);
                    }
                }
            }
        }
    }
}

/// A commit whose answer was lost may have made tasks ready.
fn announce_unknown(core: &Core, decision: &Decision) {
    for write in decision.writes() {
        for (no, effect) in write.effects.tasks() {
            let key = match effect {
                TaskEffect::Close => None,
                TaskEffect::Again { .. } => queue_of(&write.next, *no),
                TaskEffect::Open(task) => Some(QueueKey::from(&task.routing)),
            };
            if let Some(key) = key {
                claims::became_ready(core, &key, Position::START);
            }
        }
    }
}

/// A task that ends leaves room: an activity in its session, and any where held tasks are limited.
fn announce_room(core: &Core, decision: &Decision, base: &Cached) {
    for (no, effect) in decision.write.effects.tasks() {
        if *effect != TaskEffect::Close {
            continue;
        }
        let activity = base.state.activities.get(no);
        let in_session = activity.is_some_and(|activity| activity.session.is_some());
        if let Some(key) = queue_of(&base.state, *no)
            && (in_session || core.limits(key.kind).leases())
        {
            claims::became_ready(core, &key, Position::END);
        }
    }
}

fn ready_at(core: &Core, key: &QueueKey, position: Position, at: Timestamp) {
    if position.ready_at <= at {
        claims::became_ready(core, key, position);
    } else {
        core.marks.lower(key, position);
        let after = position.ready_at.millis_since(at) + 1;
        core.wakes.set(key, Duration::from_millis(after));
    }
}

/// The queue of a task that the run still has open.
fn queue_of(state: &crate::domain::run::RunState, no: TaskNo) -> Option<QueueKey> {
    let begun = &state.begun;
    if let Some(activity) = state.activities.get(&no) {
        return Some(QueueKey {
            kind: TaskKind::Activity,
            namespace: begun.namespace.clone(),
            queue: activity.queue.clone(),
        });
    }
    state
        .workflow_task
        .as_ref()
        .filter(|task| task.no == no)
        .map(|_| QueueKey {
            kind: TaskKind::Workflow,
            namespace: begun.namespace.clone(),
            queue: begun.queue.clone(),
        })
}
