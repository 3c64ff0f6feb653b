//! CPU fold: one item is one row (or a column range of it).
//!
//! residual += ((g_0 y_0) + g_1 y_1) + ... in f32, slots in index order, one rounding a slot, and one more
//! for the final addition. The columns are independent, so any column split gives the same bits.

use crate::values::wide;

wide! {
    /// Adds a row's weighted expert outputs to its residual.
    ///
    /// `expert_out[pair]` for the pair index of slot `s` starts at `pairs[s] * width`, where `pairs` is the
    /// row's entry in the grouped order; `weights[s]` is its gate. `residual` is the row (or the columns
    /// `column .. column + residual.len()` of it).
    pub fn fold_row [](expert_out: &[f32], width: usize, pairs: &[u32], weights: &[f32], column: usize,
                       residual: &mut [f32]) {
        const BLOCK: usize = 64;
        let mut start = 0;
        while start < residual.len() {
            let n = BLOCK.min(residual.len() - start);
            let mut sum = [0.0f32; BLOCK];
            for (slot, (pair, g)) in pairs.iter().zip(weights).enumerate() {
                let from = *pair as usize * width + column + start;
                let y = &expert_out[from..from + n];
                if slot == 0 {
                    sum.iter_mut().zip(y).for_each(|(s, y)| *s = g * y);
                } else {
                    sum.iter_mut().zip(y).for_each(|(s, y)| *s = g.mul_add(*y, *s));
                }
            }
            residual[start..start + n].iter_mut().zip(&sum).for_each(|(r, s)| *r += s);
            start += n;
        }
    }
}

wide! {
    /// Adds a row to the residual: the fold of a single un-weighted producer.
    pub fn add_row [](delta: &[f32], residual: &mut [f32]) {
        residual.iter_mut().zip(delta).for_each(|(r, d)| *r += d);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::simd::Simd;
    use crate::testing::{simd, uniform};

    fn row(n: usize, seed: u64) -> Vec<f32> {
        uniform(n, seed, 1.0)
    }

    #[test]
    fn the_fold_agrees_with_f64_and_ignores_the_cut() {
        for (width, k) in [(1, 1), (63, 4), (64, 8), (100, 8), (2048, 8)] {
            let out = row(width * (k + 3), 1);
            let weights = row(k, 2);
            let pairs: Vec<u32> = (0..k as u32).map(|s| (s * 5 + 1) % (k as u32 + 3)).collect();
            let start = row(width, 3);
            let mut got = start.clone();
            fold_row(simd(), &out, width, &pairs, &weights, 0, &mut got);
            for i in 0..width {
                let terms = pairs.iter().zip(&weights);
                let sum: f64 =
                    terms.map(|(p, g)| f64::from(out[*p as usize * width + i]) * f64::from(*g)).sum();
                assert!((f64::from(got[i]) - f64::from(start[i]) - sum).abs() < 1e-6);
            }
            let mut cut = start.clone();
            let (a, b) = cut.split_at_mut(width / 3);
            fold_row(simd(), &out, width, &pairs, &weights, 0, a);
            fold_row(simd(), &out, width, &pairs, &weights, width / 3, b);
            assert_eq!(cut, got);
            for simd in Simd::available() {
                let mut again = start.clone();
                fold_row(simd, &out, width, &pairs, &weights, 0, &mut again);
                assert_eq!(again, got);
            }
        }
    }

    #[test]
    fn slots_are_added_in_order_and_nan_shows() {
        let out = [1.0e8f32, 1.0, -1.0e8];
        let mut r = [0.0f32];
        fold_row(simd(), &out, 1, &[0, 1, 2], &[1.0, 1.0, 1.0], 0, &mut r);
        assert_eq!(r, [0.0]);
        let mut r = [0.0f32];
        fold_row(simd(), &out, 1, &[0, 2, 1], &[1.0, 1.0, 1.0], 0, &mut r);
        assert_eq!(r, [1.0]);
        fold_row(simd(), &[f32::NAN], 1, &[0], &[0.0], 0, &mut r);
        assert!(r[0].is_nan());
        let mut r = [1.0, 2.0];
        add_row(simd(), &[0.5, -2.0], &mut r);
        assert_eq!(r, [1.5, 0.0]);
    }
}
