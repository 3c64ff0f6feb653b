//! Which vector units the host kernels may use: found once at run time, never assumed at compile time.
//!
//! A [`Simd`] can only be made by detection (or be scalar), so holding one is the proof that its
//! instructions exist. Every level computes bit-identical results; the level changes speed only.
#![allow(unsafe_code)]

use std::fmt;

/// The operator's switches for the vector paths (`SPARKPIPE_DISABLE_AVX2`, `SPARKPIPE_DISABLE_AVX512`).
///
/// This module reads no environment: the caller does, and shows the switches in the banner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Do not use AVX2 (nor anything above it).
    pub disable_avx2: bool,
    /// Do not use AVX-512.
    pub disable_avx512: bool,
}

/// Each level has the instructions of the ones below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Scalar,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

/// A vector level that this processor has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Simd(Level);

impl Simd {
    /// Plain Rust, on every processor.
    pub const SCALAR: Self = Self(Level::Scalar);

    /// The widest level this processor has and `disable` allows.
    #[must_use]
    pub fn detect(disable: &Switches) -> Self {
        if disable.disable_avx2 || !has_avx2() {
            return Self::SCALAR;
        }
        if disable.disable_avx512 || !has_avx512() { Self(Level::Avx2) } else { Self(Level::Avx512) }
    }

    /// Every level of this processor, narrowest first (tests and benches walk it).
    #[must_use]
    pub fn available() -> Vec<Self> {
        let best = Self::detect(&Switches::default());
        let all = [Self::SCALAR, Self(Level::Avx2), Self(Level::Avx512)];
        all.into_iter().filter(|level| *level <= best).collect()
    }

    /// The name printed in banners and receipts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    #[inline(always)]
    pub(crate) fn level(self) -> Level {
        self.0
    }
}

impl fmt::Debug for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Simd({})", self.name())
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_switch_takes_away_its_level_and_those_above() {
        let off = |disable_avx2, disable_avx512| Simd::detect(&Switches { disable_avx2, disable_avx512 });
        let all = Simd::available();
        assert_eq!(off(true, true), Simd::SCALAR);
        assert_eq!(off(true, false), Simd::SCALAR);
        assert!(off(false, true).level() <= Level::Avx2);
        assert_eq!(Some(&off(false, false)), all.last());
        assert_eq!(all[0], Simd::SCALAR);
        assert!(all.windows(2).all(|w| w[0] < w[1]), "narrowest first, each once");
        assert!(all.contains(&off(false, true)));
    }
}
