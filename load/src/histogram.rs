//! Latencies: counted into buckets of at most 3 % width, by many tasks at once, without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};

/// Buckets of each power of two.
const PARTS: usize = 32;
const PART_BITS: u32 = 5;
/// Powers of two of a microsecond: up to more than an hour.
const POWERS: usize = 32;

/// Counts of latencies.
pub struct Histogram {
    buckets: Vec<AtomicU64>,
    longest: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: (0..PARTS * POWERS).map(|_| AtomicU64::new(0)).collect(),
            longest: AtomicU64::new(0),
        }
    }
}

fn bucket(micros: u64) -> usize {
    if micros < PARTS as u64 {
        return usize::try_from(micros).unwrap_or(0);
    }
    let power = 63 - micros.leading_zeros();
    let part = usize::try_from(micros >> (power - PART_BITS)).unwrap_or(0) - PARTS;
    let at = (power - PART_BITS + 1) as usize * PARTS + part;
    at.min(PARTS * POWERS - 1)
}

/// The middle of a bucket.
fn value(bucket: usize) -> f64 {
    let (power, part) = (bucket / PARTS, bucket % PARTS);
    if power == 0 {
        return part as f64;
    }
    let width = (1_u64 << (power - 1)) as f64;
    (PARTS + part) as f64 * width + width / 2.0
}

impl Histogram {
    /// Adds one.
    pub fn add(&self, seconds: f64) {
        let micros = (seconds.max(0.0) * 1e6) as u64;
        self.buckets[bucket(micros)].fetch_add(1, Relaxed);
        self.longest.fetch_max(micros, Relaxed);
    }

    /// Adds one.
    pub fn add_duration(&self, taken: Duration) {
        self.add(taken.as_secs_f64());
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// The latency that this share is not above, in milliseconds.
    pub fn quantile(&self, share: f64) -> f64 {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += count.load(Relaxed);
            if seen >= wanted {
                // The middle of the last bucket may be above the longest.
                return (value(at) / 1e3).min(self.longest.load(Relaxed) as f64 / 1e3);
            }
        }
        0.0
    }

    /// The longest, in milliseconds.
    pub fn longest(&self) -> f64 {
        self.longest.load(Relaxed) as f64 / 1e3
    }

    /// Forgets everything.
    pub fn clear(&self) {
        for count in &self.buckets {
            count.store(0, Relaxed);
        }
        self.longest.store(0, Relaxed);
    }

    /// Count, p50, p90, p99 and max in milliseconds.
    pub fn json(&self) -> Value {
        json!({
            "count": self.count(),
            "p50_ms": self.quantile(0.5),
            "p90_ms": self.quantile(0.9),
            "p99_ms": self.quantile(0.99),
            "max_ms": self.longest(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close() {
        let histogram = Histogram::default();
        for micros in 1..=10_000_u32 {
            histogram.add(f64::from(micros) / 1e6);
        }
        for (share, expected) in [(0.5, 5.0), (0.9, 9.0), (0.99, 9.9)] {
            let found = histogram.quantile(share);
            assert!((found / expected - 1.0).abs() < 0.04, "{share}: {found}");
        }
        assert!((histogram.longest() - 10.0).abs() < 0.01);
        assert_eq!(histogram.count(), 10_000);
    }

    #[test]
    fn buckets_are_in_order() {
        let mut last = 0;
        for micros in 0..200_000 {
            let at = bucket(micros);
            assert!(at == last || at == last + 1, "{micros}");
            last = at;
        }
    }
}
