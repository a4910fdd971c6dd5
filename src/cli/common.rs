//! What the sub-commands that run something share: output, runtime, database, signals.

use std::io::Write;

use sqlx::postgres::PgConnectOptions;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Settings;
use crate::node::Node;
use crate::telemetry::logging;

/// Prints a line for the person at the terminal.
pub(super) fn say(line: &str) {
    // A closed terminal is no reason to fail.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The runtime of the engine; requests have threads of their own.
pub(super) fn runtime() -> Result<Runtime, String> {
    // Most of the work of a request is done by the thread that it came in on.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.div_ceil(2))
        .enable_all()
        .thread_name("leasehold")
        .build()
        .map_err(|error| format!("the runtime cannot be started: {error}"))
}

/// How the configured database is reached.
pub(super) fn database(settings: &Settings) -> Result<PgConnectOptions, String> {
    let Some(url) = &settings.database.url else {
        return Err(
            "No database configured. Set DATABASE_URL=postgres://user:password@host/db, \
                    or use `leasehold dev` for a private one."
                .to_owned(),
        );
    };
    // The text of the error may hold the URL, and with it the password.
    url.reveal()
        .parse()
        .map_err(|_| "DATABASE_URL is not a postgres:// URL.".to_owned())
}

/// Serves on the configured database until a signal comes.
pub(super) fn serve(settings: Settings) -> Result<(), String> {
    let options = database(&settings)?;
    logging::start(&settings.log.format, &settings.log.filter)?;
    let runtime = runtime()?;
    let served = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let node = Node::start(settings, options).await?;
        node.announce();
        signals.wait().await;
        stop(node, &mut signals).await
    });
    // Not waited for: after a second signal something may still hang.
    runtime.shutdown_background();
    served
}

/// Stops a node in order, or at once when another signal comes.
///
/// # Errors
/// It was stopped at once; requests were cut off.
pub(super) async fn stop(node: Node, signals: &mut Signals) -> Result<(), String> {
    tokio::select! {
        () = node.stop() => Ok(()),
        () = signals.wait() => {
            Err("Stopped at once by a second signal; running requests were cut off.".to_owned())
        }
    }
}

/// The signals that end a node. Made once, so that none is missed between two looks.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub fn new() -> Result<Self, String> {
        let listen =
            |kind| signal(kind).map_err(|error| format!("signals cannot be heard: {error}"));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
