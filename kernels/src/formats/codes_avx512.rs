//! Codes, scales and minima of the super-block formats in AVX-512 registers, as the integer products want them.
//!
//! The one trick: `vpdpbusd` adds four products into a lane, so codes are arranged until two registers in turn
//! feed the *same* sub-block into each lane. The arrangement is four vectors of 64 codes, A, B, C, D: A and B
//! are the even and odd quadwords of groups [`Wide::ORDER`] 0 and 1, C and D those of 2 and 3. The activations
//! are arranged alike, once for many weight rows. Eight products a lane are below 2^15 for every format, so
//! `packs` of the sums loses nothing and its product with the scales takes 16-bit factors.
#![allow(unsafe_code)]

use super::codes_avx2::{K2, K4, K5, K6};
use std::arch::x86_64::*;

/// A format whose block is a super-block of 256.
pub(crate) trait Wide {
    /// Bytes of a block.
    const BYTES: usize;
    /// The groups of 32 values in the lower and the upper half of each of four natural vectors, of which A and
    /// B interleave the first two and C and D the last two.
    const ORDER: [(usize, usize); 4];
    /// What [`Wide::codes`] adds to each code to make it unsigned.
    const OFFSET: i32;
    /// What the format has beside scales.
    const MINIMA: Minima;

    /// A, B, C, D of the block at `w`, unsigned.
    unsafe fn codes(w: *const u8) -> [__m512i; 4];
    /// What is prepared for four rows at once, row r in 128-bit lane r.
    unsafe fn heads(w: &[*const u8; 4]) -> Heads;
    /// Row `r`'s scales, 16 bits each: a lane holds the four factors of its sums (A, B), then those of (C, D).
    unsafe fn scale(w: *const u8, heads: &Heads, r: usize) -> __m512i;
}

/// Minima of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Minima {
    /// None.
    None,
    /// One for 32 values.
    Of32,
    /// One for 16 values, in the order of [`SIXTEENS`].
    Of16,
}

/// Byte 4L + i of a register of minima of 16 values belongs to sixteen 4i + L: the order in which sums of 16
/// activations fall out of [`sum_lanes`].
pub(crate) const SIXTEENS: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// The small fields of four rows' blocks.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    /// Sixteen bytes a row: for `Q4_K` and `Q5_K` eight scales, then eight minima; for `Q2_K` the minima.
    bytes: [[u8; 16]; 4],
    /// d | dmin << 16 in the first double word of each lane.
    pub(crate) d: __m512i,
    /// Minima as 16-bit values, lane r for row r: the first eight, the second eight.
    pub(crate) mins: [__m512i; 2],
}

/// 16 bytes at `at` of four blocks, side by side.
#[inline(always)]
unsafe fn four(w: &[*const u8; 4], at: usize) -> __m512i {
    // SAFETY: the caller's blocks hold 16 bytes at `at`; the level's features are there.
    unsafe {
        let v = _mm512_castsi128_si512(_mm_loadu_si128(w[0].add(at).cast()));
        let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(w[1].add(at).cast()));
        let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(w[2].add(at).cast()));
        _mm512_inserti32x4::<3>(v, _mm_loadu_si128(w[3].add(at).cast()))
    }
}

/// The same 16 bytes in each lane.
#[inline(always)]
const fn lanes(one: [u8; 16]) -> [[u8; 16]; 4] {
    [one; 4]
}

