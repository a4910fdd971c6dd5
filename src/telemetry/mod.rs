//! What can be seen from outside: logs and metrics.

pub mod logging;
pub mod metrics;
