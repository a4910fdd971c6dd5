//! `leasehold-load`: workloads over the public protocol, measured against the limits of the machine.

mod api;
mod bench;
mod crew;
mod database;
mod echo;
mod histogram;
mod http;
mod measure;
mod options;
mod payload;
mod procs;
mod reference;
mod server;
mod shape;
mod spread;
mod times;
mod workloads;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use bench::Bench;
use options::Options;
use workloads::Workload;

/// Load for a server of the Durable Workflow protocol.
#[derive(Parser)]
#[command(version, about)]
struct Command {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    #[command(flatten)]
    Workload(Workload),
    /// The echo server of the reference figures.
    #[command(hide = true)]
    EchoServer {
        /// Threads; 0 for one per core.
        #[arg(long, default_value_t = 0)]
        threads: usize,
    },
}

/// Allows as many open connections as the system gives; servers that are started inherit it.
fn allow_connections() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A lower limit is enough for most workloads, and the others say what they miss.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn main() -> ExitCode {
    let command = Command::parse();
    allow_connections();
    let done = match command.what {
        What::EchoServer { threads } => echo::serve(threads),
        What::Workload(workload) => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())
            .and_then(|runtime| runtime.block_on(run(command.options, workload))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("leasehold-load: {problem}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options, workload: Workload) -> Result<(), String> {
    let rounds = options.rounds();
    let mut bench = Bench::new(options).await?;
    let mut done = Ok(());
    for number in 0..rounds {
        done = round(&mut bench, &workload, number).await;
        if done.is_err() {
            break;
        }
    }
    bench.close().await?;
    workloads::conclude(&bench, &workload);
    done?;
    let problems = bench.problems();
    if problems.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    ))
}

async fn round(bench: &mut Bench, workload: &Workload, number: usize) -> Result<(), String> {
    bench.reference().await?;
    workloads::run(bench, workload, number).await
}
