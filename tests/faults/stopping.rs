//! Signals: parked polls are answered, running requests are finished, and the process ends.

use std::time::{Duration, Instant};

use leasehold::managed_pg::testing::scratch_dir;
use rustix::process::Signal;
use serde_json::json;
use sqlx::PgConnection;

use crate::holds::{hold_header, until_commit_waits};
use crate::process::{Server, free_port};
use crate::raw;
use crate::support::{TestDb, eventually};

/// How long stopping may take.
const SOON: Duration = Duration::from_secs(10);

async fn serving(db: &TestDb) -> Server {
    let mut server = Server::serve(&db.options, free_port(), &[]);
    server.until_ready().await;
    server
}

async fn until_parked(server: &Server, polls: u32) {
    eventually("polls are parked", 10, async || {
        (server.metric("dw_parked_polls").await >= f64::from(polls)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_parked_polls_are_answered_before_the_process_ends() {
    const POLLS: u32 = 200;
    for signal in [Signal::TERM, Signal::INT] {
        let db = TestDb::new().await;
        let mut server = serving(&db).await;
        server
            .client
            .register("w", "q", &["greet"], &["hello"])
            .await;
        let mut waiting = Vec::new();
        for n in 0..POLLS {
            let kind = if n % 2 == 0 { "workflow" } else { "activity" };
            waiting.push(raw::poll(&server.url, kind, "w", &["q"], 60).await);
        }
        until_parked(&server, POLLS).await;
        let began = Instant::now();
        server.signal(signal);
        for waiting in waiting {
            let (status, body) = waiting.answer(SOON).await.unwrap();
            assert_eq!(status, 200);
            assert!(body["task"].is_null(), "{body:#}");
            assert_eq!(body["poll_status"], "timeout");
        }
        let status = server.ended(SOON).await;
        println!(
            "{signal:?} with {POLLS} parked polls: ended after {:.2} s",
            began.elapsed().as_secs_f64()
        );
        assert!(status.success(), "{status}");
        assert!(began.elapsed() < SOON);
        db.drop().await;
    }
}

/// A server that has something to do: a parked poll, and a completion that waits in the middle of its
/// commit for `holder` to let go, two seconds at most.
struct Occupied {
    server: Server,
    parked: raw::Asked,
    completing: raw::Asked,
    run: String,
}

async fn occupied(db: &TestDb, holder: &mut PgConnection, watcher: &mut PgConnection) -> Occupied {
    let server = serving(db).await;
    let client = &server.client;
    client.register("w", "q", &["greet"], &[]).await;
    client.register("idle", "quiet", &["greet"], &[]).await;
    let parked = raw::poll(&server.url, "workflow", "idle", &["quiet"], 60).await;
    until_parked(&server, 1).await;
    let run = client.start("wf", "greet", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    hold_header(holder, &run).await;
    let path = format!(
        "/worker/workflow-tasks/{}/complete",
        task["task_id"].as_str().unwrap()
    );
    let body = json!({
        "lease_owner": "w",
        "workflow_task_attempt": 1,
        "commands": [{"type": "complete_workflow"}],
    });
    let completing = raw::ask(&server.url, &path, &body).await;
    until_commit_waits(watcher).await;
    Occupied {
        server,
        parked,
        completing,
        run,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_runs_is_finished_before_the_process_ends() {
    let db = TestDb::new().await;
    let mut holder = db.connect().await;
    let mut watcher = db.connect().await;
    let mut occupied = occupied(&db, &mut holder, &mut watcher).await;
    let began = Instant::now();
    occupied.server.signal(Signal::TERM);
    // Longer than a hasty stop waits, shorter than the database lets a commit wait.
    let long_enough = began + Duration::from_millis(1_200);
    // That the parked poll is answered shows that the stop is under way.
    let (status, _) = occupied.parked.answer(SOON).await.unwrap();
    assert_eq!(status, 200);
    tokio::time::sleep_until(long_enough.into()).await;
    sqlx::query("rollback").execute(&mut holder).await.unwrap();
    let (status, body) = occupied.completing.answer(SOON).await.unwrap();
    assert_eq!(status, 200, "{body:#}");
    assert_eq!(body["recorded"], true);
    let ended = occupied.server.ended(SOON).await;
    println!(
        "SIGTERM with a running completion: ended after {:.2} s",
        began.elapsed().as_secs_f64()
    );
    assert!(ended.success(), "{ended}");
    let closed: String = sqlx::query_scalar("select closed_reason from workflow_runs")
        .fetch_one(&mut watcher)
        .await
        .unwrap();
    assert_eq!(closed, "completed");
    drop((holder, watcher));
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_takes_no_new_connections() {
    let db = TestDb::new().await;
    let mut holder = db.connect().await;
    let mut watcher = db.connect().await;
    let mut occupied = occupied(&db, &mut holder, &mut watcher).await;
    occupied.server.signal(Signal::TERM);
    let address = occupied
        .server
        .url
        .strip_prefix("http://")
        .unwrap()
        .to_owned();
    eventually("connections are refused", 2, async || {
        tokio::net::TcpStream::connect(&address)
            .await
            .is_err()
            .then_some(())
    })
    .await;
    sqlx::query("rollback").execute(&mut holder).await.unwrap();
    occupied.completing.answer(SOON).await.unwrap();
    assert!(occupied.server.ended(SOON).await.success());
    drop((holder, watcher));
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_process_at_once_and_leaves_the_history_whole() {
    let db = TestDb::new().await;
    let mut holder = db.connect().await;
    let mut watcher = db.connect().await;
    let mut occupied = occupied(&db, &mut holder, &mut watcher).await;
    occupied.server.signal(Signal::TERM);
    occupied.parked.answer(SOON).await.unwrap();
    let began = Instant::now();
    occupied.server.signal(Signal::TERM);
    let ended = occupied.server.ended(Duration::from_secs(1)).await;
    println!(
        "a second signal: ended after {:.2} s",
        began.elapsed().as_secs_f64()
    );
    assert!(!ended.success(), "cut short is not in order: {ended}");
    if let Ok((status, body)) = occupied.completing.answer(SOON).await {
        // The database had lost its patience before.
        assert_eq!(status, 503, "{body:#}");
    }
    sqlx::query("rollback").execute(&mut holder).await.unwrap();
    // The next process finds the run and its lease as they are.
    let mut next = serving(&db).await;
    let shown = next
        .client
        .get(&format!("/workflows/wf/runs/{}", occupied.run))
        .await
        .expect(200);
    assert!(
        ["pending", "completed"].contains(&shown["status"].as_str().unwrap()),
        "{shown:#}"
    );
    next.signal(Signal::TERM);
    assert!(next.ended(SOON).await.success());
    drop((holder, watcher));
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_stops_its_database_with_itself() {
    let dir = scratch_dir("dev").unwrap();
    for round in 0..2 {
        let mut server = Server::dev(&dir, free_port());
        server.until_ready().await;
        let pid = std::fs::read_to_string(dir.join("data/postmaster.pid")).unwrap();
        let pid = pid.lines().next().unwrap().to_owned();
        let running = || std::path::Path::new("/proc").join(&pid).exists();
        assert!(running());
        if round == 0 {
            server.client.start("kept", "greet", "q").await;
        } else {
            server.client.get("/workflows/kept").await.expect(200);
        }
        let waiting = if round == 0 {
            server
                .client
                .register("w", "elsewhere", &["greet"], &[])
                .await;
            let waiting = raw::poll(&server.url, "workflow", "w", &["elsewhere"], 60).await;
            until_parked(&server, 1).await;
            Some(waiting)
        } else {
            None
        };
        server.signal(Signal::INT);
        if let Some(waiting) = waiting {
            assert_eq!(waiting.answer(SOON).await.unwrap().0, 200);
        }
        let status = server.ended(SOON).await;
        assert!(
            status.success(),
            "{status}\n{}",
            std::fs::read_to_string(&server.log).unwrap()
        );
        assert!(!running(), "the database still runs");
    }
}
