//! Starting, connecting, stopping, and the folder that it happens in.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::thread;

use rustix::process::Signal;
use sqlx::postgres::PgConnectOptions;

use leasehold::managed_pg::testing::scratch_dir;
use leasehold::managed_pg::{Cluster, Durability};

use crate::support::*;

#[test]
fn starts_answers_stops_cleanly_and_keeps_the_data() {
    let dir = scratch_dir("plain").unwrap();
    let cluster = Cluster::start(&settings(&dir, Durability::Durable)).unwrap();
    assert_eq!(cluster.dir(), dir);
    let options = cluster.connect_options("postgres");
    for (statement, expected) in [
        ("SELECT current_user::text", "postgres"),
        ("SHOW listen_addresses", ""),
        ("SHOW data_checksums", "on"),
        ("SHOW fsync", "on"),
        ("SHOW full_page_writes", "on"),
        ("SHOW server_encoding", "UTF8"),
        ("SHOW max_connections", "20"),
        (
            "SELECT datcollate::text FROM pg_database WHERE datname = 'postgres'",
            "C.UTF-8",
        ),
    ] {
        assert_eq!(query(&options, statement), expected, "{statement}");
    }
    let from_url = PgConnectOptions::from_str(&cluster.url("postgres")).unwrap();
    query(
        &from_url,
        "CREATE TABLE kept AS SELECT 'still here' AS word",
    );

    let server = fs::metadata(format!("/proc/{}", cluster.pid())).unwrap();
    assert_ne!(server.uid(), 0);
    for private in [dir.join("data"), socket_dir(&dir)] {
        let found = fs::metadata(&private).unwrap();
        let expected = (server.uid(), 0o700);
        let found = (found.uid(), found.mode() & 0o777);
        assert_eq!(found, expected, "{private:?}");
    }
    assert!(!dir.join("data.new").exists());

    let pid = cluster.pid();
    cluster.stop().unwrap();
    assert!(!is_running(pid));
    assert!(log_of(&dir).contains(CLEAN_SHUTDOWN));

    let again = start(&dir);
    let options = again.connect_options("postgres");
    assert_eq!(query(&options, "SELECT word FROM kept"), "still here");
    let log = log_of(&dir);
    assert!(!log.contains("automatic recovery"), "{log}");
    again.stop().unwrap();
}

#[test]
fn psql_understands_the_printed_command_and_url_even_for_strange_paths() {
    let dir = scratch_dir("strange, \"path\" & it's").unwrap();
    let cluster = start(&dir);
    for client in [
        cluster.psql_command(),
        format!("psql '{}'", cluster.url("postgres")),
    ] {
        let output = Command::new("/bin/sh")
            .args(["-c", &format!("{client} -Atc 'SHOW fsync'")])
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed, "off\n", "{client}: {output:?}");
    }
    assert_alive(&cluster);
    cluster.stop().unwrap();
}

#[test]
fn a_path_too_long_for_a_socket_gets_a_short_one() {
    let dir = scratch_dir("long").unwrap().join("x".repeat(120));
    let mut cluster = start(&dir);
    assert_alive(&cluster);
    let record = dir.join("sock.path");
    let short = PathBuf::from(fs::read_to_string(&record).unwrap());
    assert!(short.starts_with("/tmp"), "{short:?}");
    assert_eq!(fs::metadata(&short).unwrap().mode() & 0o777, 0o700);

    // After a crash it stays the same, so that pools reconnect.
    kill(cluster.pid(), Signal::KILL);
    eventually("the death is noticed", || {
        cluster.exit_status().unwrap().is_some()
    });
    let options = cluster.connect_options("postgres");
    drop(cluster);
    let cluster = start(&dir);
    assert_eq!(query(&options, "SELECT 'alive'"), "alive");

    cluster.stop().unwrap();
    assert!(!short.exists());
    assert!(!record.exists());
}

#[test]
fn the_server_outlives_the_thread_that_started_it() {
    let dir = scratch_dir("thread").unwrap();
    let place = dir.clone();
    let mut cluster = thread::spawn(move || start(&place)).join().unwrap();
    assert_alive(&cluster);
    assert_eq!(cluster.exit_status().unwrap(), None);
    assert!(!log_of(&dir).contains("shutdown request"));
    cluster.stop().unwrap();
}
