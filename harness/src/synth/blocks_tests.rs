//! Encoders against decoders written from the formats' layout.

use super::*;
use crate::synth::values::{Fill, fill};

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

fn decode(dtype: Dtype, b: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => b.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)).collect(),
        Dtype::F16 => b.as_chunks::<2>().0.iter().map(|c| f16::from_le_bytes(*c).to_f32()).collect(),
        Dtype::BF16 => b.as_chunks::<2>().0.iter().map(|c| bf16::from_le_bytes(*c).to_f32()).collect(),
        _ => b.chunks(dtype.block().bytes as usize).flat_map(|block| decode_block(dtype, block)).collect(),
    }
}

fn decode_block(dtype: Dtype, b: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::Q8_0 => b[2..].iter().map(|&q| half_at(b, 0) * f32::from(q as i8)).collect(),
        Dtype::Q2_K => (0..256)
            .map(|i| {
                let q = (b[16 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
                let sc = b[i / 16];
                half_at(b, 80) * f32::from(sc & 15) * f32::from(q) - half_at(b, 82) * f32::from(sc >> 4)
            })
            .collect(),
        Dtype::Q6_K => (0..256)
            .map(|i| {
                let (h, r, l) = (i / 128, i % 128 / 32, i % 32);
                let low = b[64 * h + 32 * (r % 2) + l] >> (4 * (r / 2)) & 15;
                let high = (b[128 + 32 * h + l] >> (2 * r)) & 3;
                let q = i32::from(low | (high << 4)) - 32;
                half_at(b, 208) * f32::from(b[192 + i / 16] as i8) * q as f32
            })
            .collect(),
        _ => (0..256)
            .map(|i| {
                let five = dtype == Dtype::Q5_K;
                let s = &b[4..16];
                let j = i / 32;
                let (sc, mn) = if j < 4 {
                    (s[j] & 63, s[j + 4] & 63)
                } else {
                    ((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4), (s[j + 4] >> 4) | ((s[j] >> 6) << 4))
                };
                let qs = if five { 48 } else { 16 };
                let nibble = (b[qs + 32 * (j / 2) + i % 32] >> (4 * (j % 2))) & 15;
                let q = if five { nibble | (((b[16 + i % 32] >> j) & 1) << 4) } else { nibble };
                half_at(b, 0) * f32::from(sc) * f32::from(q) - half_at(b, 2) * f32::from(mn)
            })
            .collect(),
    }
}

/// Root mean square error relative to the values' own, over 64 blocks of bell-shaped values.
fn relative_error(dtype: Dtype) -> f64 {
    let mut values = vec![0.0; 256 * 64];
    fill(Fill::Normal(0.02), 5, "w", 0, &mut values);
    let mut bytes = Vec::new();
    encode(dtype, &values, &mut bytes).unwrap();
    assert_eq!(Some(bytes.len() as u64), dtype.bytes_of(&[64, 256]));
    let square = |v: f32| f64::from(v) * f64::from(v);
    let error: f64 = decode(dtype, &bytes).iter().zip(&values).map(|(a, b)| square(a - b)).sum();
    (error / values.iter().map(|&v| square(v)).sum::<f64>()).sqrt()
}

#[test]
fn encoding_errors_stay_within_the_formats_bounds() {
    let bounds = [
        (Dtype::F32, 0.0),
        (Dtype::F16, 3e-4),
        (Dtype::BF16, 2.5e-3),
        (Dtype::Q8_0, 0.007),
        (Dtype::Q6_K, 0.03),
        (Dtype::Q5_K, 0.05),
        (Dtype::Q4_K, 0.1),
        (Dtype::Q2_K, 0.45),
    ];
    for (dtype, bound) in bounds {
        assert!(can_encode(dtype));
        let error = relative_error(dtype);
        assert!(error <= bound, "{dtype}: relative error {error}, bound {bound}");
    }
}

#[test]
fn zeros_constants_and_one_sided_blocks_are_valid() {
    for dtype in [Dtype::Q8_0, Dtype::Q2_K, Dtype::Q4_K, Dtype::Q5_K, Dtype::Q6_K] {
        for (value, tolerance) in [(0.0f32, 0.0f32), (1.0, 0.05), (-1.0, 0.05)] {
            let mut bytes = Vec::new();
            encode(dtype, &[value; 256], &mut bytes).unwrap();
            for decoded in decode(dtype, &bytes) {
                assert!((decoded - value).abs() <= tolerance, "{dtype} {value} {decoded}");
            }
        }
    }
}

#[test]
fn other_types_and_ragged_rows_are_refused() {
    assert!(encode(Dtype::IQ2_XXS, &[0.0; 256], &mut Vec::new()).is_none());
    assert!(encode(Dtype::Q4_K, &[0.0; 255], &mut Vec::new()).is_none());
    assert!(!can_encode(Dtype::MXFP4));
}
