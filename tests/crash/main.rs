//! The crash test: the real server on a durable database, killed without warning again and again
//! under load. What it had answered is there, once; nothing is stuck.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test stops at the first thing that is not as it should be"
)]

#[allow(dead_code, reason = "answers are only compared")]
#[path = "../it/documented.rs"]
mod documented;

#[allow(
    dead_code,
    reason = "shared with the tests of failures, which use more of it"
)]
#[path = "../faults/load.rs"]
mod load;
#[allow(
    dead_code,
    reason = "shared with the tests of failures, which use more of it"
)]
#[path = "../faults/process.rs"]
mod process;
#[allow(
    dead_code,
    reason = "shared with the tests over HTTP, which use more of it"
)]
#[path = "../it/support.rs"]
mod support;

use std::time::{Duration, Instant};

use leasehold::managed_pg::testing::scratch_dir;
use leasehold::managed_pg::{Cluster, Durability, Settings};
use leasehold::store::migrate;
use rustix::process::Signal;
use sqlx::ConnectOptions;

use load::{Crew, Load};
use process::{Server, free_port};
use support::eventually;

const CREW: Crew = Crew {
    starters: 3,
    pace: Duration::from_millis(40),
    workflow_pollers: 4,
    activity_pollers: 4,
};
/// How long what was started may take to end after the last kill.
const TO_THE_END: Duration = Duration::from_secs(90);
/// The server lives this long, in milliseconds, before it is killed.
const LIFE_MS: std::ops::Range<u64> = 200..2_500;
/// A lease that a kill leaves behind is kept for a moment only.
const SETTINGS: [(&str, &str); 2] = [
    ("DW_WORKFLOW_TASK_TIMEOUT", "2"),
    ("DW_ACTIVITY_TASK_TIMEOUT", "2"),
];

fn kills() -> u32 {
    std::env::var("LEASEHOLD_KILLS").map_or(20, |kills| {
        kills.parse().expect("LEASEHOLD_KILLS is a number")
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_again_and_again_loses_and_doubles_nothing() {
    let kills = kills();
    let dir = scratch_dir("crash").unwrap();
    let cluster = tokio::task::spawn_blocking(move || {
        Cluster::start(&Settings {
            dir,
            bin_dir: None,
            durability: Durability::Durable,
            max_connections: 60,
        })
    });
    let cluster = cluster.await.unwrap().unwrap();
    let database = cluster.connect_options("postgres");
    migrate::run(&database).await.unwrap();
    let port = free_port();
    let mut server = Server::serve(&database, port, &SETTINGS);
    server.until_ready().await;
    let load = Load::start(&server.url, CREW);
    let mut down = Duration::ZERO;
    for kill in 0..kills {
        let before = load.acknowledged();
        // Now and then as soon as it serves, now and then in full swing.
        let life =
            LIFE_MS.start + uuid::Uuid::new_v4().as_u64_pair().0 % (LIFE_MS.end - LIFE_MS.start);
        tokio::time::sleep(Duration::from_millis(life)).await;
        server.kill();
        let began = Instant::now();
        server = Server::serve(&database, port, &SETTINGS);
        server.until_ready().await;
        down += began.elapsed();
        if kill % 5 == 4 {
            // It gets somewhere between the kills.
            eventually("starts are acknowledged", 30, async || {
                (load.acknowledged() > before).then_some(())
            })
            .await;
        }
    }
    let found = load.settle(TO_THE_END).await;
    println!(
        "kills={kills} lost={} doubled={} stuck={} acknowledged={} unheard={}+{} executions={} outcomes={} down={:.1}s",
        found.lost.len(),
        found.doubled.len(),
        found.stuck.len(),
        found.acknowledged,
        found.unheard_and_there,
        found.unheard_and_absent,
        found.executions,
        found.outcomes,
        down.as_secs_f64()
    );
    assert_eq!(found.lost, Vec::<String>::new());
    assert_eq!(found.doubled, Vec::<String>::new());
    assert_eq!(found.stuck, Vec::<String>::new());
    assert!(found.acknowledged > 10 * kills as usize, "{found:?}");
    let mut connection = database.connect().await.unwrap();
    for (what, statement) in [
        ("open tasks", "select count(*) from tasks"),
        ("timers", "select count(*) from timers"),
        (
            "runs whose history has a gap",
            "select count(*) from (select r.run_id from workflow_runs r left join history_batches h using (run_id)
             group by r.run_id, r.version having r.version <> count(h) or r.version <> max(h.version)) x",
        ),
        (
            "workflow ids that name no run",
            "select count(*) from workflow_instances i where not exists
             (select from workflow_runs r where r.run_id = i.run_id and r.workflow_id = i.workflow_id)",
        ),
        (
            "runs beyond the first",
            "select count(*) - count(distinct workflow_id) from workflow_runs",
        ),
    ] {
        let count: i64 = sqlx::query_scalar(statement).fetch_one(&mut connection).await.unwrap();
        assert_eq!(count, 0, "{what}");
    }
    drop(connection);
    server.signal(Signal::TERM);
    assert!(server.ended(Duration::from_secs(10)).await.success());
    tokio::task::spawn_blocking(move || cluster.stop())
        .await
        .unwrap()
        .unwrap();
}
