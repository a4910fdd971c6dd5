//! Reports of workers on tasks they hold: completions, failures, renewals, and why one is refused.

use std::sync::Arc;

use super::Engine;
use super::cache;
use super::error::{ApplyError, Fault};
use super::polls::Page;
use super::runs::{self, Applied};
use crate::domain::command::Command;
use crate::domain::event::Json;
use crate::domain::features;
use crate::domain::ids::{Namespace, TaskId, WorkerId, WorkflowId};
use crate::domain::limits::LimitKind;
use crate::domain::routing::TaskKind;
use crate::domain::run::{
    ActivityOutcome, ActivityReport, Beat, Close, Digest, Input, Keep, Receipt, Refusal, Reply,
    RunState, StreamReport, TaskFailure, WorkflowTaskReport,
};
use crate::domain::session::{Options, Session};
use crate::domain::time::Timestamp;
use crate::store::lease::{self, Renewal, TaskRow};

/// What a report says about its lease.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Namespace of the caller.
    pub namespace: Namespace,
    /// The task.
    pub task: TaskId,
    /// The holder.
    pub owner: WorkerId,
    /// The hand-out; the current one of the holder when the request did not name it.
    pub attempt: Option<u32>,
}

/// A report that was taken.
#[derive(Clone, Debug)]
pub struct Reported {
    /// What became of it.
    pub reply: Reply,
    /// The run afterwards.
    pub state: Arc<RunState>,
    /// The hand-out that it was about.
    pub attempt: u32,
}

