//! Commit lanes: each owns a connection and writes whatever queued up while its last statement ran.
//! Nothing waits for a batch to fill, unless other nodes write to the database, too ([`super::others`]).

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};
use tokio::sync::{mpsc, oneshot};

use super::Store;
use super::commit::{self, MAX_BATCH, Outcome};
use super::item::Item;
use super::others::Pace;
use crate::domain::ids::RunId;

/// Items that may wait in front of a lane, and as many that give way; what is over is told to come back.
pub const QUEUE_BOUND: usize = 4_096;
/// Items that give way of one statement at most while nothing else waits: statements stay short.
pub const FEW: usize = 12;
/// Items that give way of one statement, in hundredths of what else callers wait for in it: a little more
/// than the third that workflows of one activity need to go on as they are.
const GIVE_WAY_SHARE: usize = 34;
/// Items of due work that may wait in front of a lane beside those; what is over waits for room.
pub const DUE_BOUND: usize = 256;
/// Bytes of history in one statement; a single item may have more. A statement is in memory a few times
/// while it is sent, and what is large would delay everything that came along.
pub const BATCH_BYTES: usize = 2 << 20;
/// Bytes of history of a statement after which the connection gives its buffers back.
const SHRINK_OVER: usize = 256 << 10;
/// Statements while other nodes write, too: a batch of a fair size begins at once.
const PACE: Pace = Pace {
    interval: Duration::from_millis(8),
    enough: 32,
    look: Duration::from_millis(2),
};
/// Wait before another try to reach the database.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);

/// What became of an item, and the item itself unless it is large: memory is given back with less work, and used again
/// while it is warm, on the thread that took it.
type Answer = (Outcome, Option<Item>);

struct Job {
    item: Item,
    answer: oneshot::Sender<Answer>,
    queued: Instant,
}

impl Job {
    fn new(item: Item, answer: oneshot::Sender<Answer>) -> Self {
        let queued = Instant::now();
        Self {
            item,
            answer,
            queued,
        }
    }

    /// Ready to be sent; its caller is told when it cannot be.
    fn packed(mut self) -> Option<Self> {
        match self.item.pack() {
            Ok(()) => Some(self),
            Err(error) => {
                tracing::error!(error = %error, "commit: a decision cannot be written out");
                let _ = self.answer.send((Outcome::Failed, None));
                None
            }
        }
    }
}

/// The lane's queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// What waits in front of one lane.
#[derive(Clone)]
struct Queue {
    asked: mpsc::Sender<Job>,
    giving_way: mpsc::Sender<Job>,
    due: mpsc::Sender<Job>,
}

/// A handle on all lanes.
#[derive(Clone)]
pub struct Lanes {
    queues: Vec<Queue>,
    /// Items of recent statements, as [`Recent`] has it.
    recent: Arc<Recent>,
}

/// How many items a statement had lately: a moving average, in sixteenths.
#[derive(Default)]
struct Recent(AtomicUsize);

impl Recent {
    /// Sixteenths of an item.
    const PARTS: usize = 16;
    /// Statements over which the average goes, roughly.
    const STATEMENTS: usize = 8;

    fn note(&self, items: usize) {
        let before = self.0.load(Ordering::Relaxed);
        let after = before - before / Self::STATEMENTS + items * Self::PARTS / Self::STATEMENTS;
        // Lanes write it one after the other, and losing one of several notes does no harm.
        self.0.store(after, Ordering::Relaxed);
    }

    fn items(&self) -> usize {
        self.0.load(Ordering::Relaxed) / Self::PARTS
    }
}

