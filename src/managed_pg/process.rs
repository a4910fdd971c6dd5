//! Child processes of the private server: how they are started, tied to our life, and ended.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use super::owner::RunAs;

/// How often the state of a child is looked at while waiting for it.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How long a server that did not stop in order may take to stop at once. PostgreSQL itself
/// kills its stubborn processes after five seconds.
const IMMEDIATE_PATIENCE: Duration = Duration::from_secs(10);

/// How long a child may take to stop in order when its handle is just dropped.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

/// How a child was brought to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// It ended in its own way within the time allowed.
    InOrder,
    /// It had to be told twice, or killed.
    Forced,
}

/// A command for one of PostgreSQL's programs, run as `run_as`.
///
/// It has no environment but a search path, so that no `PG…` or locale variable of ours changes
/// what it does; `/` as its current folder, since ours may be closed to the other user; and its
/// own process group, so that Ctrl-C in a terminal reaches us alone and we can stop in order:
/// first the requests, then the database.
pub(super) fn command(program: &Path, run_as: &RunAs) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .stdin(Stdio::null())
        .process_group(0);
    run_as.apply(&mut command);
    command
}

/// A running child that dies with us.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// Keeps the thread that forked the child alive; see [`Process::spawn`].
    _anchor: Sender<()>,
}

impl Process {
    /// Starts `command` with SIGINT as its parent-death signal. PostgreSQL answers that with an
    /// orderly shutdown, so it stops cleanly even after SIGKILL of this process.
    ///
    /// The kernel sends the signal when the forking **thread** ends, not only the process. Test
    /// threads and threads of an async runtime come and go, so each child gets a thread of its
    /// own that forks it and then does nothing until the handle is dropped. This function can
    /// therefore be called from any thread.
    pub(super) fn spawn(mut command: Command) -> io::Result<Process> {
        die_with_parent(&mut command);
        let (report, reported) = mpsc::channel();
        let (anchor, released) = mpsc::channel::<()>();
        thread::Builder::new()
            .name("managed-pg".to_owned())
            .spawn(move || {
                let _ = report.send(command.spawn());
                // Nothing is ever sent: this ends when the sender is dropped.
                let _ = released.recv();
            })?;
        let child = reported.recv().map_err(io::Error::other)??;
        Ok(Process {
            child,
            _anchor: anchor,
        })
    }

    /// The child's process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How the child ended, `None` while it runs; never waits.
    pub(super) fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the child to end by itself.
    pub(super) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// SIGINT, after `patience` SIGQUIT, and if even that does not help SIGKILL. The child is
    /// gone and reaped afterwards.
    pub(super) fn stop(&mut self, patience: Duration) -> io::Result<Stopped> {
        self.signal(Signal::INT)?;
        if self.ended_within(patience)? {
            return Ok(Stopped::InOrder);
        }
        self.signal(Signal::QUIT)?;
        if !self.ended_within(IMMEDIATE_PATIENCE)? {
            self.child.kill()?;
            self.child.wait()?;
        }
        Ok(Stopped::Forced)
    }

    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        // Once it has been reaped, its number may belong to somebody else.
        if self.exit_status()?.is_none()
            && let Some(pid) = Pid::from_raw(self.child.id().cast_signed())
        {
            rustix::process::kill_process(pid, signal)?;
        }
        Ok(())
    }

    fn ended_within(&mut self, patience: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + patience;
        loop {
            if self.exit_status()?.is_some() {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.stop(DROP_PATIENCE);
    }
}

/// Lets the kernel send SIGINT to the child when the thread that forks it ends.
#[allow(
    unsafe_code,
    reason = "the signal can only be asked for between fork and exec"
)]
fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are
    // allowed. It makes two system calls through rustix and builds errors from error numbers;
    // it neither allocates nor locks nor touches memory of other threads.
    unsafe {
        command.pre_exec(move || {
            // A change of credentials clears the setting. The standard library changes user and
            // group before it runs this closure, and PostgreSQL's programs are not set-uid.
            set_parent_process_death_signal(Some(Signal::INT))?;
            // If the parent died before that call, no signal is coming.
            if getppid() != Some(parent) {
                return Err(rustix::io::Errno::SRCH.into());
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use std::fs;
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// A `sleep` that ignores exactly the signal named. `env` sets both, since a test run in the
    /// background of a script starts with SIGINT and SIGQUIT ignored. PostgreSQL does not care:
    /// it installs handlers for what it wants to hear.
    fn sleeper_ignoring(signal: &str) -> Process {
        let mut env = command(Path::new("/usr/bin/env"), &RunAs::Myself);
        env.arg("--default-signal=INT,QUIT")
            .arg(format!("--ignore-signal={signal}"))
            .args(["sleep", "60"]);
        let process = Process::spawn(env).unwrap();
        let comm = format!("/proc/{}/comm", process.pid());
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_to_string(&comm).unwrap() != "sleep\n" {
            assert!(Instant::now() < deadline, "env never became a sleep");
            thread::sleep(Duration::from_millis(2));
        }
        process
    }

    #[test]
    fn the_first_signal_is_enough_for_most() {
        let mut process = sleeper_ignoring("HUP");
        assert_eq!(process.exit_status().unwrap(), None);
        assert_eq!(
            process.stop(Duration::from_secs(10)).unwrap(),
            Stopped::InOrder
        );
        assert_eq!(process.exit_status().unwrap().unwrap().signal(), Some(2));
        // A second time there is nothing left to do.
        assert_eq!(process.stop(Duration::ZERO).unwrap(), Stopped::InOrder);
    }

    #[test]
    fn the_second_signal_ends_the_stubborn() {
        let mut process = sleeper_ignoring("INT");
        assert_eq!(
            process.stop(Duration::from_millis(50)).unwrap(),
            Stopped::Forced
        );
        assert_eq!(process.exit_status().unwrap().unwrap().signal(), Some(3));
    }

    #[test]
    fn the_child_has_a_clean_environment_and_its_own_group() {
        let process = sleeper_ignoring("HUP");
        let folder = format!("/proc/{}", process.pid());
        let environment = fs::read(format!("{folder}/environ")).unwrap();
        let names: Vec<&[u8]> = environment
            .split(|byte| *byte == 0)
            .filter_map(|entry| entry.split(|byte| *byte == b'=').next())
            .filter(|name| !name.is_empty())
            .collect();
        assert_eq!(names, [b"PATH"]);
        assert_eq!(
            fs::read_link(format!("{folder}/cwd")).unwrap(),
            Path::new("/")
        );
        let stat = fs::read_to_string(format!("{folder}/stat")).unwrap();
        let group = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .nth(2)
            .unwrap();
        assert_eq!(group, process.pid().to_string());
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let missing = command(Path::new("/nonexistent/postgres"), &RunAs::Myself);
        let error = Process::spawn(missing).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
