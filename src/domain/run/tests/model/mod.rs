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

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub use rng::Rng;
use world::{Log, Stats, World};

const SEEDS: u64 = 10_000;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn live(seed: u64, log: Option<Log>) -> Stats {
    let mut world = World::new(seed, log);
    world.live();
    world.stats
}

/// Lives one seed; a failure is lived again with a list of its steps, which is printed.
fn live_and_tell(seed: u64) -> Stats {
    match catch_unwind(|| live(seed, None)) {
        Ok(stats) => stats,
        Err(failure) => {
            let log = Log::default();
            let told = Arc::clone(&log);
            let _ = catch_unwind(AssertUnwindSafe(|| live(seed, Some(told))));
            print(seed, &log);
            resume_unwind(failure);
        }
    }
}

fn print(seed: u64, log: &Log) {
    let steps = log
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("seed {seed}, repeat with LEASEHOLD_SEED={seed}:");
    for step in steps.iter() {
        println!("{step}");
    }
}

/// Whatever happens in whatever order: the history is gapless and ends once, each step ends once,
/// one workflow task at a time, rows are what the state says, nothing is lost, doubled or stuck, and
/// a fold of what was stored is the state.
#[test]
fn random_lives_follow_the_rules() {
    if let Some(seed) = from_environment("LEASEHOLD_SEED") {
        let log = Log::default();
        let told = Arc::clone(&log);
        let lived = catch_unwind(AssertUnwindSafe(|| live(seed, Some(told))));
        print(seed, &log);
        match lived {
            Ok(stats) => println!("{stats:?}"),
            Err(failure) => resume_unwind(failure),
        }
        return;
    }
    let seeds = from_environment("LEASEHOLD_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let total = Mutex::new(Stats::default());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let stats = live_and_tell(seed);
                    total.lock().unwrap().add(stats);
                }
            });
        }
    });
    let total = total.lock().unwrap().clone();
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
