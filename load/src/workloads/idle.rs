//! Workloads about polls that wait: what they cost, how fast they wake, and what becomes of tasks
//! when they vanish.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::api;
use crate::bench::{Bench, Round, settle};
use crate::crew::{Crew, Pace};
use crate::histogram::Histogram;
use crate::http::{Connection, Plane};
use crate::shape::Shape;

/// Wait of a held poll.
const WAIT: u64 = 60;
/// Starts each second of `wake`, 20 ms apart, and of `disconnect`.
const STARTS: f64 = 50.0;
/// Ordinary calls that are timed beside held polls.
const CALLS: usize = 200;
/// How long polls are waited for until they are held.
const PARKING: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Polls that the server says it holds; nothing if it does not say.
async fn parked(connection: &mut Connection) -> Option<f64> {
    let answer = api::call(connection, "metrics", Plane::Control, "GET", "/metrics", "")
        .await
        .ok()?;
    let text = std::str::from_utf8(answer.body).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("dw_parked_polls ")?.trim().parse().ok())
}

/// Waits until the server holds so many polls.
async fn until_parked(bench: &Bench, wanted: usize) -> Result<(), String> {
    let end = Instant::now() + PARKING;
    loop {
        let mut held = 0.0;
        for target in &bench.targets {
            match parked(&mut Connection::new(target)).await {
                Some(count) => held += count,
                // Another server: all that can be done is to give it time.
                None => {
                    tokio::time::sleep(PARKING / 10).await;
                    return Ok(());
                }
            }
        }
        if held >= wanted as f64 {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("{held} of {wanted} polls are held"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Times ordinary calls: a start and a description each. Returns the 99th percentile in milliseconds.
async fn ordinary_calls(bench: &mut Bench, count: usize) -> Result<f64, String> {
    let name = bench.plan(Shape::Simple, 1).name;
    let queue = format!("{}-nobody", bench.options.queue);
    let histogram = Histogram::default();
    let mut connection = Connection::new(&bench.targets[0]);
    for n in 0..count {
        let workflow = format!("{name}-{n}");
        let (_, seconds) = api::start(
            &mut connection,
            &workflow,
            Shape::Simple,
            &queue,
            "wwHioz3/VYAiNwwA",
        )
        .await
        .map_err(|refused| refused.to_string())?;
        histogram.add(seconds);
        let path = format!("/api/workflows/{workflow}");
        let answer = api::call(
            &mut connection,
            "describe",
            Plane::Control,
            "GET",
            &path,
            "",
        )
        .await
        .map_err(|refused| refused.to_string())?;
        histogram.add(answer.seconds);
    }
    Ok(histogram.quantile(0.99))
}

/// Many polls with nothing to do, against the same server without them.
pub async fn idle_polls(bench: &mut Bench, queues: usize) -> Result<(), String> {
    let count = bench.options.count(10_000, 200);
    let quick = bench.options.quick;
    let stretch = match (bench.options.secs, quick) {
        (Some(secs), _) => secs,
        (None, true) => 1.0,
        (None, false) => 60.0,
    };
    let calls = if quick { 20 } else { CALLS };
    let mut round = Round::new("idle-polls", format!("polls={count} queues={queues}"));
    let calls_before = ordinary_calls(bench, calls).await?;

    settle(bench).await;
    let before = bench.meter.look().await?;
    tokio::time::sleep(Duration::from_secs_f64(stretch)).await;
    let idle = bench.meter.since(&before).await?;

    let mut plan = bench.plan(Shape::Simple, 1);
    plan.pace = Pace::Nobody;
    plan.wait = WAIT;
    plan.workflow_pollers = count;
    plan.activity_pollers = 0;
    plan.queues = (0..queues)
        .map(|n| format!("{}-idle-{n}", bench.options.queue))
        .collect();
    let crew = Crew::start(plan).await?;
    until_parked(bench, count).await?;
    settle(bench).await;
    let before = bench.meter.look().await?;
    tokio::time::sleep(Duration::from_secs_f64(stretch)).await;
    let held = bench.meter.since(&before).await?;
    let calls_beside = ordinary_calls(bench, calls).await?;
    until_parked(bench, count).await?;
    let shared = crew.dismiss().await;

    round.crew(&shared);
    round.costs(&held, stretch);
    round.value(
        "transactions_above_idle",
        held.transactions / held.seconds - idle.transactions / idle.seconds,
    );
    round.value("server_cores", held.server_cpu / held.seconds);
    let grown = held.memory_start.saturating_sub(idle.memory_end) as f64;
    round.value("kib_per_poll", grown / 1_024.0 / count as f64);
    round.value("call_p99_ratio", calls_beside / calls_before);
    round.add("call_p99_ms", calls_beside);
    round.add("call_p99_ms_without", calls_before);
    bench.emit(round);
    Ok(())
}

/// Held polls, and one start at a time.
pub async fn wake(bench: &mut Bench, polls: usize, other_node: bool) -> Result<(), String> {
    let node = if other_node { "other" } else { "same" };
    let mut round = Round::new("wake", format!("polls={polls} node={node}"));
    let mut plan = bench.plan(Shape::Simple, 1);
    plan.pace = Pace::Nobody;
    plan.wait = WAIT;
    plan.workflow_pollers = polls;
    plan.activity_pollers = 0;
    plan.queues = vec![format!("{}-wake", bench.options.queue)];
    if other_node {
        let second = bench
            .targets
            .get(1)
            .ok_or("this needs two servers")?
            .clone();
        plan.started_at = Some(vec![bench.targets[0].clone()]);
        plan.targets = vec![second];
    }
    let mut crew = Crew::start(plan).await?;
    until_parked(bench, polls).await?;
    crew.start_at_rate(STARTS);
    tokio::time::sleep(bench.options.warmup()).await;
    let before = bench.meter.look().await?;
    crew.open_window();
    tokio::time::sleep(bench.options.secs()).await;
    crew.close_window();
    let costs = bench.meter.since(&before).await?;
    let shared = bench.finish(&mut round, crew).await;
    let figures = &shared.figures;
    round.costs(&costs, figures.ended.load(Relaxed) as f64);
    round.value("wake_p50_ms", figures.workflow_wait.quantile(0.5));
    round.value("wake_p99_ms", figures.workflow_wait.quantile(0.99));
    round.must(figures.workflow_wait.count() > 0, || {
        "nothing woke".to_owned()
    });
    bench.emit(round);
    Ok(())
}

/// Half of the held polls drop without a word each second while tasks arrive.
pub async fn disconnect(bench: &mut Bench) -> Result<(), String> {
    let polls = bench.options.count(1_000, 50);
    let mut round = Round::new("disconnect", format!("polls={polls}"));
    let mut plan = bench.plan(Shape::Simple, 1);
    plan.pace = Pace::Rate(STARTS);
    plan.wait = WAIT;
    plan.workflow_pollers = polls;
    plan.activity_pollers = 0;
    plan.queues = vec![format!("{}-drop", bench.options.queue)];
    let crew = Crew::start(plan).await?;
    crew.open_window();
    let before = bench.meter.look().await?;
    let end = Instant::now() + bench.options.secs();
    let every = if bench.options.quick { 0.2 } else { 1.0 };
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_secs_f64(every)).await;
        crew.cut();
    }
    crew.close_window();
    let costs = bench.meter.since(&before).await?;
    // Tasks that were on their way to a connection that is gone come again when their lease ends.
    let shared = bench.finish(&mut round, crew).await;
    round.costs(&costs, shared.figures.ended.load(Relaxed) as f64);
    round.value("lost_or_stuck", shared.open() as f64);
    round.value("wake_p99_ms", shared.figures.workflow_wait.quantile(0.99));
    bench.emit(round);
    Ok(())
}
