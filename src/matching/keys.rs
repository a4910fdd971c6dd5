//! Names of what polls wait on and who waits, and why a waiting one ends.

use std::collections::HashMap;

use crate::domain::ids::{Namespace, TaskQueue, WorkerId};
use crate::domain::routing::{Routing, TaskKind};

/// A map by ids or keys: each request looks several of them up. What keys its hash is drawn anew in each process.
pub type IdMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// A queue of one kind of task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueKey {
    /// Workflow or activity.
    pub kind: TaskKind,
    /// Namespace.
    pub namespace: Namespace,
    /// Queue.
    pub queue: TaskQueue,
}

impl From<&Routing> for QueueKey {
    fn from(routing: &Routing) -> Self {
        Self {
            kind: routing.kind,
            namespace: routing.namespace.clone(),
            queue: routing.queue.clone(),
        }
    }
}

/// A worker of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkerKey {
    /// Namespace.
    pub namespace: Namespace,
    /// The worker.
    pub worker: WorkerId,
}

/// Why a parked poll ends without a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The worker drains.
    Draining,
    /// The registration that the poll relied on is gone or replaced.
    Superseded,
    /// The worker has asked again under the same name and no longer listens here.
    Repeated,
    /// It stopped waiting while something was on its way to it, and that did not come.
    GivenUp,
    /// The server stops.
    Shutdown,
}
