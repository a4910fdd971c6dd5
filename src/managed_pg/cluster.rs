//! The folder of a private server: made, reached, locked, filled by `initdb`, and set aside.
//!
//! Contents: `data/`, `sock/` (or `sock.path`), `postgres.log`, `supervisor.lock`, for a while
//! `data.new/`, and after a reset `data.old-…/`.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::locate::Programs;
use super::lock::Lock;
use super::log::Log;
use super::owner::{self, RunAs};
use super::process::{self, Process};
use super::{Durability, Error, survivors};

/// How long orphans of an earlier server may take to go away: as long as a stop may take.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(20);

/// The folder of a private server, locked by us.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    run_as: RunAs,
    _lock: Lock,
}

impl Folder {
    /// Makes `dir` if necessary, takes its lock, and waits for orphans to leave it.
    ///
    /// `probe` are any programs at hand: running one of them as the other user is the only way
    /// to learn what that user can reach, access control lists and mount options included.
    pub(super) fn open(dir: &Path, run_as: RunAs, probe: &Programs) -> Result<Folder, Error> {
        let dir = std::path::absolute(dir).map_err(|source| Error::io("find", dir, source))?;
        let run_as = run_as.or_owner_of(&dir.join("data"));
        if let RunAs::User { name, uid, gid } = &run_as {
            check_reach(&dir, &run_as, (name, *uid, *gid), probe)?;
        }
        make_folders(&dir, run_as.parent_mode())?;
        let dir = fs::canonicalize(&dir).map_err(|source| Error::io("find", &dir, source))?;
        let lock = Lock::take(&dir)?;
        let folder = Folder {
            dir,
            run_as,
            _lock: lock,
        };
        survivors::wait_until_gone(&folder.data(), ORPHAN_PATIENCE)?;
        survivors::wait_until_gone(&folder.unfinished(), ORPHAN_PATIENCE)?;
        Ok(folder)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn run_as(&self) -> &RunAs {
        &self.run_as
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn unfinished(&self) -> PathBuf {
        self.dir.join("data.new")
    }

    /// Major version that made the data, `None` if there is none yet.
    pub(super) fn major(&self) -> Result<Option<u32>, Error> {
        let data = self.data();
        if fs::symlink_metadata(&data).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        fs::read_to_string(data.join("PG_VERSION"))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .map(Some)
            .ok_or(Error::NotACluster { path: data })
    }

    /// Fills `data/` by `initdb`.
    ///
    /// It works in `data.new/`, renamed when all of it is on disk, so that an interrupted run is
    /// never taken for a cluster; what such a run left behind is removed here.
    pub(super) fn init(
        &self,
        programs: &Programs,
        durability: Durability,
        log: &Log,
    ) -> Result<(), Error> {
        let new = self.unfinished();
        match fs::remove_dir_all(&new) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &new, source));
            }
            _ => {}
        }
        self.run_as.own_folder(&new)?;
        let mut initdb = process::command(&programs.initdb(), &self.run_as);
        initdb
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8"])
            .args(["--locale=C.UTF-8", "--data-checksums", "--no-instructions"])
            .arg("-D")
            .arg(&new)
            .stdout(log.stdio()?)
            .stderr(log.stdio()?);
        if durability == Durability::TestOnly {
            initdb.arg("--no-sync");
        }
        let status = Process::spawn(initdb)
            .and_then(|mut running| running.wait())
            .map_err(|source| Error::io("run", &programs.initdb(), source))?;
        if !status.success() {
            return Err(Error::InitFailed {
                status,
                log: log.path().to_path_buf(),
                tail: log.tail(),
            });
        }
        fs::rename(&new, self.data())
            .and_then(|()| File::open(&self.dir)?.sync_all())
            .map_err(|source| Error::io("rename", &new, source))
    }
}

/// Moves the data of the private server in `dir` aside, so that the next start makes new data.
///
/// Returns where the old data is now, `None` if there was none. Nothing is deleted.
///
/// # Errors
///
/// [`Error::AlreadyRunning`] or [`Error::LeftRunning`] while a server uses it, [`Error::Io`] if
/// the operating system refuses.
pub fn reset(dir: &Path) -> Result<Option<PathBuf>, Error> {
    let Ok(dir) = fs::canonicalize(dir) else {
        return Ok(None);
    };
    let _lock = Lock::take(&dir)?;
    let data = dir.join("data");
    survivors::wait_until_gone(&data, ORPHAN_PATIENCE)?;
    let old = unused_name(&dir);
    match fs::rename(&data, &old) {
        Ok(()) => Ok(Some(old)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::io("move aside", &data, source)),
    }
}

fn unused_name(dir: &Path) -> PathBuf {
    let stamp = chrono::Utc::now().format("%Y%m%dT%H%M%SZ").to_string();
    let mut name = dir.join(format!("data.old-{stamp}"));
    let mut count = 1;
    while name.exists() {
        count += 1;
        name = dir.join(format!("data.old-{stamp}-{count}"));
    }
    name
}

/// Makes `dir` and the folders missing above it, with exactly `mode` whatever the umask is.
pub(super) fn make_folders(dir: &Path, mode: u32) -> Result<(), Error> {
    let mut missing: Vec<&Path> = dir
        .ancestors()
        .take_while(|place| !place.exists())
        .collect();
    while let Some(place) = missing.pop() {
        let made = DirBuilder::new()
            .mode(mode)
            .create(place)
            .and_then(|()| fs::set_permissions(place, Permissions::from_mode(mode)));
        match made {
            // Somebody else was faster, and the folder is theirs.
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create", place, source));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Fails if the other user cannot run the programs or cannot enter the place where `dir` is or
/// will be. Checked before anything is made, so that a refusal leaves nothing behind.
fn check_reach(
    dir: &Path,
    run_as: &RunAs,
    (user, uid, gid): (&str, u32, u32),
    probe: &Programs,
) -> Result<(), Error> {
    let run_in = |place: &Path| {
        process::command(&probe.postgres(), run_as)
            .arg("--version")
            .current_dir(place)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
    };
    run_in(Path::new("/")).map_err(|source| Error::ProgramsUnreachable {
        user: user.to_owned(),
        bin_dir: probe.bin_dir.clone(),
        source,
    })?;
    let Some(existing) = dir.ancestors().find(|place| place.exists()) else {
        return Ok(());
    };
    match run_in(existing) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let (blocked_at, mode) = owner::blocked_at(existing, uid, gid)
                .unwrap_or_else(|| (existing.to_path_buf(), 0));
            Err(Error::Unreachable {
                user: user.to_owned(),
                path: dir.to_path_buf(),
                blocked_at,
                mode,
            })
        }
        Err(source) => Err(Error::io("enter", existing, source)),
    }
}
