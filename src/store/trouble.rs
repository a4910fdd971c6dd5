//! What a failed statement means for its connection and for another try, and whether storage refuses
//! writes.

/// Why a statement failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The connection is gone, so that nobody knows what became of the statement.
    Connection,
    /// It may succeed at another time.
    Crowd,
    /// It will never succeed.
    Statement,
}

/// Why the database takes no writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Its disk is full.
    Full,
    /// It only reads: a standby, or fenced by an operator.
    ReadOnly,
}

impl Closed {
    /// Whether a statement failed for this, and wrote nothing.
    pub fn of(error: &sqlx::Error) -> Option<Self> {
        let sqlx::Error::Database(database) = error else {
            return None;
        };
        match database.code().as_deref() {
            Some("53100") => Some(Self::Full),
            Some("25006") => Some(Self::ReadOnly),
            _ => None,
        }
    }
}

impl Trouble {
    pub fn of(error: &sqlx::Error) -> Self {
        let sqlx::Error::Database(database) = error else {
            return Self::Connection;
        };
        let code = database.code().unwrap_or_default();
        let is = |classes: &[&str]| classes.iter().any(|class| code.starts_with(class));
        if is(&["57P", "08"]) {
            // admin_shutdown, crash_shutdown, a pooler that lost its server.
            Self::Connection
        } else if is(&["40", "53", "55P03", "57014", "25006", "58"]) {
            // Deadlock, out of memory or disk, lock or statement timeout, a server that only reads.
            Self::Crowd
        } else {
            Self::Statement
        }
    }
}
