//! Codes, scales and minima of the super-block formats in AVX2 registers.
//!
//! A super-block is eight groups of 32 codes in order of K. Scales stand ready as 16-bit values, spread over a
//! group by one byte shuffle, so that `madd` multiplies and pairs in one instruction.
#![allow(unsafe_code)]

use super::k_scales_mins;
use std::arch::x86_64::*;

/// A format whose block is a super-block.
pub(crate) trait Super {
    /// Bytes of a block.
    const BYTES: usize;
    /// Where d is; dmin follows it where there are minima.
    const D: usize;
    /// Whether codes are signed.
    const SIGNED: bool;
    /// Whether there are minima.
    const MIN: bool;
    /// Whether minima cover 16 values (and need sums of 16) instead of 32.
    const MIN16: bool;
    /// Scales and minima of a super-block.
    type Prep: Copy;

    /// Reads scales and minima of the block at `w`.
    unsafe fn prep(w: *const u8) -> Self::Prep;
    /// The 32 codes of group `J`.
    unsafe fn codes<const J: usize>(w: *const u8) -> __m256i;
    /// The scale of each pair of values of group `J`, 16 bits each.
    unsafe fn scale<const J: usize>(p: Self::Prep) -> __m256i;
    /// The eight minima, where they cover 32 values.
    unsafe fn min32(_: Self::Prep) -> __m128i {
        // SAFETY: the level's features are there, the caller's contract.
        unsafe { _mm_setzero_si128() }
    }
    /// The 16 products d * scale of 16 values each, then the 16 products dmin * min (zeros without minima).
    unsafe fn factors(w: *const u8) -> ([__m256; 2], [__m256; 2]);
    /// The minimum of each pair of values of group `J`, where they cover 16 values.
    unsafe fn min16<const J: usize>(_: Self::Prep) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_setzero_si256() }
    }
}

/// `Q4_K`, or `Q5_K`, which differs in the fifth bit of its codes alone.
pub(crate) struct K45<const FIFTH: bool>;
/// `Q4_K`.
pub(crate) type K4 = K45<false>;
/// `Q5_K`.
pub(crate) type K5 = K45<true>;
/// `Q6_K`.
pub(crate) struct K6;
/// `Q2_K`.
pub(crate) struct K2;

/// Values of a super-block.
const VALUES: usize = 256;

/// The 16 products d * scale, then the 16 products dmin * min, in memory to broadcast from.
#[inline(always)]
pub(crate) unsafe fn factors_of<F: Super>(w: *const u8) -> [[f32; 16]; 2] {
    // SAFETY: the caller passes a whole block; each store has room for eight.
    unsafe {
        let (scales, mins) = F::factors(w);
        let mut factors = [[0f32; 16]; 2];
        for i in 0..2 {
            _mm256_storeu_ps(factors[0].as_mut_ptr().add(8 * i), scales[i]);
            _mm256_storeu_ps(factors[1].as_mut_ptr().add(8 * i), mins[i]);
        }
        factors
    }
}

/// The 32 values of group `J`, eight in a register, in order of K, exactly as the format's own decoder rounds
/// them: (d*scale)*q, minus dmin*min where there are minima.
#[inline(always)]
pub(crate) unsafe fn group_eights<F: Super, const J: usize>(
    w: *const u8,
    factors: &[[f32; 16]; 2],
) -> [__m256; 4] {
    // SAFETY: as the caller.
    unsafe {
        let codes = F::codes::<J>(w);
        let (low, high) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes));
        let eights = [low, _mm_unpackhi_epi64(low, low), high, _mm_unpackhi_epi64(high, high)];
        let mut values = [_mm256_setzero_ps(); 4];
        for i in 0..4 {
            let wide =
                if F::SIGNED { _mm256_cvtepi8_epi32(eights[i]) } else { _mm256_cvtepu8_epi32(eights[i]) };
            let at = 2 * J + i / 2;
            values[i] = _mm256_mul_ps(_mm256_set1_ps(factors[0][at]), _mm256_cvtepi32_ps(wide));
            if F::MIN {
                values[i] = _mm256_sub_ps(values[i], _mm256_set1_ps(factors[1][at]));
            }
        }
        values
    }
}

/// Decodes whole super-blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn decode_super<F: Super>(bytes: &[u8], out: &mut [f32]) {
    for (w, o) in bytes.chunks_exact(F::BYTES).zip(out.as_chunks_mut::<VALUES>().0) {
        let (w, o) = (w.as_ptr(), o.as_mut_ptr());
        // SAFETY: a whole block in, 256 values out.
        unsafe {
            let factors = factors_of::<F>(w);
            store::<F, 0>(w, &factors, o);
            store::<F, 1>(w, &factors, o);
            store::<F, 2>(w, &factors, o);
            store::<F, 3>(w, &factors, o);
            store::<F, 4>(w, &factors, o);
            store::<F, 5>(w, &factors, o);
            store::<F, 6>(w, &factors, o);
            store::<F, 7>(w, &factors, o);
        }
    }
}

