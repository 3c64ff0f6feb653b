//! The register-blocked inner products of attention.
//!
//! The one idea: which sums run side by side is a matter of speed, the order inside each sum is the contract.
//! Cache elements widen on the way into a register and meet as many queries as leave eight sums live: 4
//! queries by 2 tokens (or 16 columns), 2 by 4 (32), 1 by 8 (64). Ragged edges finish with smaller blocks of
//! the same sums.

#![allow(unsafe_code)]

use super::host::SPLIT;
use crate::lanes::{Isa, WIDTH, eight, eight_mut};
use crate::values::KvElem;

/// Tokens scored at a time: one vector of scores.
const SCORES: usize = WIDTH;
/// Tokens of values added before the accumulators are stored: few enough to stay in the first cache.
const VALUES: usize = 16;

/// Repeats a block with an index, spelled out: register blocks stay registers at every optimisation level.
macro_rules! each {
    ([$($n:literal)*] $i:ident $body:block) => { $({ let $i: usize = $n; $body })* };
}

/// A register block: `Q` queries by `N` vectors whose sums run side by side.
trait Block<I: Isa, E: KvElem, const Q: usize, const N: usize> {
    /// Dot products of `Q` queries `[Q][d]` and `N` tokens `[N][d]`, whole vectors only; each in 8 lanes.
    fn dots(isa: I, q: &[f32], k: &[E], d: usize) -> [[I::V; N]; Q];
    /// Adds the tokens of `v`, times their `p[i * SPLIT + t]`, to `acc[i * d + column ..]`, token by token.
    fn values(isa: I, p: &[f32], v: &[E], d: usize, column: usize, acc: &mut [f32]);
}

/// The blocks, spelled out.
struct Blocks;

macro_rules! block {
    ($q:literal $is:tt, $n:literal $js:tt) => {
        impl<I: Isa, E: KvElem> Block<I, E, $q, $n> for Blocks {
            #[inline(always)]
            fn dots(isa: I, q: &[f32], k: &[E], d: usize) -> [[I::V; $n]; $q] {
                let (q, k) = (&q[..$q * d], &k[..$n * d]);
                let mut acc = [[isa.splat(0.0); $n]; $q];
                let mut c = 0;
                while c + WIDTH <= d {
                    let mut x = [isa.splat(0.0); $n];
                    // SAFETY: rows i < Q and j < N of d elements lie inside the slices cut above, and
                    // c + 8 <= d.
                    unsafe {
                        each!($js j { x[j] = E::load8(isa, &*k.as_ptr().add(j * d + c).cast()); });
                        each!($is i {
                            let y = isa.load(&*q.as_ptr().add(i * d + c).cast());
                            each!($js j { acc[i][j] = isa.fma(y, x[j], acc[i][j]); });
                        });
                    }
                    c += WIDTH;
                }
                acc
            }

            #[inline(always)]
            fn values(isa: I, p: &[f32], v: &[E], d: usize, column: usize, acc: &mut [f32]) {
                let tokens = v.len() / d;
                let (p, acc) = (&p[..($q - 1) * SPLIT + tokens], &mut acc[..$q * d]);
                assert!(column + $n * WIDTH <= d, "the block's columns lie inside a row");
                let mut sum = [[isa.splat(0.0); $n]; $q];
                each!($is i { each!($js n {
                    sum[i][n] = isa.load(eight(acc, i * d + column + n * WIDTH));
                }); });
                for t in 0..tokens {
                    let mut x = [isa.splat(0.0); $n];
                    // SAFETY: t < tokens, so row t of v and its columns are inside v (asserted above), and
                    // p holds token t of each of the Q rows (cut above).
                    unsafe {
                        let row = v.as_ptr().add(t * d + column);
                        each!($js n { x[n] = E::load8(isa, &*row.add(n * WIDTH).cast()); });
                        each!($is i {
                            let w = isa.splat(*p.as_ptr().add(i * SPLIT + t));
                            each!($js n { sum[i][n] = isa.fma(w, x[n], sum[i][n]); });
                        });
                    }
                }
                each!($is i { each!($js n {
                    isa.store(sum[i][n], eight_mut(acc, i * d + column + n * WIDTH));
                }); });
            }
        }
    };
}

block!(4 [0 1 2 3], 2 [0 1]);
block!(2 [0 1], 4 [0 1 2 3]);
block!(1 [0], 8 [0 1 2 3 4 5 6 7]);
block!(4 [0 1 2 3], 1 [0]);
block!(2 [0 1], 1 [0]);
block!(1[0], 1[0]);

/// Dot products of a block, ragged widths included: element l of the tail joins lane l mod 8.
#[inline(always)]
fn dots<I: Isa, E: KvElem, const Q: usize, const T: usize>(
    isa: I,
    q: &[f32],
    k: &[E],
    d: usize,
) -> [[I::V; T]; Q]
where
    Blocks: Block<I, E, Q, T>,
{
    let mut acc = Blocks::dots(isa, q, k, d);
    let whole = d - d % WIDTH;
    if whole < d {
        for i in 0..Q {
            for j in 0..T {
                let mut lanes = [0.0; WIDTH];
                isa.store(acc[i][j], &mut lanes);
                for l in whole..d {
                    let lane = &mut lanes[l - whole];
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
) where
    Blocks: Block<I, E, Q, T> + Block<I, E, Q, 1>,
{
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
/// The values are only asked for: they are read next.
#[inline(always)]
pub(super) fn score_page<I: Isa, E: KvElem>(
    isa: I,
    q: &[f32],
    (k, v): (&[E], &[E]),
    d: usize,
    tokens: usize,
    scale: f32,
    scores: &mut [f32],
) {
    let queries = q.len() / d;
    for t in (0..tokens).step_by(SCORES) {
        isa.prefetch(&k[tokens.min(t + SCORES) * d..tokens.min(t + 2 * SCORES) * d]);
        isa.prefetch(&v[t * d..tokens.min(t + SCORES) * d]);
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

#[inline(always)]
fn all_columns<I: Isa, E: KvElem, const Q: usize, const N: usize>(
    isa: I,
    p: &[f32],
    v: &[E],
    d: usize,
    acc: &mut [f32],
) where
    Blocks: Block<I, E, Q, N> + Block<I, E, Q, 1>,
{
    let mut column = 0;
    while column + N * WIDTH <= d {
        <Blocks as Block<I, E, Q, N>>::values(isa, p, v, d, column, acc);
        column += N * WIDTH;
    }
    while column + WIDTH <= d {
        <Blocks as Block<I, E, Q, 1>>::values(isa, p, v, d, column, acc);
        column += WIDTH;
    }
    for column in column..d {
        for i in 0..Q {
            let sum = &mut acc[i * d + column];
            for (v, p) in v.chunks_exact(d).zip(&p[i * SPLIT..]) {
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
