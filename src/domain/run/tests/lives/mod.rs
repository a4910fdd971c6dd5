//! Random lives of a workflow that uses the whole language, with its children and successors, held to
//! the invariants of every history; many seeds, each repeatable.
//!
//! `LEASEHOLD_SEEDS=<n>` sets how many; `LEASEHOLD_LIFE=<n>` repeats one and prints its steps.

mod code;
mod invariants;
mod life;
mod replay;
mod told;

use super::kit::{Log, SEEDS, live_seeds};
use life::{Life, Stats};

fn live(seed: u64, log: Option<Log>) -> Stats {
    let mut life = Life::new(seed, log);
    life.live();
    life.stats
}

/// Rule: worker plane 7.3 and 7.4: in any interleaving of completions, signals, updates, messages,
/// timers, cancellations, ends of children and lost leases the history is gapless and ends once, a
/// step ends once, a selection is decided once, nothing that was accepted is lost or applied twice,
/// nothing is stuck, and a fold from nothing is the state.
#[test]
fn random_lives_keep_the_invariants() {
    let Some((seeds, total)) = live_seeds("LEASEHOLD_LIFE", live, Stats::add) else {
        return;
    };
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
