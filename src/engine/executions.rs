//! Commands of the control plane: start, cancel, terminate, archive.

use std::sync::Arc;

use super::cache;
use super::error::{ApplyError, Fault};
use super::runs::{self, Applied};
use super::write::{Cause, Written, write};
use super::{Core, Engine, rollouts};
use crate::domain::ids::{Namespace, RunId, TaskId, WorkflowId};
use crate::domain::limits::LimitKind;
use crate::domain::rollout::StartRefused;
use crate::domain::routing::TaskKind;
use crate::domain::run::{
    self, Close, CloseReason, CloseRequest, CommandKind, Input, ObservedLease, Refusal, Reply,
    RunState, StartRequest,
};
use crate::matching::QueueKey;
use crate::store::receipts::RequestReceipt;
use crate::store::{lease, load};

/// Tries when the workflow moves on to another run, or its task to another worker, meanwhile.
pub(super) const TRIES: usize = 8;

/// A run that a start led to.
#[derive(Clone, Debug)]
pub struct Started {
    /// The run.
    pub state: Arc<RunState>,
    /// It was started now; otherwise it was open before.
    pub new: bool,
}

/// Why a start had no effect.
#[derive(Clone, Debug)]
pub enum StartError {
    /// The workflow id is taken.
    Duplicate(Arc<RunState>),
    /// The workflow id is taken by a run of another type.
    OtherType(Arc<RunState>),
    /// No worker may take it; the build that it is pinned to, if any.
    NotRouted(Box<StartRefused>),
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for StartError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Which run a command is for.
#[derive(Clone, Debug)]
pub struct CommandTarget {
    /// Namespace.
    pub namespace: Namespace,
    /// The workflow.
    pub workflow_id: WorkflowId,
    /// The run that the caller named; otherwise whichever is current.
    pub run: Option<Arc<str>>,
}

/// Why a command had no effect.
#[derive(Clone, Debug)]
pub enum CommandError {
    /// There is no such workflow.
    NoSuchWorkflow,
    /// The workflow has no such run.
    NoSuchRun,
    /// The named run is not the current one.
    NotCurrent {
        /// The current one.
        current: RunId,
    },
    /// The run is closed.
    NotActive(Arc<RunState>, Arc<Close>),
    /// The run is open, and only closed ones can be archived.
    NotClosed(Arc<RunState>),
    /// The key stood for something else.
    KeyConflict {
        /// What it stood for.
        receipt: RequestReceipt,
        /// The parts that differ.
        differs: Vec<&'static str>,
    },
    /// A structural limit is reached.
    Limit {
        /// Which.
        kind: LimitKind,
        /// What it would come to.
        current: u64,
        /// What is allowed.
        configured: u64,
    },
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for CommandError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A command that was accepted, now or before.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The run that took it.
    pub run: RunId,
    /// Number of the command there; none when there was nothing to do.
    pub command: Option<u64>,
    /// The workflow's current run.
    pub state: Arc<RunState>,
    /// It had been accepted before, under this key.
    pub retained: bool,
    /// The update that it made.
    pub update_id: Option<Arc<str>>,
}

impl Engine {
    /// Starts a workflow, or finds the run that is already there.
    ///
    /// # Errors
    /// [`StartError`]; nothing has changed.
    pub async fn start_workflow(
        &self,
        request: StartRequest,
        use_existing: bool,
    ) -> Result<Started, StartError> {
        let engine = self.clone();
        self.detached(async move { start(&engine.core, request, use_existing).await })
            .await?
    }

    /// Cancels, terminates, archives or repairs the current run of a workflow, at once.
    ///
    /// # Errors
    /// [`CommandError`]; nothing has changed.
    pub async fn close(
        &self,
        target: &CommandTarget,
        kind: CommandKind,
        reason: Option<Arc<str>>,
        request_id: Option<Arc<str>>,
    ) -> Result<Accepted, CommandError> {
        for _ in 0..TRIES {
            let run = self.current_run(target).await?;
            let request = CloseRequest {
                reason: reason.clone(),
                request_id: request_id.clone(),
                lease: observe(&self.core, run).await?,
            };
            let input = match kind {
                CommandKind::Cancel => Input::Cancel(request),
                CommandKind::Terminate => Input::Terminate(request),
                CommandKind::Repair => Input::Repair(request),
                _ => Input::Archive(request),
            };
            let error = match runs::apply(&self.core, run, input).await {
                Ok(applied) => {
                    let mut accepted = accepted(run, applied);
                    if accepted.command.is_none() {
                        accepted.command = repeated(&accepted.state, kind, request_id.as_deref());
                        accepted.retained = accepted.command.is_some();
                    }
                    return Ok(accepted);
                }
                // The task changed hands between the look and the write.
                Err(ApplyError::FenceLost | ApplyError::Refused(Refusal::LeaseNeeded)) => continue,
                Err(error) => self.command_error(run, error).await?,
            };
            if let CommandError::NotActive(state, close) = &error {
                if close.reason == CloseReason::Continued && target.run.is_none() {
                    continue;
                }
                if let Some(command) = repeated(state, kind, request_id.as_deref()) {
                    return Ok(Accepted {
                        run,
                        command: Some(command),
                        state: Arc::clone(state),
                        retained: true,
                        update_id: None,
                    });
                }
            }
            return Err(error);
        }
        Err(Fault::Contended.into())
    }

