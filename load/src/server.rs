//! Servers that the tool starts itself, on a database of their own, so that it may kill them.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::api;
use crate::http::{Connection, Plane, Target};

/// How long a server may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is asked.
const LOOK: Duration = Duration::from_millis(5);
/// Bytes of a log's end that a failure shows.
const SHOWN: usize = 2_000;

/// A running server; it is killed when dropped.
pub struct Server {
    child: Child,
    binary: PathBuf,
    database_url: String,
    token: Option<String>,
    settings: Vec<(&'static str, String)>,
    port: u16,
    log: PathBuf,
}

impl Server {
    /// Starts one on a free port and waits until it is ready.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn start(
        binary: &Path,
        database_url: &str,
        token: Option<&str>,
        settings: Vec<(&'static str, String)>,
    ) -> Result<Self, String> {
        let text = |error: std::io::Error| format!("server: {error}");
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(text)?
            .port();
        let log =
            std::env::temp_dir().join(format!("leasehold-load-{}-{port}.log", std::process::id()));
        let binary = binary.canonicalize().map_err(text)?;
        let child = spawn(&binary, database_url, token, &settings, port, &log)?;
        let mut server = Self {
            child,
            binary,
            database_url: database_url.to_owned(),
            token: token.map(str::to_owned),
            settings,
            port,
            log,
        };
        server.until_ready().await?;
        Ok(server)
    }

    /// Where it serves.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it without a warning.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, at the same place. Does not wait for it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn restart(&mut self) -> Result<(), String> {
        self.child = spawn(
            &self.binary,
            &self.database_url,
            self.token.as_deref(),
            &self.settings,
            self.port,
            &self.log,
        )?;
        Ok(())
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// It ended, or takes too long.
    pub async fn until_ready(&mut self) -> Result<(), String> {
        let mut connection = Connection::new(&Target::new(&self.url(), "default", None)?);
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the server ended: {status}\n{}", self.log_end()));
            }
            let ready = api::call(
                &mut connection,
                "ready",
                Plane::Control,
                "GET",
                "/api/ready",
                "",
            );
            if ready.await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(format!("the server is not ready\n{}", self.log_end()))
    }

    fn log_end(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let at = log.len().saturating_sub(SHOWN);
        log.get(at..).unwrap_or(&log).to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(&self.log);
    }
}

fn spawn(
    binary: &Path,
    database_url: &str,
    token: Option<&str>,
    settings: &[(&'static str, String)],
    port: u16,
    log: &Path,
) -> Result<Child, String> {
    let text = |error: std::io::Error| format!("server: {error}");
    let out = File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(text)?;
    // Whatever becomes of the tool, its servers do not stay behind.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .arg(binary)
        .arg("serve");
    for (name, _) in std::env::vars_os() {
        // No setting of the caller's is to have a say.
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("DW_") || name == "PORT" || name == "RUST_LOG")
        {
            command.env_remove(name);
        }
    }
    command
        .env("DATABASE_URL", database_url)
        .env("DW_LISTEN", format!("127.0.0.1:{port}"))
        .env("DW_CONFIG", "/dev/null")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(text)?)
        .stderr(out);
    if let Some(token) = token {
        command.env("DW_AUTH_TOKEN", token);
    }
    for (name, value) in settings {
        command.env(name, value);
    }
    command.spawn().map_err(text)
}
