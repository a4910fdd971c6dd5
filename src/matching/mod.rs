//! The in-memory half of a poll: who waits for what, and who is given it. Holds no truth; a task is
//! only ever given by a commit or a claim.

mod grant;
mod keys;
#[cfg(test)]
pub mod kit;
mod parked;
mod recheck;
mod registry;
mod wakes;

pub use grant::{Grant, GrantedLease, Releases};
pub use keys::{Ended, IdMap, QueueKey, WorkerKey};
pub use recheck::Due;
pub use registry::{Guard, Registry, Reserved, Waiting};
pub use wakes::Wakes;
