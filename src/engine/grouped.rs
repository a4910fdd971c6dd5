//! Questions to the database in groups: whatever queued up while the last statement ran goes into the next.

use std::collections::HashSet;
use std::future::Future;
use std::time::Instant;

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
    /// Starts the task that asks them, at most `batch` with one statement and about one task once. `answer`
    /// answers a batch in its order; `rest` is awaited after each with its size and its beginning.
    pub fn start<W, R>(
        batch: usize,
        task: fn(&Q) -> Option<TaskId>,
        answer: impl Fn(Vec<Q>) -> W + Send + 'static,
        rest: impl Fn(usize, Instant) -> R + Send + 'static,
    ) -> Self
    where
        W: Future<Output = Result<Vec<A>, Fault>> + Send,
        R: Future<Output = ()> + Send,
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
                let (asked, begun) = (senders.len(), Instant::now());
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
                rest(asked, begun).await;
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
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn what_is_asked_during_a_rest_is_answered_together() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let rests = Arc::new(Semaphore::new(0));
        let (noted, rested) = (Arc::clone(&sizes), Arc::clone(&rests));
        let grouped = Grouped::start(
            100,
            |_: &u32| None,
            |questions: Vec<u32>| async { Ok(questions) },
            move |asked, _| {
                noted.lock().unwrap().push(asked);
                let rested = Arc::clone(&rested);
                async move { rested.acquire().await.unwrap().forget() }
            },
        );
        assert_eq!(grouped.ask(1).await, Ok(1));
        let grouped = Arc::new(grouped);
        let asked: Vec<_> = (2..=4)
            .map(|question| {
                let grouped = Arc::clone(&grouped);
                tokio::spawn(async move { grouped.ask(question).await })
            })
            .collect();
        // On one thread each of them has asked before this goes on.
        tokio::task::yield_now().await;
        assert_eq!(*sizes.lock().unwrap(), [1], "it rests");
        rests.add_permits(1);
        let answers: Vec<_> = join_all(asked)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(answers, [Ok(2), Ok(3), Ok(4)]);
        assert_eq!(*sizes.lock().unwrap(), [1, 3]);
    }
}
