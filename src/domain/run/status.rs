//! The words for where a run stands: its status, and why it closed.

use serde::{Deserialize, Serialize};

/// Status of a run, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// No workflow task has been completed yet.
    Pending,
    /// A workflow task is open.
    Running,
    /// The run waits for something.
    Waiting,
    /// Closed by its own return, or continued as another run.
    Completed,
    /// Closed by its own failure or by a deadline.
    Failed,
    /// Closed by a cancel.
    Cancelled,
    /// Closed by a terminate.
    Terminated,
}

impl Status {
    /// Every status, in the order of its stored number.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Running,
        Self::Waiting,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Terminated,
    ];

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Terminated => "terminated",
        }
    }

    /// `running`, `completed` or `failed`.
    pub fn bucket(self) -> &'static str {
        match self {
            Self::Pending | Self::Running | Self::Waiting => "running",
            Self::Completed => "completed",
            Self::Failed | Self::Cancelled | Self::Terminated => "failed",
        }
    }

    /// The run is closed.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Pending | Self::Running | Self::Waiting)
    }

    /// The number it is stored as.
    pub fn number(self) -> i16 {
        match self {
            Self::Pending => 0,
            Self::Running => 1,
            Self::Waiting => 2,
            Self::Completed => 3,
            Self::Failed => 4,
            Self::Cancelled => 5,
            Self::Terminated => 6,
        }
    }

    /// The status that is stored as `number`.
    pub fn from_number(number: i16) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// Why a run is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// It returned.
    Completed,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It was terminated.
    Terminated,
    /// It continued as another run.
    Continued,
    /// Its deadline passed.
    TimedOut,
}

impl CloseReason {
    /// The word on the wire, `closed_reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Terminated => "terminated",
            Self::Continued => "continued",
            Self::TimedOut => "timed_out",
        }
    }

    /// The status of a run that closed for this reason.
    pub fn status(self) -> Status {
        match self {
            Self::Completed | Self::Continued => Status::Completed,
            Self::Failed | Self::TimedOut => Status::Failed,
            Self::Cancelled => Status::Cancelled,
            Self::Terminated => Status::Terminated,
        }
    }
}
