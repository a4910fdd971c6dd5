//! Tests of the run: one file per concern, on a modelled database that holds decisions to their fences.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed unwrap, expectation or match is a failed test"
)]

mod kit;
mod start;
