//! Typed units: a quantity carries its unit in its type, never in a suffix.
//!
//! All are plain 64-bit values; conversions to floating point happen only where a ratio is formed.
use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A duration in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

/// A rate in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BytesPerSecond(pub f64);

macro_rules! arithmetic {
    ($t:ty) => {
        impl Add for $t {
            type Output = Self;
            fn add(self, rhs: Self) -> Self {
                Self(self.0 + rhs.0)
            }
        }
        impl Sub for $t {
            type Output = Self;
            fn sub(self, rhs: Self) -> Self {
                Self(self.0 - rhs.0)
            }
        }
        impl Mul<u64> for $t {
            type Output = Self;
            fn mul(self, rhs: u64) -> Self {
                Self(self.0 * rhs)
            }
        }
        impl AddAssign for $t {
            fn add_assign(&mut self, rhs: Self) {
                self.0 += rhs.0;
            }
        }
        impl Sum for $t {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self(0), |a, b| a + b)
            }
        }
    };
}
arithmetic!(Bytes);
arithmetic!(Nanos);

impl Bytes {
    /// The rate at which these bytes move when they take `time`; `None` when `time` is zero.
    pub fn over(self, time: Nanos) -> Option<BytesPerSecond> {
        (time.0 > 0).then(|| BytesPerSecond(self.0 as f64 * 1e9 / time.0 as f64))
    }

    /// Decimal gigabytes.
    pub fn gb(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Nanos {
    /// Milliseconds.
    pub fn ms(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl BytesPerSecond {
    /// Decimal gigabytes per second.
    pub fn gbps(self) -> f64 {
        self.0 / 1e9
    }

    /// Time that `bytes` need at this rate.
    pub fn time_for(self, bytes: Bytes) -> Nanos {
        Nanos((bytes.0 as f64 / self.0 * 1e9).round() as u64)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} B", self.0),
            1_000..1_000_000 => write!(f, "{:.2} kB", b / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.2} MB", b / 1e6),
            _ => write!(f, "{:.4} GB", b / 1e9),
        }
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} ns", self.0),
            1_000..1_000_000 => write!(f, "{:.2} us", n / 1e3),
            _ => write!(f, "{:.3} ms", n / 1e6),
        }
    }
}

/// `n` with thousands separators, as byte-exact figures are printed.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouping_matches_hand_written_figures() {
        assert_eq!(grouped(53_791_996_928), "53,791,996,928");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1000), "1,000");
    }

    #[test]
    fn rate_and_time_are_inverse() {
        let rate = Bytes(1_000_000).over(Nanos(1_000)).expect("time is not zero");
        assert_eq!(rate.gbps(), 1000.0);
        assert_eq!(rate.time_for(Bytes(1_000_000)), Nanos(1_000));
        assert!(Bytes(1).over(Nanos(0)).is_none());
    }
}
