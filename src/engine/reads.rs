//! What callers may look at: runs, their history, queues.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::cache::{self, Cached};
use super::polls::Page;
use super::{Engine, Fault};
use crate::domain::ids::{Namespace, RunId, TaskId, TaskQueue, WorkflowId};
use crate::domain::list::{After, Filter, QueueRow, RunRow};
use crate::domain::run::{RunState, Status};
use crate::store::{lease, lists, load};

/// Runs of one workflow that a list shows.
const RUNS_SHOWN: i64 = 10_000;
/// How often a follower of a history looks at what other nodes may have written.
const FOLLOW_RECHECK: Duration = Duration::from_secs(1);

/// What was asked for does not exist for this caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFound {
    /// There is no such workflow.
    Workflow,
    /// The workflow has no such run.
    Run,
}

/// Why a read gave nothing.
#[derive(Clone, Copy, Debug)]
pub enum ReadError {
    /// It does not exist for this caller.
    NotFound(NotFound),
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for ReadError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<sqlx::Error> for ReadError {
    fn from(error: sqlx::Error) -> Self {
        Self::Fault(error.into())
    }
}

/// A run as it is described.
#[derive(Clone, Debug)]
pub struct RunView {
    /// The run.
    pub state: Arc<RunState>,
    /// Its status, which for a run that has not progressed yet depends on whether a worker holds its
    /// first task.
    pub status: Status,
    /// Runs of the workflow.
    pub run_count: u32,
    /// The workflow id stands for this run.
    pub is_current: bool,
    /// The run that it stands for.
    pub current: RunId,
}

/// A whole history.
#[derive(Clone, Debug)]
pub struct Export {
    /// The run.
    pub view: RunView,
    /// All events.
    pub page: Page,
}

impl Engine {
    pub(super) async fn find(
        &self,
        namespace: &Namespace,
        workflow_id: &WorkflowId,
        run: Option<&str>,
    ) -> Result<(Cached, RunId), ReadError> {
        let reads = &self.core.store.reads;
        let current = load::current_run(reads, namespace, workflow_id)
            .await?
            .ok_or(ReadError::NotFound(NotFound::Workflow))?;
        let header = match run {
            None => current.clone(),
            Some(named) => {
                let named: RunId = named
                    .parse()
                    .map_err(|_| ReadError::NotFound(NotFound::Run))?;
                load::run_of(reads, namespace, workflow_id, named)
                    .await?
                    .ok_or(ReadError::NotFound(NotFound::Run))?
            }
        };
        let cached = cache::at_least(&self.core, header.run, header.version)
            .await?
            .ok_or(ReadError::NotFound(NotFound::Run))?;
        Ok((cached, current.run))
    }

    /// Describes a run: the named one, or the current one.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn describe(
        &self,
        namespace: &Namespace,
        workflow_id: &WorkflowId,
        run: Option<&str>,
    ) -> Result<RunView, ReadError> {
        let (cached, current) = self.find(namespace, workflow_id, run).await?;
        self.view(cached.state, current).await
    }

    async fn view(&self, state: Arc<RunState>, current: RunId) -> Result<RunView, ReadError> {
        let mut status = state.status();
        if status == Status::Pending
            && let Some(task) = &state.workflow_task
        {
            let task = TaskId {
                run: state.id,
                no: task.no,
            };
            let row = lease::read(&self.core.store.reads, task).await?;
            if row.is_some_and(|row| row.live) {
                status = Status::Running;
            }
        }
        let begun = &state.begun;
        let run_count = if begun.continued_from.is_none() && current == state.id {
            1
        } else {
            load::run_count(&self.core.store.reads, &begun.namespace, &begun.workflow_id).await?
        };
        Ok(RunView {
            status,
            run_count,
            is_current: current == state.id,
            current,
            state,
        })
    }

    /// A page of a run's history: at most `size` events after event `after`. With `wait`, a page of
    /// an open run that would be empty is held until an event comes or the time is up.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn history(
        &self,
        namespace: &Namespace,
        workflow_id: &WorkflowId,
        run: &str,
        after: u64,
        size: u64,
        wait: Option<Duration>,
    ) -> Result<(Page, Arc<RunState>), ReadError> {
        let deadline = wait.map(|wait| Instant::now() + wait);
        loop {
            let (cached, _) = self.find(namespace, workflow_id, Some(run)).await?;
            let moved = self.core.cache.watch(cached.state.id);
            let last = cached.state.last_event();
            let page = self
                .page(&cached, after.saturating_add(1), last, size)
                .await?;
            let over = deadline.is_none_or(|deadline| Instant::now() >= deadline);
            if page.count > 0 || cached.state.close.is_some() || over {
                return Ok((page, cached.state));
            }
            let next_look = deadline
                .unwrap_or_else(Instant::now)
                .min(Instant::now() + FOLLOW_RECHECK);
            tokio::select! {
                () = moved.moved() => {}
                () = tokio::time::sleep_until(next_look) => {}
            }
        }
    }

    /// A run with its whole history.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn export(
        &self,
        namespace: &Namespace,
        workflow_id: &WorkflowId,
        run: Option<&str>,
    ) -> Result<Export, ReadError> {
        let (cached, current) = self.find(namespace, workflow_id, run).await?;
        let last = cached.state.last_event();
        let page = self.whole(&cached, last).await?;
        let view = self.view(cached.state, current).await?;
        Ok(Export { view, page })
    }

    /// One page of the runs of a namespace, the youngest first.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn list_runs(
        &self,
        namespace: &Namespace,
        filter: &Filter,
        after: Option<After>,
        limit: i64,
    ) -> Result<Vec<RunRow>, Fault> {
        Ok(lists::runs(&self.core.store.reads, namespace, filter, after, limit).await?)
    }

    /// The runs of one workflow, the oldest first.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn runs_of(
        &self,
        namespace: &Namespace,
        workflow_id: &WorkflowId,
    ) -> Result<Vec<RunRow>, ReadError> {
        let runs =
            lists::runs_of(&self.core.store.reads, namespace, workflow_id, RUNS_SHOWN).await?;
        if runs.is_empty() {
            return Err(ReadError::NotFound(NotFound::Workflow));
        }
        Ok(runs)
    }

    /// The queues of a namespace that have tasks, or one of them.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn queues(
        &self,
        namespace: &Namespace,
        queue: Option<&TaskQueue>,
    ) -> Result<Vec<QueueRow>, Fault> {
        Ok(lists::queues(&self.core.store.reads, namespace, queue).await?)
    }
}
