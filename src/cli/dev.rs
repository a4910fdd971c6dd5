//! `leasehold dev`: a node with a private, durable PostgreSQL of its own.

use std::path::PathBuf;
use std::time::Duration;

use super::DevArgs;
use super::common::{Signals, runtime, say, stop};
use crate::config::Settings;
use crate::managed_pg::{self, Cluster, Durability, Error};
use crate::node::Node;
use crate::telemetry::logging;

/// Connections that the private server takes.
const MAX_CONNECTIONS: u16 = 100;
/// How often the private server is looked after.
const WATCH: Duration = Duration::from_millis(200);

pub(super) fn run(args: &DevArgs) -> Result<(), String> {
    let settings = args.serve.load()?.settings;
    logging::start(&settings.log.format, &settings.log.filter)?;
    let dir = args
        .data_dir
        .clone()
        .unwrap_or_else(managed_pg::default_dir);
    if args.reset
        && let Some(kept) = managed_pg::reset(&dir).map_err(text)?
    {
        say(&format!(
            "The private database was moved to {}.",
            kept.display()
        ));
    }
    // On this thread, before any runtime: the database ends with the thread that started it.
    let mut cluster = start(args, dir)?;
    let runtime = runtime()?;
    let served = runtime.block_on(serve(settings, &mut cluster));
    // Not waited for: after a second signal something may still hang.
    runtime.shutdown_background();
    let stopped = cluster.stop().map_err(text);
    served.and(stopped)
}

fn start(args: &DevArgs, dir: PathBuf) -> Result<Cluster, String> {
    let settings = managed_pg::Settings {
        dir,
        bin_dir: std::env::var_os("DW_POSTGRES_BIN").map(PathBuf::from),
        durability: Durability::Durable,
        max_connections: MAX_CONNECTIONS,
    };
    match Cluster::start(&settings) {
        Err(Error::ProgramsNotFound { .. }) if args.install_postgres => {
            say("PostgreSQL is missing and will be installed.");
            managed_pg::install_with_apt(&mut |line| say(line)).map_err(text)?;
            Cluster::start(&settings).map_err(text)
        }
        started => started.map_err(text),
    }
}

fn text(error: Error) -> String {
    error.to_string()
}

async fn serve(settings: Settings, cluster: &mut Cluster) -> Result<(), String> {
    let mut signals = Signals::new()?;
    let token = settings.auth.token.is_some();
    let advertised = settings.worker_protocol.clone();
    let node = Node::start(settings, cluster.connect_options("postgres")).await?;
    node.announce();
    greet(&node, cluster, token, &advertised);
    let died = loop {
        tokio::select! {
            () = signals.wait() => break None,
            () = tokio::time::sleep(WATCH) => {}
        }
        match cluster.exit_status() {
            Ok(None) => {}
            Ok(Some(status)) => break Some(format!("The private PostgreSQL stopped: {status}.")),
            Err(error) => break Some(error.to_string()),
        }
    };
    let stopped = stop(node, &mut signals).await;
    died.map_or(stopped, Err)
}

fn greet(node: &Node, cluster: &Cluster, token: bool, advertised: &str) {
    let url = format!("http://{}", node.address());
    say("");
    say(&format!(
        "Leasehold serves on {url} (worker protocol {advertised})."
    ));
    say("");
    say("Point an SDK or a terminal at it:");
    say(&format!("  export DURABLE_WORKFLOW_SERVER_URL={url}"));
    if token {
        say("  export DURABLE_WORKFLOW_AUTH_TOKEN=$DW_AUTH_TOKEN");
    }
    say("");
    say("Look at it:");
    say(&format!("  {url}/api/health"));
    say(&format!("  {url}/metrics"));
    say(&format!("  {}", cluster.psql_command()));
    say("");
    if advertised == "1.13" {
        say(
            "Today's official SDKs need worker protocol 1.20: start again with --worker-protocol 1.20.",
        );
    }
    say("Ctrl-C stops it; the data stays.");
}
