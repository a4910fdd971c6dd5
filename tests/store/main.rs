//! The store on a real PostgreSQL: the door and its fences, lanes, claims, leases, and the plans
//! that all of them run with.
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

mod dispatch;
mod fences;
mod hammer;
mod keys;
mod kit;
mod lanes;
mod leases;
mod lost;
mod mutants;
mod plans;
mod proxy;
mod ready;
mod retention;
mod routing;
#[allow(
    dead_code,
    reason = "shared with the tests over HTTP, which use more of it"
)]
#[path = "../it/support.rs"]
mod support;
