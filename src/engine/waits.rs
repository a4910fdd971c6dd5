//! A poll that waits: parked, asked about, and answered with what came first.

use std::time::Duration;

use tokio::time::Instant;

use super::error::Fault;
use super::polls::{Admitted, PollRefused, PollRequest, Polled};
use super::{Engine, claims, given};
use crate::domain::routing::{Poller, Profile, TaskKind};
use crate::domain::worker::WorkerStatus;
use crate::matching::{Ended, Grant, GrantedLease, QueueKey, Waiting, WorkerKey};
use crate::store::given::Question;

/// How long a poll that waits no longer still listens for a task that is on its way to it.
const ON_ITS_WAY: Duration = Duration::from_secs(3);

/// What a poll heard until it stopped waiting.
struct Heard {
    /// A task or a reason; nothing when the time was up, or when it was given a task before.
    word: Option<Result<Grant, Ended>>,
    /// What the database has for its id, as far as that was known by then.
    leases: Option<Result<Vec<GrantedLease>, Fault>>,
}

/// Waits until a poll has its word, was given a task before, or its time is up.
async fn hear<F>(waiting: &mut Waiting, asking: &mut Option<F>, deadline: Instant) -> Heard
where
    F: Future<Output = Result<Vec<GrantedLease>, Fault>> + Unpin,
{
    let mut leases = None;
    loop {
        tokio::select! {
            biased;
            word = &mut waiting.word => {
                let word = Some(word.unwrap_or(Err(Ended::Shutdown)));
                return Heard { word, leases };
            }
            found = async {
                match asking {
                    Some(asking) => asking.await,
                    None => std::future::pending().await,
                }
            } => {
                *asking = None;
                let is_new = found.as_ref().is_ok_and(Vec::is_empty);
                leases = Some(found);
                if is_new {
                    continue;
                }
            }
            () = tokio::time::sleep_until(deadline) => {}
        }
        let word = if waiting.guard.give_up() {
            None
        } else {
            let word = tokio::time::timeout(ON_ITS_WAY, &mut waiting.word).await;
            word.ok().map(|word| word.unwrap_or(Err(Ended::Shutdown)))
        };
        return Heard { word, leases };
    }
}

impl Engine {
    /// Whether this node may hold another poll for these queues.
    pub(super) fn check_room(&self, keys: &[QueueKey]) -> Result<(), PollRefused> {
        let core = &self.core;
        let queries = keys.iter().all(|key| key.kind == TaskKind::Query);
        let room = if queries {
            core.settings.max_parked_queries
        } else {
            core.settings.max_parked_polls
        };
        if core.registry.parked(queries) >= room {
            return Err(PollRefused::NoCapacity { queries });
        }
        Ok(())
    }

    /// Waits for a task. With a question, the poll may be a repeat of one that another node has given a task, and is told
    /// that then, whatever it is given meanwhile.
    pub(super) async fn wait(
        &self,
        request: &PollRequest,
        admitted: Admitted,
        keys: Vec<QueueKey>,
        profile: Profile,
        poller: Poller,
        question: Option<Question>,
    ) -> Result<Polled, PollRefused> {
        let core = &self.core;
        self.check_room(&keys)?;
        let began = std::time::Instant::now();
        let worker = WorkerKey {
            namespace: request.namespace.clone(),
            worker: request.worker_id.clone(),
        };
        let parked = core.registry.park(
            keys.clone(),
            worker,
            admitted.epoch,
            profile.clone(),
            poller.clone(),
        );
        let Some(mut waiting) = parked else {
            return Ok(Polled::Shutdown);
        };
        // A change that came between the checks and the parking found no poll to end.
        if core.known.changes() != admitted.changes {
            match self.worker(&request.namespace, &request.worker_id).await? {
                Some(worker) if worker.epoch != admitted.epoch => return Err(PollRefused::Stale),
                Some(worker) if worker.status == WorkerStatus::Draining => {
                    return Err(PollRefused::Draining(worker));
                }
                Some(_) => {}
                None => return Err(PollRefused::Stale),
            }
        }
        for key in &keys {
            claims::look(core, key);
        }
        let deadline = Instant::now() + request.wait;
        let mut asking = question.map(|question| Box::pin(given::elsewhere(core, question)));
        let heard = hear(&mut waiting, &mut asking, deadline).await;
        // One whose worker listens elsewhere, or is another process by now, is told nothing more.
        let is_heard = !matches!(heard.word, Some(Err(Ended::Repeated | Ended::Superseded)));
        if is_heard {
            let leases = match (heard.leases, asking) {
                (None, Some(asking)) => asking.await,
                (leases, _) => leases.unwrap_or_else(|| Ok(Vec::new())),
            };
            let own = match &heard.word {
                Some(Ok(grant)) => grant.lease().map(|lease| lease.task),
                _ => None,
            };
            match leases {
                Ok(leases) => {
                    if let Some(lease) = given::first(leases, own, &poller)? {
                        return Ok(self.given_again(lease));
                    }
                }
                // Given back, it would have to wait for the same database.
                Err(_) if own.is_some() => {}
                Err(fault) => return Err(fault.into()),
            }
        }
        match heard.word {
            Some(Ok(grant)) => Ok(Polled::Task(Box::new(grant))),
            None | Some(Err(Ended::GivenUp)) => {
                Ok(Polled::TimedOut(core.nothing(&keys, &profile, began)))
            }
            Some(Err(Ended::Draining)) => {
                let worker = self.worker(&request.namespace, &request.worker_id).await?;
                Err(worker.map_or(PollRefused::Stale, PollRefused::Draining))
            }
            Some(Err(Ended::Repeated)) => Ok(Polled::Empty(None)),
            Some(Err(Ended::Superseded)) => Err(PollRefused::Stale),
            Some(Err(Ended::Shutdown)) => Ok(Polled::Shutdown),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        reason = "a test may stop at the first surprise"
    )]

