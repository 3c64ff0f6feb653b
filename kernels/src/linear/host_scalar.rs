//! The three reduction trees written out plainly: the definition that the vector paths match bit for bit.

use super::host::{Act, Shape};
use super::host_act::{ActKind, Q8_GROUP, Q8Row};
use crate::formats::elements::{bf16_to_f32, f16_to_f32};
use crate::formats::{Format, decode_row, k_scales_mins};

/// Lanes of the two f32 trees.
const LANES: usize = 16;

pub(super) fn tile(shape: &Shape<'_>, x: &Act<'_>, scratch: &mut [f32], out: &mut [f32]) {
    let k = shape.k;
    let row_bytes = x.kind().row_bytes(k).unwrap_or(0);
    for n in 0..shape.nt {
        let w = shape.weight_row(n);
        let pairs = shape.format == Format::Bf16 && x.kind() == ActKind::Bf16;
        let decoded = &mut scratch[..k];
        if x.kind() != ActKind::Q8 {
            decode_row(shape.format, w, decoded).expect("the shape was checked");
        }
        for m in 0..shape.rows.len() {
            let row = shape.rows.get(m);
            out[m * shape.nt + n] = match x {
                Act::F32(x) => dot_decoded(decoded, |i| x[row * k + i]),
                Act::Bf16(x) if pairs => dot_pairs(decoded, |i| bf16_to_f32(x[row * k + i])),
                Act::Bf16(x) => dot_decoded(decoded, |i| bf16_to_f32(x[row * k + i])),
                Act::Q8(x) => {
                    dot_q8(shape.format, w, Q8Row::new(&x[row * row_bytes..(row + 1) * row_bytes], k))
                }
            };
        }
    }
}

fn fold(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

fn dot_decoded(w: &[f32], x: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    for chunk in (0..w.len()).step_by(LANES) {
        for (i, lane) in lanes.iter_mut().enumerate() {
            let at = chunk + i;
            let (a, b) = if at < w.len() { (x(at), w[at]) } else { (0.0, 0.0) };
            *lane = a.mul_add(b, *lane);
        }
    }
    fold(lanes)
}

fn dot_pairs(w: &[f32], x: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    for chunk in (0..w.len()).step_by(2 * LANES) {
        for (i, lane) in lanes.iter_mut().enumerate() {
            for at in [chunk + 2 * i + 1, chunk + 2 * i] {
                let (a, b) = if at < w.len() { (x(at), w[at]) } else { (0.0, 0.0) };
                *lane = a.mul_add(b, *lane);
            }
        }
    }
    fold(lanes)
}

fn dot_q8(format: Format, w: &[u8], x: Q8Row<'_>) -> f32 {
    let per_super = Q8_GROUP / format.block_values() * format.block_bytes();
    let mut acc = 0f32;
    for (s, w) in w.chunks_exact(per_super).enumerate() {
        let codes = &x.codes[s * Q8_GROUP..(s + 1) * Q8_GROUP];
        let sums: [i32; 8] = std::array::from_fn(|j| x.sum(8 * s + j));
        let v = match format {
            Format::Q8_0 => super_q8_0(w, codes),
            Format::Q4_K => {
                super_k4(w, codes, sums, |w, j, l| (w[16 + 32 * (j / 2) + l] >> (4 * (j % 2))) & 15)
            }
            Format::Q5_K => super_k4(w, codes, sums, |w, j, l| {
                (w[48 + 32 * (j / 2) + l] >> (4 * (j % 2))) & 15 | ((w[16 + l] >> j) & 1) << 4
            }),
            Format::Q6_K => super_q6(w, codes),
            Format::Q2_K => super_q2(w, codes),
            Format::F32 | Format::F16 | Format::Bf16 => unreachable!("refused when the shape was checked"),
        };
        acc = x.scale(s).mul_add(v, acc);
    }
    acc
}

fn f16_at(w: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([w[at], w[at + 1]]))
}

fn signed(code: u8) -> i32 {
    i32::from(code.cast_signed())
}

fn super_q8_0(w: &[u8], x: &[u8]) -> f32 {
    let mut v = 0f32;
    for (b, x) in w.chunks_exact(34).zip(x.chunks_exact(32)) {
        let sum: i32 = b[2..].iter().zip(x).map(|(&q, &x)| signed(q) * signed(x)).sum();
        v = f16_at(b, 0).mul_add(sum as f32, v);
    }
    v
}

fn super_k4(w: &[u8], x: &[u8], sums: [i32; 8], q: impl Fn(&[u8], usize, usize) -> u8) -> f32 {
    let packed: [u8; 12] = std::array::from_fn(|i| w[4 + i]);
    let (scales, mins) = k_scales_mins(&packed);
    let (mut sum, mut sum_min) = (0i32, 0i32);
    for j in 0..8 {
        let dot: i32 = (0..32).map(|l| i32::from(q(w, j, l)) * signed(x[32 * j + l])).sum();
        sum += i32::from(scales[j]) * dot;
        sum_min += i32::from(mins[j]) * sums[j];
    }
    (-f16_at(w, 2)).mul_add(sum_min as f32, f16_at(w, 0) * sum as f32)
}

fn super_q6(w: &[u8], x: &[u8]) -> f32 {
    let mut sum = 0i32;
    for at in 0..Q8_GROUP {
        let (h, r, l) = (at / 128, at / 32 % 4, at % 32);
        let low = (w[64 * h + 32 * (r % 2) + l] >> (4 * (r / 2))) & 15;
        let q = low | ((w[128 + 32 * h + l] >> (2 * r)) & 3) << 4;
        sum += signed(w[192 + at / 16]) * (i32::from(q) - 32) * signed(x[at]);
    }
    f16_at(w, 208) * sum as f32
}

fn super_q2(w: &[u8], x: &[u8]) -> f32 {
    let (mut sum, mut sum_min) = (0i32, 0i32);
    for at in 0..Q8_GROUP {
        let (h, r, l) = (at / 128, at / 32 % 4, at % 32);
        let q = (w[16 + 32 * h + l] >> (2 * r)) & 3;
        let packed = w[at / 16];
        sum += i32::from(packed & 15) * i32::from(q) * signed(x[at]);
        sum_min += i32::from(packed >> 4) * signed(x[at]);
    }
    (-f16_at(w, 82)).mul_add(sum_min as f32, f16_at(w, 80) * sum as f32)
}
