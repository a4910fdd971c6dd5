//! A backlog: many ready activities before the first poller comes; alone, beside another queue, and
//! under an old snapshot of the database.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;

use crate::bench::{Bench, Round};
use crate::crew::{Crew, DRAIN, Pace, lock};
use crate::shape::Shape;

/// Activities of one run, so that no run is hot.
const OF_A_RUN: usize = 100;
/// Runs that schedule at once.
pub const SCHEDULERS: usize = 16;
const POLLERS: usize = 64;
/// Parts of a drain that are compared.
const PARTS: usize = 10;
/// How often a drain is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Tasks each second below which a drain counts as stuck.
const SLOWEST: f64 = 20.0;

/// As many activities, in whole runs.
pub fn whole(count: usize) -> usize {
    let of_a_run = OF_A_RUN.min(count.max(1));
    count.max(1).div_ceil(of_a_run) * of_a_run
}

/// Puts `count` activities, in whole runs of a shape that schedules so many, into a queue and leaves
/// nobody there.
pub async fn fill(
    bench: &mut Bench,
    count: usize,
    queue: &str,
    shape: fn(usize) -> Shape,
) -> Result<Crew, String> {
    let of_a_run = OF_A_RUN.min(count.max(1));
    let runs = whole(count) / of_a_run;
    let mut plan = bench.plan(shape(of_a_run), SCHEDULERS);
    plan.pace = Pace::Open(SCHEDULERS.min(runs));
    plan.limit = runs as u64;
    plan.leave_open = true;
    plan.milestone = (runs * of_a_run / PARTS).max(1) as u64;
    plan.page = Some(1);
    // What is in the queue is what is measured, not how large its values are.
    plan.payload = plan.payload.min(1_024);
    plan.workflow_pollers = SCHEDULERS;
    plan.activity_pollers = 0;
    plan.queues = vec![queue.to_owned()];
    let mut crew = Crew::start(plan).await?;
    crew.all_started().await;
    crew.rest_workflows().await;
    let scheduled = lock(&crew.shared.held).len();
    if scheduled != runs {
        return Err(format!(
            "backlog: {scheduled} of {runs} runs have scheduled"
        ));
    }
    Ok(crew)
}

