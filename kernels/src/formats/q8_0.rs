//! `Q8_0`: f16 d, then 32 signed bytes. w = d * q.

use super::f16_at;

pub(super) const BYTES: usize = 34;

#[inline(always)]
pub(super) fn decode_block(b: &[u8; BYTES], out: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for i in 0..32 {
        out[i] = d * f32::from(b[2 + i].cast_signed());
    }
}
