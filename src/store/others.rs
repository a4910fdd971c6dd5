//! Other nodes on the same database, as far as this one has heard of them, and the pace that they make
//! worth while.
//!
//! Each node writes together what came while its last statement ran. With several nodes there are more
//! statements with less in each, and what a statement costs the database beside what it carries is paid more
//! often. So statements that carry a good deal begin at intervals then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A statement that serves fewer is followed by the next at once.
const MUCH: usize = 4;
/// A node whose tasks wait for others says something more often than this. One that hands all of them to polls of
/// its own says nothing, and then the pace is as if it were not there.
const HEARD_FOR: Duration = Duration::from_secs(2);

/// How statements of one kind follow one another while other nodes are there.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time from the beginning of one to that of the next, at most.
    pub interval: Duration,
    /// The next one begins before that when so many wait for it.
    pub enough: usize,
    /// How often it is looked how many wait.
    pub look: Duration,
}

/// What is known of other nodes.
#[derive(Debug)]
pub struct Others {
    since: Instant,
    /// Milliseconds from `since` to the end of [`HEARD_FOR`] after their last word.
    until: AtomicU64,
}

impl Default for Others {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            until: AtomicU64::new(0),
        }
    }
}

impl Others {
    /// One of them has just said something.
    pub fn heard(&self) {
        let until = self.since.elapsed() + HEARD_FOR;
        let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.until.store(until, Ordering::Relaxed);
    }

    /// Whether one of them has said something shortly before this time.
    fn are_there(&self, now: Instant) -> bool {
        let until = Duration::from_millis(self.until.load(Ordering::Relaxed));
        now.saturating_duration_since(self.since) < until
    }

    /// Rests after a statement that began then and served so many, `most` at most, until the next one is to
    /// begin. After a full one it does not rest: more wait already.
    pub async fn rest(
        &self,
        pace: &Pace,
        begun: Instant,
        served: usize,
        most: usize,
        waiting: impl Fn() -> usize,
    ) {
        if !(MUCH..most).contains(&served) || !self.are_there(Instant::now()) {
            return;
        }
        let end = begun + pace.interval;
        let mut next = Instant::now();
        while next < end && waiting() < pace.enough.min(most) {
            next = (next + pace.look).min(end);
            tokio::time::sleep_until(next.into()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const PACE: Pace = Pace {
        interval: Duration::from_mins(10),
        enough: 10,
        look: Duration::from_millis(1),
    };

    /// Looks that a rest takes until enough wait, one more with each look.
    async fn looks(others: &Others, pace: &Pace, served: usize, most: usize) -> usize {
        let looks = Cell::new(0);
        let waiting = || {
            looks.set(looks.get() + 1);
            looks.get()
        };
        others
            .rest(pace, Instant::now(), served, most, waiting)
            .await;
        looks.get()
    }

    #[tokio::test]
    async fn a_rest_ends_when_enough_wait_or_the_time_is_over() {
        let others = Others::default();
        assert_eq!(looks(&others, &PACE, MUCH, 100).await, 0, "it is alone");
        others.heard();
        assert_eq!(looks(&others, &PACE, MUCH, 100).await, PACE.enough);
        assert_eq!(looks(&others, &PACE, MUCH - 1, 100).await, 0, "too few");
        assert_eq!(looks(&others, &PACE, 100, 100).await, 0, "it was full");
        let full = MUCH + 1;
        assert_eq!(
            looks(&others, &PACE, MUCH, full).await,
            full,
            "more does not fit"
        );
        let short = Pace {
            interval: Duration::ZERO,
            ..PACE
        };
        assert_eq!(looks(&others, &short, MUCH, 100).await, 0, "time is over");
    }

    #[test]
    fn others_are_there_for_a_while_after_their_last_word() {
        let others = Others::default();
        assert!(!others.are_there(Instant::now()));
        others.heard();
        assert!(others.are_there(Instant::now()));
        assert!(!others.are_there(Instant::now() + HEARD_FOR));
    }
}
