//! Activity tasks: what one shows, its outcome, its heartbeats, its guards and its time limits.

mod failures;
mod guards;
mod heartbeats;
mod leases;
mod results;
mod timeouts;
