//! The server as a process of its own, as an operator runs it.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use leasehold::managed_pg::testing::scratch_dir;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use crate::support::{Client, TOKEN, eventually};

/// A running server. Killed when dropped, so that no failed test leaves it behind.
pub struct Server {
    child: Child,
    pub url: String,
    pub client: Client,
    /// What it logs.
    pub log: PathBuf,
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

impl Server {
    /// Starts `leasehold serve` on a database that is migrated already. Does not wait for it.
    pub fn serve(database: &PgConnectOptions, port: u16, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command
            .arg("serve")
            .env("DATABASE_URL", database.to_url_lossy().as_str());
        Self::start(command, port, settings)
    }

    /// Starts `leasehold dev` with a private database in `dir`.
    pub fn dev(dir: &std::path::Path, port: u16) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.arg("dev").arg("--data-dir").arg(dir);
        Self::start(command, port, &[])
    }

    fn start(mut command: Command, port: u16, settings: &[(&str, &str)]) -> Self {
        let dir =
            scratch_dir(&format!("serve-{}", uuid::Uuid::new_v4().simple())).expect("a folder");
        let log = dir.join("log");
        let out = File::create(&log).expect("a log");
        command
            // No file of the checkout and no setting of the caller's is to have a say.
            .current_dir(&dir)
            .env("DW_LISTEN", format!("127.0.0.1:{port}"))
            .env("DW_AUTH_TOKEN", TOKEN)
            .env_remove("PORT")
            .env_remove("DW_CONFIG")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("the log"))
            .stderr(out);
        for (name, value) in settings {
            command.env(name, value);
        }
        let child = command.spawn().expect("the server runs");
        let url = format!("http://127.0.0.1:{port}");
        let client = Client::new(&url, "1.13");
        Self {
            child,
            url,
            client,
            log,
        }
    }

    /// Waits until it wants requests.
    pub async fn until_ready(&mut self) {
        let (url, log) = (format!("{}/api/ready", self.url), self.log.clone());
        let child = &mut self.child;
        eventually("the server is ready", 60, async || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!(
                    "the server ended: {status}\n{}",
                    std::fs::read_to_string(&log).unwrap_or_default()
                );
            }
            let answer = reqwest::get(&url).await.ok()?;
            answer.status().is_success().then_some(())
        })
        .await;
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("the signal is sent");
    }

    /// How it ended, and how long after `since`.
    pub async fn ended(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().expect("its state") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "it still runs after {within:?}\n{}",
                std::fs::read_to_string(&self.log).unwrap_or_default()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends it without a word.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Resident memory in KiB.
    pub fn memory(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The most resident memory that it has had, in KiB.
    pub fn peak_memory(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("its status");
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|value| value.trim().trim_end_matches("kB").trim().parse().ok())
            .expect("its memory")
    }

    /// A number from the metrics; 0 when it is not there yet.
    pub async fn metric(&self, name: &str) -> f64 {
        let request = reqwest::Client::new().get(format!("{}/metrics", self.url));
        let metrics = request.bearer_auth(TOKEN).send().await.expect("metrics");
        let text = metrics.text().await.expect("metrics");
        text.lines()
            .filter_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
            .sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
