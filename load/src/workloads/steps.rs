//! What each step of the server is worth: the same load without the step and with it, in turn, each on
//! a server that was started for it.

use crate::bench::{Bench, Round, short};
use crate::crew::Pace;
use crate::shape::Shape;
use crate::spread::Spread;

use super::{backlog, heartbeats};

const WORKLOAD: &str = "steps";

/// A step, what it is measured with, and how it is taken out of the way.
struct Step {
    name: &'static str,
    /// The setting, as it stands in the environment, that turns it off.
    off: (&'static str, &'static str),
    load: Load,
    /// The load runs under an old snapshot of the database.
    old_snapshot: bool,
}

/// What a step is measured with.
#[derive(Clone, Copy)]
enum Load {
    /// `one-activity` with so many open.
    OneActivity(usize),
    /// A backlog of so many activities.
    Backlog(usize),
    /// So many activities that are held and heartbeat.
    Heartbeats(usize),
    /// `commit16` of the database itself, for what the server does nowhere and no setting brings back.
    Commits,
}

/// Adding a step is adding an entry.
const STEPS: [Step; 7] = [
    Step {
        name: "grouped-commits",
        off: ("DW_DATABASE__COMMIT_BATCH", "1"),
        load: Load::OneActivity(256),
        old_snapshot: false,
    },
    Step {
        name: "hand-off",
        off: ("DW_DATABASE__HAND_OFF", "false"),
        load: Load::OneActivity(256),
        old_snapshot: false,
    },
    Step {
        name: "hand-off",
        off: ("DW_DATABASE__HAND_OFF", "false"),
        load: Load::OneActivity(1),
        old_snapshot: false,
    },
    Step {
        name: "grouped-claims",
        off: ("DW_DATABASE__CLAIM_BATCH", "1"),
        load: Load::Backlog(10_000),
        old_snapshot: false,
    },
    Step {
        name: "low-water-marks",
        off: ("DW_DATABASE__LOW_WATER_MARKS", "false"),
        load: Load::Backlog(100_000),
        old_snapshot: true,
    },
    Step {
        name: "grouped-heartbeats",
        off: ("DW_DATABASE__HEARTBEAT_BATCH", "1"),
        load: Load::Heartbeats(1_000),
        old_snapshot: false,
    },
    Step {
        name: "no-notify-in-a-write",
        off: ("pg_notify", "in each transaction"),
        load: Load::Commits,
        old_snapshot: false,
    },
];

/// Sizes of a quick look.
const QUICK_OPEN: usize = 16;
const QUICK_BACKLOG: usize = 200;
const QUICK_HEARTBEATS: usize = 50;

/// Figures that a load is compared by, and what they are called.
const OF_WORKFLOWS: &[(&str, &str)] = &[
    ("rate", "workflows/s"),
    ("postgres_cpu_us", "database CPU, us"),
    ("transactions", "transactions"),
];
const OF_LATENCY: &[(&str, &str)] = &[("p50_ms", "p50, ms"), ("p99_ms", "p99, ms")];
const OF_CLAIMS: &[(&str, &str)] = &[
    ("rate", "activities/s"),
    ("claim_p50_ms", "claim p50, ms"),
    ("postgres_cpu_us", "database CPU, us"),
];
const OF_HEARTBEATS: &[(&str, &str)] = &[
    ("rate", "heartbeats/s"),
    ("p50_ms", "p50, ms"),
    ("postgres_cpu_us", "database CPU, us"),
];
const OF_COMMITS: &[(&str, &str)] = &[("rate", "commits/s"), ("p50_ms", "p50, ms")];

impl Load {
    fn sized(self, quick: bool) -> Self {
        match self {
            _ if !quick => self,
            Self::OneActivity(open) => Self::OneActivity(open.min(QUICK_OPEN)),
            Self::Backlog(count) => Self::Backlog(count.min(QUICK_BACKLOG)),
            Self::Heartbeats(count) => Self::Heartbeats(count.min(QUICK_HEARTBEATS)),
            Self::Commits => Self::Commits,
        }
    }

    fn name(self) -> String {
        match self {
            Self::OneActivity(open) => format!("open={open}"),
            Self::Backlog(count) => format!("tasks={count}"),
            Self::Heartbeats(count) => format!("attempts={count}"),
            Self::Commits => "commit16".to_owned(),
        }
    }

    fn figures(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::OneActivity(1) => OF_LATENCY,
            Self::OneActivity(_) => OF_WORKFLOWS,
            Self::Backlog(_) => OF_CLAIMS,
            Self::Heartbeats(_) => OF_HEARTBEATS,
            Self::Commits => OF_COMMITS,
        }
    }

    /// Puts a server under it.
    async fn run(self, bench: &mut Bench, round: Round, queue: String) -> Result<Round, String> {
        match self {
            Self::OneActivity(open) => {
                let mut plan = bench.plan(Shape::Chain(1), open);
                plan.pace = Pace::Open(open);
                plan.queues = vec![queue];
                Ok(bench.run(round, plan).await?.0)
            }
            Self::Backlog(count) => backlog::drain(bench, round, count, &queue).await,
            Self::Heartbeats(count) => heartbeats::hold(bench, round, count, &queue).await,
            Self::Commits => Err("commits need no server".to_owned()),
        }
    }
}

/// What a round is of: the step is off, or on as by default.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Off,
    On,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
        }
    }
}

impl Step {
    fn variant(&self, side: Side, quick: bool) -> String {
        let load = self.load.sized(quick).name();
        format!("{} {load} {}", self.name, side.name())
    }

