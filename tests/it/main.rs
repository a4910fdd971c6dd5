//! Integration tests: the server in this process, over HTTP, on a real PostgreSQL.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    dead_code,
    reason = "a test stops at the first thing that is not as it should be"
)]

mod activity_tasks;
mod announcements;
mod capability_rules;
mod checks;
mod control;
mod delivery;
mod documented;
mod envelope;
mod life;
mod lifecycle;
mod malformed;
mod negotiation;
mod polls;
mod published;
mod races;
mod registration;
mod restart;
mod support;
mod workflow_tasks;
