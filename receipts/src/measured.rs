//! The measured sections of a step receipt, and the one way each derived figure is computed.
//!
//! The constructors here are what the harness calls and what the verdict calls again: a stored median,
//! fraction or residual that does not follow from the raw series beside it is found, not believed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One million: the scale of every `_ppm` field.
pub const PPM: u64 = 1_000_000;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// `part / whole` in parts per million, rounded down; `None` when `whole` is zero.
pub fn ppm(part: u64, whole: u64) -> Option<u64> {
    let scaled = u128::from(part) * u128::from(PPM);
    Some(u64::try_from(scaled.checked_div(u128::from(whole))?).unwrap_or(u64::MAX))
}

/// `bytes` in `ns`, in bytes a second, rounded down; `None` when `ns` is zero.
pub fn bytes_per_second(bytes: u64, ns: u64) -> Option<u64> {
    let rate = (u128::from(bytes) * NS_PER_SECOND).checked_div(u128::from(ns))?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}

/// Median, in the unit of the series; the mean of the middle two, rounded down, for an even count.
pub fn median(series: &[u64]) -> Option<u64> {
    let mut sorted = series.to_vec();
    sorted.sort_unstable();
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(sorted[sorted.len() / 2 - 1].midpoint(upper))
}

/// Sample standard deviation over mean, in ppm; `None` for fewer than two samples or a zero mean.
pub fn relative_stdev_ppm(series: &[u64]) -> Option<u64> {
    if series.len() < 2 {
        return None;
    }
    let count = series.len() as f64;
    let mean = series.iter().map(|&x| x as f64).sum::<f64>() / count;
    let squares = series.iter().map(|&x| (x as f64 - mean).powi(2)).sum::<f64>();
    let relative = (squares / (count - 1.0)).sqrt() / mean;
    relative.is_finite().then(|| (relative * PPM as f64).round() as u64)
}

/// One point of the ceiling curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CeilingPoint {
    /// Working set of the probe, in bytes.
    pub working_set_bytes: u64,
    /// Read only, in bytes a second.
    pub read_bytes_per_second: u64,
    /// Copy, reads and writes together, in bytes a second.
    pub copy_bytes_per_second: u64,
    /// In-place read-modify-write, both together, in bytes a second.
    pub update_bytes_per_second: u64,
}

/// The probed ceilings of this device, this minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ceilings {
    /// Curve over working-set size, ascending.
    pub points: Vec<CeilingPoint>,
    /// Cost of an empty launch, in ns.
    pub launch_ns: u64,
    /// Nominal bandwidth, in bytes a second; `null` where no datasheet is known.
    pub datasheet_bytes_per_second: Option<u64>,
}

impl Ceilings {
    /// The point to judge a working set by: the smallest probed set that holds it, else the largest.
    pub fn at(&self, working_set_bytes: u64) -> Option<&CeilingPoint> {
        let holds = |p: &&CeilingPoint| p.working_set_bytes >= working_set_bytes;
        self.points
            .iter()
            .filter(holds)
            .min_by_key(|p| p.working_set_bytes)
            .or_else(|| self.points.iter().max_by_key(|p| p.working_set_bytes))
    }
}

/// Where a cell's working set lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Residency {
    /// Second-level cache.
    L2,
    /// Third-level cache.
    L3,
    /// Memory.
    #[serde(rename = "DRAM")]
    Dram,
}

/// Why sampling stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Whether the stop condition was met; a time-out is `false`.
    pub met: bool,
    /// The condition that was met, or the one that was not.
    pub reason: String,
}

/// What the clock said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Step times in execution order, in ns.
    pub series_ns: Vec<u64>,
    /// Warm-up step times in execution order, in ns.
    pub warmup_ns: Vec<u64>,
    /// Median of the series, in ns: the step time.
    pub step_ns: u64,
    /// Relative standard deviation of the series, in ppm; `null` for fewer than two samples.
    pub relative_stdev_ppm: Option<u64>,
    /// Why sampling stopped.
    pub stop: Stop,
    /// Samples thrown away (throttled, interrupted).
    pub discarded_samples: u64,
    /// Launches that ran in one step.
    pub launches: u64,
    /// Graph nodes at capture; on a device without graphs equal to `launches`.
    pub graph_nodes: u64,
    /// Tokens a second over all rows, in 1e-3 tokens.
    pub tokens_per_second_milli: u64,
    /// Bytes one step moves, by its account.
    pub bytes_per_step: u64,
    /// Bytes one step's working set spans.
    pub working_set_bytes: u64,
    /// Achieved rate, in bytes a second.
    pub achieved_bytes_per_second: u64,
    /// Ceiling at this working set and mix, in bytes a second.
    pub ceiling_bytes_per_second: u64,
    /// Achieved over ceiling, in ppm.
    pub fraction_ppm: u64,
    /// Where the working set lives.
    pub residency: Residency,
}

