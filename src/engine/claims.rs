//! Claims: one at a time per queue and node, for all polls that wait there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::leases::PollName;
use super::{Core, Fault, admission, in_turn, session_claims};
use crate::domain::dispatch::Position;
use crate::domain::routing::{Poller, Profile, TaskKind};
use crate::matching::{Grant, GrantedLease, QueueKey, Reserved, WorkerKey};
use crate::store::asks;
use crate::store::claim::Claimed;
use crate::store::others::Pace;
use crate::store::ready::Place;

/// Claims of one queue while other nodes write, too. Meanwhile what this node opens goes to polls that wait here,
/// with no claim.
const PACE: Pace = Pace {
    interval: Duration::from_millis(25),
    enough: 24,
    look: Duration::from_millis(4),
};

/// Tasks of a queue have become ready, none of them before a position: tells the other nodes too.
pub(super) fn became_ready(core: &Core, key: &QueueKey, from: Position) {
    core.hints.ready(key, from);
    ready(core, key, from);
}

/// Tasks that were opened for later have become ready.
pub(super) fn due(core: &Core, key: &QueueKey) {
    if core.marks.is_ordered(key) {
        // They may be more urgent than what was handed out last, on every node.
        became_ready(core, key, Position::START);
    } else {
        ready(core, key, Position::END);
    }
}

/// A queue may have ready tasks, none of them before a position unless that was told before.
pub(super) fn ready(core: &Core, key: &QueueKey, from: Position) {
    core.marks.lower(key, from);
    if core.registry.backlog(key) {
        start(core, key.clone());
    }
}

/// A queue that is asked about, from a position on.
pub(super) fn place(key: &QueueKey, from: Position) -> Place<'_> {
    Place {
        namespace: &key.namespace,
        queue: &key.queue,
        kind: key.kind,
        from,
    }
}

/// A poll has been parked on a queue.
pub(super) fn look(core: &Core, key: &QueueKey) {
    if core.registry.wants_claim(key) {
        start(core, key.clone());
    }
}

/// Claims until nobody waits or nothing is left.
pub(super) fn start(core: &Core, key: QueueKey) {
    if let Some(core) = core.me.upgrade() {
        core.runtime
            .clone()
            .spawn(async move { run(&core, &key).await });
    }
}

async fn run(core: &Arc<Core>, key: &QueueKey) {
    let most = core.settings.claim_batch;
    while let Some((profile, polls)) = core.registry.next_claim(key, most) {
        let pollers: Vec<_> = polls.iter().map(|poll| poll.poller().clone()).collect();
        let begun = Instant::now();
        let claimed = claim(core, key, &profile, &pollers).await;
        let served = claimed.as_ref().map_or(0, Vec::len);
        match claimed {
            Ok(claimed) => {
                if claimed.len() == polls.len() {
                    core.registry.more(key, &profile);
                }
                give(core, key, polls, claimed);
            }
            Err(error) => {
                tracing::warn!(error = %error, queue = %key.queue, "claim failed");
                core.registry.stop_claiming(key, &profile, polls);
                return;
            }
        }
        if hands_over(core, key) {
            let waiting = || core.registry.waiting(key);
            let others = &core.store.others;
            others.rest(&PACE, begun, served, most, waiting).await;
        }
    }
}

/// Whether commits hand tasks of a queue to polls while a claim is under way. Where they do not, polls wait for
/// claims, and claims must not wait.
fn hands_over(core: &Core, key: &QueueKey) -> bool {
    core.settings.hand_off
        && !key.kind.is_ask()
        && !core.limits(key.kind).any()
        && !in_turn::only(core)
        && core.registry.is_plain(key)
}

/// Claims from the table that holds the kind, and then what runs in sessions.
pub(super) async fn claim(
    core: &Arc<Core>,
    key: &QueueKey,
    profile: &Profile,
    pollers: &[Poller],
) -> Result<Vec<Claimed>, Fault> {
    let (pool, kind) = (&core.store.hot, key.kind);
    if kind.is_ask() {
        let claimed = asks::claim(pool, kind, &key.namespace, &key.queue, profile, pollers);
        let claimed = claimed.await?;
        core.registry.saw(key, false);
        return Ok(claimed);
    }
    let (mut claimed, room) = admission::claim(core, key, profile, pollers).await?;
    if kind == TaskKind::Activity && claimed.len() < pollers.len() {
        let left: Vec<(usize, Poller)> = pollers
            .iter()
            .cloned()
            .enumerate()
            .filter(|(place, _)| claimed.iter().all(|task| task.poller != *place))
            .take(room.unwrap_or(usize::MAX))
            .collect();
        let entered = session_claims::claim(core, key, profile, &left).await;
        match entered {
            Ok((tasks, waiting)) => {
                let entered = tasks.len();
                claimed.extend(tasks);
                core.registry.picky(key, waiting);
                if let Err(fault) = admission::count(core, key, entered).await {
                    tracing::warn!(error = %fault, "tasks of sessions could not be counted");
                }
            }
            // What was claimed before is held and must be handed over.
            Err(fault) if claimed.is_empty() => return Err(fault),
            Err(fault) => tracing::warn!(error = %fault, "tasks of sessions could not be claimed"),
        }
    }
    Ok(claimed)
}

fn give(core: &Core, key: &QueueKey, polls: Vec<Reserved>, claimed: Vec<Claimed>) {
    let mut polls: Vec<Option<Reserved>> = polls.into_iter().map(Some).collect();
    let claims = core.counters.claims(key.kind);
    claims.increment(claimed.len() as u64);
    for task in claimed {
        let poll = polls.get_mut(task.poller).and_then(Option::take);
        if let Some(poll) = poll {
            let poller = poll.poller().clone();
            poll.give(grant(core, key, &poller, task));
        }
    }
    for poll in polls.into_iter().flatten() {
        put_back(core, poll);
    }
}

/// Lets a poll wait on that got nothing, and looks at its queues if that is called for.
pub(super) fn put_back(core: &Core, poll: Reserved) {
    for key in core.registry.put_back(poll) {
        start(core, key);
    }
}

/// A claimed task as a lease to be delivered, known to this node from now on.
pub(super) fn grant(core: &Core, key: &QueueKey, poller: &Poller, task: Claimed) -> Grant {
    let lease = GrantedLease {
        task: task.task,
        kind: key.kind,
        owner: poller.owner.clone(),
        attempt: task.attempt,
        seen: task.seen,
        leased_at: task.leased_at,
        lease_expires_at: task.lease_expires_at,
        start_to_close_at: task.start_to_close_at,
        heartbeat_due_at: task.heartbeat_due_at,
    };
    core.clock.observe(lease.leased_at);
    core.flows.dispatched(key);
    core.leases.granted(&lease, poller, poll_name(key, poller));
    if key.kind.is_ask() {
        return Grant::new(lease, core.releases.clone());
    }
    let ends = lease
        .start_to_close_at
        .into_iter()
        .chain(lease.heartbeat_due_at)
        .fold(lease.lease_expires_at, std::cmp::Ord::min);
    core.alarms.lease_in(ends.millis_since(lease.leased_at));
    if key.kind == TaskKind::Activity {
        core.starts.note(&lease);
    }
    Grant::new(lease, core.releases.clone())
}

/// The name of a poll, if its worker gave it one.
pub(super) fn poll_name(key: &QueueKey, poller: &Poller) -> Option<PollName> {
    Some(PollName {
        plane: key.kind.polled_as(),
        worker: WorkerKey {
            namespace: key.namespace.clone(),
            worker: poller.owner.clone(),
        },
        id: Arc::clone(poller.poll_request_id.as_ref()?),
    })
}
