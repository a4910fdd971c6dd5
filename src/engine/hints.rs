//! Hints to other nodes: gathered for a moment, sent as one notification.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::domain::dispatch::Position;
use crate::domain::ids::{Namespace, RunId, TaskId, TaskQueue, WorkerId};
use crate::domain::routing::TaskKind;
use crate::domain::time::Timestamp;
use crate::matching::{QueueKey, WorkerKey};
use crate::store::notify::MAX_NOTIFICATION;

/// Hints that wait to be sent; what is over is found by the slow re-check.
const PENDING_BOUND: usize = 10_000;
const FIELD: char = '\u{1f}';
const LINE: char = '\u{1e}';

/// Something that other nodes may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A queue has ready tasks, none of them before a position.
    Ready(QueueKey, Position),
    /// A worker's registration was written, with this epoch; removed, with the largest one.
    Worker(WorkerKey, u64),
    /// A worker is to take no more tasks.
    Drained(WorkerKey),
    /// A worker polls at the node that says so, and may have registered at another.
    Visits(WorkerKey),
    /// What is decided about the builds of a queue has changed.
    Rollouts(Namespace, TaskQueue),
    /// A hand-out of an activity has said something in a heartbeat.
    Beat(TaskId, u32),
    /// A run was written in a way that somebody may wait for.
    Moved(RunId),
    /// An ask was answered.
    Answered(TaskId),
}

/// Hints that wait to be sent.
#[derive(Debug)]
pub struct Hints {
    node: String,
    /// By their text; those of ready tasks with the least position.
    pending: Mutex<BTreeMap<String, Option<Position>>>,
    some: Notify,
}

impl Hints {
    /// For a node of this name, which does not listen to itself.
    pub fn new(node: String) -> Self {
        Self {
            node,
            pending: Mutex::default(),
            some: Notify::new(),
        }
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<String, Option<Position>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: String) {
        self.add_with(line, None);
    }

    fn add_with(&self, line: String, position: Option<Position>) {
        let mut pending = self.pending();
        if let Some(known) = pending.get_mut(&line) {
            *known = (*known).min(position);
        } else if pending.len() < PENDING_BOUND {
            pending.insert(line, position);
            drop(pending);
            self.some.notify_one();
        }
    }

    /// A queue has ready tasks, none of them before a position.
    pub fn ready(&self, key: &QueueKey, from: Position) {
        let (kind, namespace, queue) = (key.kind.number(), &key.namespace, &key.queue);
        let line = format!("q{FIELD}{kind}{FIELD}{namespace}{FIELD}{queue}");
        self.add_with(line, Some(from));
    }

    /// A worker's registration was written, with this epoch; removed, with the largest one.
    pub fn worker(&self, key: &WorkerKey, epoch: u64) {
        self.add(format!(
            "w{FIELD}{}{FIELD}{}{FIELD}{epoch}",
            key.namespace, key.worker
        ));
    }

    /// A worker is to take no more tasks.
    pub fn drained(&self, key: &WorkerKey) {
        self.add(format!("d{FIELD}{}{FIELD}{}", key.namespace, key.worker));
    }

    /// A worker polls at this node, and did not register at it.
    pub fn visits(&self, key: &WorkerKey) {
        self.add(format!("v{FIELD}{}{FIELD}{}", key.namespace, key.worker));
    }

    /// What is decided about the builds of a queue has changed.
    pub fn rollouts(&self, namespace: &Namespace, queue: &TaskQueue) {
        self.add(format!("o{FIELD}{namespace}{FIELD}{queue}"));
    }

    /// A hand-out of an activity has said something in a heartbeat.
    pub fn beat(&self, task: TaskId, attempt: u32) {
        self.add(format!("b{FIELD}{task}{FIELD}{attempt}"));
    }

    /// A run was written in a way that somebody may wait for.
    pub fn moved(&self, run: RunId) {
        self.add(format!("r{FIELD}{run}"));
    }

    /// An ask was answered.
    pub fn answered(&self, ask: TaskId) {
        self.add(format!("a{FIELD}{ask}"));
    }

    /// Waits until there is something to say.
    pub async fn wait(&self) {
        while self.pending().is_empty() {
            self.some.notified().await;
        }
    }

