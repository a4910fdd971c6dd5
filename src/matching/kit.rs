//! What tests of polls begin with: one queue, one worker, and polls that differ in what they know.

use std::sync::Arc;

use super::{QueueKey, Registry, Waiting, WorkerKey};
use crate::domain::routing::{Poller, Profile, TaskKind};

/// The queue.
pub fn key() -> QueueKey {
    QueueKey {
        kind: TaskKind::Workflow,
        namespace: "n".into(),
        queue: "q".into(),
    }
}

/// What a poll takes whose worker knows these features.
pub fn profile(knows: i64) -> Profile {
    Profile {
        types: ["t".to_owned()].into(),
        build_id: None,
        knows,
    }
}

/// A poll of the worker, under this id.
pub fn poller(poll_request_id: Option<&str>) -> Poller {
    Poller {
        owner: "w".into(),
        poll_request_id: poll_request_id.map(Into::into),
        kinds: [TaskKind::Workflow].into(),
    }
}

/// A poll that waits on the queue, unless the registry is closed.
pub fn park(
    registry: &Arc<Registry>,
    knows: i64,
    poll_request_id: Option<&str>,
) -> Option<Waiting> {
    let worker = WorkerKey {
        namespace: "n".into(),
        worker: "w".into(),
    };
    let (profile, poller) = (profile(knows), poller(poll_request_id));
    registry.park(vec![key()], worker, 1, profile, poller)
}
