//! Two thousand idle long polls: what they cost in memory and statements, and how fast one of them
//! hears of work.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sqlx::PgConnection;
use tokio::task::JoinSet;

use crate::process::{Server, free_port};
use crate::raw;
use crate::support::{TestDb, eventually};

const POLLS: usize = 2_000;
const WORKERS: usize = 20;
const IDLE: Duration = Duration::from_secs(10);
/// Statements in that time: one look at the timers and one at the leases every second, one at the queue,
/// at absent workers and at relays every two or so, two at the fleet every five, three at what is old
/// every ten; forty-two, and some room for statements that are prepared on another connection.
const MOST_STATEMENTS: i64 = 60;
/// How soon a task must reach one of the polls.
const AT_ONCE: Duration = Duration::from_millis(250);

/// This process holds the clients' ends, the server inherits the limit for its own.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Some(8_192).min(limit.maximum.or(Some(8_192)));
    if limit.current < wanted {
        let raised = Rlimit {
            current: wanted,
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised).expect("enough open files");
    }
}

/// Transactions of the database so far, this look included.
async fn transactions(connection: &mut PgConnection) -> i64 {
    sqlx::query("select pg_stat_force_next_flush()")
        .execute(&mut *connection)
        .await
        .unwrap();
    sqlx::query_scalar("select xact_commit + xact_rollback from pg_stat_database where datname = current_database()")
        .fetch_one(connection)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_idle_polls_cost_little_and_hear_at_once() {
    allow_many_files();
    let db = TestDb::new().await;
    let mut server = Server::serve(&db.options, free_port(), &[]);
    server.until_ready().await;
    for n in 0..WORKERS {
        server
            .client
            .register(&format!("w{n}"), "q", &["greet"], &[])
            .await;
    }
    let before = server.memory();
    let mut waiting = Vec::with_capacity(POLLS);
    for n in 0..POLLS {
        let worker = format!("w{}", n % WORKERS);
        waiting.push(raw::poll(&server.url, "workflow", &worker, &["q"], 60).await);
    }
    eventually("all polls are parked", 20, async || {
        (server.metric("dw_parked_polls").await >= POLLS as f64).then_some(())
    })
    .await;
    let after = server.memory();
    let mut connection = db.connect().await;
    // Idle sessions report their counts ten seconds late at most.
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    let begin = transactions(&mut connection).await;
    // The time is what is measured.
    tokio::time::sleep(IDLE).await;
    // Its own look is two statements.
    let statements = transactions(&mut connection).await - begin - 2;
    let mut polls = JoinSet::new();
    for waiting in waiting {
        polls.spawn(async move { waiting.answer(Duration::from_secs(30)).await });
    }
    let began = Instant::now();
    server.client.start("wf", "greet", "q").await;
    let (status, body) = polls.join_next().await.unwrap().unwrap().unwrap();
    let took = began.elapsed();
    assert_eq!(status, 200);
    assert_eq!(body["task"]["workflow_id"], "wf");
    println!(
        "{POLLS} idle polls: memory {} MiB before, {} MiB with them, {:.1} KiB each; {statements} statements in {} s; \
         start to delivery {:.1} ms",
        before / 1_024,
        after / 1_024,
        (after - before) as f64 / POLLS as f64,
        IDLE.as_secs(),
        took.as_secs_f64() * 1_000.0
    );
    assert!(statements <= MOST_STATEMENTS, "{statements}");
    assert!(statements > 0, "maintenance looks from time to time");
    assert!(took <= AT_ONCE, "{took:?}");
    polls.abort_all();
    server.kill();
    drop(connection);
    db.drop().await;
}
