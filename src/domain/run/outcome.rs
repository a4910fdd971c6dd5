//! What comes of an input: a decision to write, an answer without one, or a refusal.

use std::sync::Arc;

use super::super::event::Delivery;
use super::super::ids::{RunId, TaskNo};
use super::super::limits::LimitKind;
use super::super::time::Timestamp;
use super::decision::Decision;
use super::fact::{Receipt, ReportKind};
use super::state::Close;

/// What comes of an input that is not refused.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Write this, then answer.
    Commit(Box<Decision>, Reply),
    /// Answer at once; nothing changes.
    Answer(Reply),
}

/// What the caller is told.
#[derive(Clone, Debug)]
pub enum Reply {
    /// There is nothing to tell.
    Done,
    /// A report was recorded.
    Reported {
        /// What was reported.
        report: ReportKind,
        /// Tasks that it opened.
        created: Vec<TaskNo>,
        /// The task that carries on.
        next: Option<TaskNo>,
        /// It had been recorded before, and this is the first answer again.
        duplicate: bool,
    },
    /// The run was closed under the reporting worker, whose fence was live then; nothing recorded.
    ClosedMeanwhile(Arc<Close>),
    /// The run has ended by itself, and the activity's outcome no longer matters.
    TooLate(Arc<Close>),
    /// The run's deadline passed before the report; the run was timed out instead.
    TimedOutInstead,
    /// A run was started.
    Started,
    /// A signal was accepted.
    SignalAccepted {
        /// Number of the command.
        command: u64,
    },
    /// An update was accepted, or its rejection recorded.
    UpdateAccepted {
        /// Number of the command.
        command: u64,
        /// The update.
        id: Arc<str>,
    },
    /// The workflow task was made ready, if that was needed.
    Repaired {
        /// Number of the command; none when nothing was needed.
        command: Option<u64>,
    },
    /// A cancellation was asked for.
    CancellationRequested {
        /// It had been asked for before.
        duplicate: bool,
    },
    /// A cancellation was delivered, now or before.
    CancellationDelivered,
    /// A cancellation waits for the end of what it interrupts; the task was given back.
    CancellationWaits(&'static str),
    /// A cancelled activity is known to have stopped.
    StopAcknowledged {
        /// It had been known before.
        duplicate: bool,
        /// Since when.
        at: Timestamp,
    },
    /// A message of a stream was accepted.
    MessageTaken {
        /// Its place in the stream.
        position: u64,
    },
    /// The run was closed by a command.
    Closed {
        /// Number of the command.
        command: u64,
    },
    /// The run was archived, or had been.
    Archived {
        /// Number of the command; none when it had been archived before.
        command: Option<u64>,
    },
}

impl Reply {
    /// The first answer to a report, for a repeat of it.
    pub(super) fn again(receipt: &Receipt) -> Self {
        Self::Reported {
            report: receipt.report,
            created: receipt.created.clone(),
            next: receipt.next,
            duplicate: true,
        }
    }
}

/// Why nothing happens.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// The run never made this task.
    UnknownTask,
    /// The task is not the run's open workflow task.
    TaskNotOpen,
    /// Another report was recorded under this fence.
    AlreadyReported(Arc<Receipt>),
    /// The run is closed, and the fence was not live at the close.
    RunClosed(Arc<Close>),
    /// The run timed out under this fence.
    RunTimedOut(Arc<Close>),
    /// The activity attempt is no longer the current one.
    StaleAttempt,
    /// The commands contradict the history or each other.
    InvalidCommands(String),
    /// The entries of a memo cannot be merged.
    InvalidMemo(String),
    /// No cancellation of this id was asked for.
    NoSuchCancellation,
    /// The cancellation was delivered at another call.
    OtherDelivery(Delivery),
    /// A worker that does not know of cancellations holds the workflow task.
    ClaimCannotCooperate {
        /// The task.
        no: TaskNo,
        /// The hand-out.
        attempt: u32,
    },
    /// What a completion says about message streams is not so.
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
    /// The run takes no more commands.
    NotActive(Arc<Close>),
    /// Only a closed run can be archived.
    NotClosed,
    /// The caller named a run that another one has replaced.
    NotCurrent(RunId),
    /// The decision depends on who holds the workflow task: look that up and ask again.
    LeaseNeeded,
    /// What was to be done is done already, or no longer needed.
    NothingToDo,
}
