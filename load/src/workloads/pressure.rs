//! Workloads about much of something: requests, queues, bytes, and time.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::bench::{Bench, Round, pause};
use crate::crew::{Crew, DRAIN, Pace};
use crate::shape::Shape;

/// Overload is so many times the maximum.
const OVER: f64 = 2.0;
/// Share of the maximum that churn runs at.
const STEADY: f64 = 0.6;
/// Rate when no maximum was measured.
const MODEST: f64 = 50.0;
const QUEUES_OPEN: usize = 256;
/// Open workflows with large values, and how many times more there are then.
const FEW_BIG: usize = 8;
const MORE_BIG: usize = 4;
const MIB: f64 = 1_048_576.0;

/// The measured maximum of `one-activity`.
fn maximum(bench: &Bench) -> Option<f64> {
    let variant = format!("open={}", bench.options.open(256));
    bench
        .median("one-activity", &variant, "rate")
        .map(|(rate, _)| rate)
}

/// An open loop at twice the maximum, then silence.
pub async fn overload(bench: &mut Bench) -> Result<(), String> {
    if maximum(bench).is_none() {
        super::closed::one_activity(bench, 256).await?;
    }
    let most = maximum(bench).unwrap_or(MODEST).max(MODEST / OVER);
    let rate = bench.options.rate.unwrap_or(most * OVER);
    let secs = match bench.options.secs {
        None if !bench.options.quick => Duration::from_secs(30),
        _ => bench.options.secs(),
    };
    let mut round = Round::new("overload", "");
    let mut plan = bench.plan(Shape::Chain(1), 256);
    plan.pace = Pace::Rate(rate);
    plan.insist = true;
    let mut crew = Crew::start(plan).await?;
    let before = bench.meter.look().await?;
    crew.open_window();
    tokio::time::sleep(secs).await;
    crew.close_window();
    let costs = bench.meter.since(&before).await?;
    let landed = crew.shared.landed.load(Relaxed) as f64;
    let open_at_end = crew.shared.open();
    // What was accepted in the overload is done in the silence after it.
    let left = crew.drain(DRAIN + secs * 3).await;
    let shared = crew.dismiss().await;
    round.must(left == 0, || format!("{left} workflows never ended"));
    // A refusal without a hint is among the errors.
    round.crew(&shared);
    if let Err(problem) = bench.check_histories(&shared).await {
        round.wrong(problem);
    }
    round.costs(&costs, landed);
    round.value("rate", landed / costs.seconds);
    round.value("rate_ratio", landed / costs.seconds / most);
    round.value(
        "refused_with_hint",
        shared.figures.refused.load(Relaxed) as f64,
    );
    round.add("rate_wanted", rate);
    round.add("open_at_end", open_at_end);
    bench.emit(round);
    Ok(())
}

/// `one-activity` over many queues, one workflow and one activity poller each.
pub async fn many_queues(bench: &mut Bench, queues: usize) -> Result<(), String> {
    let open = bench.options.open(QUEUES_OPEN);
    let mut plan = bench.plan(Shape::Chain(1), open);
    plan.queues = (0..queues)
        .map(|n| format!("{}-many-{n}", bench.options.queue))
        .collect();
    // The same number of pollers, or fewer queues would have fewer hands.
    let pollers = if queues == 1 {
        plan.workflow_pollers
    } else {
        queues
    };
    plan.workflow_pollers = pollers;
    plan.activity_pollers = pollers;
    let round = Round::new("many-queues", format!("queues={queues}"));
    let (round, _) = bench.run(round, plan).await?;
    bench.emit(round);
    Ok(())
}

/// Large values, with few workflows open and with more: what memory the difference takes is what each
/// open one takes, and the rest is taken once.
pub async fn big_payload(bench: &mut Bench, bytes: usize) -> Result<(), String> {
    let few = bench.options.open.unwrap_or(FEW_BIG);
    let memory = bench.meter.look().await?.server_memory();
    let mut peaks = Vec::new();
    for open in [few, few * MORE_BIG] {
        let mut plan = bench.plan(Shape::Chain(1), open);
        plan.payload = bytes;
        plan.keep = 4;
        let last = !peaks.is_empty();
        let variant = if last {
            format!("bytes={bytes}")
        } else {
            format!("bytes={bytes} open={open}")
        };
        let (mut round, _) = bench.run(Round::new("big-payload", variant), plan).await?;
        let peak = round.line["costs"]["server_memory_peak"]
            .as_u64()
            .unwrap_or_default();
        let payload = bytes as f64;
        round.value(
            "memory_in_all",
            peak.saturating_sub(memory) as f64 / open as f64 / payload,
        );
        peaks.push(peak as f64);
        if last {
            let each = (peaks[1] - peaks[0]).max(0.0) / (open - few) as f64;
            round.value("memory_ratio", each / payload);
            let fixed = peaks[0] - memory as f64 - each * few as f64;
            round.value("memory_fixed_mib", fixed.max(0.0) / MIB);
        }
        bench.emit(round);
    }
    Ok(())
}

/// A steady load for minutes; the last of them against the first.
pub async fn churn(bench: &mut Bench, minutes: usize) -> Result<(), String> {
    if maximum(bench).is_none() && bench.options.rate.is_none() && !bench.options.quick {
        super::closed::one_activity(bench, 256).await?;
    }
    let most = maximum(bench).unwrap_or(MODEST);
    let rate = match bench.options.rate {
        Some(rate) => rate,
        None if bench.options.quick => MODEST,
        None => most * STEADY,
    };
    // A quick look has short minutes.
    let minute = if bench.options.quick { 0.5 } else { 60.0 };
    let mut plan = bench.plan(Shape::Chain(1), 256);
    plan.pace = Pace::Rate(rate);
    let mut round = Round::new("churn", format!("minutes={minutes}"));
    let crew = Crew::start(plan).await?;
    tokio::time::sleep(bench.options.warmup()).await;
    let mut found = Vec::new();
    let mut all = Vec::new();
    for _ in 0..minutes {
        let before = bench.meter.look().await?;
        crew.open_window();
        pause(minute).await;
        crew.close_window();
        let costs = bench.meter.since(&before).await?;
        let figures = &crew.shared.figures;
        let completed = figures.completed.load(Relaxed);
        let ended = figures.ended.load(Relaxed).max(1) as f64;
        let (p50, hit) = (figures.latency.quantile(0.5), costs.blocks_hit / ended);
        round.disturbed |= costs.disturbed();
        all.push(
            serde_json::json!({"p50_ms": p50, "p99_ms": figures.latency.quantile(0.99),
            "completed": completed, "costs": costs.json(ended)}),
        );
        found.push((p50, hit, costs.memory_end as f64));
    }
    round.add("minutes", all);
    round.add("rate_wanted", rate);
    let shared = bench.finish(&mut round, crew).await;
    round.must(shared.landed.load(Relaxed) > 0, || {
        "nothing was completed".to_owned()
    });
    if let (Some(first), Some(last)) = (found.first(), found.last()) {
        let tenth = found.get(9).unwrap_or(last);
        round.value("p50_ratio", tenth.0 / first.0);
        round.value("blocks_ratio", tenth.1 / first.1);
        let settled = found.get(4).unwrap_or(first);
        round.value("memory_growth", last.2 / settled.2 - 1.0);
    }
    bench.emit(round);
    Ok(())
}
