//! Workloads about single runs that grow: wide, long, hot, large, and asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use crate::api::{self, Refused};
use crate::bench::{Bench, Round, settle};
use crate::crew::{Crew, DRAIN, Pace, Plan, lock};
use crate::http::{Connection, Plane};
use crate::payload::text_blob;
use crate::shape::{Envelope, GROWTH, Shape};

/// Connections that signal the hot run, and that ask.
const SIGNALLERS: usize = 32;
const ASKERS: usize = 64;
const QUERY_POLLERS: usize = 64;
/// Queries each second for each unit.
const QUERIES_OF_A_UNIT: f64 = 5.0;
/// Reads of one page of history.
const READS: usize = 50;
/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// One completion schedules many activities.
pub async fn wide(bench: &mut Bench, count: usize) -> Result<(), String> {
    let open = bench.options.open(4);
    let mut plan = bench.plan(Shape::Wide(count), open);
    plan.page = Some(1);
    plan.workflow_pollers = 8;
    plan.activity_pollers = 64;
    let round = Round::new("wide", format!("activities={count}"));
    let (mut round, shared) = bench.run(round, plan).await?;
    let scheduling = &shared.figures.scheduling;
    round.value("schedule_us_per_activity", scheduling.quantile(0.5) * 1e3);
    bench.emit(round);
    Ok(())
}

fn single(bench: &mut Bench, shape: Shape) -> Plan {
    let mut plan = bench.plan(shape, 1);
    plan.pace = Pace::Open(1);
    plan.limit = 1;
    plan.page = Some(1);
    plan.workflow_pollers = 2;
    plan.activity_pollers = 2;
    plan
}

