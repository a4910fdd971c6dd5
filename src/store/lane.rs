//! Commit lanes: each owns a connection and writes whatever queued up while its last statement ran.
//! Nothing waits for a batch to fill.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::sync::{mpsc, oneshot};

use super::Store;
use super::commit::{self, MAX_BATCH, Outcome};
use super::item::Item;
use crate::domain::ids::RunId;

/// Items that may wait in front of a lane; what is over is told to come back.
pub const QUEUE_BOUND: usize = 4_096;
/// Items of due work that may wait in front of a lane beside those; what is over waits for room.
pub const DUE_BOUND: usize = 256;
/// Bytes of history in one statement; a single item may have more. A statement is in memory a few times
/// while it is sent, and what is large would delay everything that came along.
pub const BATCH_BYTES: usize = 2 << 20;
/// Bytes of history of a statement after which the connection gives its buffers back.
const SHRINK_OVER: usize = 256 << 10;
/// Wait before another try to reach the database.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);

struct Job {
    item: Item,
    answer: oneshot::Sender<Outcome>,
}

/// The lane's queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// What waits in front of one lane.
#[derive(Clone)]
struct Queue {
    asked: mpsc::Sender<Job>,
    due: mpsc::Sender<Job>,
}

/// A handle on all lanes.
#[derive(Clone)]
pub struct Lanes {
    queues: Vec<Queue>,
}

impl Lanes {
    /// Starts `count` lanes. A run always goes to the same one, so that its writes stay in order and
    /// a batch never waits for another lane of this node. A statement writes at most `batch` items,
    /// and never more than [`MAX_BATCH`].
    pub fn start(store: &Store, count: usize, batch: usize) -> Self {
        let queues = (0..count.max(1))
            .map(|_| {
                let (asked, waiting) = mpsc::channel(QUEUE_BOUND);
                let (due, due_waiting) = mpsc::channel(DUE_BOUND);
                let jobs = Jobs::new(waiting, due_waiting);
                tokio::spawn(run(store.clone(), jobs, batch.clamp(1, MAX_BATCH)));
                Queue { asked, due }
            })
            .collect();
        Self { queues }
    }

    /// Writes one item and says what became of it.
    ///
    /// # Errors
    /// [`Busy`] when too much is waiting; nothing was written.
    pub async fn commit(&self, item: Item) -> Result<Outcome, Busy> {
        let (answer, outcome) = oneshot::channel();
        self.queue(&item)
            .asked
            .try_send(Job { item, answer })
            .map_err(|_| Busy)?;
        Ok(outcome.await.unwrap_or(Outcome::Unknown))
    }

    /// Writes an item that nobody asked for, because it is due, and says what became of it. Such items
    /// do not stand behind those that callers wait for: each statement has room for both.
    pub async fn commit_due(&self, item: Item) -> Outcome {
        let (answer, outcome) = oneshot::channel();
        // Nobody is there who could be told to come back.
        let _ = self.queue(&item).due.send(Job { item, answer }).await;
        outcome.await.unwrap_or(Outcome::Unknown)
    }

    fn queue(&self, item: &Item) -> &Queue {
        let lane = item.run().spread() % self.queues.len() as u64;
        &self.queues[usize::try_from(lane).unwrap_or(0)]
    }
}

/// The jobs of a lane: those that callers wait for, and those that are due.
struct Jobs {
    asked: Line,
    due: Line,
    /// Who has the first places of a statement: a large item finds room only there.
    is_due_first: bool,
}

/// Jobs in order, taken out of the queue as far as the next statement may need them.
struct Line {
    queue: mpsc::Receiver<Job>,
    held: VecDeque<Job>,
}

impl Line {
    fn new(queue: mpsc::Receiver<Job>) -> Self {
        let held = VecDeque::new();
        Self { queue, held }
    }

    fn fill(&mut self, most: usize) {
        while self.held.len() < most {
            match self.queue.try_recv() {
                Ok(job) => self.held.push_back(job),
                Err(_) => break,
            }
        }
    }
}

