//! CPU causal depthwise convolution: one item is one segment of a sequence over a range of channels.
//!
//! `out_t[c] = SiLU( sum_j w[c, j] u_{t - taps + 1 + j}[c] )`, oldest tap first, each tap one fused add, the
//! first a plain product. Channels are independent, so any channel split and any segmentation give the same
//! bits. A NaN or infinite input reaches the outputs of `taps` tokens in its channel and no other channel.

use crate::lanes::{WIDTH, eight, eight_mut, lanes};
use crate::values::Vector;

/// Channels handled at once: inputs of a block stay in registers while the taps run.
const BLOCK: usize = 32;
/// Most taps a convolution may have.
pub const MAX_TAPS: usize = 8;

/// A piece of work: `n` tokens, channels `first .. first + count` of `dim`.
#[derive(Clone, Copy, Debug)]
pub struct Channels {
    /// Channels of a row of `u`, `state` and `out`.
    pub dim: usize,
    /// Taps, at most [`MAX_TAPS`].
    pub taps: usize,
    /// First channel of this item.
    pub first: usize,
    /// Channels of this item.
    pub count: usize,
}

/// Weights of a block, channel by channel, to tap by tap.
#[inline(always)]
fn by_tap<const T: usize>(stored: &[f32; BLOCK * MAX_TAPS], weights: &mut [[f32; BLOCK]; MAX_TAPS]) {
    let stored = stored.as_chunks::<T>().0;
    for j in 0..T {
        for c in 0..BLOCK {
            weights[j][c] = stored[c][j];
        }
    }
}

lanes! {
    /// Convolves a segment over a channel range.
    ///
    /// `u` is `[n][dim]` raw inputs (all channels), `state` `[taps - 1][count]` and `out` `[n][count]` of
    /// this range, `w` `[dim][taps]`. The state becomes the last `taps - 1` raw inputs. For the whole row
    /// (`first` 0, `count` `dim`) the layouts are `[taps - 1][dim]` and `[n][dim]`.
    pub fn conv_segment [](isa; u: &[f32], channels: &Channels, state: &mut [f32], w: &Vector<'_>,
                           out: &mut [f32]) {
        let Channels { dim, taps, first, count } = *channels;
        let n = out.len() / count.max(1);
        let mut start = 0;
        while start < count {
            let width = BLOCK.min(count - start);
            let mut weights = [[0.0f32; BLOCK]; MAX_TAPS];
            let mut stored = [0.0f32; BLOCK * MAX_TAPS];
            w.load((first + start) * taps, &mut stored[..width * taps]);
            match taps {
                4 => by_tap::<4>(&stored, &mut weights),
                _ => {
                    for (c, stored) in stored[..width * taps].chunks_exact(taps).enumerate() {
                        for j in 0..taps {
                            weights[j][c] = stored[j];
                        }
                    }
                }
            }
            let mut window = [[0.0f32; BLOCK]; MAX_TAPS];
            for j in 0..taps - 1 {
                let at = j * count + start;
                window[j][..width].copy_from_slice(&state[at..at + width]);
            }
            for t in 0..n {
                let at = t * dim + first + start;
                window[taps - 1][..width].copy_from_slice(&u[at..at + width]);
                let mut sum = [0.0f32; BLOCK];
                for c in (0..BLOCK).step_by(WIDTH) {
                    let mut y = isa.mul(isa.load(eight(&weights[0], c)), isa.load(eight(&window[0], c)));
                    for j in 1..taps {
                        y = isa.fma(isa.load(eight(&weights[j], c)), isa.load(eight(&window[j], c)), y);
                    }
                    isa.store(isa.silu(y), eight_mut(&mut sum, c));
                }
                let at = t * count + start;
                out[at..at + width].copy_from_slice(&sum[..width]);
                for j in 1..taps {
                    window[j - 1] = window[j];
                }
            }
            for j in 0..taps - 1 {
                let at = j * count + start;
                state[at..at + width].copy_from_slice(&window[j][..width]);
            }
            start += width;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::simd::Simd;
    use crate::testing::{simd, uniform};

    fn row(n: usize, seed: u64) -> Vec<f32> {
        uniform(n, seed, 4.0)
    }

    fn whole(dim: usize, taps: usize) -> Channels {
        Channels { dim, taps, first: 0, count: dim }
    }

    #[test]
    fn segments_agree_with_f64_for_odd_shapes_and_taps() {
        for (n, dim, taps) in [(1, 1, 4), (5, 33, 4), (9, 64, 2), (3, 100, 8), (70, 7, 4), (2, 40, 1)] {
            let (u, w, before) = (row(n * dim, 1), row(dim * taps, 2), row((taps - 1) * dim, 3));
            let history: Vec<f32> = before.iter().chain(&u).copied().collect();
            for simd in Simd::available() {
                let (mut state, mut out) = (before.clone(), vec![f32::NAN; n * dim]);
                conv_segment(simd, &u, &whole(dim, taps), &mut state, &Vector::F32(&w), &mut out);
                for t in 0..n {
                    for c in 0..dim {
                        let sum: f64 = (0..taps)
                            .map(|j| f64::from(w[c * taps + j]) * f64::from(history[(t + j) * dim + c]))
                            .sum();
                        let want = sum / (1.0 + (-sum).exp());
                        assert!((f64::from(out[t * dim + c]) - want).abs() < 1e-5);
                    }
                }
                assert_eq!(state, history[n * dim..]);
            }
        }
    }

    #[test]
    fn any_cut_in_time_or_channels_and_both_builds_give_the_same_bits() {
        let (n, dim, taps) = (23, 90, 4);
        let (u, w) = (row(n * dim, 1), row(dim * taps, 2));
        let w = Vector::F32(&w);
        let (mut state, mut out) = (vec![0.0; 3 * dim], vec![0.0; n * dim]);
        conv_segment(simd(), &u, &whole(dim, taps), &mut state, &w, &mut out);
        for cut in [1, 2, 3, 22] {
            let (mut s, mut o) = (vec![0.0; 3 * dim], vec![0.0; n * dim]);
            let (a, b) = o.split_at_mut(cut * dim);
            conv_segment(Simd::SCALAR, &u[..cut * dim], &whole(dim, taps), &mut s, &w, a);
            conv_segment(simd(), &u[cut * dim..], &whole(dim, taps), &mut s, &w, b);
            assert_eq!((&s, &o), (&state, &out));
        }
        for (first, count) in [(0, 17), (17, 50), (67, 23)] {
            let (mut s, mut o) = (vec![0.0; 3 * count], vec![0.0; n * count]);
            conv_segment(simd(), &u, &Channels { dim, taps, first, count }, &mut s, &w, &mut o);
            for t in 0..n {
                let at = t * dim + first;
                assert_eq!(o[t * count..(t + 1) * count], out[at..at + count]);
            }
        }
    }

    #[test]
    fn a_nan_stays_in_its_channel_for_as_many_tokens_as_taps() {
        let (n, dim, taps) = (8, 5, 4);
        let (mut u, w) = (row(n * dim, 1), row(dim * taps, 2));
        u[dim + 2] = f32::NAN;
        let (mut state, mut out) = (vec![0.0; 3 * dim], vec![0.0; n * dim]);
        conv_segment(simd(), &u, &whole(dim, taps), &mut state, &Vector::F32(&w), &mut out);
        for (i, y) in out.iter().enumerate() {
            let (t, c) = (i / dim, i % dim);
            assert_eq!(y.is_nan(), c == 2 && (1..5).contains(&t));
        }
    }
}
