//! Cooperative cancellation and what surrounds it: the request, its delivery by a worker, how an
//! activity stands, and the word that a cancelled one has stopped.

use std::sync::Arc;

use super::cache;
use super::error::{ApplyError, Fault};
use super::executions::{TRIES, observe};
use super::reports::{Holder, ReportRefused};
use super::runs::{self, Applied};
use super::{CommandError, CommandTarget, Engine};
use crate::domain::event::Delivery;
use crate::domain::features;
use crate::domain::ids::{RunId, TaskNo, WorkerId};
use crate::domain::routing::TaskKind;
use crate::domain::run::{
    Activity, Cancellation, CancellationRequest, DeliveryReport, Input, Refusal, Reply, RunState,
};
use crate::domain::time::Timestamp;
use crate::store::lease::{self, TaskRow};

/// A cancellation that was asked for, now or before.
#[derive(Clone, Debug)]
pub struct CancellationAsked {
    /// The run.
    pub state: Arc<RunState>,
    /// The request.
    pub cancellation: Arc<Cancellation>,
    /// It had been asked for before.
    pub duplicate: bool,
}

/// Why a cancellation is not taken.
#[derive(Clone, Debug)]
pub enum CancellationError {
    /// The worker that holds the run's task does not know of cancellations.
    ClaimCannotCooperate {
        /// The run.
        run: RunId,
        /// The task.
        no: TaskNo,
        /// The hand-out.
        attempt: u32,
    },
    /// As for any command.
    Command(CommandError),
}

impl From<CommandError> for CancellationError {
    fn from(error: CommandError) -> Self {
        Self::Command(error)
    }
}

impl From<Fault> for CancellationError {
    fn from(fault: Fault) -> Self {
        Self::Command(fault.into())
    }
}

/// What became of a delivery.
#[derive(Clone, Debug)]
pub enum Delivered {
    /// It is in the history.
    Yes(Arc<RunState>),
    /// The task was given back until what the call waits for has ended.
    Waits(&'static str, Arc<RunState>),
}

/// Why a delivery is not taken.
#[derive(Clone, Debug)]
pub enum DeliveryRefused {
    /// The claim does not know of cancellations.
    ClaimCannotCooperate,
    /// No cancellation of this id was asked for.
    NoSuchCancellation,
    /// It was delivered at another call.
    OtherDelivery(Delivery),
    /// As for any report.
    Report(ReportRefused),
}

impl From<ReportRefused> for DeliveryRefused {
    fn from(refused: ReportRefused) -> Self {
        Self::Report(refused)
    }
}

impl From<Fault> for DeliveryRefused {
    fn from(fault: Fault) -> Self {
        Self::Report(fault.into())
    }
}

/// How an attempt of an activity stands.
#[derive(Clone, Debug)]
pub struct AttemptStatus {
    /// The run.
    pub state: Arc<RunState>,
    /// The activity, if it is open.
    pub activity: Option<Arc<Activity>>,
    /// Its lease, if the attempt is the current one.
    pub lease: Option<AttemptLease>,
    /// The hand-out.
    pub attempt: u32,
    /// Why the attempt should stop, in the contract's words.
    pub stop: Option<&'static str>,
}

/// The lease of an attempt, as its row shows it.
#[derive(Clone, Copy, Debug)]
pub struct AttemptLease {
    /// End of the lease.
    pub lease_expires_at: Option<Timestamp>,
    /// Last heartbeat.
    pub heartbeat_at: Option<Timestamp>,
    /// End of the attempt.
    pub start_to_close_at: Option<Timestamp>,
    /// Time of the next heartbeat at the latest.
    pub heartbeat_due_at: Option<Timestamp>,
}

impl From<TaskRow> for AttemptLease {
    fn from(row: TaskRow) -> Self {
        Self {
            lease_expires_at: row.lease_expires_at,
            heartbeat_at: row.heartbeat_at,
            start_to_close_at: row.start_to_close_at,
            heartbeat_due_at: row.heartbeat_due_at,
        }
    }
}

/// The word that an activity has stopped, as it was taken.
#[derive(Clone, Debug)]
pub struct StopTaken {
    /// The run.
    pub state: Arc<RunState>,
    /// It had been taken before.
    pub duplicate: bool,
    /// When it was taken first.
    pub at: Timestamp,
}

impl Engine {
    /// Asks a workflow to clean up and end.
    ///
    /// # Errors
    /// [`CancellationError`]; nothing has changed.
    pub async fn request_cancellation(
        &self,
        target: &CommandTarget,
        request: &CancellationRequest,
    ) -> Result<CancellationAsked, CancellationError> {
        for _ in 0..TRIES {
            let run = self.current_run(target).await?;
            let mut request = request.clone();
            request.lease = observe(&self.core, run).await?;
            let input = Input::RequestCancellation(request);
            match runs::apply(&self.core, run, input).await {
                Ok(Applied {
                    reply: Reply::CancellationRequested { duplicate },
                    state,
                    ..
                }) => {
                    let cancellation = state.cancellation.clone().ok_or(Fault::Bug)?;
                    return Ok(CancellationAsked {
                        state,
                        cancellation,
                        duplicate,
                    });
                }
                Ok(_) => return Err(Fault::Bug.into()),
                // The task changed hands between the look and the write.
                Err(ApplyError::FenceLost | ApplyError::Refused(Refusal::LeaseNeeded)) => {}
                Err(ApplyError::Refused(Refusal::ClaimCannotCooperate { no, attempt })) => {
                    return Err(CancellationError::ClaimCannotCooperate { run, no, attempt });
                }
                Err(ApplyError::Refused(Refusal::NotActive(close)))
                    if close.continued_to.is_some() && target.run.is_none() => {}
                Err(error) => return Err(self.command_error(run, error).await?.into()),
            }
        }
        Err(Fault::Contended.into())
    }

