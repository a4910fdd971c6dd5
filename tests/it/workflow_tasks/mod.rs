//! Workflow tasks: what one shows, its lease, and every report on it.

mod closed;
mod commands;
mod complete;
mod fail;
mod fences;
mod fields;
mod history;
