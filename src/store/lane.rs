//! Commit lanes: each owns a connection and writes whatever queued up while its last statement ran.
//! Nothing waits for a batch to fill.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};
use tokio::sync::{mpsc, oneshot};

use super::Store;
use super::commit::{self, MAX_BATCH, Outcome};
use super::item::Item;
use crate::domain::ids::RunId;

/// Items that may wait in front of a lane, and starts beside them; what is over is told to come back.
pub const QUEUE_BOUND: usize = 4_096;
/// How long starts give way once they are told to.
const GIVE_WAY_MS: u64 = 1_000;
/// Starts that one statement writes at most while they give way and nothing else waits: statements stay short,
/// and what is begun meanwhile is small beside what is reported.
pub const FEW_STARTS: usize = 12;
/// Starts of one statement while they give way, in hundredths of what else callers wait for in it: a little more
/// than the third that workflows of one activity need to go on as they are.
const GIVE_WAY_SHARE: usize = 34;
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
    starts: mpsc::Sender<Job>,
    due: mpsc::Sender<Job>,
}

/// Until when starts give way.
struct Way {
    since: Instant,
    /// Milliseconds after that.
    until: AtomicU64,
}

impl Way {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            until: AtomicU64::new(0),
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn give(&self) {
        self.until
            .fetch_max(self.millis() + GIVE_WAY_MS, Ordering::Relaxed);
    }

    fn is_given(&self) -> bool {
        self.millis() < self.until.load(Ordering::Relaxed)
    }
}

/// A handle on all lanes.
#[derive(Clone)]
pub struct Lanes {
    queues: Vec<Queue>,
    way: Arc<Way>,
}

impl Lanes {
    /// Starts `count` lanes. A run always goes to the same one, so that its writes stay in order and
    /// a batch never waits for another lane of this node. A statement writes at most `batch` items,
    /// and never more than [`MAX_BATCH`].
    pub fn start(store: &Store, count: usize, batch: usize) -> Self {
        let way = Arc::new(Way::new());
        let queues = (0..count.max(1))
            .map(|_| {
                let (asked, asked_waiting) = mpsc::channel(QUEUE_BOUND);
                let (starts, starts_waiting) = mpsc::channel(QUEUE_BOUND);
                let (due, due_waiting) = mpsc::channel(DUE_BOUND);
                let jobs = Jobs {
                    asked: Line::new(asked_waiting),
                    starts: Line::new(starts_waiting),
                    due: Line::new(due_waiting),
                    statements: 0,
                };
                let way = Arc::clone(&way);
                tokio::spawn(run(store.clone(), jobs, way, batch.clamp(1, MAX_BATCH)));
                Queue { asked, starts, due }
            })
            .collect();
        Self { queues, way }
    }

    /// Writes one item and says what became of it.
    ///
    /// # Errors
    /// [`Busy`] when too much is waiting; nothing was written.
    pub async fn commit(&self, item: Item) -> Result<Outcome, Busy> {
        let to = &self.queue(item.run()).asked;
        enqueue(to, item)?.await
    }

    /// Writes an item that starts a workflow and says what became of it.
    ///
    /// # Errors
    /// [`Busy`] when too many starts are waiting; nothing was written.
    pub async fn commit_start(&self, item: Item) -> Result<Outcome, Busy> {
        let to = &self.queue(item.run()).starts;
        enqueue(to, item)?.await
    }

    /// Whether the start of this run would find room now.
    pub fn has_room_for_start(&self, run: RunId) -> bool {
        self.queue(run).starts.capacity() > 0
    }

    /// Starts give way to what else callers wait for, for a second: there are fewer of them in each statement,
    /// and more of them wait, or are told to come back.
    pub fn starts_give_way(&self) {
        self.way.give();
    }

    /// Whether they do now.
    pub fn do_starts_give_way(&self) -> bool {
        self.way.is_given()
    }

    /// Writes an item that nobody asked for, because it is due, and says what became of it. Such items
    /// do not stand behind those that callers wait for: each statement has room for both.
    pub async fn commit_due(&self, item: Item) -> Outcome {
        let (answer, outcome) = oneshot::channel();
        // Nobody is there who could be told to come back.
        let _ = self.queue(item.run()).due.send(Job { item, answer }).await;
        outcome.await.unwrap_or(Outcome::Unknown)
    }

