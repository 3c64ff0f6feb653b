//! The chunked form of Gated DeltaNet for prefill.
//!
//! With G_i the running sum of gamma inside a chunk, the recurrence over a chunk of C tokens is
//! v'_i = beta_i (v_i - e^{G_i} S^T k_i) - sum_{j<i} beta_i (k_i . k_j) e^{G_i - G_j} v'_j,
//! y_i = e^{G_i} S^T q_i + sum_{j<=i} (q_i . k_j) e^{G_i - G_j} v'_j,
//! S <- e^{G_last} S + sum_i e^{G_last - G_i} k_i v'_i^T.
//!
//! The one idea: only differences G_i - G_j with j <= i are exponentiated. They are never positive, so
//! nothing overflows however strong the decay; e^{-G} alone would. The triangular system is solved by
//! forward substitution on v' itself, so the inverse is never formed.
//!
//! **Tree.** Every sum over dk or over tokens runs in index order, one fused add a term, a column at a time;
//! q . k and k . k use the 16-lane tree. The result depends on where chunks begin (absolute grid), on nothing
//! else; a last chunk may be short.

use super::host::{CHUNK, Head, gated_norm, log_decay, normalise};
use crate::lanes::{Isa, WIDTH, dot, eight, eight_mut, lanes};
use crate::values::{exp, sigmoid};

/// The inputs of a segment of one value head; token t of a field starts at t times its stride.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Tokens.
    pub n: usize,
    /// Conv outputs, starting at this head's q of token 0.
    pub q: &'a [f32],
    /// Conv outputs, starting at this head's k.
    pub k: &'a [f32],
    /// Conv outputs, starting at this head's v.
    pub v: &'a [f32],
    /// Values from one token's q, k, v to the next (they share rows).
    pub qkv_stride: usize,
    /// Gate projections, starting at this head's z.
    pub z: &'a [f32],
    /// Values from one token's z to the next.
    pub z_stride: usize,
    /// Decay projections, starting at this head's a.
    pub a: &'a [f32],
    /// Write-strength projections, starting at this head's b.
    pub b: &'a [f32],
    /// Values from one token's a (and b) to the next.
    pub ab_stride: usize,
}

/// f32 values of scratch that [`chunk_head`] needs.
pub const fn chunk_scratch_len(dk: usize, dv: usize) -> usize {
    CHUNK * (2 * dk + 2 * dv + CHUNK + 2)
}

struct Work<'a> {
    q: &'a mut [f32],
    k: &'a mut [f32],
    v: &'a mut [f32],
    y: &'a mut [f32],
    mix: &'a mut [f32],
    g: &'a mut [f32],
    beta: &'a mut [f32],
}

#[inline(always)]
fn split_scratch<'a>(scratch: &'a mut [f32], dk: usize, dv: usize) -> Work<'a> {
    let (q, rest) = scratch.split_at_mut(CHUNK * dk);
    let (k, rest) = rest.split_at_mut(CHUNK * dk);
    let (v, rest) = rest.split_at_mut(CHUNK * dv);
    let (y, rest) = rest.split_at_mut(CHUNK * dv);
    let (mix, rest) = rest.split_at_mut(CHUNK * CHUNK);
    let (g, rest) = rest.split_at_mut(CHUNK);
    Work { q, k, v, y, mix, g, beta: &mut rest[..CHUNK] }
}

/// Vectors of columns in a register block of one row.
const STRIP: usize = 8;
/// Rows of a register block of the products.
const ROWS: usize = 4;
/// Its vectors of columns.
const PAIR: usize = 2;

/// `out[i] = sum_r x[i][r] m[r]` for `n` rows: x `[n][inner]`, m `[inner][width]`, out `[n][width]`.
#[inline(always)]
fn product<I: Isa>(isa: I, x: &[f32], m: &[f32], inner: usize, width: usize, out: &mut [f32]) {
    let block = PAIR * WIDTH;
    let whole = width - width % block;
    for (x, out) in x.chunks(ROWS * inner).zip(out.chunks_mut(ROWS * width)) {
        if x.len() == ROWS * inner {
            for c in (0..whole).step_by(block) {
                rows_block(isa, x, m, c, inner, width, out);
            }
            for (x, out) in x.chunks_exact(inner).zip(out.chunks_exact_mut(width)) {
                out[whole..].fill(0.0);
                combine_from(isa, whole, x, m, out);
            }
        } else {
            for (x, out) in x.chunks_exact(inner).zip(out.chunks_exact_mut(width)) {
                out.fill(0.0);
                combine_from(isa, 0, x, m, out);
            }
        }
    }
}

