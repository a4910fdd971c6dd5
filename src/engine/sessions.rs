//! Worker sessions: made, renewed and closed by their owners.

use std::sync::Arc;

use super::session_claims::applicant;
use super::{Engine, Fault};
use crate::domain::dispatch::Position;
use crate::domain::ids::{Namespace, TaskQueue, WorkerId};
use crate::domain::routing::TaskKind;
use crate::domain::session::{self, Admitted, Options, Refused, Session};
use crate::domain::worker::Registration;
use crate::matching::QueueKey;
use crate::store::sessions;

/// Sessions in a list.
const LISTED: i64 = 1_000;
/// Seconds for which a session that has ended can still be seen.
const KEPT_SECONDS: u64 = 86_400;
/// Sessions that one sweep forgets.
const FORGET_BATCH: i64 = 1_000;

/// A session and how it is used.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// The session.
    pub session: Session,
    /// Activities that run in it.
    pub running: u64,
    /// The registration of its owner, unless that is gone.
    pub holder: Option<Arc<Registration>>,
    /// Whether its owner has been silent for too long.
    pub holder_is_stale: bool,
}

/// Why a step on a session is refused.
#[derive(Clone, Debug)]
pub enum SessionError {
    /// The worker is not registered, or silent.
    NotRegistered,
    /// There is no such session.
    NotFound,
    /// The rules forbid it; the session as it is, if there is one.
    Refused(Refused, Option<Box<SessionView>>),
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for SessionError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<sqlx::Error> for SessionError {
    fn from(error: sqlx::Error) -> Self {
        Self::Fault(error.into())
    }
}

impl Engine {
    /// Makes a session, or renews one that the worker owns.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn open_session(
        &self,
        namespace: &Namespace,
        worker_id: &WorkerId,
        options: Options,
    ) -> Result<(SessionView, Admitted), SessionError> {
        let worker = self.live_worker(namespace, worker_id).await?;
        let engine = self.clone();
        let namespace = namespace.clone();
        let (session, admitted) = self
            .detached(async move {
                let core = &engine.core;
                let mut step = core.store.reads.begin().await?;
                let scene = sessions::lock(
                    &mut step,
                    &namespace,
                    &worker.worker_id,
                    &options.session_id,
                    core.settings.stale_after_seconds,
                )
                .await?;
                let seen = scene.session.clone();
                let running = u64::from(scene.running);
                let applicant = applicant(&worker, scene.owned);
                let made = session::admit(
                    scene.session,
                    &namespace,
                    options,
                    &applicant,
                    None,
                    scene.at,
                );
                match made {
                    Ok((session, admitted)) => {
                        sessions::write(&mut step, &session).await?;
                        step.commit().await?;
                        let view = engine.session_view(session, running).await?;
                        engine.sessions_moved(&view.session);
                        Ok((view, admitted))
                    }
                    Err(refused) => {
                        // What follows may need a connection; this one must not wait for it.
                        step.rollback().await?;
                        Err(engine.session_refused(refused, seen, running).await?)
                    }
                }
            })
            .await??;
        Ok((session, admitted))
    }

