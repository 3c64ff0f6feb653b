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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Scalar,
    Avx2,
}

/// A vector level that this processor has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Simd(Level);

impl Simd {
    /// Plain Rust, on every processor.
    pub const SCALAR: Self = Self(Level::Scalar);

    /// The widest level this processor has and `disable` allows.
    ///
    /// There is no AVX-512 kernel yet, so `disable_avx512` changes nothing today.
    #[must_use]
    pub fn detect(disable: &Switches) -> Self {
        if !disable.disable_avx2 && has_avx2() { Self(Level::Avx2) } else { Self::SCALAR }
    }

    /// Every level of this processor, narrowest first (tests and benches walk it).
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::SCALAR];
        let best = Self::detect(&Switches::default());
        if best != Self::SCALAR {
            all.push(best);
        }
        all
    }

    /// The name printed in banners and receipts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Scalar => "scalar",
            Level::Avx2 => "avx2",
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

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disabled_avx2_means_scalar() {
        let off = Switches { disable_avx2: true, disable_avx512: true };
        assert_eq!(Simd::detect(&off), Simd::SCALAR);
        assert_eq!(Simd::available()[0], Simd::SCALAR);
        assert!(Simd::available().contains(&Simd::detect(&Switches::default())));
    }
}