/// [`ROWS`] rows of a product over [`PAIR`] vectors of columns.
#[inline(always)]
fn rows_block<I: Isa>(isa: I, x: &[f32], m: &[f32], c: usize, inner: usize, width: usize, out: &mut [f32]) {
    let mut sum = [[isa.splat(0.0); PAIR]; ROWS];
    let (x0, rest) = x.split_at(inner);
    let (x1, rest) = rest.split_at(inner);
    let (x2, x3) = rest.split_at(inner);
    let factors = x0.iter().zip(x1).zip(x2.iter().zip(x3));
    for (line, ((a, b), (c2, d))) in m.chunks_exact(width).zip(factors) {
        let line = &line[c..c + PAIR * WIDTH];
        let (low, high) = (isa.load(eight(line, 0)), isa.load(eight(line, WIDTH)));
        let f = [isa.splat(*a), isa.splat(*b), isa.splat(*c2), isa.splat(*d)];
        for i in 0..ROWS {
            sum[i][0] = isa.fma(f[i], low, sum[i][0]);
            sum[i][1] = isa.fma(f[i], high, sum[i][1]);
        }
    }
    for i in 0..ROWS {
        for n in 0..PAIR {
            isa.store(sum[i][n], eight_mut(out, i * width + c + n * WIDTH));
        }
    }
}

/// `to[c] += sum_j factors[j] rows[j][c]` for columns from `column` on, one fused add a row in order.
#[inline(always)]
fn combine_from<I: Isa>(isa: I, column: usize, factors: &[f32], rows: &[f32], to: &mut [f32]) {
    let width = to.len();
    let mut c = column;
    while c + STRIP * WIDTH <= width {
        strip::<I, STRIP>(isa, c, factors, rows, to);
        c += STRIP * WIDTH;
    }
    while c + WIDTH <= width {
        strip::<I, 1>(isa, c, factors, rows, to);
        c += WIDTH;
    }
    for c in c..width {
        for (f, row) in factors.iter().zip(rows.chunks_exact(width)) {
            to[c] = f.mul_add(row[c], to[c]);
        }
    }
}

#[inline(always)]
fn strip<I: Isa, const N: usize>(isa: I, c: usize, factors: &[f32], rows: &[f32], to: &mut [f32]) {
    let mut sum = [isa.splat(0.0); N];
    for n in 0..N {
        sum[n] = isa.load(eight(to, c + n * WIDTH));
    }
    for (f, row) in factors.iter().zip(rows.chunks_exact(to.len())) {
        let (f, row) = (isa.splat(*f), &row[c..c + N * WIDTH]);
        for n in 0..N {
            sum[n] = isa.fma(f, isa.load(eight(row, n * WIDTH)), sum[n]);
        }
    }
    for n in 0..N {
        isa.store(sum[n], eight_mut(to, c + n * WIDTH));
    }
}

/// Normalised q, k, and the gates of a chunk.
#[inline(always)]
fn load<I: Isa>(isa: I, head: &Head<'_>, s: &Segment<'_>, from: usize, n: usize, w: &mut Work<'_>) {
    let dk = head.dk;
    let mut total = 0.0;
    for i in 0..n {
        let at = (from + i) * s.qkv_stride;
        let range = i * dk..(i + 1) * dk;
        normalise(isa, &s.q[at..at + dk], &s.k[at..at + dk], &mut w.q[range.clone()], &mut w.k[range]);
        let gate = (from + i) * s.ab_stride;
        total += log_decay(head, s.a[gate]);
        w.g[i] = total;
        w.beta[i] = sigmoid(s.b[gate]);
    }
}

