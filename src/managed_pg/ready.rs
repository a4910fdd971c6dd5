//! When a starting server accepts connections.
//!
//! The sign is the last line of `postmaster.pid`, which the server sets to `ready` when it does.
//! `pg_ctl` waits for the same line. Compared with connecting, it needs no protocol code and no
//! async runtime, takes no connection slot, writes no line into the log, and cannot mistake
//! another server for ours, since the file begins with the process id.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::Error;
use super::log::Log;
use super::process::Process;

/// How often the file is read again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Waits until `process`, a server on `data`, accepts connections.
///
/// Gives up at once when the process ends, and otherwise when neither happened for `patience`
/// after the log last grew: recovery of much data may take long, but it reports its progress.
pub(super) fn wait(
    process: &mut Process,
    data: &Path,
    log: &Log,
    patience: Duration,
) -> Result<(), Error> {
    let status_file = data.join("postmaster.pid");
    let mut log_size = log.size();
    let mut deadline = Instant::now() + patience;
    loop {
        let ended = process
            .exit_status()
            .map_err(|source| Error::io("watch", data, source))?;
        if let Some(status) = ended {
            return Err(Error::StoppedWhileStarting {
                status,
                log: log.path().to_path_buf(),
                tail: log.tail(),
            });
        }
        if fs::read_to_string(&status_file).is_ok_and(|text| is_ready(&text, process.pid())) {
            return Ok(());
        }
        let size = log.size();
        if size != log_size {
            log_size = size;
            deadline = Instant::now() + patience;
        }
        if Instant::now() >= deadline {
            return Err(Error::NotReady {
                seconds: patience.as_secs(),
                log: log.path().to_path_buf(),
                tail: log.tail(),
            });
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Lines of the file: process id, data folder, start time, port, socket folder, listen address,
/// shared memory, status. A file left behind by a killed server names another process.
fn is_ready(text: &str, pid: u32) -> bool {
    let mut lines = text.lines();
    let owner = lines.next().and_then(|line| line.trim().parse().ok());
    owner == Some(pid) && lines.nth(6).is_some_and(|status| status.trim() == "ready")
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: &str = "42\n/x/data\n1700000000\n5432\n/x/sock\n\n  1234 5\nready   \n";

    #[test]
    fn ready_means_our_process_and_the_last_line() {
        assert!(is_ready(READY, 42));
        assert!(!is_ready(READY, 43));
        assert!(!is_ready(&READY.replace("ready   ", "starting"), 42));
    }

    #[test]
    fn a_file_still_being_written_is_not_ready() {
        for length in 0..READY.len() - "ready   \n".len() {
            assert!(!is_ready(&READY[..length], 42), "{length}");
        }
    }
}