    /// A worker delivers a cancellation at a call of the workflow's code.
    ///
    /// # Errors
    /// [`DeliveryRefused`]; nothing has changed.
    pub async fn deliver_cancellation(
        &self,
        holder: &Holder,
        request_id: Arc<str>,
        delivery: Delivery,
    ) -> Result<Delivered, DeliveryRefused> {
        let core = &self.core;
        let known = cache::recent(core, holder.task.run).await?;
        known
            .filter(|cached| cached.state.begun.namespace == holder.namespace)
            .ok_or(ReportRefused::TaskNotFound)?;
        let attempt = holder.attempt.unwrap_or(0);
        let row = lease::read(&core.store.reads, holder.task)
            .await
            .map_err(Fault::from)?;
        if let Some(row) = &row
            && row.attempt == attempt
            && row.owner.as_ref() == Some(&holder.owner)
            && row.holder_knows & features::CANCELLATION == 0
        {
            return Err(DeliveryRefused::ClaimCannotCooperate);
        }
        let report = DeliveryReport {
            no: holder.task.no,
            attempt,
            owner: holder.owner.clone(),
            request_id,
            delivery,
        };
        let input = Input::DeliverCancellation(report);
        match runs::apply(core, holder.task.run, input).await {
            Ok(Applied {
                reply: Reply::CancellationWaits(why),
                state,
                ..
            }) => Ok(Delivered::Waits(why, state)),
            Ok(applied) => Ok(Delivered::Yes(applied.state)),
            Err(ApplyError::Refused(Refusal::NoSuchCancellation)) => {
                Err(DeliveryRefused::NoSuchCancellation)
            }
            Err(ApplyError::Refused(Refusal::OtherDelivery(delivery))) => {
                Err(DeliveryRefused::OtherDelivery(delivery))
            }
            Err(error) => {
                let refused = self
                    .finish(holder, TaskKind::Workflow, attempt, Err(error))
                    .await;
                Err(refused.err().unwrap_or(Fault::Bug.into()).into())
            }
        }
    }

    /// How an attempt of an activity stands. Renews nothing, writes nothing.
    ///
    /// # Errors
    /// [`ReportRefused`].
    pub async fn attempt_status(&self, holder: &Holder) -> Result<AttemptStatus, ReportRefused> {
        let core = &self.core;
        let cached = cache::newest(core, holder.task.run)
            .await?
            .filter(|cached| cached.state.begun.namespace == holder.namespace)
            .ok_or(ReportRefused::TaskNotFound)?;
        let state = cached.state;
        if holder.task.no == 0 || holder.task.no >= state.next_task {
            return Err(ReportRefused::TaskNotFound);
        }
        let attempt = holder.attempt.unwrap_or(0);
        let row = lease::read(&core.store.reads, holder.task).await?;
        let activity = state.activities.get(&holder.task.no).cloned();
        if let Some(row) = &row {
            if attempt > row.attempt {
                return Err(ReportRefused::AttemptNotFound);
            }
            if let Some(owner) = row.owner.as_ref().filter(|_| attempt == row.attempt)
                && *owner != holder.owner
            {
                return Err(ReportRefused::OwnerMismatch {
                    owner: owner.clone(),
                });
            }
        }
        let row = row.filter(|row| row.attempt == attempt && row.owner.is_some());
        let stop = self.why_stop(&state, holder, activity.as_deref(), row.as_ref());
        Ok(AttemptStatus {
            state,
            activity,
            lease: row.map(AttemptLease::from),
            attempt,
            stop,
        })
    }

