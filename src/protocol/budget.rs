//! The history budget: how large a history has grown against what a worker should replay.

/// Events, bytes and parallel operations at which a run should continue as new.
pub const HARD: [u64; 3] = [10_000, 5_242_880, 200];
/// The same at which it approaches that.
pub const WARNING: [u64; 3] = [8_000, 4_194_304, 160];

const DIMENSIONS: [&str; 3] = ["event_count", "size_bytes", "fan_out"];

/// A history's size in the three dimensions that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget([u64; 3]);

impl Budget {
    /// The budget of a history.
    pub const fn of(events: u64, bytes: u64, fan_out: u64) -> Self {
        Self([events, bytes, fan_out])
    }

    fn reached(&self, thresholds: &[u64; 3]) -> Vec<&'static str> {
        (0..DIMENSIONS.len())
            .filter(|d| self.0[*d] >= thresholds[*d])
            .map(|d| DIMENSIONS[d])
            .collect()
    }

    /// Whether the run should continue as new.
    pub fn continue_as_new_recommended(&self) -> bool {
        !self.reached(&HARD).is_empty()
    }

    /// `ok`, `approaching` or `continue_as_new_recommended`.
    pub fn pressure(&self) -> &'static str {
        if self.continue_as_new_recommended() {
            "continue_as_new_recommended"
        } else if self.reached(&WARNING).is_empty() {
            "ok"
        } else {
            "approaching"
        }
    }

    /// The dimensions that reached the level of [`Budget::pressure`].
    pub fn dimensions(&self) -> Vec<&'static str> {
        let hard = self.reached(&HARD);
        if hard.is_empty() {
            self.reached(&WARNING)
        } else {
            hard
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_level_reached_is_reported_with_its_dimensions() {
        let small = Budget::of(7_999, 0, 159);
        assert_eq!((small.pressure(), small.dimensions()), ("ok", vec![]));
        let warned = Budget::of(8_000, 4_194_304, 0);
        assert_eq!(
            (warned.pressure(), warned.dimensions()),
            ("approaching", vec!["event_count", "size_bytes"])
        );
        let full = Budget::of(8_000, 0, 200);
        assert_eq!(
            (full.pressure(), full.dimensions()),
            ("continue_as_new_recommended", vec!["fan_out"])
        );
        assert!(full.continue_as_new_recommended());
    }
}