#[inline(always)]
unsafe fn store<F: Super, const J: usize>(w: *const u8, factors: &[[f32; 16]; 2], out: *mut f32) {
    // SAFETY: the caller's block, and 256 values of output.
    unsafe {
        for (i, v) in group_eights::<F, J>(w, factors).into_iter().enumerate() {
            _mm256_storeu_ps(out.add(32 * J + 8 * i), v);
        }
    }
}

/// Eight 16-bit scales in both halves of a register, and eight 16-bit minima.
type Prep32 = (__m256i, __m128i);

#[inline(always)]
unsafe fn prep32(w: *const u8) -> Prep32 {
    // SAFETY: the caller passes a block of `Q4_K` or `Q5_K`, whose packed scales are bytes 4..16.
    unsafe {
        let (scales, mins) = k_scales_mins(&w.add(4).cast::<[u8; 12]>().read());
        let wide = |v: [u8; 8]| _mm_cvtepu8_epi16(_mm_cvtsi64_si128(i64::from_le_bytes(v)));
        (_mm256_broadcastsi128_si256(wide(scales)), wide(mins))
    }
}

/// The f16 at byte `at`, widened, in every lane.
#[inline(always)]
unsafe fn half(w: *const u8, at: usize) -> __m256 {
    // SAFETY: the caller's block has two bytes at `at`; F16C is part of the level.
    unsafe { _mm256_cvtph_ps(_mm_set1_epi16(w.add(at).cast::<i16>().read_unaligned())) }
}

/// d times eight bytes.
#[inline(always)]
unsafe fn scaled(d: __m256, v: __m256i) -> __m256 {
    // SAFETY: the level's features are there, the caller's contract.
    unsafe { _mm256_mul_ps(d, _mm256_cvtepi32_ps(v)) }
}

/// Eight factors of 32 values as sixteen of 16: each twice.
#[inline(always)]
unsafe fn twice(v: __m256) -> [__m256; 2] {
    // SAFETY: as above.
    unsafe {
        let (lo, hi) = (_mm256_unpacklo_ps(v, v), _mm256_unpackhi_ps(v, v));
        [_mm256_permute2f128_ps::<0x20>(lo, hi), _mm256_permute2f128_ps::<0x31>(lo, hi)]
    }
}

/// The factors of `Q4_K` and `Q5_K`.
#[inline(always)]
unsafe fn factors32(w: *const u8) -> ([__m256; 2], [__m256; 2]) {
    // SAFETY: the caller passes a block of `Q4_K` or `Q5_K`.
    unsafe {
        let (scales, mins) = prep32(w);
        let scales = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(scales));
        let mins = _mm256_cvtepu16_epi32(mins);
        (twice(scaled(half(w, 0), scales)), twice(scaled(half(w, 2), mins)))
    }
}

/// 16-bit value `J` of each half, everywhere in that half.
#[inline(always)]
unsafe fn spread16<const J: usize>(v: __m256i) -> __m256i {
    // SAFETY: the level's features are there, the caller's contract.
    unsafe { _mm256_shuffle_epi8(v, _mm256_set1_epi16(((2 * J) | ((2 * J + 1) << 8)) as i16)) }
}

/// Bytes 2J and 2J+1 of 16: the first sign-extended over the lower half, the second over the upper.
#[inline(always)]
unsafe fn spread8<const J: usize>(v: __m128i) -> __m256i {
    // SAFETY: as above.
    unsafe {
        let pick =
            _mm_set_epi64x(0x0101_0101_0101_0101 * (2 * J as i64 + 1), 0x0101_0101_0101_0101 * 2 * J as i64);
        _mm256_cvtepi8_epi16(_mm_shuffle_epi8(v, pick))
    }
}

/// `v >> by` within bytes, the bits of `mask` kept; `by` is a constant after inlining.
#[inline(always)]
unsafe fn bits(v: __m256i, by: usize, mask: i8) -> __m256i {
    // SAFETY: as above.
    unsafe {
        let v = if by == 0 { v } else { _mm256_srl_epi16(v, _mm_cvtsi32_si128(by as i32)) };
        _mm256_and_si256(v, _mm256_set1_epi8(mask))
    }
}

#[inline(always)]
unsafe fn load(p: *const u8) -> __m256i {
    // SAFETY: the caller's 32 bytes are readable.
    unsafe { _mm256_loadu_si256(p.cast()) }
}

impl<const FIFTH: bool> Super for K45<FIFTH> {
    const BYTES: usize = if FIFTH { 176 } else { 144 };
    const D: usize = 0;
    const SIGNED: bool = false;
    const MIN: bool = true;
    const MIN16: bool = false;
    type Prep = Prep32;

