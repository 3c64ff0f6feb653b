//! The two register-blocked inner products of attention.
//!
//! The one idea: which sums run side by side is a matter of speed, the order inside each sum is the contract.
//! Both functions walk fixed-size blocks that fit the register file and finish ragged edges with smaller
//! blocks of the same sums.

use super::host::BLOCK;
use crate::values::fold_lanes;

const LANES: usize = 8;

/// Dot products of `Q` queries and `T` tokens, side by side; each in 8 lanes by index.
#[inline(always)]
fn dots<const Q: usize, const T: usize>(q: [&[f32]; Q], k: [&[f32]; T]) -> [[f32; T]; Q] {
    let mut acc = [[[0.0f32; LANES]; T]; Q];
    let d = q[0].len();
    let whole = d - d % LANES;
    let qc = q.map(|x| x.as_chunks::<LANES>().0);
    let kc = k.map(|x| x.as_chunks::<LANES>().0);
    for c in 0..whole / LANES {
        for i in 0..Q {
            for j in 0..T {
                for l in 0..LANES {
                    acc[i][j][l] = qc[i][c][l].mul_add(kc[j][c][l], acc[i][j][l]);
                }
            }
        }
    }
    let mut out = [[0.0; T]; Q];
    for i in 0..Q {
        for j in 0..T {
            for l in whole..d {
                acc[i][j][l - whole] = q[i][l].mul_add(k[j][l], acc[i][j][l - whole]);
            }
            out[i][j] = fold_lanes(acc[i][j]);
        }
    }
    out
}

/// Scores of all queries against the tokens of a block: `scores[i * stride + t] = scale * q_i . k_t`.
#[inline(always)]
pub(super) fn score_block(q: &[f32], k: &[f32], d: usize, scale: f32, scores: &mut [f32], stride: usize) {
    let (queries, tokens) = (q.len() / d, k.len() / d);
    let query = |i: usize| &q[i * d..(i + 1) * d];
    let token = |t: usize| &k[t * d..(t + 1) * d];
    let mut t = 0;
    while t < tokens {
        let pair = t + 1 < tokens;
        let mut i = 0;
        while i < queries {
            let step = if pair && i + 4 <= queries { 4 } else { 1 };
            let mut put = |i: usize, t: usize, x: f32| scores[i * stride + t] = scale * x;
            if step == 4 {
                let q4 = [query(i), query(i + 1), query(i + 2), query(i + 3)];
                let s = dots::<4, 2>(q4, [token(t), token(t + 1)]);
                for a in 0..4 {
                    put(i + a, t, s[a][0]);
                    put(i + a, t + 1, s[a][1]);
                }
            } else if pair {
                let s = dots::<1, 2>([query(i)], [token(t), token(t + 1)]);
                put(i, t, s[0][0]);
                put(i, t + 1, s[0][1]);
            } else {
                put(i, t, dots::<1, 1>([query(i)], [token(t)])[0][0]);
            }
            i += step;
        }
        t += if pair { 2 } else { 1 };
    }
}

/// Adds `n` tokens' values to `Q` accumulators over `W` columns, token by token.
#[inline(always)]
fn add_values<const Q: usize, const W: usize>(
    p: [&[f32]; Q],
    v: &[f32],
    d: usize,
    column: usize,
    n: usize,
    acc: &mut [f32],
) {
    let mut sum = [[0.0f32; W]; Q];
    for i in 0..Q {
        sum[i].copy_from_slice(&acc[i * d + column..i * d + column + W]);
    }
    for t in 0..n {
        let x: &[f32; W] = v[t * d + column..].first_chunk().expect("the block holds n rows of d columns");
        for i in 0..Q {
            let w = p[i][t];
            for l in 0..W {
                sum[i][l] = w.mul_add(x[l], sum[i][l]);
            }
        }
    }
    for i in 0..Q {
        acc[i * d + column..i * d + column + W].copy_from_slice(&sum[i]);
    }
}

#[inline(always)]
fn all_columns<const Q: usize>(p: [&[f32]; Q], v: &[f32], d: usize, n: usize, acc: &mut [f32]) {
    let mut column = 0;
    while column + 16 <= d {
        add_values::<Q, 16>(p, v, d, column, n, acc);
        column += 16;
    }
    while column < d {
        add_values::<Q, 1>(p, v, d, column, n, acc);
        column += 1;
    }
}

/// acc_i += p_i,t v_t for the first `tokens(i)` tokens of a block; `p[i * stride + t]`, `acc` `[q][d]`.
#[inline(always)]
pub(super) fn value_block(
    p: &[f32],
    stride: usize,
    v: &[f32],
    d: usize,
    tokens: impl Fn(usize) -> usize,
    acc: &mut [f32],
) {
    let queries = acc.len() / d;
    let row = |i: usize| &p[i * stride..i * stride + BLOCK];
    let mut i = 0;
    while i < queries {
        let n = tokens(i);
        let alike = i + 4 <= queries && (1..4).all(|j| tokens(i + j) == n);
        let step = if alike { 4 } else { 1 };
        let acc = &mut acc[i * d..(i + step) * d];
        if alike {
            all_columns::<4>([row(i), row(i + 1), row(i + 2), row(i + 3)], v, d, n, acc);
        } else {
            all_columns::<1>([row(i)], v, d, n, acc);
        }
        i += step;
    }
}
