//! One parked poll: who waits, and what is being done for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::grant::Grant;
use super::keys::{Ended, QueueKey, WorkerKey};
use crate::domain::routing::{Poller, Profile, TaskKind};

/// What a parked poll hears.
pub(super) type Word = Result<Grant, Ended>;

#[derive(Debug)]
pub(super) enum Slot {
    /// Nobody has spoken for it.
    Waiting(oneshot::Sender<Word>),
    /// A commit or claim that may give it a task is under way. It is to end after that, if a reason is
    /// there; without the task, unless it has given up itself.
    Reserved(oneshot::Sender<Word>, Option<Ended>),
    /// It has its answer, or is gone.
    Over,
}

#[derive(Debug)]
pub(super) struct Parked {
    pub ticket: u64,
    pub worker: WorkerKey,
    /// Of the registration that the poll was admitted with.
    pub epoch: u64,
    pub poller: Poller,
    pub profile: Profile,
    /// The queues it waits on.
    pub keys: Vec<QueueKey>,
    pub slot: Mutex<Slot>,
}

impl Parked {
    /// Where it counts: polls for queries wait apart from all others.
    pub fn pool(&self) -> usize {
        usize::from(self.keys.iter().all(|key| key.kind == TaskKind::Query))
    }

    pub fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Speaks for the poll. `false` when somebody else has.
    pub fn reserve(&self) -> bool {
        let mut slot = self.slot();
        match std::mem::replace(&mut *slot, Slot::Over) {
            Slot::Waiting(word) => {
                *slot = Slot::Reserved(word, None);
                true
            }
            other => {
                *slot = other;
                false
            }
        }
    }

    /// What its worker calls it, with the worker; `None` for a poll without a name.
    pub fn name(&self) -> Option<(WorkerKey, Arc<str>)> {
        let name = self.poller.poll_request_id.clone()?;
        Some((self.worker.clone(), name))
    }

    /// Stops waiting. `false` when a task may be on its way: it comes, or the word that it does not.
    pub fn give_up(&self) -> bool {
        let mut slot = self.slot();
        match &mut *slot {
            Slot::Waiting(_) => {
                *slot = Slot::Over;
                return true;
            }
            Slot::Reserved(_, why) => *why = why.or(Some(Ended::GivenUp)),
            Slot::Over => {}
        }
        false
    }

    pub fn end(&self, why: Ended) {
        let mut slot = self.slot();
        match std::mem::replace(&mut *slot, Slot::Over) {
            Slot::Waiting(word) => {
                let _ = word.send(Err(why));
            }
            Slot::Reserved(word, before) => {
                // A stopping server still hands out what it has promised.
                let why = Some(why).filter(|why| *why != Ended::Shutdown);
                *slot = Slot::Reserved(word, why.or(before));
            }
            Slot::Over => {}
        }
    }
}
