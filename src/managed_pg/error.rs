//! Everything that can go wrong with the private server, in the words an operator reads.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Why the private PostgreSQL could not be found, prepared, started, kept or stopped.
///
/// The text of each variant says what happened, why, and what to do next; a caller prints it
/// as it is. The flags named in the texts are those of the `dev` sub-command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither the named folder nor the usual places hold `initdb` and `postgres`.
    #[error(
        "PostgreSQL server programs not found (looked in {looked_in}).\n\
         On Debian or Ubuntu run `{INSTALL}`, or run again with `--install-postgres`.\n\
         Or set DATABASE_URL to a server that you run, or DW_POSTGRES_BIN to a folder \
         with initdb and postgres."
    )]
    ProgramsNotFound {
        /// The places looked in, separated by commas.
        looked_in: String,
    },

    /// Programs were found, all of them older than the oldest supported major version.
    #[error(
        "PostgreSQL {found} in {bin_dir} is too old; {oldest} or newer is needed.\n\
         Install a newer one, or set DATABASE_URL to a server that you run."
    )]
    TooOld {
        /// Newest major version found.
        found: u32,
        /// Where it was found.
        bin_dir: PathBuf,
        /// Oldest supported major version.
        oldest: u32,
    },

    /// Effective user 0, and no user to switch to.
    #[error(
        "Running as root, and neither the user `postgres` nor `nobody` exists; \
         PostgreSQL refuses to run as root.\n\
         Start as another user, or set DATABASE_URL."
    )]
    NoUnprivilegedUser,

    /// The user that PostgreSQL runs as cannot enter the data folder.
    #[error(
        "User `{user}` cannot reach {path} (mode {mode:o} on {blocked_at}).\n\
         Choose another place with `--data-dir`."
    )]
    Unreachable {
        /// Name of the user that PostgreSQL runs as.
        user: String,
        /// The folder that was asked for.
        path: PathBuf,
        /// The folder on the way to it that cannot be entered.
        blocked_at: PathBuf,
        /// Permission bits of `blocked_at`.
        mode: u32,
    },

    /// The user that PostgreSQL runs as cannot execute the programs.
    #[error(
        "User `{user}` cannot run the programs in {bin_dir}: {source}.\n\
         Set DW_POSTGRES_BIN to a folder that every user can reach."
    )]
    ProgramsUnreachable {
        /// Name of the user that PostgreSQL runs as.
        user: String,
        /// The folder with the programs.
        bin_dir: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },

    /// Another process holds the lock of this folder.
    #[error(
        "Another server{} uses the private database in {dir}.\n\
         Stop it, or choose another `--data-dir`.",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    AlreadyRunning {
        /// Process that wrote itself into the lock file; `None` if it had not done so yet.
        pid: Option<u32>,
        /// The private server's folder.
        dir: PathBuf,
    },

    /// Nobody holds the lock, yet PostgreSQL processes still work on the data.
    #[error(
        "PostgreSQL (pid {pid}) still runs on {dir}, left over from an earlier server.\n\
         Stop it, or choose another `--data-dir`."
    )]
    LeftRunning {
        /// One of the processes.
        pid: u32,
        /// The folder they work in.
        dir: PathBuf,
    },

    /// The data folder was made by a major version that is not installed.
    #[error(
        "The data folder {dir} was made by PostgreSQL {data}; installed: {installed}.\n\
         Install {data}, or start fresh with `dev --reset` (keeps the old folder)."
    )]
    VersionMismatch {
        /// The data folder.
        dir: PathBuf,
        /// Major version that made it.
        data: u32,
        /// Installed major versions, separated by commas.
        installed: String,
    },

    /// A folder named `data` is there, and PostgreSQL did not make it.
    #[error(
        "{path} exists and is not a PostgreSQL data folder (it has no readable PG_VERSION).\n\
         Move it away, or choose another `--data-dir`."
    )]
    NotACluster {
        /// The folder in the way.
        path: PathBuf,
    },

    /// `initdb` failed.
    #[error("initdb failed ({}). Last lines of {log}:\n{tail}", exit_text(*status))]
    InitFailed {
        /// How `initdb` ended.
        status: ExitStatus,
        /// The log file.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },

    /// The server ended before it accepted connections.
    #[error(
        "PostgreSQL stopped while starting ({}). Last lines of {log}:\n{tail}",
        exit_text(*status)
    )]
    StoppedWhileStarting {
        /// How it ended.
        status: ExitStatus,
        /// The log file.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },

    /// The server neither accepted connections nor wrote to its log for too long.
    #[error(
        "PostgreSQL was not ready after {seconds} s without a word in its log. \
         Last lines of {log}:\n{tail}"
    )]
    NotReady {
        /// Seconds since the log last moved.
        seconds: u64,
        /// The log file.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },

    /// The server ended although nobody asked it to.
    #[error("The private postgres died: {}. Its log is {log}", exit_text(*status))]
    Died {
        /// How it ended.
        status: ExitStatus,
        /// The log file.
        log: PathBuf,
    },

    /// The server had to be stopped the hard way; its next start will run recovery.
    #[error(
        "The private postgres did not shut down within {seconds} s and was stopped at once; \
         committed data is safe, the next start recovers it. Its log is {log}"
    )]
    ForcedStop {
        /// Seconds that were allowed for an orderly shutdown.
        seconds: u64,
        /// The log file.
        log: PathBuf,
    },

    /// The programs could not be installed by this process.
    #[error("Cannot install PostgreSQL: {reason}.\nRun this as root: {INSTALL}")]
    CannotInstall {
        /// What stood in the way.
        reason: String,
    },

    /// A folder with a predictable name belongs to somebody else.
    #[error("{path} belongs to another user.\nRemove it, or point TMPDIR to a folder of your own.")]
    ForeignFolder {
        /// The folder.
        path: PathBuf,
    },

    /// `TEST_DATABASE_URL` is set and cannot be understood.
    #[error("TEST_DATABASE_URL is not a PostgreSQL URL: {source}")]
    BadTestUrl {
        /// What was wrong with it.
        source: sqlx::Error,
    },

    /// No room, or a read-only file system.
    #[error("Cannot {doing} {path}: {source} ({free_mib} MiB free there).")]
    NoSpace {
        /// What was being done, as a verb phrase.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Free space on that file system in MiB.
        free_mib: u64,
        /// What the operating system said.
        source: io::Error,
    },

    /// Any other failure of the operating system.
    #[error("Cannot {doing} {path}: {source}.")]
    Io {
        /// What was being done, as a verb phrase.
        doing: &'static str,
        /// The file, folder or program.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// The command that brings the programs onto a Debian or Ubuntu machine.
pub(super) const INSTALL: &str = "apt-get install -y --no-install-recommends postgresql";

impl Error {
    /// Puts a failed system call into words; `doing` continues "Cannot …".
    pub(super) fn io(doing: &'static str, path: &Path, source: io::Error) -> Error {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::ReadOnlyFilesystem => Error::NoSpace {
                doing,
                free_mib: free_mib(&path),
                path,
                source,
            },
            _ => Error::Io {
                doing,
                path,
                source,
            },
        }
    }
}

