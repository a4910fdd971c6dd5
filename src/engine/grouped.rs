//! Questions to the database in groups: whatever queued up while the last statement ran goes into the next.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::error::Fault;
use crate::domain::ids::TaskId;

/// Questions that may wait; what is over is told to come back.
const QUEUE_BOUND: usize = 16_384;

/// A question, and where its answer goes.
type Asked<Q, A> = (Q, oneshot::Sender<Result<A, Fault>>);

/// Where questions of one kind go.
#[derive(Debug)]
pub(super) struct Grouped<Q, A>(mpsc::Sender<Asked<Q, A>>);

impl<Q: Send + 'static, A: Send + 'static> Grouped<Q, A> {
    /// Starts the task that asks them, at most `batch` with one statement and about one task once, and rests after
    /// a statement that answered some, so that the next one answers more. `answer` answers a batch in its
    /// order.
    pub fn start<W>(
        batch: usize,
        rest: Duration,
        task: fn(&Q) -> Option<TaskId>,
        answer: impl Fn(Vec<Q>) -> W + Send + 'static,
    ) -> Self
    where
        W: Future<Output = Result<Vec<A>, Fault>> + Send,
    {
        let (sender, mut queue) = mpsc::channel::<Asked<Q, A>>(QUEUE_BOUND);
        tokio::spawn(async move {
            let mut waiting = Vec::new();
            loop {
                if waiting.is_empty() && queue.recv_many(&mut waiting, batch).await == 0 {
                    return;
                }
                // A second question about a task waits for the next statement.
                let mut tasks = HashSet::new();
                let (now, later): (Vec<_>, Vec<_>) =
                    waiting.drain(..).partition(|(question, _)| {
                        task(question).is_none_or(|task| tasks.insert(task))
                    });
                waiting = later;
                let (questions, senders): (Vec<_>, Vec<_>) = now.into_iter().unzip();
                // Where a batch is full, more wait already.
                let may_rest = senders.len() > 1 && senders.len() < batch;
                // Whoever asked may have gone, and then has no use for the answer.
                match answer(questions).await {
                    Ok(answers) => {
                        for (sender, answer) in senders.into_iter().zip(answers) {
                            let _ = sender.send(Ok(answer));
                        }
                    }
                    Err(fault) => {
                        for sender in senders {
                            let _ = sender.send(Err(fault));
                        }
                    }
                }
                if may_rest && !rest.is_zero() {
                    tokio::time::sleep(rest).await;
                }
            }
        });
        Self(sender)
    }

    /// Asks one question.
    ///
    /// # Errors
    /// [`Fault`]; `Busy` when too many wait.
    pub async fn ask(&self, question: Q) -> Result<A, Fault> {
        let (sender, answer) = oneshot::channel();
        self.0
            .try_send((question, sender))
            .map_err(|_| Fault::Busy)?;
        answer.await.unwrap_or(Err(Fault::Unavailable))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use std::sync::{Arc, Mutex};

    use futures_util::future::join_all;

    use super::*;

    /// Asks two questions at once and then three one after another, and says how many each statement answered.
    async fn batches(batch: usize) -> Vec<usize> {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&sizes);
        let rest = Duration::from_millis(500);
        let grouped = Grouped::start(
            batch,
            rest,
            |_: &u32| None,
            move |questions: Vec<u32>| {
                noted.lock().unwrap().push(questions.len());
                async move { Ok(questions) }
            },
        );
        let answers = join_all([grouped.ask(1), grouped.ask(2)]).await;
        assert_eq!(answers, [Ok(1), Ok(2)]);
        let grouped = Arc::new(grouped);
        let mut asked = Vec::new();
        for question in 3..=5 {
            let grouped = Arc::clone(&grouped);
            asked.push(tokio::spawn(async move { grouped.ask(question).await }));
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
        for (place, answer) in join_all(asked).await.into_iter().enumerate() {
            assert_eq!(answer.unwrap(), Ok(3 + place as u32));
        }
        let sizes = sizes.lock().unwrap().clone();
        sizes
    }

    #[tokio::test]
    async fn what_is_asked_in_numbers_is_answered_in_larger_numbers() {
        assert_eq!(batches(100).await, [2, 3]);
        assert_eq!(batches(2).await, [2, 1, 1, 1], "a full batch does not rest");
    }
}
