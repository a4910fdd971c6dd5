//! Pure types and decisions: no I/O, no async, no clock reads, nothing of ours but value types.

pub mod admission;
pub mod command;
pub mod dispatch;
pub mod event;
pub mod features;
pub mod ids;
pub mod lease;
pub mod limits;
pub mod list;
pub mod parallel;
pub mod retry;
pub mod rollout;
pub mod routing;
pub mod run;
pub mod session;
pub mod time;
pub mod worker;

pub use run::decision;
