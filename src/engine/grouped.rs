//! Questions to the database in groups: whatever queued up while the last statement ran goes into the next.

use std::collections::HashSet;
use std::future::Future;

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
    /// answers a batch in its order.
    pub fn start<W>(
        batch: usize,
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
