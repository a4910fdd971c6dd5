//! The private PostgreSQL against the real programs: who runs it, who owns it, and what is left
//! after every kind of death.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may stop at the first surprise"
)]

mod deaths;
mod life;
mod owners;
mod refusals;
mod shared;
mod support;
