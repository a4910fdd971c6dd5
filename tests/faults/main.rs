//! Behaviour under failure: clients that hang up, signals, several nodes on one database, a database
//! that goes away.
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

mod database;
mod hangups;
mod holds;
mod idle;
mod load;
mod long_runs;
mod nodes;
mod noise;
mod process;
#[allow(
    dead_code,
    reason = "shared with the tests of the store, which use more of it"
)]
#[path = "../store/proxy.rs"]
mod proxy;
mod queues;
mod raw;
mod stopping;
#[allow(
    dead_code,
    reason = "shared with the tests over HTTP, which use more of it"
)]
#[path = "../it/support.rs"]
mod support;