#[inline(always)]
unsafe fn constant(bytes: &'static [[u8; 16]; 4]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Row `r` of `heads` in every lane.
#[inline(always)]
unsafe fn spread(heads: &Heads, r: usize) -> __m512i {
    // SAFETY: 16 bytes; the level's features are there.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(heads.bytes[r].as_ptr().cast())) }
}

#[inline(always)]
unsafe fn store(v: __m512i) -> [[u8; 16]; 4] {
    let mut bytes = [[0; 16]; 4];
    // SAFETY: 64 bytes.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), v) };
    bytes
}

/// Scales, minima, d and dmin of `Q4_K` and `Q5_K`: six bits each, packed in bytes 4..16 as `q4_k` says.
#[inline(always)]
unsafe fn heads32(w: &[*const u8; 4]) -> Heads {
    const LOW: [[u8; 16]; 4] = lanes([63, 63, 63, 63, 15, 15, 15, 15, 63, 63, 63, 63, 15, 15, 15, 15]);
    // SAFETY: bytes 0..16 of four blocks; the level's features are there.
    unsafe {
        let h = four(w, 0);
        // Words of a lane: d dmin | a | b | c. Scales are a and c's low nibbles, minima b and c's high ones; the
        // top two bits of a and b are bits 4 and 5 of the later four.
        let low = _mm512_shuffle_epi32::<0b11_10_11_01>(h);
        let low = _mm512_srlv_epi32(low, _mm512_set4_epi32(4, 0, 0, 0));
        let top = _mm512_srli_epi32::<2>(_mm512_shuffle_epi32::<0b10_10_01_01>(h));
        let mask = constant(&LOW);
        // Bits of `low` where the mask is set, bits of `top` elsewhere.
        let both = _mm512_ternarylogic_epi32::<0xca>(mask, low, top);
        let both = _mm512_and_si512(both, _mm512_set1_epi8(63));
        let mins = _mm512_unpackhi_epi8(both, _mm512_setzero_si512());
        Heads { bytes: store(both), d: h, mins: [mins, _mm512_setzero_si512()] }
    }
}

/// Scale bytes to factors: sub-blocks 0, 4, 1, 5 in two lanes, 2, 6, 3, 7 in the others, each twice.
#[inline(always)]
unsafe fn scale32(heads: &Heads, r: usize) -> __m512i {
    const NONE: u8 = 0x80;
    const A: [u8; 16] = [0, NONE, 0, NONE, 4, NONE, 4, NONE, 1, NONE, 1, NONE, 5, NONE, 5, NONE];
    const B: [u8; 16] = [2, NONE, 2, NONE, 6, NONE, 6, NONE, 3, NONE, 3, NONE, 7, NONE, 7, NONE];
    const PICK: [[u8; 16]; 4] = [A, A, B, B];
    // SAFETY: registers only.
    unsafe { _mm512_shuffle_epi8(spread(heads, r), constant(&PICK)) }
}

/// The even, then the odd quadwords of two vectors, lane by lane.
#[inline(always)]
pub(crate) unsafe fn interleave(a: __m512i, b: __m512i) -> (__m512i, __m512i) {
    // SAFETY: the level's features are there, the caller's contract.
    unsafe { (_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)) }
}

#[inline(always)]
unsafe fn load(p: *const u8) -> __m512i {
    // SAFETY: the caller's 64 bytes are readable.
    unsafe { _mm512_loadu_si512(p.cast()) }
}

/// The same 32 bytes in both halves.
#[inline(always)]
unsafe fn twice(p: *const u8) -> __m512i {
    // SAFETY: the caller's 32 bytes are readable.
    unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())) }
}

/// Low nibbles, then high nibbles.
#[inline(always)]
unsafe fn nibbles(v: __m512i) -> (__m512i, __m512i) {
    // SAFETY: the level's features are there, the caller's contract.
    unsafe {
        let mask = _mm512_set1_epi8(15);
        (_mm512_and_si512(v, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask))
    }
}

/// `low`, with the bits of `high` under `mask` after turning its quadwords left by `by`.
#[inline(always)]
unsafe fn with_high(low: __m512i, high: __m512i, by: __m512i, mask: i8) -> __m512i {
    // SAFETY: as above.
    unsafe {
        let turned = _mm512_rolv_epi64(high, by);
        // (turned & mask) | low.
        _mm512_ternarylogic_epi32::<0xf8>(low, turned, _mm512_set1_epi8(mask))
    }
}

impl Wide for K4 {
    const BYTES: usize = 144;
    const ORDER: [(usize, usize); 4] = [(0, 2), (4, 6), (1, 3), (5, 7)];
    const OFFSET: i32 = 0;
    const MINIMA: Minima = Minima::Of32;

