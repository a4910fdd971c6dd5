//! The private PostgreSQL that `leasehold dev` and the tests start for themselves.
//!
//! Owns: finding the programs, the data folder, the child process, its end. Does not know what
//! is stored in it: databases, schema and pools belong to the store. `serve` never comes here.
//!
//! Everything is synchronous and may block for seconds, so async code calls it before its
//! runtime starts or through a blocking task. Linux only: the child's life is tied to ours by
//! the kernel's parent-death signal.

mod cluster;
mod error;
mod install;
mod locate;
mod lock;
mod log;
mod owner;
mod process;
mod ready;
mod socket;
mod survivors;
pub mod testing;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};

pub use cluster::reset;
pub use error::Error;
pub use install::install_with_apt;

use cluster::Folder;
use log::Log;
use process::{Process, Stopped};

/// The database superuser, and with it the name of the database that always exists.
const SUPERUSER: &str = "postgres";

/// How long a silent start may take.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// How long an orderly shutdown may take.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// What is promised about committed data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Committed data survives any crash.
    Durable,
    /// Committed data survives a crash of the server, and may be lost or damaged with the
    /// machine: `fsync`, `synchronous_commit` and `full_page_writes` are off.
    TestOnly,
}

/// Where and how a private server runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder for everything the private server keeps; made if missing. See [`default_dir`].
    pub dir: PathBuf,
    /// Folder with `initdb` and `postgres`; `None` means to look in the usual places.
    pub bin_dir: Option<PathBuf>,
    /// What is promised about committed data.
    pub durability: Durability,
    /// Number of connections that the server accepts at the same time.
    pub max_connections: u16,
}

/// A running private server.
///
/// While the value lives, nobody else can start a server on the same folder. The server stops
/// when the value is dropped (best effort, up to a few seconds), and also when this process
/// ends in any way, SIGKILL included.
#[derive(Debug)]
pub struct Cluster {
    // Dropped first: the lock in `folder` must outlive the server.
    process: Process,
    folder: Folder,
    socket_dir: PathBuf,
    log_path: PathBuf,
}

impl Cluster {
    /// Starts the private server of `settings.dir`, making its data first if there is none, and
    /// returns when it accepts connections.
    ///
    /// May be called from any thread; the thread may end before the server does. After the
    /// server died, drop this value and start again: recovery is PostgreSQL's own, and the
    /// socket stays where it was, so existing pools reconnect.
    ///
    /// # Errors
    ///
    /// Any [`Error`] but those about stopping; [`Error::ProgramsNotFound`] is the one to offer
    /// [`install_with_apt`] for.
    pub fn start(settings: &Settings) -> Result<Cluster, Error> {
        let run_as = owner::RunAs::choose()?;
        let candidates = locate::Search {
            named: settings.bin_dir.as_deref(),
            root: Path::new(locate::DEBIAN_ROOT),
            path: &env::var_os("PATH").unwrap_or_default(),
        }
        .candidates()?;
        let folder = Folder::open(&settings.dir, run_as, &candidates[0])?;
        let major = folder.major()?;
        let programs = locate::select(&candidates, &folder.data(), major)?;
        let log = Log::open(folder.dir())?;
        if major.is_none() {
            folder.init(&programs, settings.durability, &log)?;
        }
        let socket_dir = socket::prepare(folder.dir(), folder.run_as())?;

        let mut postgres = process::command(&programs.postgres(), folder.run_as());
        postgres
            .arg("-D")
            .arg(folder.data())
            .args(server_options(settings, &socket_dir))
            .stdout(log.stdio()?)
            .stderr(log.stdio()?);
        let mut process = Process::spawn(postgres)
            .map_err(|source| Error::io("run", &programs.postgres(), source))?;
        ready::wait(&mut process, &folder.data(), &log, START_PATIENCE)?;
        Ok(Cluster {
            process,
            folder,
            socket_dir,
            log_path: log.path().to_path_buf(),
        })
    }

