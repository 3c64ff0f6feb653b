//! CPU root-mean-square norm: one item is one row.
//!
//! y_i = x_i (mean(x^2) + eps)^-1/2 w_i, or (1 + w_i) for weights stored around zero (`plus_one`). All in
//! f32: sum of squares in the 16-lane tree of [`crate::values::dot`], then one division and one square root,
//! then two products an element (x by the factor, that by the weight). A NaN in the row makes the whole row
//! NaN; an infinity makes that element NaN and the others 0.

use crate::lanes::{Isa, WIDTH, dot, eight, eight_mut, lanes};
use crate::values::{Vector, bf16_from_f32};

/// Weights widened at a time: the stored type is looked at once a block, the loops run over f32.
pub(crate) const BLOCK: usize = 64;

/// (mean(x^2) + eps)^-1/2 of a row.
#[inline(always)]
pub(crate) fn inverse_rms<I: Isa>(isa: I, x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(isa, x, x) / x.len() as f32 + eps).sqrt()
}

/// `w_i = x_i * inverse * w_i`, or `* (1 + w_i)`.
#[inline(always)]
fn scale_block<I: Isa>(isa: I, x: &[f32], inverse: f32, plus_one: bool, w: &mut [f32]) {
    let n = x.len();
    let whole = n - n % WIDTH;
    let (factor, offset) = (isa.splat(inverse), isa.splat(1.0));
    for i in (0..whole).step_by(WIDTH) {
        let stored = isa.load(eight(w, i));
        let weight = if plus_one { isa.add(offset, stored) } else { stored };
        let y = isa.mul(isa.mul(isa.load(eight(x, i)), factor), weight);
        isa.store(y, eight_mut(w, i));
    }
    for i in whole..n {
        w[i] = x[i] * inverse * if plus_one { 1.0 + w[i] } else { w[i] };
    }
}

/// Norms a row and hands it to `put(start, values)` block by block.
#[inline(always)]
fn scale_row<I: Isa>(
    isa: I,
    x: &[f32],
    w: &Vector<'_>,
    eps: f32,
    plus_one: bool,
    mut put: impl FnMut(usize, &[f32]),
) {
    let inverse = inverse_rms(isa, x, eps);
    let mut block = [0.0f32; BLOCK];
    for start in (0..x.len()).step_by(BLOCK) {
        let x = &x[start..x.len().min(start + BLOCK)];
        let block = &mut block[..x.len()];
        w.load(start, block);
        scale_block(isa, x, inverse, plus_one, block);
        put(start, block);
    }
}

/// Norm of one row in place.
#[inline(always)]
pub(crate) fn norm_in_place<I: Isa>(isa: I, x: &mut [f32], w: &Vector<'_>, eps: f32, plus_one: bool) {
    let inverse = inverse_rms(isa, x, eps);
    let mut block = [0.0f32; BLOCK];
    for (i, x) in x.chunks_mut(BLOCK).enumerate() {
        let block = &mut block[..x.len()];
        w.load(i * BLOCK, block);
        scale_block(isa, x, inverse, plus_one, block);
        x.copy_from_slice(block);
    }
}

#[inline(always)]
fn round(x: &[f32], out: &mut [u16]) {
    out.iter_mut().zip(x).for_each(|(o, x)| *o = bf16_from_f32(*x));
}

lanes! {
    /// Norm of one row into f32. `x`, `w` and `out` have one length.
    pub fn rms_norm_row [](isa; x: &[f32], w: &Vector<'_>, eps: f32, plus_one: bool, out: &mut [f32]) {
        scale_row(isa, x, w, eps, plus_one, |i, y| out[i..i + y.len()].copy_from_slice(y));
    }
}

lanes! {
    /// Norm of one row, rounded once to BF16 bits (nearest even): the matmul input of the `bf16` class.
    pub fn rms_norm_row_bf16 [](isa; x: &[f32], w: &Vector<'_>, eps: f32, plus_one: bool, out: &mut [u16]) {
        scale_row(isa, x, w, eps, plus_one, |i, y| round(y, &mut out[i..i + y.len()]));
    }
}

lanes! {
    /// Norm of one row into f32 and, rounded, into BF16 bits at once: a router reads the un-rounded row
    /// while the matmuls read the rounded one.
    pub fn rms_norm_row_both [](isa; x: &[f32], w: &Vector<'_>, eps: f32, plus_one: bool,
                                out: &mut [f32], rounded: &mut [u16]) {
        scale_row(isa, x, w, eps, plus_one, |i, y| {
            out[i..i + y.len()].copy_from_slice(y);
            round(y, &mut rounded[i..i + y.len()]);
        });
    }
}

