//! The generated document of the worker plane against the fixed contract.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test stops at the first thing that is not as it should be"
)]

mod compare;
mod differences;
mod worker_plane;