/// v' of a chunk by forward substitution; `w.v` holds S^T k on entry. Leaves e^{G_i - G_j} in `w.mix`.
#[inline(always)]
fn solve<I: Isa>(isa: I, head: &Head<'_>, s: &Segment<'_>, from: usize, n: usize, w: &mut Work<'_>) {
    let (dk, dv) = (head.dk, head.dv);
    for i in 0..n {
        let (done, rest) = w.v.split_at_mut(i * dv);
        let row = &mut rest[..dv];
        let at = (from + i) * s.qkv_stride;
        let (beta, decay) = (w.beta[i], exp(w.g[i]));
        for (x, v) in row.iter_mut().zip(&s.v[at..at + dv]) {
            *x = beta * (v - decay * *x);
        }
        // e^{G_i - G_j} for the tokens so far, eight at a time; what lies beyond token i is not read.
        let decays = &mut w.mix[i * CHUNK..(i + 1) * CHUNK];
        let now = isa.splat(w.g[i]);
        for j in (0..=i).step_by(WIDTH) {
            isa.store(isa.exp(isa.sub(now, isa.load(eight(w.g, j)))), eight_mut(decays, j));
        }
        let mut factors = [0.0f32; CHUNK];
        for j in 0..i {
            let kk = dot(isa, &w.k[i * dk..(i + 1) * dk], &w.k[j * dk..(j + 1) * dk]);
            factors[j] = -(beta * kk * decays[j]);
        }
        combine_from(isa, 0, &factors[..i], done, row);
    }
}

/// S <- e^{G_last} S + sum_i e^{G_last - G_i} k_i v'_i^T, tokens in order.
#[inline(always)]
fn update_state<I: Isa>(isa: I, dk: usize, dv: usize, n: usize, w: &mut Work<'_>, state: &mut [f32]) {
    let last = w.g[n - 1];
    let decay = exp(last);
    for i in 0..n {
        let factor = exp(last - w.g[i]);
        w.k[i * dk..(i + 1) * dk].iter_mut().for_each(|k| *k *= factor);
    }
    for (r, row) in state.chunks_exact_mut(dv).enumerate() {
        row.iter_mut().for_each(|s| *s *= decay);
        let mut factors = [0.0f32; CHUNK];
        for i in 0..n {
            factors[i] = w.k[i * dk + r];
        }
        combine_from(isa, 0, &factors[..n], w.v, row);
    }
}

lanes! {
    /// A segment of one value head. Token 0 stands on the chunk grid. `state` is `[dk][dv]`, carried and
    /// updated; `scratch` holds [`chunk_scratch_len`] values; token t's output is the `dv` values at
    /// `out[t * out_stride ..]`.
    pub fn chunk_head [](isa; head: &Head<'_>, segment: &Segment<'_>, state: &mut [f32], scratch: &mut [f32],
                         out: &mut [f32], out_stride: usize) {
        let (dk, dv) = (head.dk, head.dv);
        let state = &mut state[..dk * dv];
        let mut w = split_scratch(scratch, dk, dv);
        for from in (0..segment.n).step_by(CHUNK) {
            let n = CHUNK.min(segment.n - from);
            load(isa, head, segment, from, n, &mut w);
            product(isa, &w.k[..n * dk], state, dk, dv, w.v);
            product(isa, &w.q[..n * dk], state, dk, dv, w.y);
            solve(isa, head, segment, from, n, &mut w);
            for i in 0..n {
                let mix = &mut w.mix[i * CHUNK..i * CHUNK + i + 1];
                for (j, m) in mix.iter_mut().enumerate() {
                    let qk = dot(isa, &w.q[i * dk..(i + 1) * dk], &w.k[j * dk..(j + 1) * dk]);
                    *m *= qk;
                }
                let decay = exp(w.g[i]);
                let y = &mut w.y[i * dv..(i + 1) * dv];
                y.iter_mut().for_each(|y| *y *= decay);
                combine_from(isa, 0, mix, w.v, y);
                let t = from + i;
                let z = &segment.z[t * segment.z_stride..t * segment.z_stride + dv];
                gated_norm(isa, head, y, z, &mut out[t * out_stride..t * out_stride + dv]);
            }
            update_state(isa, dk, dv, n, &mut w, state);
        }
    }
}