    /// The run that a command is for: the current one, which must be the named one.
    pub(super) async fn current_run(&self, target: &CommandTarget) -> Result<RunId, CommandError> {
        let reads = &self.core.store.reads;
        let current = load::current_run(reads, &target.namespace, &target.workflow_id)
            .await
            .map_err(Fault::from)?
            .ok_or(CommandError::NoSuchWorkflow)?
            .run;
        let Some(named) = &target.run else {
            return Ok(current);
        };
        let named: RunId = named.parse().map_err(|_| CommandError::NoSuchRun)?;
        if named == current {
            return Ok(current);
        }
        let exists = load::run_of(reads, &target.namespace, &target.workflow_id, named)
            .await
            .map_err(Fault::from)?;
        Err(match exists {
            Some(_) => CommandError::NotCurrent { current },
            None => CommandError::NoSuchRun,
        })
    }

    pub(super) async fn command_error(
        &self,
        run: RunId,
        error: ApplyError,
    ) -> Result<CommandError, CommandError> {
        let refusal = match error {
            ApplyError::NoSuchRun => return Ok(CommandError::NoSuchRun),
            ApplyError::Fault(fault) => return Ok(fault.into()),
            ApplyError::FenceLost => return Ok(Fault::Contended.into()),
            ApplyError::Refused(refusal) => refusal,
        };
        let state = cache::recent(&self.core, run)
            .await?
            .ok_or(CommandError::NoSuchRun)?
            .state;
        Ok(match refusal {
            Refusal::NotActive(close) => CommandError::NotActive(state, close),
            Refusal::NotClosed => CommandError::NotClosed(state),
            Refusal::Limit {
                kind,
                current,
                configured,
            } => CommandError::Limit {
                kind,
                current,
                configured,
            },
            _ => Fault::Bug.into(),
        })
    }
}

pub(super) fn accepted(run: RunId, applied: Applied) -> Accepted {
    let mut update_id = None;
    let command = match applied.reply {
        Reply::SignalAccepted { command } | Reply::Closed { command } => Some(command),
        Reply::UpdateAccepted { command, id } => {
            update_id = Some(id);
            Some(command)
        }
        Reply::Archived { command } | Reply::Repaired { command } => command,
        _ => None,
    };
    Accepted {
        run,
        command,
        state: applied.state,
        retained: false,
        update_id,
    }
}

/// The command that this key brought about before.
fn repeated(state: &RunState, kind: CommandKind, request_id: Option<&str>) -> Option<u64> {
    let request_id = request_id?;
    state
        .recent_commands
        .iter()
        .find(|command| command.kind == kind && command.request_id.as_deref() == Some(request_id))
        .map(|command| command.n)
}

/// Who holds the open workflow task of a run.
pub(super) async fn observe(core: &Core, run: RunId) -> Result<ObservedLease, Fault> {
    let Some(cached) = cache::newest(core, run).await? else {
        return Ok(ObservedLease::Free);
    };
    let Some(task) = &cached.state.workflow_task else {
        return Ok(ObservedLease::Free);
    };
    let row = lease::read(&core.store.reads, TaskId { run, no: task.no }).await?;
    Ok(
        match row.and_then(|row| Some((row.owner?, row.attempt, row.live, row.holder_knows))) {
            Some((owner, attempt, live, knows)) => ObservedLease::Held {
                owner,
                attempt,
                live,
                knows,
            },
            None => ObservedLease::Free,
        },
    )
}

async fn start(
    core: &Arc<Core>,
    mut request: StartRequest,
    use_existing: bool,
) -> Result<Started, StartError> {
    let refused = rollouts::route(core, &mut request).await?;
    let (namespace, workflow_id) = (request.namespace.clone(), request.workflow_id.clone());
    let workflow_type = Arc::clone(&request.workflow_type);
    if refused.is_none() {
        let now = core.clock.now();
        let run = RunId::new(now, uuid::Uuid::new_v4().as_u128());
        let key = QueueKey {
            kind: TaskKind::Workflow,
            namespace: namespace.clone(),
            queue: request.queue.clone(),
        };
        let cause = if core.late.is(&key) {
            Cause::Late
        } else {
            Cause::Asked
        };
        if cause == Cause::Late && !core.lanes.has_room_giving_way(run) {
            return Err(Fault::Busy.into());
        }
        let mut decision = run::start(run, request, now, &core.settings.run);
        match write(core, &mut decision, None, cause).await? {
            Written::Committed(_) => {
                return Ok(Started {
                    state: decision.write.next,
                    new: true,
                });
            }
            Written::Refused => {}
        }
    }
    // A start that was made before gets its answer, wherever new ones go now.
    let header = load::current_run(&core.store.reads, &namespace, &workflow_id)
        .await
        .map_err(Fault::from)?;
    let header = match (header, refused) {
        (Some(header), _) => header,
        (None, Some(refused)) => return Err(StartError::NotRouted(Box::new(refused))),
        (None, None) => return Err(Fault::Contended.into()),
    };
    let state = cache::at_least(core, header.run, header.version)
        .await?
        .ok_or(Fault::Contended)?
        .state;
    if state.begun.workflow_type != workflow_type {
        return Err(StartError::OtherType(state));
    }
    if use_existing && state.close.is_none() {
        return Ok(Started { state, new: false });
    }
    Err(StartError::Duplicate(state))
}
