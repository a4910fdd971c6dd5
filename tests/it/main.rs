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
mod admission;
mod announcements;
mod bodies;
mod builds;
mod capability_rules;
mod checks;
mod control;
mod covered;
mod delivery;
mod deregistration;
mod dispatch;
mod documented;
mod envelope;
mod field_cases;
mod flood;
mod gates;
mod language;
mod life;
mod lifecycle;
mod malformed;
mod negotiation;
mod polls;
mod published;
mod races;
mod registration;
mod repeats;
mod restart;
mod retention;
mod sessions;
mod steps;
mod sticky;
mod support;
mod workflow_tasks;
