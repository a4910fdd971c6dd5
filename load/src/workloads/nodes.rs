//! Workloads that need servers of their own: two nodes on one database, a server that is killed, and
//! a server whose commits are not grouped.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::bench::{Bench, Round, pause};
use crate::crew::{Crew, Pace};
use crate::shape::Shape;

const OPEN: usize = 64;
/// Share of the maximum at which a server is killed.
const KILLED_AT: f64 = 0.5;
const KILLS: usize = 3;
/// Rate when no maximum was measured.
const MODEST: f64 = 50.0;
/// How often it is looked whether claims go on.
const LOOK: Duration = Duration::from_millis(5);
/// How long the first claim after a restart may take before the round fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// `one-activity` against one server and against two.
pub async fn two_nodes(bench: &mut Bench) -> Result<(), String> {
    let open = bench.options.open(256);
    for nodes in [1, 2] {
        if nodes == 2 {
            bench.add_node(Vec::new()).await?;
        }
        let plan = bench.plan(Shape::Chain(1), open);
        let round = Round::new("two-nodes", format!("nodes={nodes}"));
        let done = bench.run(round, plan).await;
        if nodes == 2 {
            bench.remove_node()?;
        }
        bench.emit(done?.0);
    }
    Ok(())
}

/// One start at a time, with polls held on another node.
pub async fn wake_other_node(bench: &mut Bench, polls: usize) -> Result<(), String> {
    bench.add_node(Vec::new()).await?;
    let done = super::idle::wake(bench, polls, true).await;
    bench.remove_node()?;
    done
}

/// `one-activity` on a server that writes one operation with each statement.
pub async fn ungrouped(bench: &mut Bench, open: usize) -> Result<(), String> {
    let one = ("DW_DATABASE__COMMIT_BATCH", "1".to_owned());
    bench.only_node(vec![one]).await?;
    let mut plan = bench.plan(Shape::Chain(1), open);
    plan.pace = Pace::Open(open);
    let round = Round::new("ungrouped", format!("open={open}"));
    let done = bench.run(round, plan).await;
    bench.remove_only_node()?;
    bench.emit(done?.0);
    Ok(())
}

/// The server is killed without warning, three times, and started again.
pub async fn crash(bench: &mut Bench) -> Result<(), String> {
    let (quick, secs) = (bench.options.quick, bench.options.secs().as_secs_f64());
    let most = bench
        .median(
            "one-activity",
            &format!("open={}", bench.options.open(256)),
            "rate",
        )
        .map_or(MODEST / KILLED_AT, |(rate, _)| rate);
    let rate = if quick {
        MODEST / 2.0
    } else {
        most * KILLED_AT
    };
    let kills = if quick { 1 } else { KILLS };
    let mut round = Round::new("crash", format!("kills={kills}"));
    let mut plan = bench.plan(Shape::Chain(1), OPEN);
    plan.pace = Pace::Rate(rate);
    plan.insist = true;
    plan.killed = true;
    // All of them are read again: nothing is lost, nothing is applied twice.
    plan.keep = usize::MAX;
    let mut crew = Crew::start(plan).await?;
    crew.open_window();
    let mut slowest: f64 = 0.0;
    for _ in 0..kills {
        pause(secs / kills as f64).await;
        bench.kill_server()?;
        let before = crew.shared.activities.load(Relaxed);
        let began = Instant::now();
        bench.restart_server().await?;
        while crew.shared.activities.load(Relaxed) == before {
            if began.elapsed() > PATIENCE {
                round.wrong("no claim after a restart");
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        slowest = slowest.max(began.elapsed().as_secs_f64());
    }
    pause(secs / kills as f64).await;
    crew.close_window();
    // An activity that was on its way to the tool when the server died comes when its lease ends:
    // five minutes later, unless its worker counts as gone.
    let left = crew.drain_within_leases().await;
    let lost = left as f64;
    let shared = crew.dismiss().await;
    round.crew(&shared);
    if let Err(problem) = bench.check_histories(&shared).await {
        round.wrong(problem);
    }
    round.must(left == 0, || format!("{left} workflows never ended"));
    round.value("lost", lost);
    round.value("first_claim_s", slowest);
    round.value("completed", shared.landed.load(Relaxed) as f64);
    round.value(
        "late_reports",
        shared.figures.late_reports.load(Relaxed) as f64,
    );
    bench.emit(round);
    Ok(())
}
