//! The register-blocked inner products of attention.
//!
//! The one idea: which sums run side by side is a matter of speed, the order inside each sum is the contract.
//! Cache elements widen on the way into a register and meet as many queries as leave eight sums live: 4
//! queries by 2 tokens (or 16 columns), 2 by 4 (32), 1 by 8 (64). Ragged edges finish with smaller blocks of
//! the same sums.

use super::host::SPLIT;
use crate::lanes::{Isa, WIDTH, eight, eight_mut};
use crate::values::KvElem;

/// Tokens scored at a time: one vector of scores.
const SCORES: usize = WIDTH;
/// Tokens of values added before the accumulators are stored: few enough to stay in the first cache.
const VALUES: usize = 16;

/// Dot products of `Q` queries and `T` tokens, side by side; each in 8 lanes by index.
#[inline(always)]
fn dots<I: Isa, E: KvElem, const Q: usize, const T: usize>(
    isa: I,
    q: &[f32],
    k: &[E],
    d: usize,
) -> [[I::V; T]; Q] {
    let chunks = d / WIDTH;
    let qc: [&[[f32; WIDTH]]; Q] = std::array::from_fn(|i| &q[i * d..].as_chunks().0[..chunks]);
    let kc: [&[[E; WIDTH]]; T] = std::array::from_fn(|j| &k[j * d..].as_chunks().0[..chunks]);
    let mut acc = [[isa.splat(0.0); T]; Q];
    for c in 0..chunks {
        let mut x = [isa.splat(0.0); T];
        for j in 0..T {
            x[j] = E::load8(isa, &kc[j][c]);
        }
        for i in 0..Q {
            let y = isa.load(&qc[i][c]);
            for j in 0..T {
                acc[i][j] = isa.fma(y, x[j], acc[i][j]);
            }
        }
    }
    if chunks * WIDTH < d {
        for i in 0..Q {
            for j in 0..T {
                let mut lanes = [0.0; WIDTH];
                isa.store(acc[i][j], &mut lanes);
                for l in chunks * WIDTH..d {
                    let lane = &mut lanes[l - chunks * WIDTH];
                    *lane = q[i * d + l].mul_add(k[j * d + l].to_f32(), *lane);
                }
                acc[i][j] = isa.load(&lanes);
            }
        }
    }
    acc
}

/// Scores of `Q` queries against up to eight tokens, into rows of `scores`; lanes beyond the tokens hold 0.
#[inline(always)]
fn scores_of<I: Isa, E: KvElem, const Q: usize, const T: usize>(
    isa: I,
    q: &[f32],
    k: &[E],
    d: usize,
    scale: f32,
    scores: &mut [f32],
) {
    let mut sums = [[isa.splat(0.0); SCORES]; Q];
    let tokens = k.len() / d;
    if tokens == SCORES {
        for t in (0..SCORES).step_by(T) {
            let part = dots::<I, E, Q, T>(isa, q, &k[t * d..], d);
            for i in 0..Q {
                sums[i][t..t + T].copy_from_slice(&part[i]);
            }
        }
    } else {
        for t in 0..tokens {
            let part = dots::<I, E, Q, 1>(isa, q, &k[t * d..], d);
            for i in 0..Q {
                sums[i][t] = part[i][0];
            }
        }
    }
    for i in 0..Q {
        let s = isa.mul(isa.splat(scale), isa.fold8(sums[i]));
        isa.store(s, eight_mut(scores, i * SPLIT));
    }
}

/// Scores of all queries against a page's first `tokens`: `scores[i * SPLIT + t] = scale * q_i . k_t`.
#[inline(always)]
pub(super) fn score_page<I: Isa, E: KvElem>(
    isa: I,
    q: &[f32],
    k: &[E],
    d: usize,
    tokens: usize,
    scale: f32,
    scores: &mut [f32],
) {
    let queries = q.len() / d;
    for t in (0..tokens).step_by(SCORES) {
        let k = &k[t * d..tokens.min(t + SCORES) * d];
        let mut i = 0;
        while i < queries {
            let (q, scores) = (&q[i * d..], &mut scores[i * SPLIT + t..]);
            i += match queries - i {
                1 => {
                    scores_of::<I, E, 1, 8>(isa, q, k, d, scale, scores);
                    1
                }
                2 | 3 => {
                    scores_of::<I, E, 2, 4>(isa, q, k, d, scale, scores);
                    2
                }
                _ => {
                    scores_of::<I, E, 4, 2>(isa, q, k, d, scale, scores);
                    4
                }
            };
        }
    }
}

