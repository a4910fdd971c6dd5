//! Many random lives side by side, each repeatable from its seed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Steps of a life, for whoever has to understand it.
pub type Log = Arc<Mutex<Vec<String>>>;

/// How many seeds are lived, unless `LEASEHOLD_SEEDS` says otherwise.
pub const SEEDS: u64 = 10_000;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Lives all seeds, or only the one that the variable `single` names, whose steps are printed. Returns
/// how many were lived and what `add` made of them; `None` for a single one.
pub fn live_seeds<S: Default + Clone + std::fmt::Debug + Send>(
    single: &str,
    live: impl Fn(u64, Option<Log>) -> S + Sync + std::panic::RefUnwindSafe,
    add: impl Fn(&mut S, S) + Sync,
) -> Option<(u64, S)> {
    if let Some(seed) = from_environment(single) {
        let log = Log::default();
        let told = Arc::clone(&log);
        let lived = catch_unwind(AssertUnwindSafe(|| live(seed, Some(told))));
        print(single, seed, &log);
        match lived {
            Ok(stats) => println!("{stats:?}"),
            Err(failure) => resume_unwind(failure),
        }
        return None;
    }
    let seeds = from_environment("LEASEHOLD_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let total = Mutex::new(S::default());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let stats = live_and_tell(single, seed, &live);
                    add(&mut total.lock().unwrap(), stats);
                }
            });
        }
    });
    let total = total.lock().unwrap().clone();
    Some((seeds, total))
}

/// Lives one seed; a failure is lived again with a list of its steps, which is printed.
fn live_and_tell<S>(
    single: &str,
    seed: u64,
    live: &(impl Fn(u64, Option<Log>) -> S + std::panic::RefUnwindSafe),
) -> S {
    match catch_unwind(|| live(seed, None)) {
        Ok(stats) => stats,
        Err(failure) => {
            let log = Log::default();
            let told = Arc::clone(&log);
            let _ = catch_unwind(AssertUnwindSafe(|| live(seed, Some(told))));
            print(single, seed, &log);
            resume_unwind(failure);
        }
    }
}

fn print(single: &str, seed: u64, log: &Log) {
    let steps = log.lock().unwrap_or_else(PoisonError::into_inner);
    println!("seed {seed}, repeat with {single}={seed}:");
    for step in steps.iter() {
        println!("{step}");
    }
}
