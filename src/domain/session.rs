//! Worker sessions: one worker owns a session by a lease, and the activities that name it run there.
//! Every rule about who may own, renew and close one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ids::{Namespace, TaskQueue, WorkerId};
use super::time::Timestamp;

/// What a session is asked to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Its id, within the namespace.
    pub session_id: Arc<str>,
    /// The author's name for what it is connected to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connection: Option<Arc<str>>,
    /// Its queue; the worker's when none is named.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queue: Option<TaskQueue>,
    /// Capabilities that the owner must have, each once.
    pub requirements: Vec<String>,
    /// Seconds from one sign of life to the end of the lease.
    pub lease_seconds: u64,
    /// Seconds from the first owner's admission to the end, whatever is renewed.
    pub ttl_seconds: u64,
    /// Activities that run in it at once.
    pub max_concurrent_activities: u32,
    /// Whether an admission may make it.
    pub create_if_missing: bool,
    /// Whether another worker may own it after a loss.
    pub allow_reacquire_after_failure: bool,
}

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It has an owner.
    Active,
    /// Its owner closed it; final.
    Closed,
    /// Its lease or its whole time ran out.
    Expired,
    /// Its owner is gone.
    Orphaned,
}

impl Status {
    /// The word on the wire and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Closed => "closed",
            Self::Expired => "expired",
            Self::Orphaned => "orphaned",
        }
    }

    /// The status that a word stands for.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Active, Self::Closed, Self::Expired, Self::Orphaned]
            .into_iter()
            .find(|status| status.as_str() == word)
    }
}

/// Why a session was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its whole time is over.
    TtlExpired,
    /// Nobody renewed it.
    LeaseExpired,
    /// Its owner's registration is gone or silent.
    WorkerHeartbeatStale,
}

impl Loss {
    /// The word on the wire and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TtlExpired => "ttl_expired",
            Self::LeaseExpired => "lease_expired",
            Self::WorkerHeartbeatStale => "worker_heartbeat_stale",
        }
    }

    /// The loss that a word stands for.
    pub fn from_word(word: &str) -> Option<Self> {
        [
            Self::TtlExpired,
            Self::LeaseExpired,
            Self::WorkerHeartbeatStale,
        ]
        .into_iter()
        .find(|loss| loss.as_str() == word)
    }
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Namespace.
    pub namespace: Namespace,
    /// What it was asked to be, with its queue.
    pub options: Options,
    /// Where it is in its life.
    pub status: Status,
    /// Its owner, or its last one.
    pub owner: WorkerId,
    /// End of the owner's lease.
    pub lease_expires_at: Timestamp,
    /// End of its time.
    pub ttl_expires_at: Timestamp,
    /// When it was closed.
    pub closed_at: Option<Timestamp>,
    /// Why it was lost.
    pub loss: Option<Loss>,
    /// Its owner's last sign of life.
    pub last_heartbeat_at: Timestamp,
    /// When it came to be.
    pub created_at: Timestamp,
    /// When anything about it changed.
    pub updated_at: Timestamp,
}

/// A worker that asks to own or use a session.
#[derive(Clone, Debug)]
pub struct Applicant {
    /// The worker.
    pub worker: WorkerId,
    /// Queues that it serves.
    pub queues: Vec<TaskQueue>,
    /// Its capabilities.
    pub capabilities: Vec<String>,
    /// Sessions that it owns, this one apart.
    pub sessions: u32,
    /// Sessions that it may own.
    pub max_sessions: u32,
}

/// How a worker came to use a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It is new.
    Created,
    /// The worker owned it.
    Reused,
    /// It had lost its owner.
    Reacquired,
}

impl Admitted {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Reused => "reused",
            Self::Reacquired => "reacquired",
        }
    }
}

/// Why a session is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The session is another queue's, or the worker does not serve its queue.
    QueueMismatch,
    /// The worker lacks these.
    RequirementsNotMet(Vec<String>),
    /// There is none, and none may be made.
    Missing,
    /// Another worker owns it.
    OwnedByAnother,
    /// It was closed.
    Closed,
    /// It was lost for good.
    ReacquireDisallowed,
    /// The worker owns as many as it may: so many.
    WorkerLimit(u32),
    /// As many activities run in it as may.
    ActivityLimit,
    /// It has no owner now.
    NotActive,
    /// The worker is not its owner.
    OwnerMismatch,
}

