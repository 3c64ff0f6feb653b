//! `Q6_K`: 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, f16 d last.
//!
//! Two halves of 128; within one, group r of 32 takes its nibble from byte l + 32*(r&1), low for r < 2 and
//! high above, and bits 2r of upper byte l. w = (d*scale[idx/16])*(q-32).

use super::f16_at;

pub(super) const BYTES: usize = 210;

#[inline(always)]
pub(super) fn decode_block(b: &[u8; BYTES], out: &mut [f32; 256]) {
    let d = f16_at(b, 208);
    for j in 0..8 {
        let (h, r) = (j / 4, j % 4);
        let shift = 4 * (r / 2);
        for half in 0..2 {
            let scale = d * f32::from(b[192 + 2 * j + half].cast_signed());
            for i in 0..16 {
                let l = 16 * half + i;
                let low = (b[64 * h + 32 * (r % 2) + l] >> shift) & 15;
                let q = low | ((b[128 + 32 * h + l] >> (2 * r)) & 3) << 4;
                out[32 * j + l] = scale * f32::from(q.cast_signed() - 32);
            }
        }
    }
}