/// What the harness knows of a finished series; [`Measured::from_run`] derives the rest.
#[derive(Debug, Clone)]
pub struct Run {
    /// Step times in execution order, in ns.
    pub series_ns: Vec<u64>,
    /// Warm-up step times in execution order, in ns.
    pub warmup_ns: Vec<u64>,
    /// Why sampling stopped.
    pub stop: Stop,
    /// Samples thrown away.
    pub discarded_samples: u64,
    /// Rows.
    pub batch: u32,
    /// Launches that ran in one step.
    pub launches: u64,
    /// Graph nodes at capture.
    pub graph_nodes: u64,
    /// Bytes one step moves.
    pub bytes_per_step: u64,
    /// Bytes one step's working set spans.
    pub working_set_bytes: u64,
    /// Ceiling at this working set and mix, in bytes a second.
    pub ceiling_bytes_per_second: u64,
    /// Where the working set lives.
    pub residency: Residency,
}

impl Measured {
    /// Derives median, deviation, rates and fraction. `None` when the series is empty, its median is
    /// zero, or the ceiling is zero: there is no rate to speak of.
    pub fn from_run(run: Run) -> Option<Self> {
        let step_ns = median(&run.series_ns)?;
        let achieved = bytes_per_second(run.bytes_per_step, step_ns)?;
        Some(Self {
            step_ns,
            relative_stdev_ppm: relative_stdev_ppm(&run.series_ns),
            tokens_per_second_milli: bytes_per_second(u64::from(run.batch) * 1000, step_ns)?,
            achieved_bytes_per_second: achieved,
            fraction_ppm: ppm(achieved, run.ceiling_bytes_per_second)?,
            series_ns: run.series_ns,
            warmup_ns: run.warmup_ns,
            stop: run.stop,
            discarded_samples: run.discarded_samples,
            launches: run.launches,
            graph_nodes: run.graph_nodes,
            bytes_per_step: run.bytes_per_step,
            working_set_bytes: run.working_set_bytes,
            ceiling_bytes_per_second: run.ceiling_bytes_per_second,
            residency: run.residency,
        })
    }
}

/// One line of the closure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClosureLine {
    /// Operation.
    pub name: String,
    /// Launches of it in one step.
    pub count: u64,
    /// Time of all of them alone, in ns.
    pub ns: u64,
    /// Bytes all of them move.
    pub bytes: u64,
}

/// `sum of lines + gaps - overlap + unexplained = step`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Closure {
    /// Step time that is explained, in ns (with overlapping launches off, where a device has them).
    pub step_ns: u64,
    /// Time by operation.
    pub lines: Vec<ClosureLine>,
    /// Launch gaps, in ns: nodes times the measured cost of an empty one.
    pub gaps_ns: u64,
    /// Time won by overlapping launches, in ns; measured, never solved for.
    pub overlap_ns: u64,
    /// What is left, signed, in ns.
    pub unexplained_ns: i64,
    /// Its magnitude over the step time, in ppm.
    pub unexplained_ppm: u64,
}

impl Closure {
    /// Closes the books. `None` when the step time is zero or the sum leaves 64 bits.
    pub fn close(step_ns: u64, lines: Vec<ClosureLine>, gaps_ns: u64, overlap_ns: u64) -> Option<Self> {
        let (unexplained_ns, unexplained_ppm) = residual(step_ns, &lines, gaps_ns, overlap_ns)?;
        Some(Self { step_ns, lines, gaps_ns, overlap_ns, unexplained_ns, unexplained_ppm })
    }

    /// The residual and its ppm, worked out again from the lines.
    pub fn recomputed(&self) -> Option<(i64, u64)> {
        residual(self.step_ns, &self.lines, self.gaps_ns, self.overlap_ns)
    }
}

fn residual(step: u64, lines: &[ClosureLine], gaps: u64, overlap: u64) -> Option<(i64, u64)> {
    let explained =
        lines.iter().map(|l| i128::from(l.ns)).sum::<i128>() + i128::from(gaps) - i128::from(overlap);
    let left = i64::try_from(i128::from(step) - explained).ok()?;
    Some((left, ppm(left.unsigned_abs(), step)?))
}

/// What an oracle speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OracleScope {
    /// The very weights that were timed.
    Model,
    /// Other weights of the same family and formats: that the engine computes the family right, nothing about
    /// this model's own weights.
    Family,
}

