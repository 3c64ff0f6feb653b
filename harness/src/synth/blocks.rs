//! Packs f32 into the blocks of the file formats. One idea: simple valid encoders (the minimum and maximum of each
//! sub-block), because a synthetic file must decode exactly and be the right size, not win a contest.

use half::{bf16, f16};

use crate::containers::Dtype;

/// Whether [`encode`] knows the type.
#[must_use]
pub fn can_encode(dtype: Dtype) -> bool {
    use Dtype::{BF16, F16, F32, Q2_K, Q4_K, Q5_K, Q6_K, Q8_0};
    matches!(dtype, F32 | F16 | BF16 | Q8_0 | Q4_K | Q5_K | Q6_K | Q2_K)
}

/// Appends the encoding of `values` to `out`; `None` where the type has no encoder or the values are no whole blocks.
pub fn encode(dtype: Dtype, values: &[f32], out: &mut Vec<u8>) -> Option<()> {
    if !(values.len() as u64).is_multiple_of(dtype.block().values) {
        return None;
    }
    match dtype {
        Dtype::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        Dtype::F16 => out.extend(values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes())),
        Dtype::BF16 => out.extend(values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes())),
        Dtype::Q8_0 => blocks::<32>(values, |block| q8_0(block, out)),
        Dtype::Q4_K => blocks::<256>(values, |block| q4_q5(block, false, out)),
        Dtype::Q5_K => blocks::<256>(values, |block| q4_q5(block, true, out)),
        Dtype::Q6_K => blocks::<256>(values, |block| q6(block, out)),
        Dtype::Q2_K => blocks::<256>(values, |block| q2(block, out)),
        _ => return None,
    }
    Some(())
}

fn blocks<const N: usize>(values: &[f32], each: impl FnMut(&[f32; N])) {
    values.as_chunks::<N>().0.iter().for_each(each);
}

/// Round half away from zero into `0..=most`.
fn code(value: f32, most: u8) -> u8 {
    value.round().clamp(0.0, f32::from(most)) as u8 // NaN becomes 0
}

fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

fn q8_0(block: &[f32; 32], out: &mut Vec<u8>) {
    let d = block.iter().fold(0.0f32, |a, v| a.max(v.abs())) / 127.0;
    let inv = inverse(d);
    out.extend(f16::from_f32(d).to_le_bytes());
    out.extend(block.iter().map(|v| (v * inv).round().clamp(-127.0, 127.0) as i8 as u8));
}

/// Scale and minimum of sub-blocks of `S` values, quantised over the super-block to `levels`; the codes for `qmax`.
struct MinMax<const N: usize> {
    d: f16,
    dmin: f16,
    scales: [u8; N],
    mins: [u8; N],
    codes: [u8; 256],
}

fn min_max<const N: usize>(block: &[f32; 256], qmax: u8, levels: u8) -> MinMax<N> {
    let size = 256 / N;
    let (mut scale, mut least) = ([0.0f32; N], [0.0f32; N]);
    for (s, sub) in block.chunks(size).enumerate() {
        least[s] = sub.iter().fold(0.0f32, |a, &v| a.max(-v));
        let most = sub.iter().fold(0.0f32, |a, &v| a.max(v));
        scale[s] = (most + least[s]) / f32::from(qmax);
    }
    let step = |all: &[f32; N]| f16::from_f32(all.iter().fold(0.0f32, |a, &v| a.max(v)) / f32::from(levels));
    let (d, dmin) = (step(&scale), step(&least));
    let (inv, inv_min) = (inverse(d.to_f32()), inverse(dmin.to_f32()));
    let scales = scale.map(|s| code(s * inv, levels));
    let mins = least.map(|m| code(m * inv_min, levels));
    let mut codes = [0; 256];
    for (i, c) in codes.iter_mut().enumerate() {
        let s = i / size;
        let inv = inverse(d.to_f32() * f32::from(scales[s]));
        *c = code((block[i] + dmin.to_f32() * f32::from(mins[s])) * inv, qmax);
    }
    MinMax { d, dmin, scales, mins, codes }
}

fn q4_q5(block: &[f32; 256], five: bool, out: &mut Vec<u8>) {
    let q = min_max::<8>(block, if five { 31 } else { 15 }, 63);
    out.extend(q.d.to_le_bytes());
    out.extend(q.dmin.to_le_bytes());
    let mut packed = [0u8; 12];
    for j in 0..4 {
        packed[j] = q.scales[j] | ((q.scales[j + 4] >> 4) << 6);
        packed[j + 4] = q.mins[j] | ((q.mins[j + 4] >> 4) << 6);
        packed[j + 8] = (q.scales[j + 4] & 15) | ((q.mins[j + 4] & 15) << 4);
    }
    out.extend(packed);
    if five {
        out.extend((0..32).map(|l| (0..8).fold(0u8, |byte, j| byte | ((q.codes[32 * j + l] >> 4) << j))));
    }
    for c in 0..4 {
        out.extend((0..32).map(|l| (q.codes[64 * c + l] & 15) | ((q.codes[64 * c + 32 + l] & 15) << 4)));
    }
}

fn q2(block: &[f32; 256], out: &mut Vec<u8>) {
    let q = min_max::<16>(block, 3, 15);
    out.extend((0..16).map(|b| q.scales[b] | (q.mins[b] << 4)));
    for h in 0..2 {
        out.extend(
            (0..32).map(|l| (0..4).fold(0u8, |byte, t| byte | (q.codes[128 * h + 32 * t + l] << (2 * t)))),
        );
    }
    out.extend(q.d.to_le_bytes());
    out.extend(q.dmin.to_le_bytes());
}

fn q6(block: &[f32; 256], out: &mut Vec<u8>) {
    let mut scale = [0.0f32; 16];
    for (s, sub) in block.chunks(16).enumerate() {
        // Codes -32..=31: the side with the larger magnitude gets -32, so the scale carries its sign.
        let extreme = sub.iter().fold(0.0f32, |a, &v| if v.abs() > a.abs() { v } else { a });
        scale[s] = extreme / -32.0;
    }
    let d = f16::from_f32(scale.iter().fold(0.0f32, |a, v| a.max(v.abs())) / 127.0);
    let inv = inverse(d.to_f32());
    let scales = scale.map(|s| (s * inv).round().clamp(-127.0, 127.0) as i8);
    let mut codes = [0u8; 256];
    for (i, c) in codes.iter_mut().enumerate() {
        let inv = inverse(d.to_f32() * f32::from(scales[i / 16]));
        *c = ((block[i] * inv).round().clamp(-32.0, 31.0) as i8 + 32) as u8;
    }
    let at = |h: usize, r: usize, l: usize| codes[128 * h + 32 * r + l];
    for h in 0..2 {
        out.extend((0..32).map(|l| (at(h, 0, l) & 15) | ((at(h, 2, l) & 15) << 4)));
        out.extend((0..32).map(|l| (at(h, 1, l) & 15) | ((at(h, 3, l) & 15) << 4)));
    }
    for h in 0..2 {
        out.extend((0..32).map(|l| (0..4).fold(0u8, |byte, r| byte | ((at(h, r, l) >> 4) << (2 * r)))));
    }
    out.extend(scales.map(|s| s as u8));
    out.extend(d.to_le_bytes());
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
