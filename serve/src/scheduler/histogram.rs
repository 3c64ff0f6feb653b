//! A lock-free histogram of seconds with fixed buckets, for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds in seconds; an overflow bucket follows.
pub const BOUNDS_S: [f64; 14] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0, 120.0];

/// Counts of durations by bucket.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; BOUNDS_S.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one duration.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS_S.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS_S.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Cumulative counts (one per bound, then all) and the sum in seconds.
    pub fn snapshot(&self) -> (Vec<u64>, f64) {
        let mut running = 0;
        let cumulative = self
            .counts
            .iter()
            .map(|count| {
                running += count.load(Relaxed);
                running
            })
            .collect();
        (cumulative, self.sum_us.load(Relaxed) as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_closed_above() {
        let histogram = Histogram::new();
        for us in [500, 501, 10_000_000, 500_000_000] {
            histogram.observe(Duration::from_micros(us));
        }
        let (counts, sum) = histogram.snapshot();
        assert_eq!(counts[0], 1, "0.5 ms belongs to the first bucket");
        assert_eq!(counts[1], 2);
        assert_eq!(counts[BOUNDS_S.len() - 1], 3, "500 s is beyond every bound");
        assert_eq!(counts[BOUNDS_S.len()], 4);
        assert!((sum - 510.001001).abs() < 1e-9);
    }
}
