//! Ceilings: what memory can do at a working set and a mix, as probed, and the check against them.
//!
//! A cell is judged at its own working set and mix. Between probed points the rate is interpolated over the
//! logarithm of the working set; outside them it is the end point's rate, never an extrapolation.
use crate::units::{Bytes, BytesPerSecond, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// A measured rate may exceed its ceiling by this factor before it is an error.
pub const TOLERANCE: f64 = 1.03;

/// Where a working set lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Residency {
    /// Second-level cache.
    L2,
    /// Third-level cache.
    L3,
    /// Memory.
    #[serde(rename = "DRAM")]
    Dram,
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L2 => "L2",
            Self::L3 => "L3",
            Self::Dram => "DRAM",
        })
    }
}

/// Rates probed at one working set. Copy and read-modify-write count bytes read plus bytes written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CeilingPoint {
    /// Distinct bytes the probe cycled through.
    pub working_set: Bytes,
    /// Reads only.
    pub read: BytesPerSecond,
    /// One buffer read, another written.
    pub copy: BytesPerSecond,
    /// One buffer read and written in place.
    pub modify: BytesPerSecond,
}

/// A cache of the probed device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheLevel {
    /// Which cache.
    pub name: Residency,
    /// Its size.
    pub size: Bytes,
}

/// The bytes of a cell by direction, and whether the writes go to the bytes that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// Bytes read.
    pub read: Bytes,
    /// Bytes written.
    pub write: Bytes,
    /// Writes go where the reads came from.
    pub in_place: bool,
}

impl Mix {
    /// Reads only.
    pub const READ: Self = Self { read: Bytes(1), write: Bytes(0), in_place: false };

    /// Share of the bytes that a balanced read and write covers: 0 for pure reads, 1 from half writes on.
    fn balanced(self) -> f64 {
        let (read, write) = (self.read.0 as f64, self.write.0 as f64);
        if read + write == 0.0 { 0.0 } else { (2.0 * write / (read + write)).min(1.0) }
    }
}

/// What a cell may reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Highest rate at the cell's working set and mix.
    pub rate: BytesPerSecond,
    /// Where the working set lives.
    pub residency: Residency,
}

/// Why a set of points is not a curve.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CurveError {
    /// No point at all.
    #[error("ceiling curve has no points")]
    Empty,
    /// Points or caches do not grow.
    #[error("{field} {index}: size {got} does not exceed its predecessor's {previous}")]
    Unsorted {
        /// `points` or `caches`.
        field: &'static str,
        /// Index of the offender.
        index: usize,
        /// Its size.
        got: Bytes,
        /// The size before it.
        previous: Bytes,
    },
    /// A rate is zero, negative or not a number.
    #[error("point {index}: {field} rate {got} is not a positive number")]
    Rate {
        /// Index of the point.
        index: usize,
        /// Which rate.
        field: &'static str,
        /// Its value.
        got: f64,
    },
    /// Memory listed among the caches.
    #[error("caches {index}: DRAM is not a cache")]
    NotACache {
        /// Index of the cache.
        index: usize,
    },
}

/// Ceilings over the working set, from a probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawCurve")]
pub struct CeilingCurve {
    points: Vec<CeilingPoint>,
    caches: Vec<CacheLevel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCurve {
    points: Vec<CeilingPoint>,
    caches: Vec<CacheLevel>,
}

impl TryFrom<RawCurve> for CeilingCurve {
    type Error = CurveError;
    fn try_from(raw: RawCurve) -> Result<Self, CurveError> {
        Self::new(raw.points, raw.caches)
    }
}

impl CeilingCurve {
    /// A curve of `points` by growing working set on a device with `caches` by growing size.
    pub fn new(points: Vec<CeilingPoint>, caches: Vec<CacheLevel>) -> Result<Self, CurveError> {
        if points.is_empty() {
            return Err(CurveError::Empty);
        }
        growing("points", points.iter().map(|p| p.working_set))?;
        growing("caches", caches.iter().map(|c| c.size))?;
        for (index, point) in points.iter().enumerate() {
            for (field, rate) in [("read", point.read), ("copy", point.copy), ("modify", point.modify)] {
                if !(rate.0.is_finite() && rate.0 > 0.0) {
                    return Err(CurveError::Rate { index, field, got: rate.0 });
                }
            }
        }
        match caches.iter().position(|c| c.name == Residency::Dram) {
            Some(index) => Err(CurveError::NotACache { index }),
            None => Ok(Self { points, caches }),
        }
    }

    /// Probed points, by growing working set.
    pub fn points(&self) -> &[CeilingPoint] {
        &self.points
    }

    /// Caches, by growing size.
    pub fn caches(&self) -> &[CacheLevel] {
        &self.caches
    }