    /// Renews the lease of a session.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn renew_session(
        &self,
        namespace: &Namespace,
        worker_id: &WorkerId,
        session_id: &str,
        lease_seconds: Option<u64>,
    ) -> Result<SessionView, SessionError> {
        self.live_worker(namespace, worker_id).await?;
        let owner = worker_id.clone();
        let renew = move |session: &mut Session, at| session.heartbeat(&owner, lease_seconds, at);
        let (view, ()) = self
            .session_step(namespace, worker_id, session_id, renew)
            .await?;
        Ok(view)
    }

    /// Closes a session. Returns whether it was open.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn close_session(
        &self,
        namespace: &Namespace,
        worker_id: &WorkerId,
        session_id: &str,
    ) -> Result<(SessionView, bool), SessionError> {
        let owner = worker_id.clone();
        let close = move |session: &mut Session, at| session.close(&owner, at);
        self.session_step(namespace, worker_id, session_id, close)
            .await
    }

    /// One step on a session that must exist.
    async fn session_step<T: Send + 'static>(
        &self,
        namespace: &Namespace,
        worker_id: &WorkerId,
        session_id: &str,
        step: impl FnOnce(&mut Session, crate::domain::time::Timestamp) -> Result<T, Refused>
        + Send
        + 'static,
    ) -> Result<(SessionView, T), SessionError> {
        let engine = self.clone();
        let (namespace, worker_id) = (namespace.clone(), worker_id.clone());
        let session_id = session_id.to_owned();
        self.detached(async move {
            let core = &engine.core;
            let mut transaction = core.store.reads.begin().await?;
            let scene = sessions::lock(
                &mut transaction,
                &namespace,
                &worker_id,
                &session_id,
                core.settings.stale_after_seconds,
            )
            .await?;
            let Some(mut session) = scene.session else {
                transaction.rollback().await?;
                return Err(SessionError::NotFound);
            };
            let running = u64::from(scene.running);
            match step(&mut session, scene.at) {
                Ok(done) => {
                    sessions::write(&mut transaction, &session).await?;
                    transaction.commit().await?;
                    Ok((engine.session_view(session, running).await?, done))
                }
                Err(refused) => {
                    transaction.rollback().await?;
                    let seen = Some(session);
                    Err(engine.session_refused(refused, seen, running).await?)
                }
            }
        })
        .await?
    }

    /// Sessions of a namespace by id.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn sessions(&self, namespace: &Namespace) -> Result<Vec<SessionView>, Fault> {
        let core = &self.core;
        let found = sessions::list(
            &core.store.reads,
            namespace,
            core.settings.stale_after_seconds,
            core.clock.now(),
            LISTED,
        )
        .await?;
        let mut views = Vec::with_capacity(found.len());
        for session in found {
            views.push(self.used(session).await?);
        }
        Ok(views)
    }

    /// One session.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn session(
        &self,
        namespace: &Namespace,
        session_id: &str,
    ) -> Result<Option<SessionView>, Fault> {
        let core = &self.core;
        let found = sessions::find(
            &core.store.reads,
            namespace,
            session_id,
            core.settings.stale_after_seconds,
            core.clock.now(),
        )
        .await?;
        match found {
            Some(session) => Ok(Some(self.used(session).await?)),
            None => Ok(None),
        }
    }

    async fn used(&self, session: Session) -> Result<SessionView, Fault> {
        let running = sessions::running(&self.core.store.reads, &session).await?;
        self.session_view(session, running).await
    }

    /// An activity of the session said that it is alive, and so the session is. `None` when the worker
    /// does not own it any more; the activity goes on all the same.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn session_beat(
        &self,
        namespace: &Namespace,
        worker_id: &WorkerId,
        session_id: &str,
    ) -> Result<Option<Session>, Fault> {
        let renewed = self
            .renew_session(namespace, worker_id, session_id, None)
            .await;
        match renewed {
            Ok(view) => Ok(Some(view.session)),
            Err(SessionError::Fault(fault)) => Err(fault),
            Err(_) => Ok(None),
        }
    }

    /// Forgets sessions that ended long ago. Returns how many.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn forget_old_sessions(&self) -> Result<u64, Fault> {
        Ok(sessions::forget_old(&self.core.store.hot, KEPT_SECONDS, FORGET_BATCH).await?)
    }

    async fn live_worker(
        &self,
        namespace: &Namespace,
        worker_id: &WorkerId,
    ) -> Result<Arc<Registration>, SessionError> {
        let worker = self.worker(namespace, worker_id).await?;
        worker
            .filter(|worker| !self.is_stale(worker))
            .ok_or(SessionError::NotRegistered)
    }

    async fn session_view(&self, session: Session, running: u64) -> Result<SessionView, Fault> {
        let holder = self.worker(&session.namespace, &session.owner).await?;
        Ok(SessionView {
            holder_is_stale: holder.as_ref().is_none_or(|worker| self.is_stale(worker)),
            session,
            running,
            holder,
        })
    }

    async fn session_refused(
        &self,
        refused: Refused,
        session: Option<Session>,
        running: u64,
    ) -> Result<SessionError, Fault> {
        let view = match session {
            Some(session) => Some(Box::new(self.session_view(session, running).await?)),
            None => None,
        };
        Ok(SessionError::Refused(refused, view))
    }

    /// Tasks of the session may have found an owner.
    fn sessions_moved(&self, session: &Session) {
        if let Some(queue) = &session.options.queue {
            self.session_tasks_may_run(&session.namespace, queue);
        }
    }

    /// Tasks of a session that waited on this queue may be taken now.
    pub(super) fn session_tasks_may_run(&self, namespace: &Namespace, queue: &TaskQueue) {
        let key = QueueKey {
            kind: TaskKind::Activity,
            namespace: namespace.clone(),
            queue: queue.clone(),
        };
        super::claims::became_ready(&self.core, &key, Position::START);
    }
}