impl Session {
    /// Lets time pass: what nobody renewed is lost.
    pub fn settle(&mut self, owner_is_gone: bool, now: Timestamp) {
        if self.status != Status::Active {
            return;
        }
        let (status, loss) = if self.ttl_expires_at <= now {
            (Status::Expired, Loss::TtlExpired)
        } else if self.lease_expires_at <= now {
            (Status::Expired, Loss::LeaseExpired)
        } else if owner_is_gone {
            (Status::Orphaned, Loss::WorkerHeartbeatStale)
        } else {
            return;
        };
        self.status = status;
        self.loss = Some(loss);
        self.updated_at = now;
    }

    fn renew(&mut self, now: Timestamp) {
        self.lease_expires_at = now.plus_seconds(self.options.lease_seconds);
        self.last_heartbeat_at = now;
        self.updated_at = now;
    }

    /// Its owner says that it is alive; a lease time that is named counts from now on.
    ///
    /// # Errors
    /// [`Refused`]: it has no owner, or another one.
    pub fn heartbeat(
        &mut self,
        worker: &WorkerId,
        lease_seconds: Option<u64>,
        now: Timestamp,
    ) -> Result<(), Refused> {
        if self.status != Status::Active {
            return Err(Refused::NotActive);
        }
        if self.owner != *worker {
            return Err(Refused::OwnerMismatch);
        }
        if let Some(seconds) = lease_seconds {
            self.options.lease_seconds = seconds;
        }
        self.renew(now);
        Ok(())
    }

    /// Its owner closes it. Returns whether it was open.
    ///
    /// # Errors
    /// [`Refused`]: the worker is not its owner.
    pub fn close(&mut self, worker: &WorkerId, now: Timestamp) -> Result<bool, Refused> {
        if self.owner != *worker {
            return Err(Refused::OwnerMismatch);
        }
        if self.status == Status::Closed {
            return Ok(false);
        }
        self.status = Status::Closed;
        self.loss = None;
        self.closed_at = Some(now);
        self.updated_at = now;
        Ok(true)
    }
}

/// Lets a worker own or use a session. `existing` has been settled; `running` are the activities that
/// run in it, when one more is to.
///
/// # Errors
/// [`Refused`].
pub fn admit(
    existing: Option<Session>,
    namespace: &Namespace,
    mut options: Options,
    applicant: &Applicant,
    running: Option<u32>,
    now: Timestamp,
) -> Result<(Session, Admitted), Refused> {
    let queue = options
        .queue
        .take()
        .or_else(|| applicant.queues.first().cloned())
        .ok_or(Refused::QueueMismatch)?;
    let is_other_queue = |session: &Session| {
        session.status == Status::Active
            && session
                .options
                .queue
                .as_ref()
                .is_some_and(|own| *own != queue)
    };
    if !applicant.queues.contains(&queue) || existing.as_ref().is_some_and(is_other_queue) {
        return Err(Refused::QueueMismatch);
    }
    options.queue = Some(queue);
    let missing: Vec<String> = options
        .requirements
        .iter()
        .filter(|needed| !applicant.capabilities.contains(needed))
        .cloned()
        .collect();
    if !missing.is_empty() {
        return Err(Refused::RequirementsNotMet(missing));
    }
    let admitted = match &existing {
        None if !options.create_if_missing => return Err(Refused::Missing),
        None => Admitted::Created,
        Some(session) => match session.status {
            Status::Closed => return Err(Refused::Closed),
            Status::Active if session.owner == applicant.worker => Admitted::Reused,
            Status::Active => return Err(Refused::OwnedByAnother),
            Status::Expired | Status::Orphaned => {
                let is_final = session.loss == Some(Loss::TtlExpired)
                    || !session.options.allow_reacquire_after_failure
                    || !options.allow_reacquire_after_failure;
                if is_final {
                    return Err(Refused::ReacquireDisallowed);
                }
                Admitted::Reacquired
            }
        },
    };
    if admitted != Admitted::Reused && applicant.sessions >= applicant.max_sessions {
        return Err(Refused::WorkerLimit(applicant.max_sessions));
    }
    // What runs elsewhere for a former owner does not keep a new one out.
    if admitted == Admitted::Reused
        && running.is_some_and(|running| running >= options.max_concurrent_activities)
    {
        return Err(Refused::ActivityLimit);
    }
    let ttl_expires_at = match &existing {
        Some(session) if admitted == Admitted::Reused => session.ttl_expires_at,
        _ => now.plus_seconds(options.ttl_seconds),
    };
    let created_at = existing.map_or(now, |session| session.created_at);
    let mut session = Session {
        namespace: namespace.clone(),
        options,
        status: Status::Active,
        owner: applicant.worker.clone(),
        lease_expires_at: now,
        ttl_expires_at,
        closed_at: None,
        loss: None,
        last_heartbeat_at: now,
        created_at,
        updated_at: now,
    };
    session.renew(now);
    Ok((session, admitted))
}

#[cfg(test)]
mod tests;
