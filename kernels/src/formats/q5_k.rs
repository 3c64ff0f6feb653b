//! `Q5_K`: f16 d, f16 dmin, 12 bytes of scales as `Q4_K`, 32 bytes of fifth bits, 128 bytes of nibbles.
//!
//! Bit j of byte l of the fifth bits belongs to element l of sub-block j.

use super::q4_k::factors;

pub(super) const BYTES: usize = 176;

#[inline(always)]
pub(super) fn decode_block(b: &[u8; BYTES], out: &mut [f32; 256]) {
    for (j, (scale, min)) in factors(b).into_iter().enumerate() {
        let shift = 4 * (j % 2);
        for l in 0..32 {
            let low = (b[48 + 32 * (j / 2) + l] >> shift) & 15;
            let q = low | ((b[16 + l] >> j) & 1) << 4;
            out[32 * j + l] = scale * f32::from(q) - min;
        }
    }
}