lanes! {
    /// Norm of one row in place.
    pub fn rms_norm_row_in_place [](isa; x: &mut [f32], w: &Vector<'_>, eps: f32, plus_one: bool) {
        norm_in_place(isa, x, w, eps, plus_one);
    }
}

lanes! {
    /// Adds `delta` to the residual row, then norms it: `residual += delta; out = norm(residual)`.
    pub fn add_rms_norm_row [](isa; delta: &[f32], residual: &mut [f32], w: &Vector<'_>, eps: f32,
                               plus_one: bool, out: &mut [f32]) {
        residual.iter_mut().zip(delta).for_each(|(r, d)| *r += d);
        scale_row(isa, residual, w, eps, plus_one, |i, y| out[i..i + y.len()].copy_from_slice(y));
    }
}

lanes! {
    /// Rounds a row to BF16 bits (nearest even).
    pub fn round_row_bf16 [](_isa; x: &[f32], out: &mut [u16]) {
        round(x, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::simd::Simd;
    use crate::testing::{simd, uniform};

    fn row(n: usize, seed: u64) -> Vec<f32> {
        uniform(n, seed, 6.0)
    }

    #[test]
    fn rows_of_odd_widths_agree_with_f64() {
        for n in [1, 3, 16, 17, 127, 128, 1000, 5120] {
            let (x, w) = (row(n, 1), row(n, 2));
            let bf: Vec<u16> = w.iter().map(|w| bf16_from_f32(*w)).collect();
            for (w, plus_one) in [(Vector::F32(&w), false), (Vector::Bf16(&bf), true)] {
                let mut out = vec![f32::NAN; n];
                let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
                for simd in Simd::available() {
                    rms_norm_row(simd, &x, &w, 1e-6, plus_one, &mut out);
                    for i in 0..n {
                        let factor = f64::from(w.get(i)) + if plus_one { 1.0 } else { 0.0 };
                        let want = f64::from(x[i]) / (mean + 1e-6).sqrt() * factor;
                        assert!((f64::from(out[i]) - want).abs() <= 1e-6 * want.abs() + 1e-9);
                    }
                }
                let (mut f, mut b, mut c) = (vec![0.0; n], vec![0; n], vec![0; n]);
                rms_norm_row_both(simd(), &x, &w, 1e-6, plus_one, &mut f, &mut b);
                rms_norm_row_bf16(simd(), &x, &w, 1e-6, plus_one, &mut c);
                let mut inplace = x.clone();
                rms_norm_row_in_place(simd(), &mut inplace, &w, 1e-6, plus_one);
                assert_eq!(f, out);
                assert_eq!(inplace, out);
                assert_eq!(b, c);
                let mut rounded = vec![0; n];
                round_row_bf16(simd(), &out, &mut rounded);
                assert_eq!(b, rounded);
            }
        }
    }

    #[test]
    fn both_builds_and_the_fused_add_give_the_same_bits() {
        for n in [5, 64, 333, 2048] {
            let (x, w, d) = (row(n, 3), row(n, 4), row(n, 5));
            let run = |simd: Simd| {
                let mut out = vec![0.0; n];
                rms_norm_row(simd, &x, &Vector::F32(&w), 1e-6, true, &mut out);
                out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            for simd in Simd::available() {
                assert_eq!(run(simd), run(Simd::SCALAR));
            }
            let mut residual = x.clone();
            let mut fused = vec![0.0; n];
            add_rms_norm_row(simd(), &d, &mut residual, &Vector::F32(&w), 1e-6, false, &mut fused);
            let sum: Vec<f32> = x.iter().zip(&d).map(|(a, b)| a + b).collect();
            let mut apart = vec![0.0; n];
            rms_norm_row(simd(), &sum, &Vector::F32(&w), 1e-6, false, &mut apart);
            assert_eq!(residual, sum);
            assert_eq!(fused, apart);
        }
    }

    #[test]
    fn non_finite_inputs_never_look_finite_where_they_stood() {
        let w = vec![1.0; 20];
        let mut x = row(20, 6);
        let mut out = vec![0.0; 20];
        x[7] = f32::NAN;
        rms_norm_row(simd(), &x, &Vector::F32(&w), 1e-6, false, &mut out);
        assert!(out.iter().all(|y| y.is_nan()));
        x[7] = f32::INFINITY;
        rms_norm_row(simd(), &x, &Vector::F32(&w), 1e-6, false, &mut out);
        assert!(out[7].is_nan());
        assert!(out.iter().enumerate().all(|(i, y)| i == 7 || *y == 0.0));
        rms_norm_row(simd(), &[0.0; 20], &Vector::F32(&w), 1e-6, false, &mut out);
        assert_eq!(out, vec![0.0; 20]);
    }
}