async fn until(what: &str, patience: Duration, holds: impl Fn() -> bool) -> Result<(), String> {
    let end = Instant::now() + patience;
    while !holds() {
        if Instant::now() > end {
            return Err(format!("{what}: not after {patience:?}"));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// One run alternates between activities and workflow tasks.
pub async fn long_loop(bench: &mut Bench, cycles: usize) -> Result<(), String> {
    let cycles = cycles.max(20);
    let part = (cycles / 10) as u64;
    let mut plan = single(bench, Shape::Chain(cycles));
    plan.read_on = true;
    // The history is to be long, not heavy.
    plan.payload = 64;
    let mut round = Round::new("long-loop", format!("cycles={cycles}"));
    let crew = Crew::start(plan).await?;
    crew.open_window();
    let done = |count: u64| {
        let shared = Arc::clone(&crew.shared);
        move || shared.activities.load(Relaxed) >= count
    };
    let patience = DRAIN + Duration::from_millis(100) * u32::try_from(cycles).unwrap_or(u32::MAX);
    let mut stretches = Vec::new();
    for (from, to) in [
        (part / 2, part / 2 + part),
        (cycles as u64 - part, cycles as u64 - 1),
    ] {
        until("long-loop", patience, done(from)).await?;
        let before = bench.meter.look().await?;
        let (began, first) = (Instant::now(), crew.shared.activities.load(Relaxed));
        until("long-loop", patience, done(to)).await?;
        let count = (crew.shared.activities.load(Relaxed) - first).max(1) as f64;
        let costs = bench.meter.since(&before).await?;
        round.disturbed |= costs.disturbed();
        stretches.push((
            costs.server_cpu / count,
            began.elapsed().as_secs_f64() / count,
        ));
    }
    crew.close_window();
    bench.finish(&mut round, crew).await;
    let (first, last) = (stretches[0], stretches[1]);
    round.value("first_cycle_ms", first.1 * 1e3);
    round.value("last_cycle_ms", last.1 * 1e3);
    round.value("first_server_cpu_us", first.0 * 1e6);
    round.value("last_server_cpu_us", last.0 * 1e6);
    // CPU is counted in steps of 10 ms; a short look has none to compare.
    if first.0 > 0.0 {
        round.value("server_cpu_ratio", last.0 / first.0);
    }
    bench.emit(round);
    Ok(())
}

/// All signals go to one run.
pub async fn hot_run(bench: &mut Bench) -> Result<(), String> {
    let count = bench.options.count(1_000, 100);
    let mut round = Round::new("hot-run", format!("signals={count}"));
    let plan = single(bench, Shape::Hot(count));
    let crew = Crew::start(plan).await?;
    let shared = Arc::clone(&crew.shared);
    until("hot-run", DRAIN, || !lock(&shared.held).is_empty()).await?;
    let workflow = lock(&shared.held)[0].0.clone();
    let before = bench.meter.look().await?;
    crew.open_window();
    let (began, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut signallers = JoinSet::new();
    for n in 0..SIGNALLERS {
        let mut connection = Connection::new(&bench.targets[n % bench.targets.len()]);
        let (shared, next, workflow) = (Arc::clone(&shared), Arc::clone(&next), workflow.clone());
        signallers.spawn(async move {
            loop {
                let n = next.fetch_add(1, Relaxed);
                if n >= count as u64 {
                    return;
                }
                let (blob, request) =
                    (text_blob(&format!("signal {n}")), format!("{workflow}-{n}"));
                match api::signal(&mut connection, &workflow, "hot", &blob, &request).await {
                    Ok(seconds) => shared.figures.signal_call.add(seconds),
                    Err(refused) => shared.error(refused),
                }
            }
        });
    }
    while signallers.join_next().await.is_some() {}
    let seconds = began.elapsed().as_secs_f64();
    crew.close_window();
    let costs = bench.meter.since(&before).await?;
    bench.finish(&mut round, crew).await;
    round.costs(&costs, count as f64);
    round.value("rate", count as f64 / seconds);
    round.value("signal_p50_ms", shared.figures.signal_call.quantile(0.5));
    round.value("signal_p99_ms", shared.figures.signal_call.quantile(0.99));
    bench.emit(round);
    Ok(())
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
    next_page_token: Option<&'a str>,
}

/// Reads pages of a closed run.
pub async fn history_page(bench: &mut Bench, events: usize) -> Result<(), String> {
    let cycles = events.div_ceil(GROWTH).max(1);
    let mut round = Round::new("history-page", format!("events={events}"));
    let plan = single(bench, Shape::Growing(cycles));
    let mut crew = Crew::start(plan).await?;
    let patience = DRAIN + Duration::from_secs(cycles as u64);
    until("history-page", patience, || {
        crew.shared.open() == 0 && !crew.shared.finished().is_empty()
    })
    .await?;
    let left = crew.drain(DRAIN).await;
    round.must(left == 0, || "the run never ended".to_owned());
    let shared = crew.dismiss().await;
    round.crew(&shared);
    let run = shared.finished().pop().ok_or("no run was made")?;
    let total = run.shape.events().len();
    let base = format!("/api/workflows/{}/runs/{}/history", run.workflow, run.run);
    let mut connection = Connection::new(&bench.targets[0]);
    let mut found = BTreeMap::new();
    for size in [100, GROWTH] {
        let mut tokens: Vec<Option<String>> = vec![None];
        let mut seen = 0;
        loop {
            let path = page_path(&base, size, tokens.last().and_then(Option::as_deref));
            let answer =
                api::call(&mut connection, "history", Plane::Control, "GET", &path, "").await;
            let answer = answer.map_err(|refused| refused.to_string())?;
            let page: Page<'_> =
                api::read("history", &answer).map_err(|refused: Refused| refused.to_string())?;
            seen += page.events.len();
            match page.next_page_token {
                Some(token) => tokens.push(Some(token.to_owned())),
                None => break,
            }
        }
        round.must(seen == total, || {
            format!("{seen} of {total} events were served")
        });
        // The last page may be short: the one before it is as full as the first.
        let last = tokens.len().saturating_sub(2);
        settle(bench).await;
        for (place, at) in [("first", 0), ("middle", last / 2), ("last", last)] {
            let path = page_path(&base, size, tokens[at].as_deref());
            let before = bench.meter.look().await?;
            let mut times = Vec::new();
            for _ in 0..READS {
                let answer =
                    api::call(&mut connection, "history", Plane::Control, "GET", &path, "").await;
                times.push(answer.map_err(|refused| refused.to_string())?.seconds);
            }
            times.sort_by(f64::total_cmp);
            settle(bench).await;
            let costs = bench.meter.since(&before).await?;
            round.disturbed |= costs.disturbed();
            found.insert(
                (size, place),
                (times[READS / 2] * 1e3, costs.blocks_hit / READS as f64),
            );
            round.add(
                &format!("page_{size}_{place}"),
                serde_json::json!({"p50_ms": times[READS / 2] * 1e3, "blocks_hit": costs.blocks_hit / READS as f64}),
            );
        }
    }
    for (name, key) in [
        ("first_page_ms", (GROWTH, "first")),
        ("last_page_ms", (GROWTH, "last")),
    ] {
        round.value(name, found[&key].0);
    }
    round.value("first_page_blocks", found[&(GROWTH, "first")].1);
    round.value("last_page_blocks", found[&(GROWTH, "last")].1);
    if let Err(problem) = bench.check_histories(&shared).await {
        round.wrong(problem);
    }
    bench.emit(round);
    Ok(())
}

fn page_path(base: &str, size: usize, token: Option<&str>) -> String {
    match token {
        None => format!("{base}?page_size={size}"),
        Some(token) => format!(
            "{base}?page_size={size}&next_page_token={}",
            api::escaped(token)
        ),
    }
}

#[derive(Deserialize)]
struct Asked<'a> {
    #[serde(borrow)]
    result_envelope: Envelope<'a>,
}

/// Queries of a cohort of runs that wait.
pub async fn query(bench: &mut Bench) -> Result<(), String> {
    let cohort = bench.options.open(500);
    let units = bench.options.count(50, 10);
    let rate = units as f64 * QUERIES_OF_A_UNIT;
    let mut round = Round::new("query", format!("cohort={cohort} units={units}"));
    let mut plan = bench.plan(Shape::Held, cohort);
    plan.pace = Pace::Open(cohort);
    plan.limit = cohort as u64;
    plan.workflow_pollers = 8;
    plan.activity_pollers = 0;
    plan.query_pollers = QUERY_POLLERS;
    let crew = Crew::start(plan).await?;
    let shared = Arc::clone(&crew.shared);
    until("query", DRAIN, || lock(&shared.held).len() == cohort).await?;
    let held = Arc::new(lock(&shared.held).clone());
    let secs = bench.options.secs();
    let before = bench.meter.look().await?;
    crew.open_window();
    let (began, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut askers = JoinSet::new();
    for n in 0..ASKERS {
        let mut connection = Connection::new(&bench.targets[n % bench.targets.len()]);
        let (shared, next, held) = (Arc::clone(&shared), Arc::clone(&next), Arc::clone(&held));
        askers.spawn(async move {
            loop {
                let n = next.fetch_add(1, Relaxed);
                let scheduled = began + Duration::from_secs_f64(n as f64 / rate);
                if scheduled.duration_since(began) > secs {
                    return;
                }
                tokio::time::sleep_until(scheduled.into()).await;
                let workflow = &held[n as usize % held.len()].0;
                let number = workflow
                    .rsplit('-')
                    .next()
                    .and_then(|text| text.parse().ok());
                let path = format!("/api/workflows/{workflow}/query/state");
                let answer = api::call(
                    &mut connection,
                    "query",
                    Plane::Control,
                    "POST",
                    &path,
                    "{}",
                )
                .await;
                let asked = answer.and_then(|answer| {
                    let asked: Asked<'_> = api::read("query", &answer)?;
                    let input = shared.input(Shape::Held, number.unwrap_or_default());
                    if asked.result_envelope.blob == input {
                        Ok(())
                    } else {
                        Err(Refused::wrong("query", "the result is not the input"))
                    }
                });
                match asked {
                    Ok(()) => shared.figures.query_call.add_duration(scheduled.elapsed()),
                    Err(refused) => shared.error(refused),
                }
            }
        });
    }
    while askers.join_next().await.is_some() {}
    crew.close_window();
    let costs = bench.meter.since(&before).await?;
    let mut connection = Connection::new(&bench.targets[0]);
    for (workflow, _) in held.iter() {
        let sent = api::signal(&mut connection, workflow, "s0", &text_blob("end"), workflow).await;
        if let Err(refused) = sent {
            round.wrong(refused.to_string());
        }
    }
    bench.finish(&mut round, crew).await;
    let answered = shared.figures.query_call.count();
    round.costs(&costs, answered as f64);
    round.value("rate", answered as f64 / costs.seconds);
    round.value("query_p50_ms", shared.figures.query_call.quantile(0.5));
    round.value("query_p99_ms", shared.figures.query_call.quantile(0.99));
    round.must(answered > 0, || "no query was answered".to_owned());
    bench.emit(round);
    Ok(())
}
