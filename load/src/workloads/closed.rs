//! Workloads in which each workflow is started when the one before it in its slot has ended.

use crate::bench::{Bench, Round};
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
    let (mut round, shared) = bench.run(round, plan).await?;
    if shape == Shape::Timer {
        round.value("late_p50_ms", shared.figures.lateness.quantile(0.5));
        round.value("late_p99_ms", shared.figures.lateness.quantile(0.99));
    }
    bench.emit(round);
    Ok(())
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
