//! `supervisor.lock`: one owner for each private server's folder, for as long as it lives.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::Error;

/// The exclusive right to use a folder. The kernel takes it back when the process ends, however
/// it ends, so a stale file never has to be recognised.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock of `dir` and writes our process id into it; never waits.
    pub(super) fn take(dir: &Path) -> Result<Lock, Error> {
        let path = path_in(dir);
        let mut file = open(&path).map_err(|source| Error::io("open", &path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::AlreadyRunning {
                    pid: recorded_pid(&path),
                    dir: dir.to_path_buf(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path, source)),
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(|source| Error::io("write", &path, source))?;
        Ok(Lock { file })
    }

    /// Whether nobody holds the lock of `dir` at this moment.
    pub(super) fn is_free(dir: &Path) -> bool {
        match File::open(path_in(dir)) {
            Ok(file) => file.try_lock().is_ok() && file.unlock().is_ok(),
            Err(_) => true,
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone is not enough: a child that another thread is just forking holds a copy
        // of the descriptor until it execs, and the next owner would be refused meanwhile.
        let _ = self.file.unlock();
    }
}

fn path_in(dir: &Path) -> PathBuf {
    dir.join("supervisor.lock")
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(no_follow())
        .open(path)
}

/// Refuses symbolic links: as root we must not write to wherever somebody made one point.
pub(super) fn no_follow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

fn recorded_pid(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::super::testing::scratch_dir;
    use super::*;

    #[test]
    fn the_second_owner_is_refused_until_the_first_lets_go() {
        let dir = scratch_dir("lock-twice").unwrap();
        assert!(Lock::is_free(&dir));
        let first = Lock::take(&dir).unwrap();
        assert!(!Lock::is_free(&dir));
        let text = Lock::take(&dir).unwrap_err().to_string();
        assert!(
            text.contains(&format!("(pid {})", std::process::id())),
            "{text}"
        );
        drop(first);
        assert!(Lock::is_free(&dir));
        Lock::take(&dir).unwrap();
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let dir = scratch_dir("lock-link").unwrap();
        let target = dir.join("precious");
        std::os::unix::fs::symlink(&target, path_in(&dir)).unwrap();
        assert!(matches!(Lock::take(&dir), Err(Error::Io { .. })));
        assert!(!target.exists());
    }
}
