//! `Q4_K`: f16 d, f16 dmin, 12 bytes of six-bit scales and minima, 128 bytes of nibbles.
//!
//! Eight sub-blocks of 32. Nibble bytes come in four chunks of 32: low nibbles are sub-block 2c, high
//! nibbles 2c+1. w = (d*scale)*q - (dmin*min).

use super::f16_at;

pub(super) const BYTES: usize = 144;

/// The eight six-bit scales and the eight six-bit minima packed in 12 bytes (shared with `Q5_K`).
///
/// Bytes 0..4 hold scales 0..4 and, in their upper two bits, the top of scales 4..8; bytes 4..8 the same for
/// the minima; bytes 8..12 the lower four bits of scale and minimum 4..8.
#[inline(always)]
pub(crate) fn scales_mins(s: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word = |i: usize| u32::from_le_bytes([s[i], s[i + 1], s[i + 2], s[i + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    let low = |w: u32| w & 0x3f3f_3f3f;
    let top = |w: u32| ((w >> 6) & 0x0303_0303) << 4;
    let join = |lo: u32, hi: u32| (u64::from(lo) | u64::from(hi) << 32).to_le_bytes();
    (join(low(a), (c & 0x0f0f_0f0f) | top(a)), join(low(b), ((c >> 4) & 0x0f0f_0f0f) | top(b)))
}

/// d*scale and dmin*min of the eight sub-blocks, from a block's first 16 bytes (shared with `Q5_K`).
#[inline(always)]
pub(super) fn factors(b: &[u8]) -> [(f32, f32); 8] {
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    let mut packed = [0; 12];
    packed.copy_from_slice(&b[4..16]);
    let (scales, mins) = scales_mins(&packed);
    std::array::from_fn(|j| (d * f32::from(scales[j]), dmin * f32::from(mins[j])))
}

#[inline(always)]
pub(super) fn decode_block(b: &[u8; BYTES], out: &mut [f32; 256]) {
    for (j, (scale, min)) in factors(b).into_iter().enumerate() {
        let shift = 4 * (j % 2);
        for l in 0..32 {
            let q = (b[16 + 32 * (j / 2) + l] >> shift) & 15;
            out[32 * j + l] = scale * f32::from(q) - min;
        }
    }
}
