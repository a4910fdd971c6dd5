//! Which user runs the server, and that a folder has one owner at a time.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use leasehold::managed_pg::testing::scratch_dir;
use leasehold::managed_pg::{Cluster, Durability, Error, reset};

use crate::support::*;

const NOBODY: u32 = 65534;

#[test]
fn a_second_start_on_the_same_folder_is_refused() {
    let dir = scratch_dir("twice").unwrap();
    let first = start(&dir);
    let text = refusal(&dir);
    let expected = format!("Another server (pid {}) uses", std::process::id());
    assert!(text.contains(&expected), "{text}");
    assert!(matches!(reset(&dir), Err(Error::AlreadyRunning { .. })));
    assert_alive(&first);
    first.stop().unwrap();
    start(&dir).stop().unwrap();
}

#[test]
fn several_starts_at_once_have_one_winner() {
    let dir = scratch_dir("race").unwrap();
    let starts: Vec<_> = (0..4)
        .map(|_| {
            let settings = settings(&dir, Durability::TestOnly);
            thread::spawn(move || Cluster::start(&settings))
        })
        .collect();
    let mut winners = Vec::new();
    for start in starts {
        match start.join().unwrap() {
            Ok(cluster) => winners.push(cluster),
            Err(Error::AlreadyRunning { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(winners.len(), 1);
    winners.remove(0).stop().unwrap();
}

#[test]
fn an_ordinary_user_needs_no_other() {
    if !is_root() {
        eprintln!("skipped: this whole program runs as an ordinary user already");
        return;
    }
    let home = scratch_dir("ordinary").unwrap();
    let dir = home.join("deep/dev");
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    // The program itself may lie where the other user cannot go.
    let program = home.join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(&program);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let mut owner = Again::run(command, "child_starts_and_waits", &dir);
    let server = owner.announced_server();
    let uid_of = |pid: u32| fs::metadata(format!("/proc/{pid}")).unwrap().uid();
    assert_eq!(uid_of(server), NOBODY);
    let made = fs::metadata(home.join("deep")).unwrap();
    assert_eq!((made.uid(), made.mode() & 0o777), (NOBODY, 0o700));
    owner.finish();
    assert!(!is_running(server));
    assert!(log_of(&dir).contains(CLEAN_SHUTDOWN));

    // Root may take over such data, and then keeps to the user that owns it.
    let cluster = start(&dir);
    assert_eq!(uid_of(cluster.pid()), NOBODY);
    cluster.stop().unwrap();
}

#[test]
fn a_strict_umask_does_not_lock_the_other_user_out() {
    let dir = scratch_dir("umask").unwrap().join("deep/dev");
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", "umask 077; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap());
    let mut owner = Again::run(shell, "child_starts_and_waits", &dir);
    owner.announced_server();
    owner.finish();
}