    /// Where `working_set` bytes live: the first cache that holds them all, else memory.
    pub fn residency(&self, working_set: Bytes) -> Residency {
        self.caches.iter().find(|c| working_set <= c.size).map_or(Residency::Dram, |c| c.name)
    }

    /// The ceiling of a cell that cycles through `working_set` bytes with `mix`.
    ///
    /// Bytes up to twice the writes go at the copy (or in-place) rate, the remaining reads at the read rate.
    /// More writes than reads are judged as a copy: nothing faster was probed for them.
    pub fn ceiling_for(&self, working_set: Bytes, mix: Mix) -> Ceiling {
        let balanced = mix.balanced();
        let read = self.interpolate(working_set, |p| p.read);
        let both = self.interpolate(working_set, if mix.in_place { |p| p.modify } else { |p| p.copy });
        let rate = 1.0 / ((1.0 - balanced) / read + balanced / both);
        Ceiling { rate: BytesPerSecond(rate), residency: self.residency(working_set) }
    }

    fn interpolate(&self, at: Bytes, rate: fn(&CeilingPoint) -> BytesPerSecond) -> f64 {
        let above = self.points.partition_point(|p| p.working_set < at);
        let Some(high) = self.points.get(above) else {
            return self.points.last().map_or(0.0, |p| rate(p).0);
        };
        let Some(low) = above.checked_sub(1).and_then(|i| self.points.get(i)) else {
            return rate(high).0;
        };
        let log = |b: Bytes| (b.0.max(1) as f64).ln();
        let (from, to) = (log(low.working_set), log(high.working_set));
        let share = if to > from { (log(at) - from) / (to - from) } else { 1.0 };
        rate(low).0 + (rate(high).0 - rate(low).0) * share
    }
}

fn growing(field: &'static str, sizes: impl Iterator<Item = Bytes>) -> Result<(), CurveError> {
    let mut previous = None;
    for (index, got) in sizes.enumerate() {
        if let Some(previous) = previous.filter(|p| got <= *p) {
            return Err(CurveError::Unsorted { field, index, got, previous });
        }
        previous = Some(got);
    }
    Ok(())
}

/// Why a measurement has no fraction.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum RateError {
    /// The time is zero.
    #[error("time of {bytes} is zero: no rate")]
    NoTime {
        /// Bytes that took no time.
        bytes: Bytes,
    },
    /// The ceiling is not a positive rate.
    #[error("ceiling {got} B/s is not a positive rate")]
    NoCeiling {
        /// Its value.
        got: f64,
    },
    /// The rate exceeds what the device can do: bytes or time are wrong.
    #[error("rate {:.1} GB/s is above {TOLERANCE} x the {residency} ceiling {:.1} GB/s", rate.gbps(), ceiling.gbps())]
    AboveCeiling {
        /// Rate found.
        rate: BytesPerSecond,
        /// Ceiling it broke.
        ceiling: BytesPerSecond,
        /// Where the working set lives.
        residency: Residency,
    },
}

/// A measured rate that passed its ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateCheck {
    /// Measured rate.
    pub rate: BytesPerSecond,
    /// Ceiling it was judged by.
    pub ceiling: Ceiling,
    /// Rate over ceiling.
    pub fraction: f64,
}

impl RateCheck {
    /// Judges `bytes` in `time` against `ceiling`; more than [`TOLERANCE`] times the ceiling is an error.
    pub fn new(bytes: Bytes, time: Nanos, ceiling: Ceiling) -> Result<Self, RateError> {
        if !(ceiling.rate.0.is_finite() && ceiling.rate.0 > 0.0) {
            return Err(RateError::NoCeiling { got: ceiling.rate.0 });
        }
        let rate = bytes.over(time).ok_or(RateError::NoTime { bytes })?;
        let fraction = rate.0 / ceiling.rate.0;
        if fraction > TOLERANCE {
            return Err(RateError::AboveCeiling {
                rate,
                ceiling: ceiling.rate,
                residency: ceiling.residency,
            });
        }
        Ok(Self { rate, ceiling, fraction })
    }
}

/// The fraction of `ceiling` that `bytes` in `time` reach.
pub fn fraction(bytes: Bytes, time: Nanos, ceiling: Ceiling) -> Result<f64, RateError> {
    RateCheck::new(bytes, time, ceiling).map(|c| c.fraction)
}

/// The least time a step needs to move `bytes` at `ceiling`.
pub fn floor_time(bytes: Bytes, ceiling: Ceiling) -> Nanos {
    ceiling.rate.time_for(bytes)
}

#[cfg(test)]
#[path = "roofline_tests.rs"]
mod tests;