    /// Options for connecting to `database` as the superuser, through the socket. Nothing but
    /// `PGAPPNAME` and `PGOPTIONS` of our environment has an influence on them.
    pub fn connect_options(&self, database: &str) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .socket(&self.socket_dir)
            .port(socket::PORT)
            .username(SUPERUSER)
            .database(database)
            .ssl_mode(PgSslMode::Disable)
    }

    /// The connection as a URL, in the form that both libpq and sqlx understand.
    pub fn url(&self, database: &str) -> String {
        format!(
            "postgres://{SUPERUSER}@localhost:{}/{}?host={}",
            socket::PORT,
            percent_encoded(database),
            percent_encoded(&self.socket_dir.to_string_lossy())
        )
    }

    /// A shell command that opens a terminal session on the server.
    pub fn psql_command(&self) -> String {
        let folder = self.socket_dir.to_string_lossy();
        format!("psql -h {} -U {SUPERUSER}", shell_quoted(&folder))
    }

    /// Process id of the server.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The folder that the server keeps everything in: absolute, without symbolic links.
    pub fn dir(&self) -> &Path {
        self.folder.dir()
    }

    /// The file that the server logs to.
    pub fn log_path(&self) -> &Path {
        &self.log_path
    }

    /// How the server ended, `None` while it runs. Never waits, so that a supervisor can ask on
    /// a timer; [`Error::Died`] has the words for it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the operating system cannot tell.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.process
            .exit_status()
            .map_err(|source| Error::io("watch", self.folder.dir(), source))
    }

    /// Stops the server in order: open transactions are rolled back, a checkpoint is written.
    /// Blocks until it is gone, normally well below a second and 30 seconds at most.
    ///
    /// # Errors
    ///
    /// [`Error::Died`] if it had ended by itself before, [`Error::ForcedStop`] if 20 seconds
    /// were not enough and it was stopped the hard way.
    pub fn stop(mut self) -> Result<(), Error> {
        if let Some(status) = self.exit_status()? {
            return Err(Error::Died {
                status,
                log: self.log_path,
            });
        }
        let stopped = self
            .process
            .stop(STOP_PATIENCE)
            .map_err(|source| Error::io("stop", self.folder.dir(), source))?;
        socket::remove_short(self.folder.dir());
        match stopped {
            Stopped::InOrder => Ok(()),
            Stopped::Forced => Err(Error::ForcedStop {
                seconds: STOP_PATIENCE.as_secs(),
                log: self.log_path,
            }),
        }
    }
}

/// The folder of `leasehold dev` when none is named: `/var/lib/leasehold/dev` for root, else
/// `leasehold/dev` below `$XDG_STATE_HOME` or `~/.local/state`.
pub fn default_dir() -> PathBuf {
    default_dir_for(
        rustix::process::geteuid().is_root(),
        env::var_os("XDG_STATE_HOME"),
        env::var_os("HOME").or_else(|| owner::home().map(PathBuf::into_os_string)),
    )
}

fn default_dir_for(is_root: bool, state: Option<OsString>, home: Option<OsString>) -> PathBuf {
    // Relative values are invalid by the XDG rules; not even root's own home will do for root,
    // because the user that PostgreSQL runs as cannot enter it.
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    let state = if is_root {
        None
    } else {
        state
            .and_then(absolute)
            .or_else(|| Some(home.and_then(absolute)?.join(".local/state")))
    };
    state
        .unwrap_or_else(|| PathBuf::from("/var/lib"))
        .join("leasehold/dev")
}

/// What is set on the command line wins over `postgresql.conf`.
fn server_options(settings: &Settings, socket_dir: &Path) -> Vec<OsString> {
    let off_for_tests = match settings.durability {
        Durability::Durable => "on",
        Durability::TestOnly => "off",
    };
    let mut options = vec!["-k".into(), quoted_list_item(socket_dir)];
    for (name, value) in [
        // No TCP: no clash of ports, no password, the folder's mode is the protection.
        ("listen_addresses", ""),
        ("port", &socket::PORT.to_string()),
        ("unix_socket_permissions", "0700"),
        ("max_connections", &settings.max_connections.to_string()),
        ("fsync", off_for_tests),
        ("synchronous_commit", off_for_tests),
        ("full_page_writes", off_for_tests),
    ] {
        options.push("-c".into());
        options.push(format!("{name}={value}").into());
    }
    options
}

/// The option is a list: unquoted, a comma in the path would make two folders of it.
fn quoted_list_item(path: &Path) -> OsString {
    format!("\"{}\"", path.to_string_lossy().replace('"', "\"\"")).into()
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests;
