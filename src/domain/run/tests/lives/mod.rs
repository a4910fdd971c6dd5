//! Random lives of a workflow that uses the whole language, with its children and successors, held to
//! the invariants of every history; many seeds, each repeatable.
//!
//! `LEASEHOLD_SEEDS=<n>` sets how many; `LEASEHOLD_LIFE=<n>` repeats one and prints its steps.

mod code;
mod invariants;
mod life;
mod replay;
mod told;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use life::{Life, Log, Stats};

const SEEDS: u64 = 10_000;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn live(seed: u64, log: Option<Log>) -> Stats {
    let mut life = Life::new(seed, log);
    life.live();
    life.stats
}

fn print(seed: u64, log: &Log) {
    let steps = log
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("seed {seed}, repeat with LEASEHOLD_LIFE={seed}:");
    for step in steps.iter() {
        println!("{step}");
    }
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

/// Rule: worker plane 7.3 and 7.4: in any interleaving of completions, signals, updates, messages,
/// timers, cancellations, ends of children and lost leases the history is gapless and ends once, a
/// step ends once, a selection is decided once, nothing that was accepted is lost or applied twice,
/// nothing is stuck, and a fold from nothing is the state.
#[test]
fn random_lives_keep_the_invariants() {
    if let Some(seed) = from_environment("LEASEHOLD_LIFE") {
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
        "seeds={seeds} runs={} commits={} refusals={} answers={} lost={} merged={}",
        total.runs, total.commits, total.refusals, total.answers, total.lost, total.merged
    );
    for (event, times) in &total.events {
        println!("{times:>8}  {event}");
    }
    if seeds >= SEEDS {
        for event in told::EVENTS {
            assert!(total.events.contains_key(event), "no life recorded {event}");
        }
        assert!(total.lost > 0 && total.merged > 0);
    }
}
