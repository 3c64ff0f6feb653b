//! Comparison of two engines on one machine in one sitting: interleaved runs, a ratio for each pair and a verdict
//! that may be AMBIGUOUS.
//!
//! One idea: neither side is ever timed alone. Runs go A B, B A, A B, ..., so a machine that warms up or gets a
//! neighbour meets both sides alike, and the spread over pairs says how far the ratio can be trusted.
mod peer;
mod step;

pub use peer::{Peer, PeerError, PeerRun};
pub use step::{StepRule, own_series, token};

use serde::Serialize;
use std::fmt;

/// Fewest pairs of a comparison.
pub const MIN_PAIRS: usize = 3;

/// Ratios within this many ppm of 1 are no difference.
pub const SAME_PPM: u64 = 20_000;

/// Times of one pair, medians of each side's own series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// Our step in nanoseconds.
    pub ours_ns: u64,
    /// The other side's step in nanoseconds.
    pub theirs_ns: u64,
}

impl Pair {
    /// How many times faster we are, in ppm: 1,000,000 is equal. `None` without a time.
    pub fn speed_ppm(&self) -> Option<u64> {
        let scaled = u128::from(self.theirs_ns) * 1_000_000;
        u64::try_from(scaled.checked_div(u128::from(self.ours_ns))?).ok().filter(|r| *r > 0)
    }
}

/// What the pairs say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Outcome {
    /// Every pair is faster by more than [`SAME_PPM`].
    Fast,
    /// Every pair is slower by more than [`SAME_PPM`].
    Slow,
    /// Every pair is within [`SAME_PPM`].
    Same,
    /// The pairs disagree, or there are fewer than [`MIN_PAIRS`].
    Ambiguous,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fast => "FAST",
            Self::Slow => "SLOW",
            Self::Same => "SAME",
            Self::Ambiguous => "AMBIGUOUS",
        })
    }
}

/// Ratio over pairs and the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// Median speed ratio in ppm.
    pub median_ppm: u64,
    /// Lowest of the pairs.
    pub low_ppm: u64,
    /// Highest of the pairs.
    pub high_ppm: u64,
    /// Verdict.
    pub outcome: Outcome,
}

/// Judges pairs: a pure function of their times. `None` without a pair or with a time of zero.
pub fn judge(pairs: &[Pair]) -> Option<Judged> {
    let mut ratios: Vec<u64> = pairs.iter().map(Pair::speed_ppm).collect::<Option<_>>()?;
    let median_ppm = crate::instruments::series::median(&mut ratios);
    let (low_ppm, high_ppm) = (*ratios.first()?, *ratios.last()?);
    let (slow, fast) = (1_000_000 - SAME_PPM, 1_000_000 + SAME_PPM);
    let outcome = match () {
        () if pairs.len() < MIN_PAIRS => Outcome::Ambiguous,
        () if low_ppm > fast => Outcome::Fast,
        () if high_ppm < slow => Outcome::Slow,
        () if low_ppm >= slow && high_ppm <= fast => Outcome::Same,
        () => Outcome::Ambiguous,
    };
    Some(Judged { median_ppm, low_ppm, high_ppm, outcome })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(times: &[(u64, u64)]) -> Vec<Pair> {
        times.iter().map(|&(ours_ns, theirs_ns)| Pair { ours_ns, theirs_ns }).collect()
    }

    #[test]
    fn outcomes_at_every_edge() {
        let outcome = |times: &[(u64, u64)]| judge(&pairs(times)).unwrap().outcome;
        assert_eq!(outcome(&[(100, 103); 3]), Outcome::Fast);
        assert_eq!(outcome(&[(100, 102); 3]), Outcome::Same);
        assert_eq!(outcome(&[(100, 98); 3]), Outcome::Same);
        assert_eq!(outcome(&[(100, 97); 3]), Outcome::Slow);
        assert_eq!(outcome(&[(100, 103), (100, 103), (100, 101)]), Outcome::Ambiguous);
        assert_eq!(outcome(&[(100, 150), (100, 150)]), Outcome::Ambiguous);
    }

    #[test]
    fn the_spread_is_over_pairs_and_a_missing_time_judges_nothing() {
        let judged = judge(&pairs(&[(100, 120), (100, 90), (200, 200)])).unwrap();
        assert_eq!((judged.low_ppm, judged.median_ppm, judged.high_ppm), (900_000, 1_000_000, 1_200_000));
        assert_eq!(judge(&[]), None);
        assert_eq!(judge(&pairs(&[(0, 5), (1, 1), (1, 1)])), None);
        assert_eq!(judge(&pairs(&[(5, 0), (1, 1), (1, 1)])), None);
        assert_eq!(judge(&pairs(&[(1, u64::MAX)])), None);
    }
}
