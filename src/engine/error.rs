//! What can go wrong that is nobody's fault but ours or the database's.

use crate::store::trouble::Closed;

/// A failure of the server side. The caller may try again, except after [`Fault::Bug`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Too much waits in front of the database; nothing was written.
    #[error("the server is busy")]
    Busy,
    /// The database has no room; nothing was written.
    #[error("storage is full")]
    Full,
    /// The database only reads; nothing was written.
    #[error("storage takes no writes")]
    ReadOnly,
    /// Others kept changing the same run; nothing was written.
    #[error("the run is contended")]
    Contended,
    /// The database is out of reach; nothing was written.
    #[error("the database is out of reach")]
    Unavailable,
    /// The connection broke during a write: it may or may not be durable.
    #[error("the outcome of the write is unknown")]
    Unknown,
    /// A defect; the log has the cause.
    #[error("internal error")]
    Bug,
}

impl From<Closed> for Fault {
    fn from(closed: Closed) -> Self {
        match closed {
            Closed::Full => Self::Full,
            Closed::ReadOnly => Self::ReadOnly,
        }
    }
}

/// Codes of statements that gave way to others and wrote nothing: serialization and deadlock, lock
/// timeout, statement timeout.
const CONTENTION: [&str; 3] = ["40", "55P03", "57014"];

impl From<sqlx::Error> for Fault {
    /// A statement failed. Decoding failures are defects, giving way to others is pressure, everything
    /// else is the database being away.
    fn from(error: sqlx::Error) -> Self {
        if let Some(closed) = Closed::of(&error) {
            tracing::warn!(error = %error, "store: no writes");
            return closed.into();
        }
        match &error {
            sqlx::Error::Decode(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::TypeNotFound { .. } => {
                tracing::error!(error = %error, "store: stored data cannot be read");
                Self::Bug
            }
            sqlx::Error::Database(database)
                if database.code().is_some_and(|code| {
                    // Syntax, data and constraint errors cannot be cured by trying again.
                    ["42", "22", "23"]
                        .iter()
                        .any(|class| code.starts_with(class))
                }) =>
            {
                tracing::error!(error = %error, "store: statement refused");
                Self::Bug
            }
            sqlx::Error::Database(database)
                if database
                    .code()
                    .is_some_and(|code| CONTENTION.iter().any(|known| code.starts_with(known))) =>
            {
                tracing::warn!(error = %error, "store: statement gave way");
                Self::Busy
            }
            _ => {
                tracing::warn!(error = %error, "store: database out of reach");
                Self::Unavailable
            }
        }
    }
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        tracing::error!(error = %error, "history cannot be read or written as JSON");
        Self::Bug
    }
}

/// Why an input to a run had no effect.
#[derive(Clone, Debug)]
pub enum ApplyError {
    /// There is no such run.
    NoSuchRun,
    /// The run refused it.
    Refused(crate::domain::run::Refusal),
    /// The run would have taken it, but a lease or a key that it relied on is not as claimed.
    FenceLost,
    /// The server could not.
    Fault(Fault),
}

impl From<Fault> for ApplyError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}
