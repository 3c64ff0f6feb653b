//! `Q5_K`: f16 d, f16 dmin, 12 bytes of scales as `Q4_K`, 32 bytes of fifth bits, 128 bytes of nibbles.
//!
//! Bit j of byte l of the fifth bits belongs to element l of sub-block j.

use super::{f16_at, q4_k::scales_mins};

pub(super) const BYTES: usize = 176;

#[inline(always)]
pub(super) fn decode_block(b: &[u8; BYTES], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    let mut packed = [0; 12];
    packed.copy_from_slice(&b[4..16]);
    let (scales, mins) = scales_mins(&packed);
    for j in 0..8 {
        let scale = d * f32::from(scales[j]);
        let min = dmin * f32::from(mins[j]);
        let shift = 4 * (j % 2);
        for l in 0..32 {
            let low = (b[48 + 32 * (j / 2) + l] >> shift) & 15;
            let q = low | ((b[16 + l] >> j) & 1) << 4;
            out[32 * j + l] = scale * f32::from(q) - min;
        }
    }
}