/// Scores to unnormalised probabilities in place; returns (maximum, sum) of the first `n`.
#[inline(always)]
pub(super) fn softmax_split<I: Isa>(isa: I, scores: &mut [f32], n: usize) -> (f32, f32) {
    let end = n.next_multiple_of(WIDTH);
    scores[n..end].fill(f32::NEG_INFINITY);
    let chunks = scores[..end].as_chunks_mut::<WIDTH>().0;
    let mut most = isa.splat(f32::NEG_INFINITY);
    for chunk in chunks.iter() {
        most = isa.max(isa.load(chunk), most);
    }
    let mut lanes = [0.0; WIDTH];
    isa.store(most, &mut lanes);
    let max = lanes.iter().fold(f32::NEG_INFINITY, |m, s| if *s > m { *s } else { m });
    let (limit, mut sum) = (isa.splat(max), isa.splat(0.0));
    for chunk in chunks.iter_mut() {
        // Beyond n this is e^-inf = 0, and adding 0 to a sum of non-negatives changes no bit.
        let p = isa.exp(isa.sub(isa.load(chunk), limit));
        isa.store(p, chunk);
        sum = isa.add(sum, p);
    }
    (max, isa.fold(sum))
}

/// Adds the tokens of `v` to `Q` accumulators over `N` vectors of columns, token by token.
#[inline(always)]
fn add_values<I: Isa, E: KvElem, const Q: usize, const N: usize>(
    isa: I,
    p: [&[f32]; Q],
    v: &[E],
    d: usize,
    column: usize,
    acc: &mut [f32],
) {
    let tokens = v.len() / d;
    let p = p.map(|p| &p[..tokens]);
    let mut sum = [[isa.splat(0.0); N]; Q];
    for i in 0..Q {
        for n in 0..N {
            sum[i][n] = isa.load(eight(acc, i * d + column + n * WIDTH));
        }
    }
    for (t, row) in v.chunks_exact(d).enumerate().take(tokens) {
        let row = &row[column..column + N * WIDTH];
        let mut x = [isa.splat(0.0); N];
        for n in 0..N {
            x[n] = E::load8(isa, eight(row, n * WIDTH));
        }
        for i in 0..Q {
            let w = isa.splat(p[i][t]);
            for n in 0..N {
                sum[i][n] = isa.fma(w, x[n], sum[i][n]);
            }
        }
    }
    for i in 0..Q {
        for n in 0..N {
            isa.store(sum[i][n], eight_mut(acc, i * d + column + n * WIDTH));
        }
    }
}

#[inline(always)]
fn all_columns<I: Isa, E: KvElem, const Q: usize, const N: usize>(
    isa: I,
    p: &[f32],
    v: &[E],
    d: usize,
    acc: &mut [f32],
) {
    let rows: [&[f32]; Q] = std::array::from_fn(|i| &p[i * SPLIT..]);
    let mut column = 0;
    while column + N * WIDTH <= d {
        add_values::<I, E, Q, N>(isa, rows, v, d, column, acc);
        column += N * WIDTH;
    }
    while column + WIDTH <= d {
        add_values::<I, E, Q, 1>(isa, rows, v, d, column, acc);
        column += WIDTH;
    }
    for column in column..d {
        for i in 0..Q {
            let sum = &mut acc[i * d + column];
            for (v, p) in v.chunks_exact(d).zip(rows[i]) {
                *sum = p.mul_add(v[column].to_f32(), *sum);
            }
        }
    }
}

/// acc_i += p_i,t v_t for the first `valid(i)` tokens of a page; `p[i * SPLIT + t]`, `acc` `[q][d]`.
#[inline(always)]
pub(super) fn value_page<I: Isa, E: KvElem>(
    isa: I,
    p: &[f32],
    v: &[E],
    d: usize,
    most: usize,
    valid: impl Fn(usize) -> usize,
    acc: &mut [f32],
) {
    let queries = acc.len() / d;
    for t in (0..most).step_by(VALUES) {
        let tokens = |i: usize| valid(i).saturating_sub(t).min(VALUES);
        let mut i = 0;
        while i < queries {
            let n = tokens(i);
            let alike = |count: usize| i + count <= queries && (1..count).all(|j| tokens(i + j) == n);
            let (p, v) = (&p[i * SPLIT + t..], &v[t * d..(t + n) * d]);
            let acc = &mut acc[i * d..];
            i += if alike(4) {
                all_columns::<I, E, 4, 2>(isa, p, v, d, acc);
                4
            } else if alike(2) {
                all_columns::<I, E, 2, 4>(isa, p, v, d, acc);
                2
            } else {
                all_columns::<I, E, 1, 8>(isa, p, v, d, acc);
                1
            };
        }
    }
}
