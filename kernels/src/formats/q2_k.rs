//! `Q2_K`: 16 bytes of scale (low nibble) and minimum (high), 64 bytes of bit pairs, f16 d, f16 dmin last.
//!
//! Two halves of 128; group r of 32 is bits 2r of the half's 32 bytes; a scale covers 16 values.
//! w = (d*scale)*q - (dmin*min).

use super::f16_at;

pub(super) const BYTES: usize = 84;

#[inline(always)]
pub(super) fn decode_block(b: &[u8; BYTES], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 80), f16_at(b, 82));
    for j in 0..8 {
        let (h, r) = (j / 4, j % 4);
        for half in 0..2 {
            let packed = b[2 * j + half];
            let scale = d * f32::from(packed & 15);
            let min = dmin * f32::from(packed >> 4);
            for i in 0..16 {
                let l = 16 * half + i;
                let q = (b[16 + 32 * h + l] >> (2 * r)) & 3;
                out[32 * j + l] = scale * f32::from(q) - min;
            }
        }
    }
}
