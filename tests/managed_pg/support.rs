//! What the tests share: starting, asking, waiting, and a second process to kill.
//!
//! The ignored tests here are the entry points of that second process, which is this same test
//! program run again.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Executor, Row};

use leasehold::managed_pg::testing::TestCluster;
use leasehold::managed_pg::{Cluster, Durability, Settings};

/// Tells a second run of this program which folder it shall work in.
pub const CHILD_DIR: &str = "MANAGED_PG_CHILD_DIR";

/// What the server logs at the end of an orderly shutdown.
pub const CLEAN_SHUTDOWN: &str = "database system is shut down";

pub fn settings(dir: &Path, durability: Durability) -> Settings {
    Settings {
        dir: dir.to_path_buf(),
        bin_dir: None,
        durability,
        max_connections: 20,
    }
}

pub fn start(dir: &Path) -> Cluster {
    Cluster::start(&settings(dir, Durability::TestOnly)).unwrap_or_else(|error| panic!("{error}"))
}

/// What a start is refused with.
pub fn refusal(dir: &Path) -> String {
    Cluster::start(&settings(dir, Durability::TestOnly))
        .unwrap_err()
        .to_string()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs statements and returns the first column of the last row, which must be text.
pub fn query(options: &PgConnectOptions, statement: &'static str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut connection = options.connect().await.expect("connect");
        let rows = connection.fetch_all(statement).await.expect("query");
        rows.last().map_or_else(String::new, |row| row.get(0))
    })
}

pub fn assert_alive(cluster: &Cluster) {
    let options = cluster.connect_options("postgres");
    assert_eq!(query(&options, "SELECT 'alive'"), "alive");
}

pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "gave up waiting: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A zombie counts as gone: it may wait for an init process that never asks.
pub fn is_running(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit(')').next().unwrap().trim();
        !state.starts_with('Z')
    })
}

pub fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Where the server of `dir` has its socket: with a long TMPDIR it is not in `dir` itself.
pub fn socket_dir(dir: &Path) -> PathBuf {
    fs::read_to_string(dir.join("sock.path")).map_or_else(|_| dir.join("sock"), PathBuf::from)
}

pub fn log_of(dir: &Path) -> String {
    fs::read_to_string(dir.join("postgres.log")).unwrap()
}

#[test]
#[ignore = "entry point of a second process that other tests start"]
fn child_starts_and_waits() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    let cluster = start(Path::new(&dir));
    announce_and_wait(cluster.pid());
    cluster.stop().unwrap();
}

#[test]
#[ignore = "entry point of a second process that other tests start"]
fn child_shares_and_waits() {
    if std::env::var_os(CHILD_DIR).is_none() {
        return;
    }
    let options = TestCluster::shared().unwrap().admin_options();
    let file = query(&options, "SELECT pg_read_file('postmaster.pid')");
    announce_and_wait(file.lines().next().unwrap().parse().unwrap());
    // No stop: the end of the process has to be enough.
}

/// Tells the first process which server this one uses, and waits until it closes our input.
fn announce_and_wait(server: u32) {
    println!("\nserver={server}");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// A second run of this program. Killed when dropped, so that no failed test leaves it behind.
pub struct Again(Child);

impl Again {
    pub fn run_this(entry: &str, dir: &Path) -> Again {
        Again::run(Command::new(std::env::current_exe().unwrap()), entry, dir)
    }

    pub fn run(mut command: Command, entry: &str, dir: &Path) -> Again {
        command
            .args([
                "--exact",
                &format!("support::{entry}"),
                "--ignored",
                "--nocapture",
            ])
            .env(CHILD_DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = None;
        // A program just copied counts as busy while another thread forks with it open.
        eventually("the program can be run", || match command.spawn() {
            Ok(started) => {
                child = Some(started);
                true
            }
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => false,
            Err(error) => panic!("{error}"),
        });
        Again(child.unwrap())
    }

    pub fn announced_server(&mut self) -> u32 {
        BufReader::new(self.0.stdout.as_mut().unwrap())
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("server=")?.parse().ok())
            .expect("the second process announces its server")
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Lets it end in its own way.
    pub fn finish(&mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
