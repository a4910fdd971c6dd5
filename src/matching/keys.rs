//! What polls are kept by: the queue that they wait on, and the worker that sent them.

use crate::domain::ids::{Namespace, TaskQueue, WorkerId};
use crate::domain::routing::{Routing, TaskKind};

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