/// Why a report had no effect.
#[derive(Clone, Debug)]
pub enum ReportRefused {
    /// There is no such task for this caller.
    TaskNotFound,
    /// The task has no such hand-out.
    AttemptNotFound,
    /// Nobody holds the task.
    NotLeased {
        /// The last hand-out.
        attempt: u32,
    },
    /// The lease has run out.
    LeaseExpired {
        /// The holder.
        owner: WorkerId,
        /// When it ran out.
        at: Timestamp,
    },
    /// Another worker holds the task.
    OwnerMismatch {
        /// The holder.
        owner: WorkerId,
    },
    /// The hand-out is not the current one.
    AttemptMismatch {
        /// The current one.
        current: u32,
    },
    /// The holder's registration is gone or silent.
    StaleRegistration {
        /// The holder.
        owner: WorkerId,
        /// End of the lease.
        lease_expires_at: Option<Timestamp>,
    },
    /// The attempt of the activity is over or superseded.
    StaleAttempt,
    /// Another report was recorded under this fence.
    AlreadyReported(Arc<Receipt>),
    /// The run is closed.
    RunClosed(Arc<RunState>, Arc<Close>),
    /// The run timed out.
    RunTimedOut(Arc<RunState>),
    /// The commands contradict the history or each other.
    InvalidCommands(Arc<RunState>, String),
    /// The entries of a memo cannot be merged.
    InvalidMemo(String),
    /// What it says about message streams is not so.
    InvalidStreams {
        /// The field at fault.
        field: String,
        /// What is wrong with it.
        why: String,
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

impl From<Fault> for ReportRefused {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<sqlx::Error> for ReportRefused {
    fn from(error: sqlx::Error) -> Self {
        Self::Fault(error.into())
    }
}

/// A renewed lease.
#[derive(Clone, Debug)]
pub struct RenewedLease {
    /// End of the lease.
    pub lease_expires_at: Timestamp,
    /// When it was renewed.
    pub at: Timestamp,
    /// The hand-out.
    pub attempt: u32,
    /// The run.
    pub state: Arc<RunState>,
    /// The holder was asked to stop.
    pub cancel_requested: bool,
}

/// A worker session that an activity's heartbeat renewed.
#[derive(Clone, Debug)]
pub struct SessionBeat {
    /// What the activity asked for.
    pub asked: Arc<Options>,
    /// The session.
    pub session: Session,
}

/// What an activity hears in answer to its heartbeat.
#[derive(Clone, Debug)]
pub enum Heartbeat {
    /// Go on; with the worker session that it runs in, if the worker still owns that.
    Recorded(RenewedLease, Option<Box<SessionBeat>>),
    /// Stop; the reason and the run, closed or not.
    Stop {
        /// Why, in the contract's words.
        reason: &'static str,
        /// The hand-out.
        attempt: u32,
        /// The run.
        state: Arc<RunState>,
    },
}

struct Resolved {
    cached: cache::Cached,
    attempt: u32,
    seen: u64,
    /// The attempt's last heartbeat may be in the row.
    row: Option<TaskRow>,
}

impl Engine {
    /// Finds the run of a task and the hand-out that a report is about.
    async fn resolve(&self, holder: &Holder, kind: TaskKind) -> Result<Resolved, ReportRefused> {
        let core = &self.core;
        let cached = cache::recent(core, holder.task.run)
            .await?
            .filter(|cached| cached.state.begun.namespace == holder.namespace)
            .ok_or(ReportRefused::TaskNotFound)?;
        // Without an attempt the row says which hand-out the holder has now.
        let known = holder
            .attempt
            .and_then(|attempt| core.leases.known(holder.task, attempt));
        if known.as_ref().is_some_and(|known| known.kind != kind) {
            return Err(ReportRefused::TaskNotFound);
        }
        if let Some(known) = known
            && !(kind == TaskKind::Activity && known.beats)
        {
            return Ok(Resolved {
                cached,
                attempt: known.attempt,
                seen: known.seen.unwrap_or(0),
                row: None,
            });
        }
        let row = lease::read(&core.store.reads, holder.task).await?;
        if row.as_ref().is_some_and(|row| row.kind != kind) {
            return Err(ReportRefused::TaskNotFound);
        }
        let held = row
            .as_ref()
            .filter(|row| row.owner.as_ref() == Some(&holder.owner))
            .map(|row| row.attempt);
        let attempt = holder.attempt.or(held).or_else(|| {
            // The task may be closed, by this very report.
            let receipts = cached.state.receipts.iter().rev();
            receipts
                .filter(|receipt| receipt.no == holder.task.no && receipt.owner == holder.owner)
                .map(|receipt| receipt.attempt)
                .next()
        });
        let attempt = attempt.unwrap_or_else(|| row.as_ref().map_or(1, |row| row.attempt.max(1)));
        let row = row.filter(|row| row.attempt == attempt);
        Ok(Resolved {
            cached,
            attempt,
            seen: row.as_ref().and_then(|row| row.seen).unwrap_or(0),
            row,
        })
    }

    /// A worker completed a workflow task.
    ///
    /// # Errors
    /// [`ReportRefused`]; nothing has changed.
    pub async fn complete_workflow_task(
        &self,
        holder: Holder,
        digest: Digest,
        commands: Vec<Command>,
        streams: StreamReport,
        keep: Option<Keep>,
    ) -> Result<Reported, ReportRefused> {
        let resolved = self.resolve(&holder, TaskKind::Workflow).await?;
        let report = report(&holder, &resolved, digest);
        self.report_workflow_task(
            &holder,
            resolved,
            Input::CompleteWorkflowTask {
                report,
                commands,
                streams,
                keep,
            },
        )
        .await
    }

    /// The workflow that a task belongs to.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn workflow_of(&self, holder: &Holder) -> Result<Option<WorkflowId>, Fault> {
        let cached = cache::recent(&self.core, holder.task.run).await?;
        Ok(cached.map(|cached| cached.state.begun.workflow_id.clone()))
    }

    /// A worker could not process a workflow task, or has nothing to do.
    ///
    /// # Errors
    /// [`ReportRefused`]; nothing has changed.
    pub async fn fail_workflow_task(
        &self,
        holder: Holder,
        digest: Digest,
        failure: TaskFailure,
    ) -> Result<Reported, ReportRefused> {
        let resolved = self.resolve(&holder, TaskKind::Workflow).await?;
        let report = report(&holder, &resolved, digest);
        let code = match (
            &failure,
            self.worker(&holder.namespace, &holder.owner).await?,
        ) {
            (TaskFailure::Blocked(_), Some(worker)) => {
                Some(worker.code_of(&resolved.cached.state.begun.workflow_type))
            }
            _ => None,
        };
        self.report_workflow_task(
            &holder,
            resolved,
            Input::FailWorkflowTask {
                report,
                failure,
                code,
            },
        )
        .await
    }

    async fn report_workflow_task(
        &self,
        holder: &Holder,
        resolved: Resolved,
        input: Input,
    ) -> Result<Reported, ReportRefused> {
        let attempt = resolved.attempt;
        let applied = runs::apply(&self.core, holder.task.run, input).await;
        self.finish(holder, TaskKind::Workflow, attempt, applied)
            .await
    }

    /// A worker reported the outcome of an activity attempt.
    ///
    /// # Errors
    /// [`ReportRefused`]; nothing has changed.
    pub async fn report_activity(
        &self,
        holder: Holder,
        digest: Digest,
        outcome: ActivityOutcome,
    ) -> Result<Reported, ReportRefused> {
        let resolved = self.resolve(&holder, TaskKind::Activity).await?;
        let attempt = resolved.attempt;
        let activities = &resolved.cached.state.activities;
        let in_session = activities
            .get(&holder.task.no)
            .filter(|activity| activity.session.is_some())
            .map(|activity| activity.queue.clone());
        let input = Input::ReportActivity(ActivityReport {
            no: holder.task.no,
            attempt,
            owner: holder.owner.clone(),
            digest,
            outcome,
            beat: resolved.row.as_ref().and_then(last_beat),
        });
        let applied = runs::apply(&self.core, holder.task.run, input).await;
        let finished = self
            .finish(&holder, TaskKind::Activity, attempt, applied)
            .await?;
        if let Some(queue) = in_session {
            // Its session has room for another one.
            self.session_tasks_may_run(&holder.namespace, &queue);
        }
        Ok(finished)
    }

    /// Turns what a run said into what the worker is told.
    pub(super) async fn finish(
        &self,
        holder: &Holder,
        kind: TaskKind,
        attempt: u32,
        applied: Result<Applied, ApplyError>,
    ) -> Result<Reported, ReportRefused> {
        let error = match applied {
            Ok(Applied {
                reply: Reply::TimedOutInstead,
                state,
                ..
            }) => {
                return Err(ReportRefused::RunTimedOut(state));
            }
            Ok(applied) => {
                return Ok(Reported {
                    reply: applied.reply,
                    state: applied.state,
                    attempt,
                });
            }
            Err(error) => error,
        };
        let refusal = match error {
            ApplyError::NoSuchRun => return Err(ReportRefused::TaskNotFound),
            ApplyError::Fault(fault) => return Err(fault.into()),
            ApplyError::FenceLost => return Err(self.explain(holder, kind, attempt).await?),
            ApplyError::Refused(refusal) => refusal,
        };
        let state = self.state(holder).await?;
        Err(match refusal {
            Refusal::UnknownTask => ReportRefused::TaskNotFound,
            Refusal::TaskNotOpen => {
                let current = state.workflow_task.as_ref().map_or(0, |task| task.no);
                if current > holder.task.no || state.workflow_task.is_none() {
                    ReportRefused::NotLeased { attempt }
                } else {
                    ReportRefused::TaskNotFound
                }
            }
            Refusal::StaleAttempt => ReportRefused::StaleAttempt,
            Refusal::AlreadyReported(receipt) => ReportRefused::AlreadyReported(receipt),
            Refusal::RunClosed(close) | Refusal::NotActive(close) => {
                ReportRefused::RunClosed(state, close)
            }
            Refusal::RunTimedOut(_) => ReportRefused::RunTimedOut(state),
            Refusal::InvalidCommands(why) => ReportRefused::InvalidCommands(state, why),
            Refusal::InvalidMemo(why) => ReportRefused::InvalidMemo(why),
            Refusal::InvalidStreams { field, why } => ReportRefused::InvalidStreams { field, why },
            Refusal::Limit {
                kind,
                current,
                configured,
            } => ReportRefused::Limit {
                kind,
                current,
                configured,
            },
            Refusal::NotClosed
            | Refusal::NoSuchCancellation
            | Refusal::OtherDelivery(_)
            | Refusal::ClaimCannotCooperate { .. }
            | Refusal::NotCurrent(_)
            | Refusal::LeaseNeeded
            | Refusal::NothingToDo => Fault::Bug.into(),
        })
    }

    async fn state(&self, holder: &Holder) -> Result<Arc<RunState>, ReportRefused> {
        cache::recent(&self.core, holder.task.run)
            .await?
            .map(|cached| cached.state)
            .ok_or(ReportRefused::TaskNotFound)
    }

    /// A second, cheap look: why the lease is not as the report says.
    async fn explain(
        &self,
        holder: &Holder,
        kind: TaskKind,
        attempt: u32,
    ) -> Result<ReportRefused, ReportRefused> {
        let row = lease::read(&self.core.store.reads, holder.task).await?;
        let Some(row) = row else {
            // Closed between the write and this look: the run's own answer is the right one next time.
            return Ok(match kind {
                TaskKind::Activity => ReportRefused::StaleAttempt,
                _ => ReportRefused::NotLeased { attempt },
            });
        };
        if row.kind != kind {
            return Ok(ReportRefused::TaskNotFound);
        }
        if kind == TaskKind::Activity {
            return Ok(match &row.owner {
                _ if attempt > row.attempt => ReportRefused::AttemptNotFound,
                Some(owner) if attempt == row.attempt && *owner != holder.owner => {
                    ReportRefused::OwnerMismatch {
                        owner: owner.clone(),
                    }
                }
                _ => ReportRefused::StaleAttempt,
            });
        }
        let Some(owner) = row.owner.clone() else {
            let registered = self.worker(&holder.namespace, &holder.owner).await?;
            return Ok(match registered {
                Some(worker) if !self.is_stale(&worker) => ReportRefused::NotLeased {
                    attempt: row.attempt,
                },
                _ => ReportRefused::StaleRegistration {
                    owner: holder.owner.clone(),
                    lease_expires_at: None,
                },
            });
        };
        Ok(if !row.live {
            ReportRefused::LeaseExpired {
                owner,
                at: row.lease_expires_at.unwrap_or_default(),
            }
        } else if owner != holder.owner {
            ReportRefused::OwnerMismatch { owner }
        } else if attempt != row.attempt {
            ReportRefused::AttemptMismatch {
                current: row.attempt,
            }
        } else {
            // It holds now what it did not hold then: a moment of contention.
            ReportRefused::Fault(Fault::Contended)
        })
    }

    /// Renews the lease of a workflow task.
    ///
    /// # Errors
    /// [`ReportRefused`]; nothing has changed.
    pub async fn heartbeat_workflow_task(
        &self,
        holder: Holder,
    ) -> Result<RenewedLease, ReportRefused> {
        let resolved = self.resolve(&holder, TaskKind::Workflow).await?;
        let attempt = resolved.attempt;
        match self.renew(&holder, attempt, false, None).await? {
            Some(renewed) => Ok(renewed),
            None => {
                let newest = cache::newest(&self.core, holder.task.run).await?;
                Err(self.not_held(&holder, attempt, newest).await?)
            }
        }
    }

    /// Why a worker may not go on with a workflow task.
    async fn not_held(
        &self,
        holder: &Holder,
        attempt: u32,
        newest: Option<cache::Cached>,
    ) -> Result<ReportRefused, ReportRefused> {
        let state = newest.ok_or(ReportRefused::TaskNotFound)?.state;
        if holder.task.no >= state.next_task || holder.task.no == 0 {
            return Ok(ReportRefused::TaskNotFound);
        }
        if let Some(close) = state.close.clone() {
            return Ok(ReportRefused::RunClosed(state, close));
        }
        self.explain(holder, TaskKind::Workflow, attempt).await
    }

    async fn renew(
        &self,
        holder: &Holder,
        attempt: u32,
        beat: bool,
        details: Option<String>,
    ) -> Result<Option<RenewedLease>, ReportRefused> {
        let renewal = Renewal {
            task: holder.task,
            owner: holder.owner.clone(),
            attempt,
            beat,
            details,
        };
        let Some(renewed) = self.core.renewals.ask(renewal).await? else {
            return Ok(None);
        };
        self.core.clock.observe(renewed.at);
        if beat {
            self.core.leases.beat(holder.task, attempt);
        }
        Ok(Some(RenewedLease {
            lease_expires_at: renewed.lease_expires_at,
            at: renewed.at,
            attempt,
            state: self.state(holder).await?,
            cancel_requested: renewed.cancel_requested,
        }))
    }

    /// A page of the history of a workflow task that the caller holds.
    ///
    /// # Errors
    /// [`ReportRefused`].
    pub async fn workflow_task_history(
        &self,
        holder: Holder,
        after: u64,
        page_size: u64,
    ) -> Result<(Page, u64, u32, Arc<RunState>), ReportRefused> {
        let (cached, row) = self.held(&holder).await?;
        let (seen, cached) = self.shown(&holder, &row, cached, after).await?;
        let page = self
            .page(&cached, after.saturating_add(1), seen, page_size)
            .await?;
        Ok((page, seen, row.attempt, cached.state))
    }

    /// Whether the caller holds a workflow task, for what is refused before its report is tried.
    ///
    /// # Errors
    /// [`ReportRefused`]: it does not.
    pub async fn holds_workflow_task(&self, holder: &Holder) -> Result<(), ReportRefused> {
        self.held(holder).await.map(|_| ())
    }

    /// The run and the row of a workflow task that the caller holds.
    async fn held(&self, holder: &Holder) -> Result<(cache::Cached, TaskRow), ReportRefused> {
        let core = &self.core;
        let cached = cache::recent(core, holder.task.run)
            .await?
            .filter(|cached| cached.state.begun.namespace == holder.namespace)
            .ok_or(ReportRefused::TaskNotFound)?;
        let row = lease::read(&core.store.reads, holder.task).await?;
        let held = row.filter(|row| {
            row.kind == TaskKind::Workflow
                && row.live
                && row.owner.as_ref() == Some(&holder.owner)
                && holder.attempt.is_none_or(|attempt| attempt == row.attempt)
        });
        let Some(row) = held else {
            let newest = cache::newest(core, holder.task.run).await?;
            let attempt = holder.attempt.unwrap_or(0);
            return Err(self.not_held(holder, attempt, newest).await?);
        };
        Ok((cached, row))
    }

    /// How far a holder is shown the history. While a cancellation is under way, whoever reads from the
    /// beginning is shown what has happened since the claim, and its report is taken accordingly.
    async fn shown(
        &self,
        holder: &Holder,
        row: &TaskRow,
        cached: cache::Cached,
        after: u64,
    ) -> Result<(u64, cache::Cached), ReportRefused> {
        let core = &self.core;
        let seen = row.seen.unwrap_or(0);
        let fresh = match (after, &cached.state.cancellation) {
            (0, _) if row.holder_knows & features::CANCELLATION != 0 => {
                cache::newest(core, holder.task.run)
                    .await?
                    .unwrap_or(cached)
            }
            _ => return Ok((seen, cached)),
        };
        let last = fresh.state.last_event();
        if fresh.state.cancellation.is_none() || last <= seen {
            return Ok((seen, fresh));
        }
        if !lease::show(
            &core.store.hot,
            holder.task,
            &holder.owner,
            row.attempt,
            last,
        )
        .await?
        {
            return Ok((seen, fresh));
        }
        core.leases.shown(holder.task, row.attempt, last);
        Ok((last, fresh))
    }

    /// An activity is alive, and so is the session that it runs in.
    async fn beat_session(
        &self,
        holder: &Holder,
        state: &RunState,
    ) -> Result<Option<Box<SessionBeat>>, Fault> {
        let activity = state.activities.get(&holder.task.no);
        let Some(asked) = activity.and_then(|activity| activity.session.clone()) else {
            return Ok(None);
        };
        let namespace = &state.begun.namespace;
        let session = self
            .session_beat(namespace, &holder.owner, &asked.session_id)
            .await?;
        Ok(session.map(|session| Box::new(SessionBeat { asked, session })))
    }

    /// An activity says that it is alive, and what it has to say.
    ///
    /// # Errors
    /// [`ReportRefused`]; a stop is not one.
    pub async fn heartbeat_activity(
        &self,
        holder: Holder,
        details: Option<String>,
    ) -> Result<Heartbeat, ReportRefused> {
        let resolved = self.resolve(&holder, TaskKind::Activity).await?;
        let attempt = resolved.attempt;
        if let Some(renewed) = self.renew(&holder, attempt, true, details).await? {
            if self.core.leases.known(holder.task, attempt).is_none() {
                // The node that granted the lease would take the attempt for silent.
                self.core.hints.beat(holder.task, attempt);
            }
            if renewed.cancel_requested {
                return Ok(Heartbeat::Stop {
                    reason: "activity_cancelled",
                    attempt,
                    state: renewed.state,
                });
            }
            let session = self.beat_session(&holder, &renewed.state).await?;
            return Ok(Heartbeat::Recorded(renewed, session));
        }
        let newest = cache::newest(&self.core, holder.task.run).await?;
        let state = newest.map_or(resolved.cached.state, |newest| newest.state);
        if holder.task.no >= state.next_task || holder.task.no == 0 {
            return Err(ReportRefused::TaskNotFound);
        }
        let reason = match &state.close {
            Some(close) => match close.reason.as_str() {
                "cancelled" => "run_cancelled",
                "terminated" => "run_terminated",
                _ => "run_closed",
            },
            None if state.receipt(holder.task.no, attempt).is_some() => "attempt_closed",
            None if state.cancelled_activities.contains_key(&holder.task.no) => {
                "activity_cancelled"
            }
            None if !state.activities.contains_key(&holder.task.no) => "activity_not_running",
            None => match self.explain(&holder, TaskKind::Activity, attempt).await? {
                refused
                @ (ReportRefused::OwnerMismatch { .. } | ReportRefused::AttemptNotFound) => {
                    return Err(refused);
                }
                _ => "stale_attempt",
            },
        };
        Ok(Heartbeat::Stop {
            reason,
            attempt,
            state,
        })
    }
}

fn report(holder: &Holder, resolved: &Resolved, digest: Digest) -> WorkflowTaskReport {
    WorkflowTaskReport {
        no: holder.task.no,
        attempt: resolved.attempt,
        owner: holder.owner.clone(),
        digest,
        seen: resolved.seen,
    }
}

/// The last heartbeat of an attempt, as its row keeps it.
pub(super) fn last_beat(row: &TaskRow) -> Option<Beat> {
    let details = row.heartbeat.as_deref().and_then(|text| {
        serde_json::value::RawValue::from_string(text.to_owned())
            .ok()
            .map(Json::from)
    });
    row.heartbeat_at.map(|at| Beat { at, details })
}
