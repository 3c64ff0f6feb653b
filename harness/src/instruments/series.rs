//! The stop rule of a series and its statistics, as pure functions of the samples.
use receipts::measured::relative_stdev_ppm;

/// Fewest samples of a series.
pub const MIN_SAMPLES: usize = 10;
/// Relative standard deviation at which a series is quiet.
pub const QUIET_PPM: u64 = 5_000;
/// Samples over which the deviation must have stopped improving.
const WINDOW: usize = 5;

/// Whether a series may stop, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopState {
    /// Whether the condition is met.
    pub met: bool,
    /// The condition, met or unmet.
    pub reason: String,
}

/// At least [`MIN_SAMPLES`], and either at most 0.5 % relative standard deviation, or a deviation that the last
/// five samples improved by less than a twentieth.
pub fn stop(series: &[u64]) -> StopState {
    let n = series.len();
    if n < MIN_SAMPLES {
        return StopState { met: false, reason: format!("{n} samples, at least {MIN_SAMPLES} are needed") };
    }
    let now = relative_stdev_ppm(series).unwrap_or(u64::MAX);
    if now <= QUIET_PPM {
        return StopState {
            met: true,
            reason: format!("relative standard deviation {now} ppm <= {QUIET_PPM} ppm"),
        };
    }
    let before = relative_stdev_ppm(&series[..n - WINDOW]).unwrap_or(u64::MAX);
    let met = (now.saturating_mul(20) >= before.saturating_mul(19))
        && (now.saturating_mul(19) <= before.saturating_mul(20));
    let verb = match () {
        () if met => "stopped improving",
        () if now > before => "growing",
        () => "still improving",
    };
    StopState {
        met,
        reason: format!("relative standard deviation {now} ppm {verb} ({before} ppm {WINDOW} samples ago)"),
    }
}

/// Median of a non-empty slice, the lower of two middles averaged down.
pub fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    match values.len() {
        0 => 0,
        n if n % 2 == 1 => values[n / 2],
        n => values[n / 2 - 1].midpoint(values[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_series_never_stops() {
        assert!(!stop(&[100; 9]).met);
        assert!(stop(&[100; 10]).met);
    }

    #[test]
    fn a_series_that_still_settles_goes_on() {
        let mut series = vec![200, 190, 150, 120, 110];
        series.extend([100; 5]);
        assert!(!stop(&series).met, "{}", stop(&series).reason);
        series.extend([100; 60]);
        let noisy: Vec<u64> = (0..20).map(|i| 100 + 10 * (i % 2)).collect();
        assert!(stop(&noisy).met, "a bimodal series does not improve: {}", stop(&noisy).reason);
    }

    #[test]
    fn medians_of_odd_and_even_series() {
        assert_eq!(median(&mut [3, 1, 2]), 2);
        assert_eq!(median(&mut [4, 1, 2, 3]), 2);
    }
}