    /// Takes what fits into one notification.
    pub fn take(&self) -> Option<String> {
        let mut pending = self.pending();
        let mut text = self.node.clone();
        let mut taken = false;
        while let Some((line, position)) = pending.first_key_value() {
            let position = position
                .map(|at| format!("{FIELD}{}{FIELD}{}", at.priority, at.ready_at.micros()))
                .unwrap_or_default();
            if taken && text.len() + 1 + line.len() + position.len() > MAX_NOTIFICATION {
                break;
            }
            text.push(LINE);
            text.push_str(line);
            text.push_str(&position);
            taken = true;
            pending.pop_first();
        }
        taken.then_some(text)
    }

    /// Reads a notification; nothing if this node sent it.
    pub fn read(&self, text: &str) -> Vec<Hint> {
        let mut lines = text.split(LINE);
        if lines.next() == Some(self.node.as_str()) {
            return Vec::new();
        }
        lines.filter_map(read_line).collect()
    }
}

fn read_line(line: &str) -> Option<Hint> {
    let mut fields = line.split(FIELD);
    match fields.next()? {
        "q" => {
            let key = QueueKey {
                kind: TaskKind::from_number(fields.next()?.parse().ok()?)?,
                namespace: Namespace::from(fields.next()?),
                queue: fields.next()?.into(),
            };
            let mut position = || {
                let priority = fields.next()?.parse().ok()?;
                let ready_at = Timestamp::from_micros(fields.next()?.parse().ok()?);
                Some(Position::of_age(priority, ready_at))
            };
            // An older server says only the queue.
            Some(Hint::Ready(key, position().unwrap_or(Position::START)))
        }
        "d" => Some(Hint::Drained(WorkerKey {
            namespace: Namespace::from(fields.next()?),
            worker: WorkerId::from(fields.next()?),
        })),
        "v" => Some(Hint::Visits(WorkerKey {
            namespace: Namespace::from(fields.next()?),
            worker: WorkerId::from(fields.next()?),
        })),
        "o" => Some(Hint::Rollouts(
            Namespace::from(fields.next()?),
            TaskQueue::from(fields.next()?),
        )),
        "r" => Some(Hint::Moved(fields.next()?.parse().ok()?)),
        "a" => Some(Hint::Answered(fields.next()?.parse().ok()?)),
        "b" => Some(Hint::Beat(
            fields.next()?.parse().ok()?,
            fields.next()?.parse().ok()?,
        )),
        "w" => {
            let key = WorkerKey {
                namespace: Namespace::from(fields.next()?),
                worker: WorkerId::from(fields.next()?),
            };
            Some(Hint::Worker(key, fields.next()?.parse().ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_reach_other_nodes_and_not_the_sender() {
        let sender = Hints::new("a".to_owned());
        let receiver = Hints::new("b".to_owned());
        let queue = QueueKey {
            kind: TaskKind::Activity,
            namespace: "default".into(),
            queue: "emails".into(),
        };
        let worker = WorkerKey {
            namespace: "default".into(),
            worker: "w1".into(),
        };
        let position = |micros| Position::of_age(5, Timestamp::from_micros(micros));
        sender.ready(&queue, position(8));
        sender.ready(&queue, position(6));
        sender.ready(&queue, position(7));
        sender.worker(&worker, 7);
        sender.drained(&worker);
        sender.visits(&worker);
        sender.rollouts(&queue.namespace, &queue.queue);
        let run = crate::domain::ids::RunId::new(crate::domain::time::Timestamp::from_micros(1), 2);
        let task = TaskId { run, no: 3 };
        sender.beat(task, 4);
        let text = sender.take().unwrap_or_default();
        assert_eq!(
            receiver.read(&text),
            [
                Hint::Beat(task, 4),
                Hint::Drained(worker.clone()),
                Hint::Rollouts(queue.namespace.clone(), queue.queue.clone()),
                Hint::Ready(queue, position(6)),
                Hint::Visits(worker.clone()),
                Hint::Worker(worker, 7)
            ]
        );
        assert_eq!(sender.read(&text), []);
        assert_eq!(sender.take(), None);
    }

    #[test]
    fn a_notification_stays_within_its_bound() {
        let hints = Hints::new("a".to_owned());
        for n in 0..500 {
            let key = QueueKey {
                kind: TaskKind::Workflow,
                namespace: "default".into(),
                queue: format!("{n:0>200}").into(),
            };
            hints.ready(&key, Position::START);
        }
        let mut seen = 0;
        while let Some(text) = hints.take() {
            assert!(text.len() <= MAX_NOTIFICATION, "{}", text.len());
            seen += Hints::new("b".to_owned()).read(&text).len();
        }
        assert_eq!(seen, 500);
    }
}
