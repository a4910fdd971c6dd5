//! One private server for each test process, and folders for tests that need more of their own.
//!
//! Knows nothing of migrations: whoever wants a migrated database makes it through
//! [`TestCluster::admin_options`].

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use sqlx::postgres::PgConnectOptions;

use super::lock::Lock;
use super::owner::RunAs;
use super::{Cluster, Durability, Error, Settings, cluster, socket, survivors};

/// Enough for many tests at once, each with a pool of its own.
const MAX_CONNECTIONS: u16 = 300;

/// Sub-folder of the process's folder for [`scratch_dir`].
const SCRATCH: &str = "scratch";

/// The server that the tests of this process share.
#[derive(Debug)]
pub struct TestCluster {
    server: Server,
}

#[derive(Debug)]
enum Server {
    /// The one that `TEST_DATABASE_URL` names; it is not ours.
    External(Box<PgConnectOptions>),
    Private(Box<Cluster>),
}

impl TestCluster {
    /// The server of this process, started at the first call and stopped when the process ends.
    ///
    /// With `TEST_DATABASE_URL` set that server is used and none is started; its user needs
    /// CREATEDB. `DW_POSTGRES_BIN` names the programs as for `dev`.
    ///
    /// # Errors
    ///
    /// As [`Cluster::start`]. A failure is final: later calls return the same error instead of
    /// letting every test wait for another try.
    pub fn shared() -> Result<&'static TestCluster, &'static Error> {
        static SHARED: OnceLock<Result<TestCluster, Error>> = OnceLock::new();
        SHARED.get_or_init(TestCluster::start).as_ref()
    }

    fn start() -> Result<TestCluster, Error> {
        if let Some(url) = setting("TEST_DATABASE_URL") {
            let options = url.parse().map_err(|source| Error::BadTestUrl { source })?;
            return Ok(TestCluster {
                server: Server::External(Box::new(options)),
            });
        }
        let cluster = Cluster::start(&Settings {
            dir: process_dir()?,
            bin_dir: setting("DW_POSTGRES_BIN").map(PathBuf::from),
            durability: Durability::TestOnly,
            max_connections: MAX_CONNECTIONS,
        })?;
        Ok(TestCluster {
            server: Server::Private(Box::new(cluster)),
        })
    }

    /// Options for a connection that may create and drop databases.
    pub fn admin_options(&self) -> PgConnectOptions {
        match &self.server {
            Server::External(options) => (**options).clone(),
            Server::Private(cluster) => cluster.connect_options("postgres"),
        }
    }

    /// A shell command that opens a terminal session on the server while the tests run; `None`
    /// for a server that is not ours.
    pub fn psql_command(&self) -> Option<String> {
        match &self.server {
            Server::External(_) => None,
            Server::Private(cluster) => Some(cluster.psql_command()),
        }
    }
}

/// Makes an empty folder for one test of this process and returns its path. `name` must be
/// unique in the process. The folder is removed by a later test run, once this process is dead.
///
/// # Errors
///
/// [`Error::Io`] if it cannot be made or exists already, [`Error::ForeignFolder`] if somebody
/// else occupies the place above it.
pub fn scratch_dir(name: &str) -> Result<PathBuf, Error> {
    let parent = process_dir()?.join(SCRATCH);
    let mode = RunAs::choose()?.parent_mode();
    cluster::make_folders(&parent, mode)?;
    let dir = parent.join(name);
    if dir.exists() {
        return Err(Error::io(
            "create",
            &dir,
            io::ErrorKind::AlreadyExists.into(),
        ));
    }
    cluster::make_folders(&dir, mode)?;
    Ok(dir)
}

/// The folder of this process, made at the first call after those of dead processes are removed.
fn process_dir() -> Result<PathBuf, Error> {
    static DIR: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut known = DIR.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(dir) = &*known {
        return Ok(dir.clone());
    }
    let base = base_dir(&env::temp_dir(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let dir = prepare(&base, std::process::id())?;
    *known = Some(dir.clone());
    Ok(dir)
}

/// One folder for each user and checkout, so that a run cleans up after its predecessors only.
fn base_dir(temp: &Path, checkout: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    checkout.hash(&mut hasher);
    let uid = rustix::process::geteuid().as_raw();
    temp.join(format!("dw-test-{uid}-{:016x}", hasher.finish()))
}

fn prepare(base: &Path, pid: u32) -> Result<PathBuf, Error> {
    let mode = RunAs::choose()?.parent_mode();
    cluster::make_folders(base, mode)?;
    // The name can be guessed and everybody may write to the folder above.
    let found = fs::symlink_metadata(base).map_err(|source| Error::io("find", base, source))?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::ForeignFolder {
            path: base.to_path_buf(),
        });
    }
    let base = fs::canonicalize(base).map_err(|source| Error::io("find", base, source))?;
    remove_stale(&base, pid);
    let dir = base.join(pid.to_string());
    cluster::make_folders(&dir, mode)?;
    Ok(dir)
}

/// Removes the folders of dead processes, and one that an earlier process with our own id left;
/// best effort, since another run may be doing the same.
fn remove_stale(base: &Path, own_pid: u32) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let dir = entry.path();
        // The lock covers what the process id does not: a process of another container.
        let unused = (pid == own_pid || !is_alive(pid))
            && Lock::is_free(&dir)
            && survivors::find(&dir).is_none();
        if unused {
            remove_short_sockets(&dir);
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

fn remove_short_sockets(dir: &Path) {
    socket::remove_short(dir);
    for entry in fs::read_dir(dir.join(SCRATCH))
        .into_iter()
        .flatten()
        .flatten()
    {
        socket::remove_short(&entry.path());
    }
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;

    /// Process ids go up to four million; this one never exists.
    const DEAD: u32 = 999_999_999;

    #[test]
    fn folders_of_dead_processes_go_and_others_stay() {
        let base = scratch_dir("testing-stale").unwrap();
        let alive = std::os::unix::process::parent_id();
        for name in [DEAD.to_string(), alive.to_string(), "notes".to_owned()] {
            fs::create_dir_all(base.join(name).join("data")).unwrap();
        }
        let own = prepare(&base, std::process::id()).unwrap();
        assert!(own.is_dir());
        assert!(!base.join(DEAD.to_string()).exists());
        assert!(base.join(alive.to_string()).join("data").exists());
        assert!(base.join("notes").exists());
    }

    #[test]
    fn a_locked_folder_stays_whatever_its_process_id_says() {
        let base = scratch_dir("testing-locked").unwrap();
        let locked = base.join(DEAD.to_string());
        fs::create_dir(&locked).unwrap();
        let lock = Lock::take(&locked).unwrap();
        remove_stale(&base, std::process::id());
        assert!(locked.exists());
        drop(lock);
        remove_stale(&base, std::process::id());
        assert!(!locked.exists());
    }

    #[test]
    fn a_folder_that_is_not_ours_is_refused() {
        let place = scratch_dir("testing-foreign").unwrap();
        let target = place.join("target");
        fs::create_dir(&target).unwrap();
        let link = place.join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(matches!(
            prepare(&link, 1),
            Err(Error::ForeignFolder { .. })
        ));
    }

    #[test]
    fn each_checkout_has_its_own_place() {
        let temp = Path::new("/t");
        let first = base_dir(temp, Path::new("/a"));
        assert_ne!(first, base_dir(temp, Path::new("/b")));
        assert!(first.to_str().unwrap().starts_with("/t/dw-test-"));
    }
}
