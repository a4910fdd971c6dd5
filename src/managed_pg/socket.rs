//! The folder of the Unix socket, and the detour for paths that clients cannot take.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::Error;
use super::owner::RunAs;

/// Port number in the socket's file name; nothing listens on TCP.
pub(super) const PORT: u16 = 5432;

/// Longest socket path in bytes: `sun_path` has 108, one of them for the closing zero.
const LONGEST: usize = 107;

/// Where the short folders are made, and what their names begin with.
const SHORT_PARENT: &str = "/tmp";
const SHORT_PREFIX: &str = "dw-";

/// Prepares the socket folder for the private server in `dir` and returns its path.
///
/// Normally `dir/sock`. If clients cannot take that, a folder `/tmp/dw-…` is made and recorded in
/// `dir/sock.path`. A recorded one is used again while it is still ours, so that clients find
/// the socket at the same place after a crash of the server.
pub(super) fn prepare(dir: &Path, run_as: &RunAs) -> Result<PathBuf, Error> {
    let near = dir.join("sock");
    if fits(&near) {
        run_as.own_folder(&near)?;
        return Ok(near);
    }
    if let Some(short) = recorded(dir)
        && is_ours(&short, run_as)
    {
        return Ok(short);
    }
    let short = make_short()?;
    run_as.own_folder(&short)?;
    let record = record_in(dir);
    // Valid UTF-8, since it was made from it.
    fs::write(&record, short.as_os_str().as_encoded_bytes())
        .map_err(|source| Error::io("write", &record, source))?;
    Ok(short)
}

/// Removes the short folder recorded in `dir`, if there is one; best effort.
pub(super) fn remove_short(dir: &Path) {
    let Some(short) = recorded(dir) else { return };
    // Only what the server leaves there. A recursive removal of a path read from a file would
    // be too much trust.
    let _ = fs::remove_file(socket_in(&short));
    let _ = fs::remove_file(short.join(format!(".s.PGSQL.{PORT}.lock")));
    let _ = fs::remove_dir(&short);
    let _ = fs::remove_file(record_in(dir));
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.join(format!(".s.PGSQL.{PORT}"))
}

/// Whether clients can take the path: not too long for the kernel, UTF-8 for the Rust driver, and
/// without a comma, which makes a list of hosts of it for libpq.
fn fits(folder: &Path) -> bool {
    let socket = socket_in(folder);
    socket.as_os_str().len() <= LONGEST && socket.to_str().is_some_and(|text| !text.contains(','))
}

fn record_in(dir: &Path) -> PathBuf {
    dir.join("sock.path")
}

fn recorded(dir: &Path) -> Option<PathBuf> {
    let short = PathBuf::from(fs::read_to_string(record_in(dir)).ok()?);
    let name = short.file_name()?.to_str()?;
    (short.parent() == Some(Path::new(SHORT_PARENT)) && name.starts_with(SHORT_PREFIX))
        .then_some(short)
}

/// Everybody may write to `/tmp`: the name may belong to somebody else by now.
fn is_ours(short: &Path, run_as: &RunAs) -> bool {
    fs::symlink_metadata(short).is_ok_and(|found| {
        found.is_dir() && found.uid() == run_as.uid() && found.mode() & 0o7777 == 0o700
    })
}

fn make_short() -> Result<PathBuf, Error> {
    loop {
        let mut name = uuid::Uuid::new_v4().simple().to_string();
        name.truncate(8);
        let short = Path::new(SHORT_PARENT).join(format!("{SHORT_PREFIX}{name}"));
        match DirBuilder::new().mode(0o700).create(&short) {
            Ok(()) => return Ok(short),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(Error::io("create", &short, source)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::super::testing::scratch_dir;
    use super::*;

    fn long_dir(name: &str) -> PathBuf {
        let dir = scratch_dir(name).unwrap().join("x".repeat(LONGEST));
        fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn the_limit_is_exact() {
        let tail = "/.s.PGSQL.5432".len();
        let longest = format!("/{}", "x".repeat(LONGEST - tail - 1));
        assert!(fits(Path::new(&longest)));
        assert!(!fits(Path::new(&format!("{longest}x"))));
    }

    #[test]
    fn a_long_path_gets_one_short_folder_and_keeps_it() {
        let dir = long_dir("socket-long");
        let run_as = RunAs::choose().unwrap();
        let short = prepare(&dir, &run_as).unwrap();
        assert!(short.starts_with("/tmp") && fits(&short));
        assert!(is_ours(&short, &run_as));
        assert_eq!(prepare(&dir, &run_as).unwrap(), short);
        remove_short(&dir);
        assert!(!short.exists() && recorded(&dir).is_none());
        let next = prepare(&dir, &run_as).unwrap();
        assert_ne!(next, short);
        remove_short(&dir);
    }

    #[test]
    fn a_record_that_points_elsewhere_is_ignored() {
        let dir = long_dir("socket-record");
        let precious = dir.join("precious");
        fs::create_dir(&precious).unwrap();
        for elsewhere in [
            precious.to_str().unwrap(),
            "/tmp/dw-x/../../etc",
            "/tmp",
            "",
        ] {
            fs::write(record_in(&dir), elsewhere).unwrap();
            assert_eq!(recorded(&dir), None, "{elsewhere}");
            remove_short(&dir);
        }
        assert!(precious.exists());
    }

    #[test]
    fn a_folder_of_another_mode_is_not_taken_for_ours() {
        let dir = long_dir("socket-mode");
        let run_as = RunAs::choose().unwrap();
        let short = prepare(&dir, &run_as).unwrap();
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&short, fs::Permissions::from_mode(0o777)).unwrap();
        let next = prepare(&dir, &run_as).unwrap();
        assert_ne!(next, short);
        fs::remove_dir(&short).unwrap();
        remove_short(&dir);
    }
}
