//! Tests of the run: one file per concern, on a modelled database that holds decisions to their fences.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed unwrap, expectation or match is a failed test"
)]

mod activity;
mod close;
mod commands;
mod continue_as_new;
mod deadline;
mod kit;
mod limits;
mod merge;
mod model;
mod parallel;
mod receipts;
mod signal;
mod start;
mod table_activity;
mod table_workflow;
mod timeouts;
mod timer;
mod workflow_task;