    fn queue(&self, run: RunId) -> &Queue {
        let lane = run.spread() % self.queues.len() as u64;
        &self.queues[usize::try_from(lane).unwrap_or(0)]
    }
}

/// Puts an item into a queue. What comes back waits for its outcome.
fn enqueue(
    queue: &mpsc::Sender<Job>,
    item: Item,
) -> Result<impl Future<Output = Result<Outcome, Busy>> + use<>, Busy> {
    let (answer, outcome) = oneshot::channel();
    queue.try_send(Job { item, answer }).map_err(|_| Busy)?;
    Ok(async { Ok(outcome.await.unwrap_or(Outcome::Unknown)) })
}

/// The jobs of a lane: those that callers wait for, starts of workflows apart, and those that are due.
struct Jobs {
    asked: Line,
    starts: Line,
    due: Line,
    /// Statements so far: who has the first places of the next, where alone a large item finds room, and who
    /// has the place that cannot be halved.
    statements: u8,
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
    /// The jobs of the next statement, `most` at most; `None` when there will be no more. While callers and
    /// due work wait each has half of it, and of the callers' half starts and others.
    async fn next(&mut self, most: usize, way: &Way) -> Option<Vec<Job>> {
        let lines = [&self.asked, &self.starts, &self.due];
        if lines.iter().all(|line| line.held.is_empty()) {
            tokio::select! {
                Some(job) = self.asked.queue.recv() => self.asked.held.push_back(job),
                Some(job) = self.starts.queue.recv() => self.starts.held.push_back(job),
                Some(job) = self.due.queue.recv() => self.due.held.push_back(job),
                else => return None,
            }
        }
        for line in [&mut self.asked, &mut self.starts, &mut self.due] {
            line.fill(2 * most);
        }
        self.statements = self.statements.wrapping_add(1);
        let mut starts = self.most_starts(most, way);
        let (callers, due) = (
            self.asked.held.len() + self.starts.held.len().min(starts),
            self.due.held.len(),
        );
        let half = |others: usize| if others == 0 { most } else { most.div_ceil(2) };
        let mut batch = Batch::default();
        if self.statements % 2 == 1 {
            batch.take(&mut self.due.held, half(callers));
            self.take_callers(&mut batch, most, &mut starts);
            batch.take(&mut self.due.held, most);
        } else {
            self.take_callers(&mut batch, half(due), &mut starts);
            batch.take(&mut self.due.held, most);
            self.take_callers(&mut batch, most, &mut starts);
        }
        Some(batch.jobs)
    }

    /// Starts that the next statement may write.
    fn most_starts(&self, most: usize, way: &Way) -> usize {
        // So many of them that both fit.
        let others = (self.asked.held.len()).min(most * 100 / (100 + GIVE_WAY_SHARE));
        match others {
            _ if !way.is_given() => most,
            0 => FEW_STARTS,
            // One at least, so that they go on whatever else comes.
            _ => (others * GIVE_WAY_SHARE / 100).max(1),
        }
    }

    /// Takes what callers wait for until there are `most` jobs in all, `starts` of them at most. Starts and others
    /// have the first places in turn, because a large one finds room only there.
    fn take_callers(&mut self, batch: &mut Batch, most: usize, starts: &mut usize) {
        let are_first = self.statements / 2 % 2 == 1;
        let room = most.saturating_sub(batch.jobs.len());
        let half = (room + usize::from(are_first)) / 2;
        let kept = half.min(self.starts.held.len()).min(*starts);
        if are_first {
            self.take_starts(batch, batch.jobs.len() + kept, starts);
            batch.take(&mut self.asked.held, most);
        } else {
            batch.take(&mut self.asked.held, most - kept);
        }
        self.take_starts(batch, most, starts);
        batch.take(&mut self.asked.held, most);
    }

    /// Takes starts until there are `most` jobs in all, `starts` of them at most.
    fn take_starts(&mut self, batch: &mut Batch, most: usize, starts: &mut usize) {
        let before = batch.jobs.len();
        batch.take(&mut self.starts.held, most.min(before + *starts));
        *starts -= batch.jobs.len() - before;
    }
}

async fn run(store: Store, mut jobs: Jobs, way: Arc<Way>, most: usize) {
    let mut connection: Option<PgConnection> = None;
    while let Some(batch) = jobs.next(most, &way).await {
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
