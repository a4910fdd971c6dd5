//! The operating system user that PostgreSQL runs as, because it refuses to run as root.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Error;

/// Users tried in this order when this process is root.
const CANDIDATES: [&str; 2] = ["postgres", "nobody"];

/// Who runs `initdb` and `postgres`, and therefore owns `data/` and the socket folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunAs {
    /// The user of this process, which is not root.
    Myself,
    /// Another user; this process is root and switches the child over.
    User { name: String, uid: u32, gid: u32 },
}

impl RunAs {
    /// Chooses the user of this process, or a substitute if that is root.
    pub(super) fn choose() -> Result<RunAs, Error> {
        Self::choose_from(rustix::process::geteuid().is_root(), &passwd())
    }

    fn choose_from(is_root: bool, passwd: &str) -> Result<RunAs, Error> {
        if !is_root {
            return Ok(RunAs::Myself);
        }
        CANDIDATES
            .iter()
            .find_map(|wanted| users(passwd).find(|user| user.name == *wanted && user.uid != 0))
            .map(User::into_run_as)
            .ok_or(Error::NoUnprivilegedUser)
    }

    /// Keeps to the owner of data that exists already.
    ///
    /// Otherwise data made as `nobody` would become unusable on the day that a package brings
    /// the user `postgres`, since PostgreSQL insists on owning its data folder.
    pub(super) fn or_owner_of(self, data: &Path) -> RunAs {
        let RunAs::User { uid: chosen, .. } = &self else {
            return self;
        };
        match fs::metadata(data) {
            Ok(found) if found.uid() != 0 && found.uid() != *chosen => {
                let (uid, gid) = (found.uid(), found.gid());
                let name = users(&passwd())
                    .find(|user| user.uid == uid)
                    .map_or_else(|| uid.to_string(), |user| user.name.to_owned());
                RunAs::User { name, uid, gid }
            }
            _ => self,
        }
    }

    /// The numeric user id.
    pub(super) fn uid(&self) -> u32 {
        match self {
            RunAs::Myself => rustix::process::geteuid().as_raw(),
            RunAs::User { uid, .. } => *uid,
        }
    }

    /// Mode for folders above the data: passable for the other user, closed otherwise.
    pub(super) fn parent_mode(&self) -> u32 {
        match self {
            RunAs::Myself => 0o700,
            RunAs::User { .. } => 0o755,
        }
    }

    /// Makes `command` run as this user.
    pub(super) fn apply(&self, command: &mut Command) {
        if let RunAs::User { uid, gid, .. } = self {
            // The standard library drops the supplementary groups too when root gives a uid.
            command.gid(*gid).uid(*uid);
        }
    }

    /// Makes a folder of mode 0700 that belongs to this user; an existing one is handed over.
    pub(super) fn own_folder(&self, path: &Path) -> Result<(), Error> {
        let make = || -> io::Result<()> {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            // A symbolic link would let us change the owner of something else.
            if !fs::symlink_metadata(path)?.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            if let RunAs::User { uid, gid, .. } = self {
                lchown(path, Some(*uid), Some(*gid))?;
            }
            fs::set_permissions(path, Permissions::from_mode(0o700))
        };
        make().map_err(|source| Error::io("prepare", path, source))
    }
}

/// The first folder on the way to `path` that `uid`/`gid` may not enter, with its mode.
///
/// Only words for a refusal that the kernel has already given: access control lists and
/// supplementary groups are not looked at.
pub(super) fn blocked_at(path: &Path, uid: u32, gid: u32) -> Option<(PathBuf, u32)> {
    let mut way: Vec<&Path> = path.ancestors().collect();
    way.reverse();
    way.into_iter().find_map(|place| {
        let found = fs::metadata(place).ok()?;
        let mode = found.mode() & 0o7777;
        let class_bit = if found.uid() == uid {
            0o100
        } else if found.gid() == gid {
            0o010
        } else {
            0o001
        };
        (mode & class_bit == 0).then(|| (place.to_path_buf(), mode))
    })
}

/// The home folder of this process's user according to the user database.
pub(super) fn home() -> Option<PathBuf> {
    let me = rustix::process::getuid().as_raw();
    let passwd = passwd();
    let home = users(&passwd).find(|user| user.uid == me)?.home;
    (!home.is_empty()).then(|| PathBuf::from(OsStr::new(home)))
}

struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl User<'_> {
    fn into_run_as(self) -> RunAs {
        RunAs::User {
            name: self.name.to_owned(),
            uid: self.uid,
            gid: self.gid,
        }
    }
}

/// The user database is read as a file: both candidates are local accounts everywhere, and the
/// C library's look-up would need `unsafe`.
fn passwd() -> String {
    fs::read_to_string("/etc/passwd").unwrap_or_default()
}

fn users(passwd: &str) -> impl Iterator<Item = User<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        let home = fields.nth(1).unwrap_or_default();
        Some(User {
            name,
            uid,
            gid,
            home,
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;

    const ROOT: &str = "root:x:0:0:root:/root:/bin/bash\n";
    const NOBODY: &str = "nobody:x:65534:65533:nobody:/nonexistent:/usr/sbin/nologin\n";
    const POSTGRES: &str = "postgres:x:101:104:,,,:/var/lib/postgresql:/bin/bash\n";

    fn user(name: &str, uid: u32, gid: u32) -> RunAs {
        RunAs::User {
            name: name.to_owned(),
            uid,
            gid,
        }
    }

    #[test]
    fn an_ordinary_user_stays_what_it_is() {
        assert_eq!(RunAs::choose_from(false, "").unwrap(), RunAs::Myself);
    }

    #[test]
    fn root_prefers_postgres_then_nobody() {
        let all = [ROOT, NOBODY, POSTGRES].concat();
        assert_eq!(
            RunAs::choose_from(true, &all).unwrap(),
            user("postgres", 101, 104)
        );
        let without = [ROOT, NOBODY].concat();
        assert_eq!(
            RunAs::choose_from(true, &without).unwrap(),
            user("nobody", 65534, 65533)
        );
    }

    #[test]
    fn root_alone_is_told_so() {
        let text = RunAs::choose_from(true, ROOT).unwrap_err().to_string();
        assert!(
            text.contains("neither the user `postgres` nor `nobody` exists"),
            "{text}"
        );
        assert!(text.contains("set DATABASE_URL"), "{text}");
    }

    #[test]
    fn damaged_lines_are_skipped() {
        let damaged = format!("\n+::::::\npostgres:x:none:104::/:\n{NOBODY}");
        assert_eq!(
            RunAs::choose_from(true, &damaged).unwrap(),
            user("nobody", 65534, 65533)
        );
    }
}