    fn why_stop(
        &self,
        state: &RunState,
        holder: &Holder,
        activity: Option<&Activity>,
        row: Option<&TaskRow>,
    ) -> Option<&'static str> {
        let no = holder.task.no;
        if let Some(close) = &state.close {
            return Some(match close.reason.as_str() {
                "cancelled" => "run_cancelled",
                "terminated" => "run_terminated",
                _ => "run_closed",
            });
        }
        if state.cancelled_activities.contains_key(&no) {
            return Some("activity_cancelled");
        }
        let Some(activity) = activity else {
            return Some("activity_not_running");
        };
        let Some(row) = row else {
            return Some("stale_attempt");
        };
        if row.cancel_requested {
            return Some("activity_cancelled");
        }
        let now = self.core.clock.now();
        let over = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        if over(activity.close_deadline()) {
            Some("schedule_to_close_timeout")
        } else if over(row.start_to_close_at) {
            Some("start_to_close_timeout")
        } else if over(row.heartbeat_due_at) {
            Some("heartbeat_timeout")
        } else if !row.live {
            Some("lease_expired")
        } else {
            None
        }
    }

    /// A worker says that an activity has stopped that was cancelled under this request.
    ///
    /// # Errors
    /// [`ReportRefused`]; nothing has changed.
    pub async fn acknowledge_stop(
        &self,
        holder: &Holder,
        request_id: &str,
    ) -> Result<StopTaken, ReportRefused> {
        let attempt = holder.attempt.unwrap_or(0);
        let cached = cache::newest(&self.core, holder.task.run)
            .await?
            .filter(|cached| cached.state.begun.namespace == holder.namespace)
            .ok_or(ReportRefused::TaskNotFound)?;
        may_have_stopped(&cached.state, holder, request_id)?;
        let input = Input::CallbackStopped {
            no: holder.task.no,
            attempt,
        };
        match runs::apply(&self.core, holder.task.run, input).await {
            Ok(Applied {
                reply: Reply::StopAcknowledged { duplicate, at },
                state,
                ..
            }) => Ok(StopTaken {
                state,
                duplicate,
                at,
            }),
            Ok(_) => Err(Fault::Bug.into()),
            Err(ApplyError::NoSuchRun) => Err(ReportRefused::TaskNotFound),
            Err(ApplyError::Fault(fault)) => Err(fault.into()),
            Err(ApplyError::Refused(_) | ApplyError::FenceLost) => Err(ReportRefused::StaleAttempt),
        }
    }
}

/// Whether this holder may say that it has stopped: it had the attempt that was cancelled, and knows of
/// the request. What is compared here never changes.
fn may_have_stopped(
    state: &RunState,
    holder: &Holder,
    request_id: &str,
) -> Result<(), ReportRefused> {
    let no = holder.task.no;
    if no == 0 || no >= state.next_task {
        return Err(ReportRefused::TaskNotFound);
    }
    let (Some(cancelled), Some(cancellation)) =
        (state.cancelled_activities.get(&no), &state.cancellation)
    else {
        return Err(ReportRefused::StaleAttempt);
    };
    // An attempt that had not reached the history is known to its worker alone.
    if let Some(owner) = &cancelled.holder {
        let attempt = holder.attempt.unwrap_or(0);
        if attempt > cancelled.attempt {
            return Err(ReportRefused::AttemptNotFound);
        }
        if attempt < cancelled.attempt {
            return Err(ReportRefused::StaleAttempt);
        }
        if **owner != *holder.owner.as_str() {
            return Err(ReportRefused::OwnerMismatch {
                owner: WorkerId::from(&**owner),
            });
        }
    }
    if *cancellation.context.request_id != *request_id {
        return Err(ReportRefused::StaleAttempt);
    }
    Ok(())
}
