//! Random lives of a workflow against a reference model, many seeds, each repeatable.
//!
//! `LEASEHOLD_SEEDS=<n>` sets how many; `LEASEHOLD_SEED=<n>` repeats one and prints its steps.

mod compare;
mod inputs;
mod life;
mod react;
mod react_attempts;
mod rng;
mod rules;
mod world;

use super::kit::{Log, live_seeds};
pub use rng::Rng;
use world::{Stats, World};

fn live(seed: u64, log: Option<Log>) -> Stats {
    let mut world = World::new(seed, log);
    world.live();
    world.stats
}

/// Whatever happens in whatever order: the history is gapless and ends once, each step ends once,
/// one workflow task at a time, rows are what the state says, nothing is lost, doubled or stuck, and
/// a fold of what was stored is the state.
#[test]
fn random_lives_follow_the_rules() {
    let Some((seeds, total)) = live_seeds("LEASEHOLD_SEED", live, Stats::add) else {
        return;
    };
    println!(
        "seeds={seeds} steps={} commits={} refusals={} answers={} lost={} merged={}",
        total.steps, total.commits, total.refusals, total.answers, total.lost, total.merged
    );
    for (outcome, times) in &total.outcomes {
        println!("{times:>8}  {outcome}");
    }
    if seeds >= 100 {
        assert!(total.commits > 0 && total.refusals > 0 && total.answers > 0);
        assert!(total.lost > 0 && total.merged > 0);
    }
}
