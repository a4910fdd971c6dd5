//! PostgreSQL processes that outlived their supervisor and still work on a folder.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::Error;

/// How often the process table is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Waits until no PostgreSQL process works on `folder` any more, at most for `patience`.
///
/// The lock is free the moment its owner dies, but the orphans need a little longer: the server
/// for its orderly shutdown, the backends of a killed server to notice. A server started
/// meanwhile would find the data in use and give up.
pub(super) fn wait_until_gone(folder: &Path, patience: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    while let Some(pid) = find(folder) {
        if Instant::now() >= deadline {
            return Err(Error::LeftRunning {
                pid,
                dir: folder.to_path_buf(),
            });
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// One PostgreSQL process that works at or below `folder`, which must be an absolute path
/// without symbolic links.
pub(super) fn find(folder: &Path) -> Option<u32> {
    fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|pid| works_on(*pid, folder))
}

fn works_on(pid: u32, folder: &Path) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    // All processes of a server make the data folder their current folder. The name is compared
    // as well, so that a shell standing in that folder is not taken for one. `initdb` stays
    // where it was started and is recognised by its arguments.
    match fs::read(process.join("comm")).as_deref() {
        Ok(b"postgres\n") => {
            fs::read_link(process.join("cwd")).is_ok_and(|current| current.starts_with(folder))
        }
        Ok(b"initdb\n") => fs::read(process.join("cmdline")).is_ok_and(|arguments| {
            arguments.split(|byte| *byte == 0).any(|argument| {
                Path::new(std::ffi::OsStr::from_bytes(argument)).starts_with(folder)
            })
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use super::super::testing::scratch_dir;
    use super::*;

    /// A shell under the name of another program, which waits until it is killed.
    fn disguised(dir: &Path, name: &str, current: &Path, argument: &Path) -> Child {
        let program = dir.join(name);
        symlink("/bin/sh", &program).unwrap();
        let child = Command::new(program)
            .args(["-c", "read line"])
            .arg(argument)
            .current_dir(current)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        // The parent may go on a moment before the kernel has set name and arguments.
        let process = Path::new("/proc").join(child.id().to_string());
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_to_string(process.join("comm")).unwrap().trim() != name
            || !fs::read_to_string(process.join("cmdline"))
                .unwrap()
                .contains("read line")
        {
            assert!(Instant::now() < deadline, "{name} never came to life");
            thread::sleep(Duration::from_millis(1));
        }
        child
    }

    fn folders(name: &str) -> (PathBuf, PathBuf, PathBuf) {
        let dir = scratch_dir(name).unwrap();
        let (data, other) = (dir.join("data"), dir.join("data.new"));
        fs::create_dir_all(data.join("base")).unwrap();
        fs::create_dir(&other).unwrap();
        (dir, data, other)
    }

    fn assert_found_until_killed(mut child: Child, used: &Path, unused: &Path) {
        assert_eq!(find(used), Some(child.id()));
        assert_eq!(find(unused), None);
        let text = wait_until_gone(used, Duration::ZERO)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains(&format!("PostgreSQL (pid {}) still runs", child.id())),
            "{text}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(find(used), None);
        wait_until_gone(used, Duration::ZERO).unwrap();
    }

    #[test]
    fn a_server_is_known_by_its_current_folder() {
        let (dir, data, other) = folders("survivors-server");
        let child = disguised(&dir, "postgres", &data.join("base"), Path::new("/"));
        assert_found_until_killed(child, &data, &other);
    }

    #[test]
    fn initdb_is_known_by_its_arguments() {
        let (dir, data, other) = folders("survivors-initdb");
        let child = disguised(&dir, "initdb", Path::new("/"), &other);
        assert_found_until_killed(child, &other, &data);
    }

    #[test]
    fn a_shell_standing_in_the_folder_is_none() {
        let (dir, data, _) = folders("survivors-shell");
        let mut child = disguised(&dir, "bash", &data, &data);
        assert_eq!(find(&data), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
