//! Asks on the worker's side: what a worker is shown, and its answer.

use std::sync::Arc;

use super::error::Fault;
use super::polls::Page;
use super::{Engine, Told, cache};
use crate::domain::ids::{Namespace, TaskId, WorkerId};
use crate::domain::routing::TaskKind;
use crate::domain::run::RunState;
use crate::domain::time::Timestamp;
use crate::matching::GrantedLease;
use crate::payload::Payload;
use crate::store::asks::{self, Ask, AskState};

/// Why a worker's answer is not taken.
#[derive(Clone, Debug)]
pub enum AskRefused {
    /// There is no such ask, or it is long over.
    NotFound,
    /// Its caller no longer waits.
    TimedOut {
        /// Since when.
        at: Timestamp,
    },
    /// Nobody holds it.
    NotLeased,
    /// It has its answer.
    Answered,
    /// Another worker holds it.
    OwnerMismatch {
        /// That worker.
        owner: WorkerId,
    },
    /// It was handed out again.
    AttemptMismatch {
        /// The current hand-out.
        current: u32,
    },
    /// The server could not.
    Fault(Fault),
}

impl From<sqlx::Error> for AskRefused {
    fn from(error: sqlx::Error) -> Self {
        Self::Fault(error.into())
    }
}

/// An ask as its worker is shown it.
#[derive(Clone, Debug)]
pub struct AskView {
    /// The lease.
    pub lease: GrantedLease,
    /// The ask.
    pub ask: Ask,
    /// Encoded argument list.
    pub arguments: Payload,
    /// The run.
    pub state: Arc<RunState>,
    /// Its history, as far as the worker may see it.
    pub history: Page,
}

impl Engine {
    /// What a granted ask shows. `None` when nobody waits for it any more.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn ask_view(&self, lease: &GrantedLease) -> Result<Option<AskView>, Fault> {
        let Some(ask) = asks::find(&self.core.store.hot, lease.task).await? else {
            return Ok(None);
        };
        if ask.over || ask.state != AskState::Leased {
            return Ok(None);
        }
        let mut cached = cache::recent(&self.core, lease.task.run).await?;
        if cached
            .as_ref()
            .is_none_or(|cached| cached.state.last_event() < ask.seen)
        {
            cached = cache::newest(&self.core, lease.task.run).await?;
        }
        let Some(cached) = cached else {
            return Ok(None);
        };
        let history = self.whole(&cached, ask.seen).await?;
        Ok(Some(AskView {
            lease: lease.clone(),
            arguments: Payload::new(crate::payload::Codec::Avro, ask.arguments.as_str()),
            ask,
            state: cached.state,
            history,
        }))
    }

    /// Takes a worker's answer.
    ///
    /// # Errors
    /// [`AskRefused`]; nobody hears of it.
    pub async fn answer_ask(
        &self,
        namespace: &Namespace,
        kind: TaskKind,
        id: TaskId,
        owner: &WorkerId,
        attempt: u32,
        told: &Told,
    ) -> Result<(), AskRefused> {
        let core = &self.core;
        let text = serde_json::to_string(told).map_err(|error| AskRefused::Fault(error.into()))?;
        // It must be of this namespace and kind.
        self.ask_of(namespace, kind, id).await?;
        if asks::answer(&core.store.hot, id, owner, attempt, &text)
            .await?
            .is_some()
        {
            core.leases.closed(id);
            if !core.asked.tell(id, text) {
                core.hints.answered(id);
            }
            return Ok(());
        }
        // Another report may have come in between.
        let found = self.ask_of(namespace, kind, id).await?;
        Err(explain(&found, owner, attempt))
    }

    /// The current hand-out of an ask.
    ///
    /// # Errors
    /// [`AskRefused`].
    pub async fn ask_attempt(
        &self,
        namespace: &Namespace,
        kind: TaskKind,
        id: TaskId,
    ) -> Result<u32, AskRefused> {
        Ok(self.ask_of(namespace, kind, id).await?.attempt)
    }

    /// How an ask stands, for a worker that holds it.
    ///
    /// # Errors
    /// [`AskRefused`].
    pub async fn ask_status(
        &self,
        namespace: &Namespace,
        kind: TaskKind,
        id: TaskId,
        owner: &WorkerId,
        attempt: u32,
    ) -> Result<Ask, AskRefused> {
        let found = self.ask_of(namespace, kind, id).await?;
        let held = found.state == AskState::Leased
            && !found.over
            && found.owner.as_ref() == Some(owner)
            && found.attempt == attempt;
        if held {
            Ok(found)
        } else {
            Err(explain(&found, owner, attempt))
        }
    }

    async fn ask_of(
        &self,
        namespace: &Namespace,
        kind: TaskKind,
        id: TaskId,
    ) -> Result<Ask, AskRefused> {
        asks::find(&self.core.store.hot, id)
            .await?
            .filter(|ask| ask.namespace == *namespace && ask.kind == kind)
            .ok_or(AskRefused::NotFound)
    }
}

fn explain(ask: &Ask, owner: &WorkerId, attempt: u32) -> AskRefused {
    match (&ask.owner, ask.state) {
        (_, AskState::Answered) => AskRefused::Answered,
        (None, _) => AskRefused::NotLeased,
        (Some(holder), _) if holder != owner => AskRefused::OwnerMismatch {
            owner: holder.clone(),
        },
        _ if ask.attempt != attempt => AskRefused::AttemptMismatch {
            current: ask.attempt,
        },
        _ => AskRefused::TimedOut {
            at: ask.deadline_at,
        },
    }
}