impl Lanes {
    /// Starts `count` lanes. A run always goes to the same one, so that its writes stay in order and
    /// a batch never waits for another lane of this node. A statement writes at most `batch` items,
    /// and never more than [`MAX_BATCH`].
    pub fn start(store: &Store, count: usize, batch: usize) -> Self {
        let recent = Arc::new(Recent::default());
        let queues = (0..count.max(1))
            .map(|_| {
                let (asked, asked_waiting) = mpsc::channel(QUEUE_BOUND);
                let (giving_way, way_given) = mpsc::channel(QUEUE_BOUND);
                let (due, due_waiting) = mpsc::channel(DUE_BOUND);
                let jobs = Jobs {
                    asked: Line::new(asked_waiting),
                    giving_way: Line::new(way_given),
                    due: Line::new(due_waiting),
                    statements: 0,
                    credit: 0,
                };
                let most = batch.clamp(1, MAX_BATCH);
                tokio::spawn(run(store.clone(), jobs, most, Arc::clone(&recent)));
                Queue {
                    asked,
                    giving_way,
                    due,
                }
            })
            .collect();
        Self { queues, recent }
    }

    /// Items that a statement had lately, on average.
    pub fn recent_items(&self) -> usize {
        self.recent.items()
    }

    /// Writes one item and says what became of it.
    ///
    /// # Errors
    /// [`Busy`] when too much is waiting; nothing was written.
    pub async fn commit(&self, item: Item) -> Result<Outcome, Busy> {
        let to = &self.queue(item.run()).asked;
        enqueue(to, item)?.await
    }

    /// Writes an item that gives way to what else callers wait for, and says what became of it.
    ///
    /// # Errors
    /// [`Busy`] when too many of them are waiting; nothing was written.
    pub async fn commit_giving_way(&self, item: Item) -> Result<Outcome, Busy> {
        let to = &self.queue(item.run()).giving_way;
        enqueue(to, item)?.await
    }

    /// Whether an item of this run that gives way would find room now.
    pub fn has_room_giving_way(&self, run: RunId) -> bool {
        self.queue(run).giving_way.capacity() > 0
    }

    /// Writes an item that nobody asked for, because it is due, and says what became of it. Such items
    /// do not stand behind those that callers wait for: each statement has room for both.
    pub async fn commit_due(&self, item: Item) -> Outcome {
        let (answer, outcome) = oneshot::channel();
        // Nobody is there who could be told to come back.
        let _ = self
            .queue(item.run())
            .due
            .send(Job::new(item, answer))
            .await;
        told(outcome).await
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
    queue.try_send(Job::new(item, answer)).map_err(|_| Busy)?;
    Ok(async { Ok(told(outcome).await) })
}

/// The outcome that a lane tells.
async fn told(answer: oneshot::Receiver<Answer>) -> Outcome {
    answer
        .await
        .map_or(Outcome::Unknown, |(outcome, _)| outcome)
}

/// The jobs of a lane: those that callers wait for, apart those of them that give way to the others, and those
/// that are due.
struct Jobs {
    asked: Line,
    giving_way: Line,
    due: Line,
    /// Statements so far: who has the first places of the next, where alone a large item finds room, and who
    /// has the place that cannot be halved.
    statements: u8,
    /// Hundredths of a job that gives way that the statements so far have left over.
    credit: usize,
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
    /// Jobs that wait for the next statement.
    fn waiting(&self) -> usize {
        let of = |line: &Line| line.held.len() + line.queue.len();
        of(&self.asked) + of(&self.due) + of(&self.giving_way).min(FEW)
    }

    /// The jobs of the next statement, `most` at most; `None` when there will be no more. While callers and
    /// due work wait each has half of it.
    async fn next(&mut self, most: usize) -> Option<Vec<Job>> {
        let lines = [&self.asked, &self.giving_way, &self.due];
        if lines.iter().all(|line| line.held.is_empty()) {
            tokio::select! {
                Some(job) = self.asked.queue.recv() => self.asked.held.push_back(job),
                Some(job) = self.giving_way.queue.recv() => self.giving_way.held.push_back(job),
                Some(job) = self.due.queue.recv() => self.due.held.push_back(job),
                else => return None,
            }
        }
        for line in [&mut self.asked, &mut self.giving_way, &mut self.due] {
            line.fill(2 * most);
        }
        self.statements = self.statements.wrapping_add(1);
        let mut few = self.most_giving_way(most);
        let callers = self.asked.held.len() + self.giving_way.held.len();
        let due = self.due.held.len();
        let half = |others: usize| if others == 0 { most } else { most.div_ceil(2) };
        let mut batch = Batch::default();
        if self.statements % 2 == 1 {
            batch.take(&mut self.due.held, half(callers));
            self.take_callers(&mut batch, most, &mut few);
            batch.take(&mut self.due.held, most);
        } else {
            self.take_callers(&mut batch, half(due), &mut few);
            batch.take(&mut self.due.held, most);
            self.take_callers(&mut batch, most, &mut few);
        }
        Some(batch.jobs)
    }