    #[inline(always)]
    unsafe fn codes(w: *const u8) -> [__m512i; 4] {
        // SAFETY: nibbles are bytes 16..144. Chunk c of 32 holds groups 2c (low) and 2c+1 (high).
        unsafe {
            let (even, odd) = interleave(load(w.add(16)), load(w.add(80)));
            let ((a, c), (b, d)) = (nibbles(even), nibbles(odd));
            [a, b, c, d]
        }
    }
    #[inline(always)]
    unsafe fn heads(w: &[*const u8; 4]) -> Heads {
        // SAFETY: the caller's contract.
        unsafe { heads32(w) }
    }
    #[inline(always)]
    unsafe fn scale(_: *const u8, heads: &Heads, r: usize) -> __m512i {
        // SAFETY: the caller's contract.
        unsafe { scale32(heads, r) }
    }
}

impl Wide for K5 {
    const BYTES: usize = 176;
    const ORDER: [(usize, usize); 4] = K4::ORDER;
    const OFFSET: i32 = 0;
    const MINIMA: Minima = Minima::Of32;

    #[inline(always)]
    unsafe fn codes(w: *const u8) -> [__m512i; 4] {
        // SAFETY: fifth bits are bytes 16..48 (bit j for group j), nibbles 48..176 as in `Q4_K`.
        unsafe {
            let (even, odd) = interleave(load(w.add(48)), load(w.add(112)));
            let ((a, c), (b, d)) = (nibbles(even), nibbles(odd));
            let fifth = twice(w.add(16));
            let (even, odd) = (
                _mm512_permutex_epi64::<0b10_10_00_00>(fifth),
                _mm512_permutex_epi64::<0b11_11_01_01>(fifth),
            );
            // Bit j of group j goes to bit 4: groups by quadword are 0 4 0 4 2 6 2 6 and 1 5 1 5 3 7 3 7.
            let by_even = _mm512_setr_epi64(4, 0, 4, 0, 2, 62, 2, 62);
            let by_odd = _mm512_setr_epi64(3, 63, 3, 63, 1, 61, 1, 61);
            [
                with_high(a, even, by_even, 16),
                with_high(b, odd, by_even, 16),
                with_high(c, even, by_odd, 16),
                with_high(d, odd, by_odd, 16),
            ]
        }
    }
    #[inline(always)]
    unsafe fn heads(w: &[*const u8; 4]) -> Heads {
        // SAFETY: the caller's contract.
        unsafe { heads32(w) }
    }
    #[inline(always)]
    unsafe fn scale(_: *const u8, heads: &Heads, r: usize) -> __m512i {
        // SAFETY: the caller's contract.
        unsafe { scale32(heads, r) }
    }
}

impl Wide for K6 {
    const BYTES: usize = 210;
    const ORDER: [(usize, usize); 4] = [(0, 1), (4, 5), (2, 3), (6, 7)];
    const OFFSET: i32 = 32;
    const MINIMA: Minima = Minima::None;

    #[inline(always)]
    unsafe fn codes(w: *const u8) -> [__m512i; 4] {
        // SAFETY: nibbles are bytes 0..128: low ones are groups 0 1 | 4 5, high ones 2 3 | 6 7; the upper bit
        // pairs, bytes 128..160 and 160..192, hold those of group r in bits 2(r mod 4).
        unsafe {
            let (even, odd) = interleave(load(w), load(w.add(64)));
            let ((a, c), (b, d)) = (nibbles(even), nibbles(odd));
            let (even, odd) = interleave(twice(w.add(128)), twice(w.add(160)));
            let by_low = _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2);
            let by_high = _mm512_setr_epi64(0, 0, 0, 0, 62, 62, 62, 62);
            [
                with_high(a, even, by_low, 0x30),
                with_high(b, odd, by_low, 0x30),
                with_high(c, even, by_high, 0x30),
                with_high(d, odd, by_high, 0x30),
            ]
        }
    }
    #[inline(always)]
    unsafe fn heads(w: &[*const u8; 4]) -> Heads {
        // SAFETY: d is bytes 208..210, the last of the block.
        unsafe {
            let last = _mm512_shuffle_epi32::<0b11_11_11_11>(four(w, 194));
            Heads { bytes: [[0; 16]; 4], d: _mm512_srli_epi32::<16>(last), mins: [_mm512_setzero_si512(); 2] }
        }
    }
    #[inline(always)]
    unsafe fn scale(w: *const u8, _: &Heads, _: usize) -> __m512i {
        /// Lane L needs sub-blocks L, 8+L, 4+L, 12+L, each twice: lanes 0 and 1 from the first 16 bytes.
        const PICK: [[u8; 16]; 2] = [
            [0, 0, 8, 8, 4, 4, 12, 12, 1, 1, 9, 9, 5, 5, 13, 13],
            [2, 2, 10, 10, 6, 6, 14, 14, 3, 3, 11, 11, 7, 7, 15, 15],
        ];
        // SAFETY: scales are bytes 192..208, signed.
        unsafe {
            let scales = _mm256_broadcastsi128_si256(_mm_loadu_si128(w.add(192).cast()));
            let pick = _mm256_loadu_si256(PICK.as_ptr().cast());
            _mm512_cvtepi8_epi16(_mm256_shuffle_epi8(scales, pick))
        }
    }
}

