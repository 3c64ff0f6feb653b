//! The vector instruction sets against the definition, bit by bit.
use super::*;
use crate::host::simd::Simd;

lanes! {
    /// exp, sigmoid, silu, max with 1 and fold of eight lanes, one after another.
    pub fn functions [](isa; x: &[f32; 8], out: &mut [f32; 40]) {
        let v = isa.load(x);
        let all = [isa.exp(v), isa.sigmoid(v), isa.silu(v), isa.max(v, isa.splat(1.0))];
        for (i, y) in all.into_iter().enumerate() {
            isa.store(y, eight_mut(out, 8 * i));
        }
        out[32] = isa.fold(v);
    }
}

lanes! {
    /// Folds of eight rows, together and one by one.
    pub fn folds [](isa; x: &[f32; 64], out: &mut [f32; 16]) {
        let v = std::array::from_fn(|i| isa.load(eight(x, 8 * i)));
        isa.store(isa.fold8(v), eight_mut(out, 0));
        for i in 0..8 {
            out[8 + i] = isa.fold(v[i]);
        }
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn functions_of_lanes_are_the_scalar_functions_to_the_bit() {
    let extremes = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 88.73, -103.98, 1e-40];
    let mut inputs = vec![extremes];
    // Every 9973rd bit pattern: all exponents, both signs, NaNs.
    let mut bits = 0u32;
    for _ in 0..u32::MAX / 9973 / 8 {
        inputs.push(std::array::from_fn(|l| f32::from_bits(bits.wrapping_add(9973 * l as u32))));
        bits = bits.wrapping_add(8 * 9973);
    }
    for x in &inputs {
        for simd in Simd::available() {
            let mut out = [0.0; 40];
            functions(simd, x, &mut out);
            for l in 0..8 {
                assert!(same(out[l], exp(x[l])), "exp {:e}", x[l]);
                assert!(same(out[8 + l], sigmoid(x[l])), "sigmoid {:e}", x[l]);
                assert!(same(out[16 + l], silu(x[l])), "silu {:e}", x[l]);
                assert!(same(out[24 + l], if x[l] > 1.0 { x[l] } else { 1.0 }), "max {:e}", x[l]);
            }
            assert!(same(out[32], fold_lanes(*x)));
        }
    }
}

#[test]
fn eight_folds_at_once_are_eight_folds() {
    let x: [f32; 64] = std::array::from_fn(|i| ((i * 7919 % 101) as f32 - 50.0) * 1.37e-3 + i as f32);
    for simd in Simd::available() {
        let mut out = [0.0; 16];
        folds(simd, &x, &mut out);
        for i in 0..8 {
            let want = fold_lanes(*eight(&x, 8 * i));
            assert_eq!((out[i], out[8 + i]), (want, want));
        }
    }
}

#[test]
fn rows_of_any_length_are_gated_and_added() {
    for n in [0, 1, 7, 8, 9, 31, 256] {
        let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.37 - 4.0).collect();
        for simd in Simd::available() {
            let (mut gate, mut sum) = (x.clone(), x.clone());
            silu_mul_row(simd, &mut gate, &x);
            add_row(simd, &mut sum, &x);
            for i in 0..n {
                assert_eq!(gate[i].to_bits(), (silu(x[i]) * x[i]).to_bits());
                assert_eq!(sum[i], x[i] + x[i]);
            }
        }
    }
}