/// The comparison with an independent implementation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Oracle {
    /// Which oracle.
    pub name: String,
    /// Whose weights it ran.
    pub scope: OracleScope,
    /// Largest absolute logit difference, in 1e-9 units.
    pub max_abs_nano: u64,
    /// Tolerance the run applied, in 1e-9 units; the policy's holds if it is tighter.
    pub tolerance_nano: u64,
    /// Whether greedy token ids were equal.
    pub greedy_equal: bool,
}

/// Proof that what was timed is right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Correctness {
    /// The oracle's word; `null` when no oracle ran.
    pub oracle: Option<Oracle>,
    /// Hash over the tokens of every row of the timed steps.
    pub timed_tokens_hash: String,
    /// The same, by the reference path from the same fill.
    pub reference_tokens_hash: String,
    /// Tokens hashed.
    pub tokens: u64,
    /// Whether rows were independent of their neighbours; `null` when not tested.
    pub batch_invariant: Option<bool>,
    /// Whether outputs were poisoned before the timed steps.
    pub poisoned: bool,
}

/// A fixed piece of work, timed before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Canary {
    /// Before the series, in ns.
    pub before_ns: u64,
    /// After the series, in ns.
    pub after_ns: u64,
    /// How far it moved, in ppm of `before_ns`.
    pub moved_ppm: u64,
}

impl Canary {
    /// A canary from its two times. `None` when `before_ns` is zero.
    pub fn new(before_ns: u64, after_ns: u64) -> Option<Self> {
        Some(Self { before_ns, after_ns, moved_ppm: ppm(after_ns.abs_diff(before_ns), before_ns)? })
    }
}

/// What counted the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CounterKind {
    /// Checked mode of the host device: distinct bytes really read and written.
    Touched,
    /// Nsight Compute.
    Ncu,
    /// The device has no counter that can be read here.
    None,
}

impl CounterKind {
    /// The spelling used in JSON and in the policy.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Touched => "touched",
            Self::Ncu => "ncu",
            Self::None => "none",
        }
    }
}

/// Reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadWrite {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// Bytes counted beside bytes planned, of the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// What counted.
    pub kind: CounterKind,
    /// The plan's bytes for the step that was counted.
    pub planned: ReadWrite,
    /// Bytes counted; `null` exactly when `kind` is `none`.
    pub counted: Option<ReadWrite>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_and_deviations_of_known_series() {
        assert_eq!((median(&[]), median(&[3, 1, 2]), median(&[4, 1, 2, 3])), (None, Some(2), Some(2)));
        assert_eq!(relative_stdev_ppm(&[5]), None);
        assert_eq!(relative_stdev_ppm(&[7, 7, 7]), Some(0));
        assert_eq!(relative_stdev_ppm(&[0, 0]), None);
        // mean 100, sample deviation sqrt(2 * 100) = 14.142136
        assert_eq!(relative_stdev_ppm(&[90, 110]), Some(141_421));
    }

    #[test]
    fn a_ceiling_is_read_at_the_smallest_probe_that_holds_the_set() {
        let point = |working_set_bytes| CeilingPoint {
            working_set_bytes,
            read_bytes_per_second: working_set_bytes,
            copy_bytes_per_second: 1,
            update_bytes_per_second: 1,
        };
        let curve = Ceilings {
            points: vec![point(100), point(10), point(1000)],
            launch_ns: 0,
            datasheet_bytes_per_second: None,
        };
        let at = |bytes| curve.at(bytes).map(|p| p.working_set_bytes);
        assert_eq!((at(5), at(11), at(100), at(5000)), (Some(10), Some(100), Some(100), Some(1000)));
        assert_eq!(Ceilings { points: vec![], ..curve }.at(1), None);
    }

    proptest! {
        #[test]
        fn the_books_always_close(
            step in 1u64..1 << 50, gaps in 0u64..1 << 40, overlap in 0u64..1 << 40,
            times in proptest::collection::vec(0u64..1 << 40, 0..20),
        ) {
            let line = |&ns: &u64| ClosureLine { name: "op".into(), count: 1, ns, bytes: 0 };
            let closure = Closure::close(step, times.iter().map(line).collect(), gaps, overlap).unwrap();
            let sum = times.iter().map(|&t| i128::from(t)).sum::<i128>() + i128::from(gaps) - i128::from(overlap);
            prop_assert_eq!(sum + i128::from(closure.unexplained_ns), i128::from(step));
            prop_assert_eq!(closure.recomputed(), Some((closure.unexplained_ns, closure.unexplained_ppm)));
        }

        #[test]
        fn rates_never_overflow(a in any::<u64>(), b in any::<u64>()) {
            prop_assert_eq!(ppm(a, b).is_none(), b == 0);
            prop_assert_eq!(bytes_per_second(a, b).is_none(), b == 0);
        }
    }
}