    async fn take(&self, bench: &mut Bench, side: Side) -> Result<Round, String> {
        let (setting, value) = self.off;
        let load = self.load.sized(bench.options.quick);
        let mut round = Round::new(WORKLOAD, self.variant(side, bench.options.quick));
        round.add("step", self.name);
        round.add("side", side.name());
        round.add("off", format!("{setting}={value}"));
        if matches!(load, Load::Commits) {
            return bench.commits(round, side == Side::Off).await;
        }
        let settings = match side {
            Side::Off => vec![(setting, value.to_owned())],
            Side::On => Vec::new(),
        };
        // A queue of its own, so that no round wades through what another one left in an index.
        let queue = format!("{}-step-{}", bench.options.queue, bench.rounds.len());
        let snapshot = if self.old_snapshot {
            Some(backlog::snapshot(bench).await?)
        } else {
            None
        };
        bench.only_node(settings).await?;
        let done = load.run(bench, round, queue).await;
        bench.remove_only_node()?;
        drop(snapshot);
        done
    }
}

/// One round of each step, off and then on; of all steps, or of those that are named.
///
/// # Errors
/// A step cannot be measured, or none has that name.
pub async fn round(bench: &mut Bench, only: &[String]) -> Result<(), String> {
    if let Some(name) = only
        .iter()
        .find(|name| STEPS.iter().all(|step| step.name != **name))
    {
        return Err(format!("there is no step {name}"));
    }
    for step in &STEPS {
        if !only.is_empty() && !only.iter().any(|name| name == step.name) {
            continue;
        }
        for side in [Side::Off, Side::On] {
            let round = step
                .take(bench, side)
                .await
                .map_err(|problem| format!("{}: {problem}", step.name))?;
            bench.emit(round);
        }
    }
    Ok(())
}

/// A line of the table.
struct Row {
    step: &'static str,
    load: String,
    figure: &'static str,
    before: Spread,
    after: Spread,
    disturbed: bool,
}

impl Row {
    fn text(&self) -> String {
        let ratio = self.after.median / self.before.median;
        format!(
            "{:<22} {:<14} {:<18} {:>24} {:>24} {:>8}{}",
            self.step,
            self.load,
            self.figure,
            self.before,
            self.after,
            short(ratio),
            if self.disturbed { "  disturbed" } else { "" }
        )
    }
}

/// The lines of what was measured; `of` gives a figure of a variant, and whether it was disturbed.
fn rows(quick: bool, of: impl Fn(&str, &str) -> Option<(Spread, bool)>) -> Vec<Row> {
    let mut rows = Vec::new();
    for step in &STEPS {
        let (off, on) = (
            step.variant(Side::Off, quick),
            step.variant(Side::On, quick),
        );
        for (name, figure) in step.load.figures() {
            if let (Some((before, one)), Some((after, other))) = (of(&off, name), of(&on, name)) {
                rows.push(Row {
                    step: step.name,
                    load: step.load.sized(quick).name(),
                    figure,
                    before,
                    after,
                    disturbed: one || other,
                });
            }
        }
    }
    rows
}

/// Prints what each step has come to, beside the reference figures.
pub fn table(bench: &Bench) {
    let of = |variant: &str, name: &str| bench.spread(WORKLOAD, variant, name);
    eprintln!(
        "\n{:<22} {:<14} {:<18} {:>24} {:>24} {:>8}",
        "step", "load", "figure", "without it", "with it", "ratio"
    );
    for row in rows(bench.options.quick, of) {
        eprintln!("{}", row.text());
    }
    let reference: Vec<String> = ["commit1", "commit16", "store", "echo", "bound"]
        .iter()
        .filter_map(|name| Some((name, bench.spread("reference", "", name)?.0)))
        .map(|(name, spread)| format!("{name} {spread}"))
        .collect();
    eprintln!("reference: {}", reference.join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of two steps go by their variant; a mistake there would mix their figures.
    #[test]
    fn every_side_of_every_step_has_a_variant_of_its_own() {
        for quick in [false, true] {
            let mut variants: Vec<String> = STEPS
                .iter()
                .flat_map(|step| [Side::Off, Side::On].map(|side| step.variant(side, quick)))
                .collect();
            variants.sort();
            variants.dedup();
            assert_eq!(variants.len(), 2 * STEPS.len());
        }
    }

    #[test]
    fn a_row_compares_the_sides_of_one_step() {
        let of = |variant: &str, name: &str| {
            let value = match (variant, name) {
                ("hand-off open=256 off", "rate") => 200.0,
                ("hand-off open=256 on", "rate") => 300.0,
                // Without its other side a figure says nothing.
                ("hand-off open=1 on", "p50_ms") => 5.0,
                _ => return None,
            };
            Spread::of([value, value + 1.0, value - 1.0]).map(|spread| (spread, value > 250.0))
        };
        let rows = rows(false, of);
        assert_eq!(rows.len(), 1);
        let words: Vec<String> = rows[0]
            .text()
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        assert_eq!(
            words.join(" "),
            "hand-off open=256 workflows/s 200.0 (199.0–201.0) 300.0 (299.0–301.0) 1.500 disturbed"
        );
    }

    #[test]
    fn a_quick_look_is_small() {
        for step in &STEPS {
            match step.load.sized(true) {
                Load::OneActivity(open) => assert!(open <= QUICK_OPEN),
                Load::Backlog(count) => assert!(count <= QUICK_BACKLOG),
                Load::Heartbeats(count) => assert!(count <= QUICK_HEARTBEATS),
                Load::Commits => {}
            }
        }
    }
}
