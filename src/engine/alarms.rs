//! When maintenance has to look next: the earliest deadline that this node has set since its last
//! look. Deadlines of other nodes are found by the regular looks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// One kind of deadline.
#[derive(Debug)]
pub struct Alarm {
    start: Instant,
    /// Milliseconds since `start`; `u64::MAX` when there is none.
    at: AtomicU64,
    sooner: Notify,
}

impl Default for Alarm {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            at: AtomicU64::new(u64::MAX),
            sooner: Notify::new(),
        }
    }
}

impl Alarm {
    /// Something is due in `millis`.
    pub fn set(&self, millis: u64) {
        let at = self.elapsed().saturating_add(millis);
        if self.at.fetch_min(at, Ordering::AcqRel) > at {
            self.sooner.notify_one();
        }
    }

    /// Waits for the earliest deadline, at most `longest`, and forgets it.
    pub async fn wait(&self, longest: Duration) {
        let end = self.elapsed() + u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        loop {
            let sooner = self.sooner.notified();
            let now = self.elapsed();
            let at = self.at.load(Ordering::Acquire).min(end);
            if at <= now {
                self.at.store(u64::MAX, Ordering::Release);
                return;
            }
            tokio::select! {
                () = sooner => {}
                () = tokio::time::sleep(Duration::from_millis(at - now)) => {}
            }
        }
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The deadlines that maintenance keeps.
#[derive(Debug, Default)]
pub struct Alarms {
    /// Timer rows.
    pub timers: Alarm,
    /// Leases and attempts.
    pub leases: Alarm,
}

impl Alarms {
    /// A timer is due in `millis`.
    pub fn timer_in(&self, millis: u64) {
        self.timers.set(millis);
    }

    /// A lease or an attempt ends in `millis`.
    pub fn lease_in(&self, millis: u64) {
        self.leases.set(millis);
    }
}
