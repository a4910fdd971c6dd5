//! The server that the tests of one process share.

use std::process::Command;

use leasehold::managed_pg::testing::{TestCluster, scratch_dir};

use crate::support::*;

#[test]
fn the_shared_test_server_may_create_databases() {
    let options = TestCluster::shared().unwrap().admin_options();
    query(&options, "CREATE DATABASE shared_test");
    let inside = options.clone().database("shared_test");
    assert_eq!(query(&inside, "SELECT 'alive'"), "alive");
    query(&options, "DROP DATABASE shared_test");
}

#[test]
fn the_shared_test_server_ends_with_its_process() {
    let dir = scratch_dir("shared-ends").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env_remove("TEST_DATABASE_URL");
    let mut owner = Again::run(command, "child_shares_and_waits", &dir);
    let server = owner.announced_server();
    assert!(is_running(server));
    owner.finish();
    eventually("the server is gone", || !is_running(server));
}

#[test]
fn a_named_test_server_is_used_instead() {
    let dir = scratch_dir("shared-external").unwrap();
    let cluster = start(&dir);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("TEST_DATABASE_URL", cluster.url("postgres"));
    let mut user = Again::run(command, "child_shares_and_waits", &dir);
    assert_eq!(user.announced_server(), cluster.pid());
    user.finish();
    assert_alive(&cluster);
    cluster.stop().unwrap();
}
