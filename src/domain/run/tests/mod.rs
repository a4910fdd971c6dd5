//! Tests of the run: one file per concern, on a modelled database that holds decisions to their fences.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed unwrap, expectation or match is a failed test"
)]

mod activity;
mod attributes;
mod cancellation;
mod child;
mod close;
mod commands;
mod condition;
mod continue_as_new;
mod deadline;
pub(crate) mod kit;
mod limits;
mod lives;
mod local_activity;
mod merge;
mod model;
mod needs;
mod parallel;
mod receipts;
mod repair;
mod selection;
mod signal;
mod signal_wait;
mod start;
mod stream;
mod table_activity;
mod table_language;
mod table_workflow;
mod timeouts;
mod timer;
mod update;
mod workflow_task;