impl Jobs {
    fn new(asked: mpsc::Receiver<Job>, due: mpsc::Receiver<Job>) -> Self {
        Self {
            asked: Line::new(asked),
            due: Line::new(due),
            is_due_first: false,
        }
    }

    /// The jobs of the next statement, `most` at most; `None` when there will be no more. While both
    /// kinds wait each has half of it.
    async fn next(&mut self, most: usize) -> Option<Vec<Job>> {
        if self.asked.held.is_empty() && self.due.held.is_empty() {
            tokio::select! {
                Some(job) = self.asked.queue.recv() => self.asked.held.push_back(job),
                Some(job) = self.due.queue.recv() => self.due.held.push_back(job),
                else => return None,
            }
        }
        self.asked.fill(2 * most);
        self.due.fill(2 * most);
        self.is_due_first = !self.is_due_first;
        let (first, second) = if self.is_due_first {
            (&mut self.due.held, &mut self.asked.held)
        } else {
            (&mut self.asked.held, &mut self.due.held)
        };
        let share = if second.is_empty() {
            most
        } else {
            most.div_ceil(2)
        };
        let mut batch = Batch::default();
        batch.take(first, share);
        batch.take(second, most);
        batch.take(first, most);
        Some(batch.jobs)
    }
}

async fn run(store: Store, mut jobs: Jobs, most: usize) {
    let mut connection: Option<PgConnection> = None;
    while let Some(batch) = jobs.next(most).await {
        let (items, answers): (Vec<Item>, Vec<oneshot::Sender<Outcome>>) =
            batch.into_iter().map(|job| (job.item, job.answer)).unzip();
        let outcomes = match reach(&store, &mut connection).await {
            Some(reached) => commit::commit(reached, &items).await,
            None => vec![Outcome::Unreached; items.len()],
        };
        metrics::histogram!("dw_commit_batch_items").record(items.len() as f64);
        metrics::counter!("dw_commit_statements_total").increment(1);
        if outcomes.contains(&Outcome::Unknown) {
            connection = None;
        }
        let bytes: usize = items.iter().map(Item::bytes).sum();
        if bytes > SHRINK_OVER
            && let Some(connection) = &mut connection
        {
            connection.shrink_buffers();
        }
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // A caller that hung up has no use for the answer; the write stands.
            let _ = answer.send(outcome);
        }
    }
}

/// The jobs of one statement: a run at most once, a key at most once, and not too many bytes.
#[derive(Default)]
struct Batch {
    jobs: Vec<Job>,
    bytes: usize,
    runs: HashSet<RunId>,
    keys: HashSet<String>,
}

impl Batch {
    /// Takes jobs until there are `most` in all. What does not fit keeps its place in the line.
    fn take(&mut self, line: &mut VecDeque<Job>, most: usize) {
        let mut later = VecDeque::new();
        while self.jobs.len() < most
            && let Some(job) = line.pop_front()
        {
            let bytes = self.bytes + job.item.bytes();
            if bytes > BATCH_BYTES && !self.jobs.is_empty() {
                line.push_front(job);
                break;
            }
            let key = job.item.key();
            let fits = !self.runs.contains(&job.item.run())
                && key.as_ref().is_none_or(|key| !self.keys.contains(key));
            // A run whose turn has passed waits whole, so that its order stays.
            self.runs.insert(job.item.run());
            if fits {
                self.keys.extend(key);
                self.bytes = bytes;
                self.jobs.push(job);
            } else {
                later.push_back(job);
            }
        }
        later.append(line);
        *line = later;
    }
}

/// The lane's connection, opened anew when it was lost. `None` when the database stays away.
async fn reach<'a>(
    store: &Store,
    connection: &'a mut Option<PgConnection>,
) -> Option<&'a mut PgConnection> {
    if connection.is_none() {
        for attempt in 0..3 {
            match commit::connect(&store.options).await {
                Ok(opened) => {
                    *connection = Some(opened);
                    break;
                }
                Err(error) => {
                    tracing::warn!(error = %error, attempt, "commit: database out of reach");
                    tokio::time::sleep(RECONNECT_DELAY).await;
                }
            }
        }
    }
    connection.as_mut()
}
