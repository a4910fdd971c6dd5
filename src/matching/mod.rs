//! The in-memory half of a poll: who waits for what, and who is given it. Holds no truth; a task is
//! only ever given by a commit or a claim.

mod grant;
mod registry;
mod wakes;

pub use grant::{Grant, GrantedLease, Releases};
pub use registry::{Ended, Guard, QueueKey, Registry, Reserved, Waiting, WorkerKey};
pub use wakes::Wakes;
