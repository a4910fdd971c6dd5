//! Commit lanes: each owns a connection and writes whatever queued up while its last statement ran.
//! Nothing waits for a batch to fill.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::{mpsc, oneshot};

use super::Store;
use super::commit::{self, MAX_BATCH, Outcome};
use super::item::Item;

/// Items that may wait in front of a lane; what is over is told to come back.
pub const QUEUE_BOUND: usize = 4_096;
/// Wait before another try to reach the database.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);

struct Job {
    item: Item,
    answer: oneshot::Sender<Outcome>,
}

/// The lane's queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// A handle on all lanes.
#[derive(Clone)]
pub struct Lanes {
    queues: Vec<mpsc::Sender<Job>>,
}

impl Lanes {
    /// Starts `count` lanes. A run always goes to the same one, so that its writes stay in order and
    /// a batch never waits for another lane of this node. A statement writes at most `batch` items,
    /// and never more than [`MAX_BATCH`].
    pub fn start(store: &Store, count: usize, batch: usize) -> Self {
        let queues = (0..count.max(1))
            .map(|_| {
                let (queue, jobs) = mpsc::channel(QUEUE_BOUND);
                tokio::spawn(run(store.clone(), jobs, batch.clamp(1, MAX_BATCH)));
                queue
            })
            .collect();
        Self { queues }
    }

    /// Writes one item and says what became of it.
    ///
    /// # Errors
    /// [`Busy`] when too much is waiting; nothing was written.
    pub async fn commit(&self, item: Item) -> Result<Outcome, Busy> {
        let lane = usize::try_from(item.run().spread() % self.queues.len() as u64).unwrap_or(0);
        let (answer, outcome) = oneshot::channel();
        self.queues[lane]
            .try_send(Job { item, answer })
            .map_err(|_| Busy)?;
        Ok(outcome.await.unwrap_or(Outcome::Unknown))
    }
}

async fn run(store: Store, mut jobs: mpsc::Receiver<Job>, most: usize) {
    let mut connection: Option<PgConnection> = None;
    let mut held: VecDeque<Job> = VecDeque::new();
    loop {
        if held.is_empty() {
            match jobs.recv().await {
                Some(job) => held.push_back(job),
                None => return,
            }
        }
        while held.len() < 2 * most {
            match jobs.try_recv() {
                Ok(job) => held.push_back(job),
                Err(_) => break,
            }
        }
        let batch = next_batch(&mut held, most);
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
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // A caller that hung up has no use for the answer; the write stands.
            let _ = answer.send(outcome);
        }
    }
}

/// The jobs of the next statement, `most` at most: a run at most once, a workflow id at most once. What does not fit
/// keeps its place in the queue.
fn next_batch(held: &mut VecDeque<Job>, most: usize) -> Vec<Job> {
    let mut batch = Vec::with_capacity(held.len().min(most));
    let mut runs = HashSet::new();
    let mut keys = HashSet::new();
    let mut later = VecDeque::new();
    while let Some(job) = held.pop_front() {
        let key = job.item.key();
        let fits = batch.len() < most
            && !runs.contains(&job.item.run())
            && key.as_ref().is_none_or(|key| !keys.contains(key));
        // A run whose turn has passed waits whole, so that its order stays.
        runs.insert(job.item.run());
        if fits {
            keys.extend(key);
            batch.push(job);
        } else {
            later.push_back(job);
        }
    }
    *held = later;
    batch
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
