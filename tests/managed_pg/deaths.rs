//! What is left after the server, its owner or `initdb` was ended in every way.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sqlx::postgres::PgConnectOptions;

use leasehold::managed_pg::testing::scratch_dir;
use leasehold::managed_pg::{Cluster, Durability};

use crate::support::*;

#[test]
fn dropping_stops_the_server_in_order() {
    let dir = scratch_dir("drop").unwrap();
    let cluster = start(&dir);
    let pid = cluster.pid();
    drop(cluster);
    assert!(!is_running(pid));
    assert!(log_of(&dir).contains(CLEAN_SHUTDOWN));
}

#[test]
fn a_killed_server_is_noticed_and_recovers_at_the_next_start() {
    let dir = scratch_dir("server-killed").unwrap();
    let mut cluster = Cluster::start(&settings(&dir, Durability::Durable)).unwrap();
    let options = cluster.connect_options("postgres");
    query(&options, "CREATE TABLE kept AS SELECT 'committed' AS word");
    kill(cluster.pid(), Signal::KILL);
    let mut status = None;
    eventually("the death is noticed", || {
        status = cluster.exit_status().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().signal(), Some(9));
    let text = cluster.stop().unwrap_err().to_string();
    assert!(
        text.contains("The private postgres died: signal 9"),
        "{text}"
    );

    let again = Cluster::start(&settings(&dir, Durability::Durable)).unwrap();
    let log = log_of(&dir);
    assert!(log.contains("automatic recovery in progress"), "{log}");
    // The old options still lead to the server: pools need not be made anew.
    assert_eq!(query(&options, "SELECT word FROM kept"), "committed");
    again.stop().unwrap();
}

#[test]
fn a_killed_owner_takes_the_server_with_it() {
    let dir = scratch_dir("owner-killed").unwrap();
    let mut owner = Again::run_this("child_starts_and_waits", &dir);
    let server = owner.announced_server();
    assert!(is_running(server));
    owner.kill();
    eventually("the server is gone", || !is_running(server));
    let log = log_of(&dir);
    assert!(log.contains("received fast shutdown request"), "{log}");
    assert!(log.contains(CLEAN_SHUTDOWN), "{log}");
}

#[test]
fn a_start_waits_for_the_orphan_of_a_killed_owner() {
    let dir = scratch_dir("orphan").unwrap();
    let mut owner = Again::run_this("child_starts_and_waits", &dir);
    let server = owner.announced_server();
    // With this part of it frozen, the orphan cannot finish its shutdown.
    let options = PgConnectOptions::new_without_pgpass()
        .socket(socket_dir(&dir))
        .username("postgres")
        .database("postgres");
    let checkpointer = query(
        &options,
        "SELECT pid::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'",
    );
    let checkpointer = checkpointer.parse().unwrap();
    kill(checkpointer, Signal::STOP);
    owner.kill();
    let place = dir.clone();
    let next = thread::spawn(move || start(&place));
    // It has to wait for as long as we like; without waiting it would have failed by now.
    let thaw = Instant::now() + Duration::from_millis(500);
    while Instant::now() < thaw && !next.is_finished() {
        thread::sleep(Duration::from_millis(5));
    }
    kill(checkpointer, Signal::CONT);
    let next = next.join().unwrap();
    assert!(!is_running(server));
    assert_alive(&next);
    let log = log_of(&dir);
    assert!(!log.contains("automatic recovery"), "{log}");
    next.stop().unwrap();
}

#[test]
fn an_interrupted_init_is_begun_again() {
    let dir = scratch_dir("init-killed").unwrap();
    let unfinished = dir.join("data.new");
    let mut owner = Again::run_this("child_starts_and_waits", &dir);
    eventually("initdb is at work", || {
        unfinished.join("PG_VERSION").exists()
    });
    owner.kill();
    assert!(!dir.join("data").exists());
    start(&dir).stop().unwrap();
    assert!(!unfinished.exists());
    // It was one new and complete run.
    assert!(dir.join("data/PG_VERSION").exists());
}

#[test]
fn what_an_interrupted_init_left_behind_is_removed() {
    let dir = scratch_dir("init-leftover").unwrap();
    let unfinished = dir.join("data.new");
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("PG_VERSION"), "15\n").unwrap();
    fs::write(unfinished.join("half"), "of something").unwrap();
    let cluster = start(&dir);
    assert!(!unfinished.exists());
    assert!(!dir.join("data/half").exists());
    assert_alive(&cluster);
    cluster.stop().unwrap();
}