/// Free space for ordinary users at the nearest existing ancestor, 0 if nobody can tell.
fn free_mib(path: &Path) -> u64 {
    path.ancestors()
        .find_map(|place| rustix::fs::statvfs(place).ok())
        .map_or(0, |fs| (fs.f_bavail * fs.f_frsize) >> 20)
}

/// `signal 9` or `exit status 1`: shorter than the standard library's rendering.
fn exit_text(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_names_the_folder_and_the_free_space() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let text = Error::io("create", Path::new("/nowhere/at/all"), full).to_string();
        assert!(text.starts_with("Cannot create /nowhere/at/all"), "{text}");
        assert!(text.contains("MiB free there"), "{text}");
    }

    #[test]
    fn a_death_by_signal_is_named() {
        let text = Error::Died {
            status: ExitStatus::from_raw(9),
            log: PathBuf::from("/x/postgres.log"),
        }
        .to_string();
        assert!(
            text.contains("The private postgres died: signal 9"),
            "{text}"
        );
    }

    #[test]
    fn the_owner_is_named_when_it_is_known() {
        let dir = PathBuf::from("/x");
        let known = Error::AlreadyRunning {
            pid: Some(7),
            dir: dir.clone(),
        }
        .to_string();
        assert!(
            known.contains("Another server (pid 7) uses the private database in /x"),
            "{known}"
        );
        let unknown = Error::AlreadyRunning { pid: None, dir }.to_string();
        assert!(unknown.contains("Another server uses"), "{unknown}");
    }
}
