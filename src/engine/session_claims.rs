//! Claims of activities that run in worker sessions: one by one, each by a worker that owns its session
//! or may.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Core, Engine, Fault};
use crate::domain::features;
use crate::domain::routing::{Poller, Profile};
use crate::domain::session::{self, Applicant};
use crate::domain::worker::Registration;
use crate::matching::QueueKey;
use crate::store::claim::Claimed;
use crate::store::sessions::{self, Candidate};

/// Ready tasks of sessions that one claim looks at.
const LOOKED_AT: i64 = 64;

/// A worker that wants to own a session.
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
/// session, or may. Whether tasks are left is told apart, because a later poll may take them.
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
    let mut candidates =
        sessions::candidates(&store.hot, &key.namespace, &key.queue, profile, LOOKED_AT).await?;
    let mut claimed = Vec::new();
    for (place, poller) in pollers {
        if candidates.is_empty() {
            break;
        }
        let worker = Engine {
            core: Arc::clone(core),
        }
        .worker(&key.namespace, &poller.owner)
        .await?;
        let Some(worker) = worker else { continue };
        // A session that refused a worker refuses it for every task.
        let mut refused: HashSet<Arc<str>> = HashSet::new();
        let mut at = 0;
        while at < candidates.len() {
            if refused.contains(&candidates[at].options.session_id) {
                at += 1;
                continue;
            }
            match enter(core, key, &worker, poller, profile.knows, &candidates[at]).await? {
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
    Ok((claimed, !candidates.is_empty()))
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
        return Ok(Entered::TooLate);
    };
    sessions::write(&mut step, &session).await?;
    step.commit().await?;
    Ok(Entered::With(Box::new(task)))
}
