//! The workloads, by name.

mod closed;

use clap::Subcommand;

use crate::bench::Bench;

/// What is done to the server.
#[derive(Subcommand, Clone, Debug)]
pub enum Workload {
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
}

/// Runs one round.
///
/// # Errors
/// It cannot be run; what was wrong with its outcome is in the bench's rounds.
pub async fn run(bench: &mut Bench, workload: &Workload) -> Result<(), String> {
    match workload {
        Workload::Reference => Ok(()),
        Workload::Simple => closed::simple(bench).await,
        Workload::OneActivity => closed::one_activity(bench, 64).await,
        Workload::FiveActivities => closed::five_activities(bench).await,
        Workload::Timer => closed::timer(bench, 250).await,
        Workload::Signal => closed::signal(bench).await,
        Workload::FanOut => closed::fan_out(bench).await,
        Workload::Replay => closed::replay(bench).await,
        Workload::Mixed => closed::mixed(bench).await,
    }
}
