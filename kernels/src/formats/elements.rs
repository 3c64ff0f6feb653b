//! Element types: binary16, bfloat16 and binary32, converted without a library call so loops vectorise.
#![allow(unsafe_code)]

use crate::host::simd::{Level, Simd};

/// Exact value of a binary16, subnormals included; NaN stays NaN.
#[inline(always)]
#[must_use]
pub fn f16_to_f32(h: u16) -> f32 {
    let h = u32::from(h);
    // Exponent and mantissa land 112 octaves too low: one exact multiplication puts them right, and makes
    // normal numbers of binary16 subnormals.
    let magnitude = (f32::from_bits((h & 0x7fff) << 13) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if h & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude | special | (h & 0x8000) << 16)
}

/// Exact value of a bfloat16.
#[inline(always)]
#[must_use]
pub const fn bf16_to_f32(b: u16) -> f32 {
    f32::from_bits((b as u32) << 16)
}

/// Rounds to the nearest bfloat16, ties to even; overflow gives infinity, a NaN stays a (quiet) NaN.
#[inline(always)]
#[must_use]
pub const fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let nan = (bits & 0x7fff_ffff) > 0x7f80_0000;
    (if nan { bits | 0x0040_0000 } else { rounded } >> 16) as u16
}

/// [`f32_to_bf16`] over a slice.
///
/// # Panics
/// Where the lengths differ.
pub fn round_bf16(simd: Simd, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len(), "bf16 rounding: input and output lengths");
    match simd.level() {
        // SAFETY: a `Simd` of these levels exists only where AVX2, FMA and F16C were detected.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => unsafe { round_avx2(x, out) },
        _ => round(x, out),
    }
}

#[inline(always)]
fn round(x: &[f32], out: &mut [u16]) {
    for (o, &v) in out.iter_mut().zip(x) {
        *o = f32_to_bf16(v);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn round_avx2(x: &[f32], out: &mut [u16]) {
    round(x, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_decodes_as_the_half_crate_does() {
        for h in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(h), half::f16::from_bits(h).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{h:#06x}");
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even_on_every_level() {
        // Every bf16 with each of the interesting lower halves: exact, below, at and above the tie.
        let x: Vec<f32> = (0..=u16::MAX)
            .flat_map(|h| [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|l| u32::from(h) << 16 | l))
            .map(f32::from_bits)
            .collect();
        let want: Vec<u16> = x.iter().map(|&v| half::bf16::from_f32(v).to_bits()).collect();
        for simd in Simd::available() {
            let mut got = vec![0u16; x.len()];
            round_bf16(simd, &x, &mut got);
            assert_eq!(got, want, "{simd:?}");
        }
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
        assert_eq!(bf16_to_f32(f32_to_bf16(f32::MAX)), f32::INFINITY);
    }
}
