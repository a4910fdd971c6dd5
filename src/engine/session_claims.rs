//! Claims of activities that run in worker sessions: one by one, each by a worker that owns its session
//! or may.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::{Core, Engine, Fault};
use crate::domain::features;
use crate::domain::ids::WorkerId;
use crate::domain::routing::{Poller, Profile};
use crate::domain::session::{self, Applicant};
use crate::domain::worker::Registration;
use crate::matching::QueueKey;
use crate::store::claim::Claimed;
use crate::store::sessions::{self, Candidate, Seekers};

/// Ready tasks of sessions that one claim looks at.
const LOOKED_AT: i64 = 64;

/// A worker that asks to own a session; `owned` are its others.
pub(super) fn applicant(worker: &Registration, owned: u32) -> Applicant {
    let said = &worker.description;
    Applicant {
        worker: worker.worker_id.clone(),
        queues: said.queues.clone(),
        capabilities: said.capabilities.clone(),
        sessions: owned,
        max_sessions: said.max_sessions,
    }
}

/// Gives ready tasks of sessions to polls that got nothing else: each to a worker that owns the
/// session, or may. Whether some may be left is told apart, because a later poll may take them.
pub(super) async fn claim(
    core: &Arc<Core>,
    key: &QueueKey,
    profile: &Profile,
    pollers: &[(usize, Poller)],
) -> Result<(Vec<Claimed>, bool), Fault> {
    if profile.knows & features::SESSIONS == 0 || pollers.is_empty() {
        return Ok((Vec::new(), false));
    }
    let store = &core.store;
    if !sessions::any_ready(&store.hot, &key.namespace, &key.queue).await? {
        return Ok((Vec::new(), false));
    }
    let workers = workers_of(core, key, pollers).await?;
    let names: Vec<&str> = workers.keys().map(WorkerId::as_str).collect();
    let capabilities: BTreeSet<&str> = workers
        .values()
        .flat_map(|worker| worker.description.capabilities.iter().map(String::as_str))
        .collect();
    let seekers = Seekers {
        profile,
        workers: &names,
        capabilities: &capabilities.into_iter().collect::<Vec<_>>(),
    };
    let mut candidates = sessions::candidates(
        &store.hot,
        &key.namespace,
        &key.queue,
        &seekers,
        core.settings.stale_after_seconds,
        LOOKED_AT,
    )
    .await?;
    let mut claimed = Vec::new();
    for (place, poller) in pollers {
        if candidates.is_empty() {
            break;
        }
        let Some(worker) = workers.get(&poller.owner) else {
            continue;
        };
        // A session that refused a worker refuses it for every task.
        let mut refused: HashSet<Arc<str>> = HashSet::new();
        let mut at = 0;
        while at < candidates.len() {
            if refused.contains(&candidates[at].options.session_id) {
                at += 1;
                continue;
            }
            match enter(core, key, worker, poller, profile.knows, &candidates[at]).await? {
                Entered::With(mut task) => {
                    task.poller = *place;
                    claimed.push(*task);
                    candidates.remove(at);
                    break;
                }
                Entered::TooLate => {
                    candidates.remove(at);
                }
                Entered::Refused => {
                    refused.insert(Arc::clone(&candidates[at].options.session_id));
                    at += 1;
                }
            }
        }
    }
    Ok((claimed, true))
}

/// The registrations of the workers that poll.
async fn workers_of(
    core: &Arc<Core>,
    key: &QueueKey,
    pollers: &[(usize, Poller)],
) -> Result<HashMap<WorkerId, Arc<Registration>>, Fault> {
    let engine = Engine {
        core: Arc::clone(core),
    };
    let mut workers = HashMap::new();
    for (_, poller) in pollers {
        if !workers.contains_key(&poller.owner)
            && let Some(worker) = engine.worker(&key.namespace, &poller.owner).await?
        {
            workers.insert(poller.owner.clone(), worker);
        }
    }
    Ok(workers)
}

enum Entered {
    With(Box<Claimed>),
    /// Somebody else took the task.
    TooLate,
    /// The session does not take this worker now.
    Refused,
}

/// One activity enters its session, and its worker owns that from then on.
async fn enter(
    core: &Core,
    key: &QueueKey,
    worker: &Registration,
    poller: &Poller,
    knows: i64,
    candidate: &Candidate,
) -> Result<Entered, Fault> {
    let mut step = core.store.reads.begin().await?;
    let mut options = candidate.options.clone();
    options.queue = Some(key.queue.clone());
    let scene = sessions::lock(
        &mut step,
        &key.namespace,
        &worker.worker_id,
        &options.session_id,
        core.settings.stale_after_seconds,
    )
    .await?;
    let applicant = applicant(worker, scene.owned);
    let made = session::admit(
        scene.session,
        &key.namespace,
        options,
        &applicant,
        Some(scene.running),
        scene.at,
    );
    let Ok((session, _)) = made else {
        step.rollback().await?;
        return Ok(Entered::Refused);
    };
    let taken = sessions::take(
        &mut step,
        candidate.task,
        &worker.worker_id,
        poller.poll_request_id.as_deref(),
        knows,
    )
    .await?;
    let Some(task) = taken else {
        step.rollback().await?;
        return Ok(Entered::TooLate);
    };
    sessions::write(&mut step, &session).await?;
    step.commit().await?;
    Ok(Entered::With(Box::new(task)))
}
