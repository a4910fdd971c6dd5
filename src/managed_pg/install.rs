//! Brings the server programs onto a Debian or Ubuntu machine, when asked to.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::Error;

/// Packages named for `apt-get install`.
const PACKAGE: &str = "postgresql";

/// Seconds to wait for another package manager, which a fresh machine often still has running.
const LOCK_WAIT: &str = "DPkg::Lock::Timeout=120";

/// Runs `apt-get install -y --no-install-recommends postgresql`, as root or through a `sudo`
/// that asks for no password; each line that the tools print is handed to `log`.
///
/// The package lists are updated only if the first try fails. If the package starts a server of
/// its own on port 5432, that server is stopped again: nobody asked for it. Servers that ran
/// before are left alone. Blocks for as long as the download takes.
///
/// # Errors
///
/// [`Error::CannotInstall`], which names the command to run by hand.
pub fn install_with_apt(log: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let path = env::var_os("PATH").unwrap_or_default();
    let installer = Installer::new(&path, rustix::process::geteuid().is_root())?;
    installer.install(log)
}

#[derive(Debug)]
struct Installer {
    apt_get: PathBuf,
    /// `None` if this process is root.
    sudo: Option<PathBuf>,
}

impl Installer {
    fn new(path: &OsStr, is_root: bool) -> Result<Installer, Error> {
        let Some(apt_get) = find("apt-get", path) else {
            return Err(cannot("there is no apt-get on this machine"));
        };
        let sudo = if is_root {
            None
        } else {
            Some(
                find("sudo", path)
                    .filter(|sudo| answers(sudo))
                    .ok_or_else(|| {
                        cannot("this is not root, and sudo is missing or asks for a password")
                    })?,
            )
        };
        Ok(Installer { apt_get, sudo })
    }

    fn install(&self, log: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let before = running_clusters();
        if !self
            .apt(&["install", "-y", "--no-install-recommends", PACKAGE], log)?
            .success()
        {
            log("trying again with fresh package lists");
            // A failure is not final: one broken source among several does not matter here.
            self.apt(&["update"], log)?;
            let status = self.apt(&["install", "-y", "--no-install-recommends", PACKAGE], log)?;
            if !status.success() {
                return Err(cannot(&format!("apt-get failed ({status})")));
            }
        }
        for (version, name) in running_clusters() {
            if !before.contains(&(version.clone(), name.clone())) {
                log(&format!(
                    "stopping the server {version}/{name} that the package started"
                ));
                let mut stop = self.as_root(Path::new("pg_ctlcluster"));
                stop.args([&version, &name, "stop"]);
                let stopped = run(stop, log).is_ok_and(|status| status.success());
                if !stopped {
                    // The programs are there, which is what was asked for.
                    log(&format!("the server {version}/{name} could not be stopped"));
                }
            }
        }
        Ok(())
    }

    fn apt(&self, arguments: &[&str], log: &mut dyn FnMut(&str)) -> Result<ExitStatus, Error> {
        let mut apt = self.as_root(&self.apt_get);
        apt.args(["-o", LOCK_WAIT]).args(arguments);
        log(&format!("apt-get {}", arguments.join(" ")));
        run(apt, log).map_err(|error| cannot(&format!("apt-get did not run: {error}")))
    }

    fn as_root(&self, program: &Path) -> Command {
        const QUIET: &str = "DEBIAN_FRONTEND=noninteractive";
        // `env` sets the variable in both cases: sudo would drop one that we set.
        let mut command = match &self.sudo {
            None => Command::new("env"),
            Some(sudo) => {
                let mut command = Command::new(sudo);
                command.args(["-n", "env"]);
                command
            }
        };
        command.arg(QUIET).arg(program);
        command
    }
}

fn cannot(reason: &str) -> Error {
    Error::CannotInstall {
        reason: reason.to_owned(),
    }
}

fn find(program: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

fn answers(sudo: &Path) -> bool {
    Command::new(sudo)
        .args(["-n", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Version and name of each running server that the distribution's own tools know of.
fn running_clusters() -> Vec<(String, String)> {
    let Ok(output) = Command::new("pg_lsclusters").arg("--no-header").output() else {
        return Vec::new();
    };
    parse_clusters(&String::from_utf8_lossy(&output.stdout))
}

/// Lines such as `15  main    5432 online postgres /var/lib/postgresql/15/main /var/log/…`.
fn parse_clusters(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (version, name) = (words.next()?, words.next()?);
            let running = words.nth(1)?.starts_with("online");
            running.then(|| (version.to_owned(), name.to_owned()))
        })
        .collect()
}

/// Runs `command` to its end and hands over its output line by line.
fn run(mut command: Command, log: &mut dyn FnMut(&str)) -> io::Result<ExitStatus> {
    let (reader, writer) = io::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command.spawn()?;
    // Our own copies of the pipe's other end, or the reading would never end.
    drop(command);
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if sender
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
        }
    });
    loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => log(line.trim_end()),
            Err(RecvTimeoutError::Disconnected) => return child.wait(),
            // A daemon started by a package may keep the pipe open for ever.
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(status);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;

    #[test]
    fn without_apt_the_command_is_printed() {
        let text = Installer::new(OsStr::new(""), true)
            .unwrap_err()
            .to_string();
        assert!(text.contains("there is no apt-get"), "{text}");
        assert!(
            text.contains("apt-get install -y --no-install-recommends postgresql"),
            "{text}"
        );
    }

    #[test]
    fn only_running_servers_count() {
        let text = "14 old   5433 down   postgres /var/lib/postgresql/14/old /var/log/x\n\
                    15 main  5432 online postgres /var/lib/postgresql/15/main /var/log/y\n\
                    16 copy  5434 online,recovery postgres /d /l\n";
        let expected = [("15", "main"), ("16", "copy")];
        let found = parse_clusters(text);
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|(v, n)| (v.as_str(), n.as_str()))
            .collect();
        assert_eq!(found, expected);
        assert!(parse_clusters("").is_empty());
    }

    #[test]
    fn output_and_status_come_back() {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "echo one; echo two >&2; exit 3"]);
        let mut seen = Vec::new();
        let status = run(shell, &mut |line| seen.push(line.to_owned())).unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(seen, ["one", "two"]);
    }

    #[test]
    fn a_daemon_that_keeps_the_output_open_does_not_hold_us_up() {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "sleep 60 & echo $!"]);
        let mut seen = Vec::new();
        let status = run(shell, &mut |line| seen.push(line.to_owned())).unwrap();
        assert!(status.success());
        let daemon = rustix::process::Pid::from_raw(seen[0].parse().unwrap()).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    }
}
