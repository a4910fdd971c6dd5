//! Workloads in which each workflow is started when the one before it in its slot has ended.

use crate::api;
use crate::bench::{Bench, Round};
use crate::http::{Connection, Plane};
use crate::shape::Shape;

/// Shapes of the mix and their weights.
const MIX: [(Shape, u64); 6] = [
    (Shape::Simple, 40),
    (Shape::Chain(1), 30),
    (Shape::Chain(5), 10),
    (Shape::Timer, 10),
    (Shape::Signal, 8),
    (Shape::FanOut, 2),
];

async fn closed(bench: &mut Bench, name: &str, shape: Shape, usual: usize) -> Result<(), String> {
    let open = bench.options.open(usual);
    let variant = match bench.options.rate {
        Some(rate) => format!("rate={rate}"),
        None => format!("open={open}"),
    };
    let plan = bench.plan(shape, open);
    let round = Round::new(name, variant);
    let before = fired(bench).await;
    let (mut round, shared) = bench.run(round, plan).await?;
    if shape == Shape::Timer {
        let figures = &shared.figures;
        round.value("late_p50_ms", figures.lateness.quantile(0.5));
        round.value("late_p99_ms", figures.lateness.quantile(0.99));
        round.value(
            "arrival_late_p50_ms",
            figures.arrival_lateness.quantile(0.5),
        );
        round.value(
            "arrival_late_p99_ms",
            figures.arrival_lateness.quantile(0.99),
        );
        if let Some(bound) = ninety_ninth(&before, &fired(bench).await) {
            round.value("commit_late_p99_below_ms", bound * 1_000.0);
        }
    }
    bench.emit(round);
    Ok(())
}

/// Timers by the bound, in seconds, that the server says the commits that fired them were not later than.
async fn fired(bench: &Bench) -> Vec<(f64, f64)> {
    let mut connection = Connection::new(&bench.targets[0]);
    let answer = api::call(
        &mut connection,
        "metrics",
        Plane::Control,
        "GET",
        "/metrics",
        "",
    );
    let Ok(answer) = answer.await else {
        return Vec::new();
    };
    buckets(&String::from_utf8_lossy(answer.body))
}

fn buckets(metrics: &str) -> Vec<(f64, f64)> {
    let bucket = |line: &str| {
        let (bound, count) = line
            .strip_prefix("dw_timer_lateness_seconds_bucket{le=\"")?
            .split_once("\"}")?;
        let bound = bound.replace("+Inf", "inf").parse().ok()?;
        Some((bound, count.trim().parse().ok()?))
    };
    metrics.lines().filter_map(bucket).collect()
}

/// The least bound below which 99 of 100 fires between two looks were.
fn ninety_ninth(before: &[(f64, f64)], after: &[(f64, f64)]) -> Option<f64> {
    let earlier = |at: usize| before.get(at).map_or(0.0, |(_, count)| *count);
    let news: Vec<(f64, f64)> = after
        .iter()
        .enumerate()
        .map(|(at, (bound, count))| (*bound, count - earlier(at)))
        .collect();
    let (_, all) = *news.last().filter(|(_, all)| *all > 0.0)?;
    let (bound, _) = news.iter().find(|(_, count)| *count >= 0.99 * all)?;
    Some(*bound)
}

/// Start, and one workflow task returns the input.
pub async fn simple(bench: &mut Bench) -> Result<(), String> {
    closed(bench, "simple", Shape::Simple, 64).await
}

/// Start, one activity, complete.
pub async fn one_activity(bench: &mut Bench, open: usize) -> Result<(), String> {
    closed(bench, "one-activity", Shape::Chain(1), open).await
}

/// Five activities, one after another.
pub async fn five_activities(bench: &mut Bench) -> Result<(), String> {
    closed(bench, "five-activities", Shape::Chain(5), 64).await
}

/// A timer of one second.
pub async fn timer(bench: &mut Bench, open: usize) -> Result<(), String> {
    closed(bench, "timer", Shape::Timer, open).await
}

/// Four signals, one after another.
pub async fn signal(bench: &mut Bench) -> Result<(), String> {
    closed(bench, "signal", Shape::Signal, 250).await
}

/// Ten children, awaited.
pub async fn fan_out(bench: &mut Bench) -> Result<(), String> {
    closed(bench, "fan-out", Shape::FanOut, 50).await
}

/// Five hundred markers in one completion, then one more task.
pub async fn replay(bench: &mut Bench) -> Result<(), String> {
    closed(bench, "replay", Shape::Replay, 25).await
}

/// A mix of shapes, drawn in a fixed order.
pub async fn mixed(bench: &mut Bench) -> Result<(), String> {
    let open = bench.options.open(64);
    let mut plan = bench.plan(Shape::Simple, open);
    plan.mix = MIX.to_vec();
    let round = Round::new("mixed", format!("open={open}"));
    let (round, _) = bench.run(round, plan).await?;
    bench.emit(round);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_of_what_was_fired_between_two_looks() {
        let text = |counts: [u32; 3]| {
            ["0.1", "1", "+Inf"]
                .iter()
                .zip(counts)
                .map(|(bound, count)| {
                    format!("dw_timer_lateness_seconds_bucket{{le=\"{bound}\"}} {count}\n")
                })
                .collect::<String>()
        };
        let between = |before, after| ninety_ninth(&buckets(&text(before)), &buckets(&text(after)));
        assert_eq!(between([0, 50, 50], [99, 150, 150]), Some(0.1));
        assert_eq!(between([0, 50, 50], [98, 150, 150]), Some(1.0));
        assert_eq!(between([1, 1, 1], [1, 1, 9]), Some(f64::INFINITY));
        assert_eq!(between([1, 1, 1], [1, 1, 1]), None);
        assert_eq!(ninety_ninth(&[], &buckets("nothing 1")), None);
    }
}