    /// Jobs that give way that the next statement may write.
    fn most_giving_way(&mut self, most: usize) -> usize {
        // So many others that both fit.
        let others = (self.asked.held.len()).min(most * 100 / (100 + GIVE_WAY_SHARE));
        self.credit = (self.credit + others * GIVE_WAY_SHARE).min(most * 100);
        match others {
            0 => FEW,
            // One at least, so that they go on whatever else comes.
            _ => (self.credit / 100).max(1),
        }
    }

    /// Takes what callers wait for until there are `most` jobs in all, `few` of those that give way at most. Either
    /// has the first places in turn, because a large one finds room only there.
    fn take_callers(&mut self, batch: &mut Batch, most: usize, few: &mut usize) {
        let are_first = self.statements / 2 % 2 == 1;
        let room = most.saturating_sub(batch.jobs.len());
        let half = (room + usize::from(are_first)) / 2;
        let kept = half.min(self.giving_way.held.len()).min(*few);
        if are_first {
            self.take_giving_way(batch, batch.jobs.len() + kept, few);
            batch.take(&mut self.asked.held, most);
        } else {
            batch.take(&mut self.asked.held, most - kept);
        }
        self.take_giving_way(batch, most, few);
        batch.take(&mut self.asked.held, most);
    }

    /// Takes jobs that give way until there are `most` jobs in all, `few` of them at most.
    fn take_giving_way(&mut self, batch: &mut Batch, most: usize, few: &mut usize) {
        let before = batch.jobs.len();
        batch.take(&mut self.giving_way.held, most.min(before + *few));
        for job in &mut batch.jobs[before..] {
            // What they open has not been ready while they waited here.
            job.item.delay(job.queued.elapsed());
        }
        let taken = batch.jobs.len() - before;
        self.credit = self.credit.saturating_sub(taken * 100);
        *few -= taken;
    }
}

async fn run(store: Store, mut jobs: Jobs, most: usize, recent: Arc<Recent>) {
    let mut connection: Option<PgConnection> = None;
    while let Some(batch) = jobs.next(most).await {
        let batch = batch.into_iter().filter_map(Job::packed);
        let (mut items, answers): (Vec<Item>, Vec<oneshot::Sender<Answer>>) =
            batch.map(|job| (job.item, job.answer)).unzip();
        let begun = Instant::now();
        let outcomes = match reach(&store, &mut connection).await {
            Some(reached) => {
                items.iter_mut().for_each(Item::hand_over);
                commit::commit(reached, &items).await
            }
            None => vec![Outcome::Unreached; items.len()],
        };
        recent.note(items.len());
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
        let (others, served) = (&store.others, items.len());
        for ((answer, outcome), item) in answers.into_iter().zip(outcomes).zip(items) {
            let item = Some(item).filter(|item| item.bytes() <= SHRINK_OVER);
            // A caller that hung up has no use for the answer; the write stands.
            let _ = answer.send((outcome, item));
        }
        let waiting = || jobs.waiting();
        others.rest(&PACE, begun, served, most, waiting).await;
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

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn recent_items_follow_what_statements_have() {
        let recent = Recent::default();
        for (items, most) in [(1, 1), (50, 50), (7, 9)] {
            (0..64).for_each(|_| recent.note(items));
            assert!((items..=most).contains(&recent.items()), "{items}");
        }
        recent.note(100);
        assert!(
            (8..30).contains(&recent.items()),
            "one statement is not many"
        );
    }
}