    #[inline(always)]
    unsafe fn prep(w: *const u8) -> Prep32 {
        // SAFETY: the caller's contract, here and below.
        unsafe { prep32(w) }
    }
    #[inline(always)]
    unsafe fn codes<const J: usize>(w: *const u8) -> __m256i {
        // SAFETY: nibbles are bytes 16..144; behind fifth bits, which are bytes 16..48, they are 48..176.
        unsafe {
            let nibbles = if FIFTH { 48 } else { 16 };
            let low = bits(load(w.add(nibbles + 32 * (J / 2))), 4 * (J % 2), 15);
            if !FIFTH {
                return low;
            }
            _mm256_or_si256(low, _mm256_slli_epi16::<4>(bits(load(w.add(16)), J, 1)))
        }
    }
    #[inline(always)]
    unsafe fn scale<const J: usize>(p: Prep32) -> __m256i {
        // SAFETY: registers only.
        unsafe { spread16::<J>(p.0) }
    }
    #[inline(always)]
    unsafe fn factors(w: *const u8) -> ([__m256; 2], [__m256; 2]) {
        // SAFETY: the caller's contract.
        unsafe { factors32(w) }
    }
    #[inline(always)]
    unsafe fn min32(p: Prep32) -> __m128i {
        p.1
    }
}

impl Super for K6 {
    const BYTES: usize = 210;
    const D: usize = 208;
    const SIGNED: bool = true;
    const MIN: bool = false;
    const MIN16: bool = false;
    type Prep = __m128i;

    #[inline(always)]
    unsafe fn prep(w: *const u8) -> __m128i {
        // SAFETY: scales are bytes 192..208.
        unsafe { _mm_loadu_si128(w.add(192).cast()) }
    }
    #[inline(always)]
    unsafe fn codes<const J: usize>(w: *const u8) -> __m256i {
        // SAFETY: nibbles are bytes 0..128, upper pairs 128..192.
        unsafe {
            let (h, r) = (J / 4, J % 4);
            let low = bits(load(w.add(64 * h + 32 * (r % 2))), 4 * (r / 2), 15);
            let high = bits(load(w.add(128 + 32 * h)), 2 * r, 3);
            let q = _mm256_or_si256(low, _mm256_slli_epi16::<4>(high));
            _mm256_sub_epi8(q, _mm256_set1_epi8(32))
        }
    }
    #[inline(always)]
    unsafe fn factors(w: *const u8) -> ([__m256; 2], [__m256; 2]) {
        // SAFETY: scales are bytes 192..208.
        unsafe {
            let (d, s) = (half(w, 208), Self::prep(w));
            let zero = _mm256_setzero_ps();
            let high = _mm_unpackhi_epi64(s, s);
            ([scaled(d, _mm256_cvtepi8_epi32(s)), scaled(d, _mm256_cvtepi8_epi32(high))], [zero; 2])
        }
    }
    #[inline(always)]
    unsafe fn scale<const J: usize>(p: __m128i) -> __m256i {
        // SAFETY: registers only.
        unsafe { spread8::<J>(p) }
    }
}

impl Super for K2 {
    const BYTES: usize = 84;
    const D: usize = 80;
    const SIGNED: bool = false;
    const MIN: bool = true;
    const MIN16: bool = true;
    type Prep = (__m128i, __m128i);

    #[inline(always)]
    unsafe fn prep(w: *const u8) -> Self::Prep {
        // SAFETY: scales and minima are bytes 0..16.
        unsafe {
            let packed = _mm_loadu_si128(w.cast());
            let mask = _mm_set1_epi8(15);
            (_mm_and_si128(packed, mask), _mm_and_si128(_mm_srli_epi16::<4>(packed), mask))
        }
    }
    #[inline(always)]
    unsafe fn codes<const J: usize>(w: *const u8) -> __m256i {
        // SAFETY: codes are bytes 16..80.
        unsafe { bits(load(w.add(16 + 32 * (J / 4))), 2 * (J % 4), 3) }
    }
    #[inline(always)]
    unsafe fn scale<const J: usize>(p: Self::Prep) -> __m256i {
        // SAFETY: registers only.
        unsafe { spread8::<J>(p.0) }
    }
    #[inline(always)]
    unsafe fn factors(w: *const u8) -> ([__m256; 2], [__m256; 2]) {
        // SAFETY: scales and minima are bytes 0..16, below 16 each.
        unsafe {
            let (s, m) = Self::prep(w);
            let both = |d, v| {
                [
                    scaled(d, _mm256_cvtepi8_epi32(v)),
                    scaled(d, _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v))),
                ]
            };
            (both(half(w, 80), s), both(half(w, 82), m))
        }
    }
    #[inline(always)]
    unsafe fn min16<const J: usize>(p: Self::Prep) -> __m256i {
        // SAFETY: registers only.
        unsafe { spread8::<J>(p.1) }
    }
}