impl Wide for K2 {
    const BYTES: usize = 84;
    const ORDER: [(usize, usize); 4] = [(0, 4), (1, 5), (2, 6), (3, 7)];
    const OFFSET: i32 = 0;
    const MINIMA: Minima = Minima::Of16;

    #[inline(always)]
    unsafe fn codes(w: *const u8) -> [__m512i; 4] {
        // SAFETY: codes are bytes 16..80, two bits each: group r of the first and of the second 128 values.
        unsafe {
            let v = load(w.add(16));
            let mask = _mm512_set1_epi8(3);
            let zero = _mm512_and_si512(v, mask);
            let one = _mm512_and_si512(_mm512_srli_epi16::<2>(v), mask);
            let two = _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask);
            let three = _mm512_and_si512(_mm512_srli_epi16::<6>(v), mask);
            let ((a, b), (c, d)) = (interleave(zero, one), interleave(two, three));
            [a, b, c, d]
        }
    }
    #[inline(always)]
    unsafe fn heads(w: &[*const u8; 4]) -> Heads {
        // SAFETY: scales (low nibbles) and minima (high ones) are bytes 0..16, d and dmin the last four of 84.
        unsafe {
            let mins = _mm512_and_si512(_mm512_srli_epi16::<4>(four(w, 0)), _mm512_set1_epi8(15));
            let order = _mm512_broadcast_i32x4(_mm_loadu_si128(SIXTEENS.as_ptr().cast()));
            let mins = _mm512_shuffle_epi8(mins, order);
            let zero = _mm512_setzero_si512();
            let mins = [_mm512_unpacklo_epi8(mins, zero), _mm512_unpackhi_epi8(mins, zero)];
            let d = _mm512_shuffle_epi32::<0b11_11_11_11>(four(w, 68));
            Heads { bytes: [[0; 16]; 4], d, mins }
        }
    }
    #[inline(always)]
    unsafe fn scale(w: *const u8, _: &Heads, _: usize) -> __m512i {
        const N: u8 = 0x80;
        /// Sub-blocks 0 2 4 6, 1 3 5 7, then the same of the second half, each twice.
        const PICK: [[u8; 16]; 4] = [
            [0, N, 0, N, 2, N, 2, N, 4, N, 4, N, 6, N, 6, N],
            [1, N, 1, N, 3, N, 3, N, 5, N, 5, N, 7, N, 7, N],
            [8, N, 8, N, 10, N, 10, N, 12, N, 12, N, 14, N, 14, N],
            [9, N, 9, N, 11, N, 11, N, 13, N, 13, N, 15, N, 15, N],
        ];
        // SAFETY: as in `heads`.
        unsafe {
            let packed = _mm512_broadcast_i32x4(_mm_loadu_si128(w.cast()));
            _mm512_and_si512(_mm512_shuffle_epi8(packed, constant(&PICK)), _mm512_set1_epi8(15))
        }
    }
}

/// Sums of the four values of each lane: element i of lane L is that of lane L of vector i.
#[inline(always)]
pub(crate) unsafe fn sum_lanes(v: [__m512i; 4]) -> __m512i {
    // SAFETY: the level's features are there, the caller's contract.
    unsafe {
        let a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
        let b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    }
}