/// Waits until so many activities were reported.
pub async fn until_reported(crew: &Crew, count: usize) -> Result<(), String> {
    let patience = DRAIN + Duration::from_secs_f64(count as f64 / SLOWEST);
    let end = Instant::now() + patience;
    while crew.shared.activities.load(Relaxed) < count as u64 {
        if Instant::now() > end {
            let done = crew.shared.activities.load(Relaxed);
            return Err(format!("backlog: {done} of {count} activities are done"));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Claims and completes a backlog.
pub async fn backlog(bench: &mut Bench, count: usize, variant: &str) -> Result<(), String> {
    let count = whole(count);
    let round = Round::new("backlog", format!("tasks={count}{variant}"));
    let queue = format!("{}-backlog-{count}", bench.options.queue);
    let round = drain(bench, round, count, &queue).await?;
    bench.emit(round);
    Ok(())
}

/// The same on a queue of one's choice, for a round of any workload.
pub async fn drain(
    bench: &mut Bench,
    mut round: Round,
    count: usize,
    queue: &str,
) -> Result<Round, String> {
    let count = whole(count);
    let mut crew = fill(bench, count, queue, Shape::Wide).await?;
    let before = bench.meter.look().await?;
    crew.open_window();
    let began = Instant::now();
    let pollers = bench.options.act_pollers.unwrap_or(POLLERS);
    crew.work(0, pollers, 0);
    until_reported(&crew, count).await?;
    let seconds = began.elapsed().as_secs_f64();
    crew.close_window();
    let costs = bench.meter.since(&before).await?;
    // The runs are told to end, and their histories are read: nothing is missing, nothing is twofold.
    crew.work(SCHEDULERS, 0, 0);
    let shared = bench.finish(&mut round, crew).await;
    let reported = shared.activities.load(Relaxed);
    round.must(reported == count as u64, || {
        format!("{reported} activities were reported and {count} scheduled")
    });
    let claims = &shared.figures.claim_call;
    round.value("rate", count as f64 / seconds);
    round.value("claim_p50_ms", claims.quantile(0.5));
    round.value("claim_p99_ms", claims.quantile(0.99));
    let marks = lock(&shared.milestones).clone();
    if let [first, .., before_last, last] = marks.as_slice() {
        let (head, tail) = (
            first.duration_since(began).as_secs_f64(),
            last.duration_since(*before_last).as_secs_f64(),
        );
        round.value("last_tenth_ratio", head / tail);
    }
    round.costs(&costs, count as f64);
    round.value("blocks_hit", costs.blocks_hit / count as f64);
    Ok(round)
}

/// One workflow at a time on a queue, alone and beside a flooded one.
pub async fn neighbour(bench: &mut Bench) -> Result<(), String> {
    let count = bench.options.count(100_000, 500);
    let alone = quiet(bench, "alone").await?;
    let queue = format!("{}-flood", bench.options.queue);
    let mut flood = fill(bench, count, &queue, Shape::Wide).await?;
    flood.work(0, POLLERS, 0);
    let beside = quiet(bench, "beside").await?;
    let left = (count as u64).saturating_sub(flood.shared.activities.load(Relaxed));
    until_reported(&flood, count).await?;
    flood.work(SCHEDULERS, 0, 0);
    let mut round = Round::new("neighbour", format!("tasks={count}"));
    bench.finish(&mut round, flood).await;
    round.value("p99_ms_alone", alone);
    round.value("p99_ms_beside", beside);
    round.value("p99_ratio", beside / alone);
    round.add("flood_left_when_measured", left);
    // Otherwise the neighbour was gone before the measurement was over.
    round.must(bench.options.quick || left > 0, || {
        "the flood was over too early: raise --count".to_owned()
    });
    round.disturbed = bench
        .rounds
        .iter()
        .rev()
        .take(2)
        .any(|other| other.disturbed);
    bench.emit(round);
    Ok(())
}

async fn quiet(bench: &mut Bench, how: &str) -> Result<f64, String> {
    let mut plan = bench.plan(Shape::Chain(1), 1);
    plan.pace = Pace::Open(1);
    plan.queues = vec![format!("{}-quiet", bench.options.queue)];
    let round = Round::new("neighbour-quiet", how);
    let (round, shared) = bench.run(round, plan).await?;
    bench.emit(round);
    Ok(shared.figures.latency.quantile(0.99))
}

/// A connection that holds a snapshot of the database until it is dropped, as a backup or a report does.
pub async fn snapshot(bench: &Bench) -> Result<PgConnection, String> {
    let database = bench
        .database
        .as_ref()
        .ok_or("an old snapshot needs --database-url")?;
    let mut connection = database.connect().await?;
    sqlx::raw_sql("begin isolation level repeatable read; select count(*) from pg_class")
        .execute(&mut connection)
        .await
        .map_err(crate::database::text)?;
    Ok(connection)
}

/// `one-activity` and `backlog` with and without a snapshot from before their start.
pub async fn old_snapshot(bench: &mut Bench) -> Result<(), String> {
    let count = bench.options.count(100_000, 300);
    for held in [false, true] {
        let variant = if held { "snapshot" } else { "none" };
        let snapshot = if held {
            Some(snapshot(bench).await?)
        } else {
            None
        };
        let open = bench.options.open(256);
        let plan = bench.plan(Shape::Chain(1), open);
        let secs = bench.options.secs;
        if secs.is_none() && !bench.options.quick {
            bench.options.secs = Some(60.0);
        }
        let round = Round::new("old-snapshot", variant);
        let done = bench.run(round, plan).await;
        bench.options.secs = secs;
        let (round, _) = done?;
        bench.emit(round);
        backlog(bench, count, &format!(" snapshot={held}")).await?;
        drop(snapshot);
    }
    Ok(())
}
