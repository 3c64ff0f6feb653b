//! Activation rows as the host kernels read them: f32, bf16, or eight-bit codes with a scale every 256 values.
//!
//! A Q8 row of K values (K a multiple of 256) is, in this order and little endian:
//! `K` i8 codes, `K/256` f32 scales, `K/32` i16 sums of the codes of each 32 values. 276 bytes per 256 values.
#![allow(unsafe_code)]

use crate::host::simd::{Level, Simd};

/// Values that share one scale in a Q8 row.
pub const Q8_GROUP: usize = 256;

/// The class of an activation row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActKind {
    /// f32 values.
    F32,
    /// bfloat16 values.
    Bf16,
    /// Eight-bit codes (see the module page).
    Q8,
}

impl ActKind {
    /// Bytes of a row of `k` values, the stride of consecutive rows; `None` where Q8 cannot hold `k` or the
    /// count overflows.
    #[must_use]
    pub const fn row_bytes(self, k: usize) -> Option<usize> {
        match self {
            Self::F32 => k.checked_mul(4),
            Self::Bf16 => k.checked_mul(2),
            Self::Q8 if k.is_multiple_of(Q8_GROUP) => (k / Q8_GROUP).checked_mul(276),
            Self::Q8 => None,
        }
    }
}

/// Rows of activations, K values each, one after the other.
#[derive(Clone, Copy, Debug)]
pub enum Act<'a> {
    /// f32 rows, stride K elements.
    F32(&'a [f32]),
    /// bfloat16 rows, stride K elements.
    Bf16(&'a [u16]),
    /// Q8 rows, stride [`ActKind::row_bytes`].
    Q8(&'a [u8]),
}

impl Act<'_> {
    /// The class of these rows.
    #[must_use]
    pub const fn kind(&self) -> ActKind {
        match self {
            Self::F32(_) => ActKind::F32,
            Self::Bf16(_) => ActKind::Bf16,
            Self::Q8(_) => ActKind::Q8,
        }
    }

    /// Whole rows of `k` values held here.
    pub(super) fn rows(&self, k: usize) -> usize {
        match self {
            Self::F32(x) => x.len() / k,
            Self::Bf16(x) => x.len() / k,
            Self::Q8(x) => x.len() / (k / Q8_GROUP * 276),
        }
    }
}

/// The three parts of one Q8 row.
#[derive(Clone, Copy)]
pub(super) struct Q8Row<'a> {
    pub(super) codes: &'a [u8],
    scales: &'a [[u8; 4]],
    pub(super) sums: &'a [[u8; 2]],
}

impl<'a> Q8Row<'a> {
    #[inline(always)]
    pub(super) fn new(row: &'a [u8], k: usize) -> Self {
        let (codes, rest) = row.split_at(k);
        let (scales, sums) = rest.split_at(k / 64);
        Self { codes, scales: scales.as_chunks().0, sums: sums.as_chunks().0 }
    }

    #[inline(always)]
    pub(super) fn scale(&self, group: usize) -> f32 {
        f32::from_le_bytes(self.scales[group])
    }

    #[inline(always)]
    pub(super) fn sum(&self, of_32: usize) -> i32 {
        i32::from(i16::from_le_bytes(self.sums[of_32]))
    }
}

/// Quantises one row: per group of 256, scale = amax/127 and code = round-half-even(x * (127/amax)).
///
/// A group whose largest magnitude is under 2^-100 is held as zeros. A group with an infinity or a NaN gets a
/// NaN scale, so every output that reads it is NaN: nothing is clipped in silence.
///
/// # Panics
/// Where `x` is not a multiple of 256 values or `out` is not [`ActKind::row_bytes`] long.
pub fn quantize_q8_row(simd: Simd, x: &[f32], out: &mut [u8]) {
    assert_eq!(ActKind::Q8.row_bytes(x.len()), Some(out.len()), "Q8 row: bytes for {} values", x.len());
    match simd.level() {
        // SAFETY: a `Simd` of these levels exists only where AVX2, FMA and F16C were detected.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => unsafe { quantize_avx2(x, out) },
        _ => quantize(x, out),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantize_avx2(x: &[f32], out: &mut [u8]) {
    quantize(x, out);
}

#[inline(always)]
fn quantize(x: &[f32], out: &mut [u8]) {
    /// 2^-100: below this 127/amax nears the end of the f32 range.
    const TINY: u32 = (127 - 100) << 23;
    let (codes, rest) = out.split_at_mut(x.len());
    let (scales, sums) = rest.split_at_mut(x.len() / 64);
    let (x, _) = x.as_chunks::<Q8_GROUP>();
    let (codes, _) = codes.as_chunks_mut::<Q8_GROUP>();
    let (scales, _) = scales.as_chunks_mut::<4>();
    let (sums, _) = sums.as_chunks_mut::<16>();
    for (((x, codes), scale), sums) in x.iter().zip(codes).zip(scales).zip(sums) {
        // Magnitudes order as their bits do, NaN above infinity.
        let amax = x.iter().fold(0, |a: u32, v| a.max(v.to_bits() & 0x7fff_ffff));
        if amax < TINY || amax >= f32::INFINITY.to_bits() {
            codes.fill(0);
            sums.fill(0);
            *scale = if amax < TINY { 0.0 } else { f32::NAN }.to_le_bytes();
            continue;
        }
        let amax = f32::from_bits(amax);
        *scale = (amax / 127.0).to_le_bytes();
        let inverse = 127.0 / amax;
        for (c, v) in codes.iter_mut().zip(x) {
            // SAFETY: |v * inverse| <= 127 (1 + 2^-22), so the rounded value is within ±127.
            *c = unsafe { (v * inverse).round_ties_even().to_int_unchecked::<i32>() } as u8;
        }
        for (s, c) in sums.as_chunks_mut::<2>().0.iter_mut().zip(codes.as_chunks::<32>().0) {
            // 32 codes of at most 127: no wrap can happen, the check would only keep the loop from vectorising.
            *s = c.iter().fold(0, |a: i16, c| a.wrapping_add(i16::from(c.cast_signed()))).to_le_bytes();
        }
    }
}
