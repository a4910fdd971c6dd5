//! The workloads, by name.

mod all;
mod backlog;
mod closed;
mod growth;
mod heartbeats;
mod idle;
mod nodes;
mod pressure;
mod steps;

use clap::Subcommand;

use crate::bench::Bench;

/// What is done to the server.
#[derive(Subcommand, Clone, Debug)]
pub enum Workload {
    /// Every workload, and the table of goals; needs --server-binary.
    All {
        /// Only these, separated by commas.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
    },
    /// The reference figures alone.
    Reference,
    /// Start, and one workflow task returns the input.
    Simple,
    /// Start, one activity, complete.
    OneActivity,
    /// Five activities, one after another.
    FiveActivities,
    /// A timer of one second.
    Timer,
    /// Four signals, one after another.
    Signal,
    /// Ten children, awaited.
    FanOut,
    /// Five hundred markers in one completion, then one more task.
    Replay,
    /// A mix of shapes.
    Mixed,
    /// One completion schedules --count activities.
    Wide,
    /// One run alternates between activities and workflow tasks, --count times.
    LongLoop,
    /// --count signals go to one run.
    HotRun,
    /// --count activities are ready before the pollers start.
    Backlog,
    /// --count activities are held, and heartbeat in a closed loop.
    Heartbeats,
    /// `one-activity` and `backlog` under an old snapshot of the database.
    OldSnapshot,
    /// One workflow at a time beside a queue flooded with --count tasks.
    Neighbour,
    /// Pages of a closed run of --count events.
    HistoryPage,
    /// Queries of a cohort; --count is the number of units, five queries per second each.
    Query,
    /// --count polls with nothing to do.
    IdlePolls {
        /// Queues that they are spread over.
        #[arg(long, default_value_t = 1)]
        queues: usize,
    },
    /// One start at a time with --count polls held.
    Wake {
        /// Polls are held on the second server, workflows started on the first.
        #[arg(long)]
        other_node: bool,
    },
    /// Held polls that vanish while tasks arrive.
    Disconnect,
    /// An open loop at twice the measured maximum, then silence.
    Overload,
    /// `one-activity` over --count queues.
    ManyQueues,
    /// `one-activity` with values of --count bytes.
    BigPayload,
    /// A steady load for --count minutes.
    Churn,
    /// One server, then two on one database; needs --server-binary.
    TwoNodes,
    /// The server is killed and started again; needs --server-binary.
    Crash,
    /// `one-activity` on a server that groups no commits; needs --server-binary.
    Ungrouped,
    /// What each step of the server is worth: without it and with it, in turn; needs --server-binary.
    Steps {
        /// Only these, separated by commas.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
    },
}

/// Runs one round.
///
/// # Errors
/// It cannot be run; what was wrong with its outcome is in the bench's rounds.
pub async fn run(bench: &mut Bench, workload: &Workload, round: usize) -> Result<(), String> {
    match workload {
        Workload::All { only } => all::round(bench, round, only).await,
        Workload::Reference => Ok(()),
        Workload::Simple => closed::simple(bench).await,
        Workload::OneActivity => closed::one_activity(bench, 64).await,
        Workload::FiveActivities => closed::five_activities(bench).await,
        Workload::Timer => closed::timer(bench, 250).await,
        Workload::Signal => closed::signal(bench).await,
        Workload::FanOut => closed::fan_out(bench).await,
        Workload::Replay => closed::replay(bench).await,
        Workload::Mixed => closed::mixed(bench).await,
        Workload::Wide => {
            let count = bench.options.count(100, 20);
            growth::wide(bench, count).await
        }
        Workload::LongLoop => {
            let count = bench.options.count(1_000, 30);
            growth::long_loop(bench, count).await
        }
        Workload::HotRun => growth::hot_run(bench).await,
        Workload::Backlog => {
            let count = bench.options.count(10_000, 500);
            backlog::backlog(bench, count, "").await
        }
        Workload::OldSnapshot => backlog::old_snapshot(bench).await,
        Workload::Neighbour => backlog::neighbour(bench).await,
        Workload::HistoryPage => {
            let count = bench.options.count(5_000, 1_000);
            growth::history_page(bench, count).await
        }
        Workload::Query => growth::query(bench).await,
        Workload::IdlePolls { queues } => idle::idle_polls(bench, (*queues).max(1)).await,
        Workload::Wake { other_node } => {
            let count = bench.options.count(1_000, 50);
            if *other_node && bench.targets.len() < 2 {
                nodes::wake_other_node(bench, count).await
            } else {
                idle::wake(bench, count, *other_node).await
            }
        }
        Workload::Overload => pressure::overload(bench).await,
        Workload::ManyQueues => {
            let count = bench.options.count(100, 10);
            pressure::many_queues(bench, count).await
        }
        Workload::BigPayload => {
            let count = bench.options.count(65_536, 65_536);
            pressure::big_payload(bench, count).await
        }
        Workload::Churn => {
            let count = bench.options.count(10, 2);
            pressure::churn(bench, count.max(1)).await
        }
        Workload::TwoNodes => nodes::two_nodes(bench).await,
        Workload::Crash => nodes::crash(bench).await,
        Workload::Ungrouped => {
            let open = bench.options.open(256);
            nodes::ungrouped(bench, open).await
        }
        Workload::Heartbeats => heartbeats::heartbeats(bench).await,
        Workload::Steps { only } => steps::round(bench, only).await,
        Workload::Disconnect => idle::disconnect(bench).await,
    }
}

/// Prints what a run of all workloads has reached.
pub fn conclude(bench: &Bench, workload: &Workload) {
    let all = matches!(workload, Workload::All { .. }) && !bench.options.quick;
    if all {
        all::table(bench);
    }
    if all || matches!(workload, Workload::Steps { .. }) {
        steps::table(bench);
    }
}