    use std::future::{Ready, ready};
    use std::sync::Arc;

    use super::*;
    use crate::matching::kit::{key, park, poller};
    use crate::matching::{Registry, Releases, Reserved};

    const POLL: Option<&str> = Some("p");
    const LONG: Duration = Duration::from_mins(10);

    /// A poll that waits, and the hand of a claim on it.
    fn claimed(registry: &Arc<Registry>) -> (Waiting, Reserved) {
        let (key, waiting) = (key(), park(registry, 0, POLL).unwrap());
        assert!(registry.wants_claim(&key));
        let (_, mut reserved) = registry.next_claim(&key, 1).unwrap();
        (waiting, reserved.pop().unwrap())
    }

    /// Rule: a repeat is told its task as soon as it is known and nothing else is on its way.
    #[tokio::test]
    async fn a_repeat_does_not_wait_for_what_does_not_come() {
        let registry = Arc::new(Registry::default());
        let (mut waiting, reserved) = claimed(&registry);
        let mut asking: Option<Ready<_>> = Some(ready(Ok(vec![GrantedLease::of_task(1, 1)])));
        let begun = Instant::now();
        let hear = hear(&mut waiting, &mut asking, begun + LONG);
        let claim = async {
            tokio::task::yield_now().await;
            let _ = registry.put_back(reserved);
        };
        let (heard, ()) = tokio::join!(hear, claim);
        assert!(matches!(heard.word, Some(Err(Ended::GivenUp))));
        assert_eq!(heard.leases.unwrap().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_poll_that_gave_up_gets_what_was_on_its_way() {
        let registry = Arc::new(Registry::default());
        let (mut waiting, reserved) = claimed(&registry);
        let (releases, _given_back) = Releases::new();
        let mut asking: Option<Ready<_>> = None;
        let hear = hear(&mut waiting, &mut asking, Instant::now());
        let claim = async {
            tokio::task::yield_now().await;
            reserved.give(Grant::new(GrantedLease::of_task(2, 2), releases));
        };
        let (heard, ()) = tokio::join!(hear, claim);
        assert!(matches!(heard.word, Some(Ok(_))));
    }

    /// Rule: two polls of one id choose the same task, the first that either was given.
    #[test]
    fn two_polls_of_one_id_choose_the_same_task() {
        let chosen = |own: u32, found: &[(u32, i64)]| {
            let leases = found
                .iter()
                .map(|(no, at)| GrantedLease::of_task(*no, *at))
                .collect();
            let own_task = GrantedLease::of_task(own, 0).task;
            let other = given::first(leases, Some(own_task), &poller(POLL));
            let other = other.ok().expect("a kind that it asked for");
            other.map_or(own, |lease| lease.task.no)
        };
        assert_eq!(chosen(1, &[(1, 5), (2, 6)]), 1);
        assert_eq!(chosen(2, &[(2, 6), (1, 5)]), 1);
        assert_eq!(chosen(2, &[(1, 5)]), 1, "its own is not there yet");
        assert_eq!(chosen(1, &[]), 1);
        assert_eq!(chosen(2, &[(2, 5), (1, 5)]), 1, "at the same time");
    }

    #[test]
    fn what_is_on_its_way_back_is_told_nobody_again() {
        let (releases, _given_back) = Releases::new();
        let grant = Grant::new(GrantedLease::of_task(1, 1), releases.clone());
        assert!(!releases.is_returning(&GrantedLease::of_task(1, 1)));
        drop(grant);
        assert!(releases.is_returning(&GrantedLease::of_task(1, 1)));
        let next = GrantedLease {
            attempt: 2,
            ..GrantedLease::of_task(1, 1)
        };
        assert!(!releases.is_returning(&next), "another hand-out");
    }
}
