//! The database's time, kept between looks at it: a sample and the monotonic time since.
//!
//! Everything that is compared with a stored deadline is compared with this, never with the wall
//! clock of the node.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::domain::time::Timestamp;

/// A sample is trusted this long before a slower one may replace it. The sample that took the least
/// time to arrive is the best one, and shows the latest time.
const SAMPLE_LIFE: Duration = Duration::from_secs(10);

/// The database's time.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    sample: Mutex<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Microseconds of database time at `start`.
    offset: i64,
    taken: Instant,
}

impl Clock {
    /// A clock set by a first look at the database.
    pub fn new(now: Timestamp) -> Self {
        let start = Instant::now();
        Self {
            start,
            sample: Mutex::new(Sample {
                offset: now.micros(),
                taken: start,
            }),
        }
    }

    /// Takes a sample. Afterwards [`Clock::now`] is not before it.
    pub fn observe(&self, at: Timestamp) {
        let taken = Instant::now();
        let offset = at.micros() - self.elapsed(taken);
        let mut sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        if offset > sample.offset || taken.duration_since(sample.taken) > SAMPLE_LIFE {
            *sample = Sample { offset, taken };
        }
    }

    /// The database's time now, at most a network delay behind.
    pub fn now(&self) -> Timestamp {
        let offset = self
            .sample
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .offset;
        Timestamp::from_micros(offset.saturating_add(self.elapsed(Instant::now())))
    }

    fn elapsed(&self, until: Instant) -> i64 {
        i64::try_from(until.duration_since(self.start).as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_before_what_was_seen() {
        let clock = Clock::new(Timestamp::from_micros(1_000));
        assert!(clock.now() >= Timestamp::from_micros(1_000));
        clock.observe(Timestamp::from_micros(9_000_000));
        assert!(clock.now() >= Timestamp::from_micros(9_000_000));
        clock.observe(Timestamp::from_micros(5_000));
        assert!(
            clock.now() >= Timestamp::from_micros(9_000_000),
            "a slower sample is ignored"
        );
    }
}
