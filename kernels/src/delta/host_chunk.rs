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
use crate::lanes::{Isa, dot, lanes};
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

/// Columns of a register block in the small products.
const COLUMNS: usize = 16;
/// Rows of a register block.
const ROWS: usize = 4;

/// `out[i] = sum_r x[i][r] m[r]` for `n` rows: x `[n][inner]`, m `[inner][width]`, out `[n][width]`.
#[inline(always)]
fn product(x: &[f32], m: &[f32], n: usize, inner: usize, width: usize, out: &mut [f32]) {
    let mut i = 0;
    while i < n {
        let rows = if i + ROWS <= n { ROWS } else { 1 };
        let mut c = 0;
        while c < width {
            let wide = c + COLUMNS <= width;
            match (rows, wide) {
                (ROWS, true) => block::<ROWS, COLUMNS>(x, m, i, c, inner, width, out),
                (ROWS, false) => block::<ROWS, 1>(x, m, i, c, inner, width, out),
                (_, true) => block::<1, COLUMNS>(x, m, i, c, inner, width, out),
                (_, false) => block::<1, 1>(x, m, i, c, inner, width, out),
            }
            c += if wide { COLUMNS } else { 1 };
        }
        i += rows;
    }
}

#[inline(always)]
fn block<const R: usize, const W: usize>(
    x: &[f32],
    m: &[f32],
    i: usize,
    c: usize,
    inner: usize,
    width: usize,
    out: &mut [f32],
) {
    let mut sum = [[0.0f32; W]; R];
    let rows: [&[f32]; R] = std::array::from_fn(|r| &x[(i + r) * inner..(i + r + 1) * inner]);
    for (r, line) in m.chunks_exact(width).take(inner).enumerate() {
        let line: &[f32; W] = line[c..].first_chunk().expect("the block lies inside the row");
        for a in 0..R {
            for l in 0..W {
                sum[a][l] = rows[a][r].mul_add(line[l], sum[a][l]);
            }
        }
    }
    for a in 0..R {
        out[(i + a) * width + c..(i + a) * width + c + W].copy_from_slice(&sum[a]);
    }
}

/// `to += factor * from`.
#[inline(always)]
fn add_scaled(to: &mut [f32], factor: f32, from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(t, f)| *t = factor.mul_add(*f, *t));
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

/// v' of a chunk by forward substitution; `w.v` holds S^T k on entry.
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
        for j in 0..i {
            let kk = dot(isa, &w.k[i * dk..(i + 1) * dk], &w.k[j * dk..(j + 1) * dk]);
            let factor = beta * kk * exp(w.g[i] - w.g[j]);
            add_scaled(row, -factor, &done[j * dv..(j + 1) * dv]);
        }
    }
}

/// S <- e^{G_last} S + sum_i e^{G_last - G_i} k_i v'_i^T, tokens in order.
#[inline(always)]
fn update_state(dk: usize, dv: usize, n: usize, w: &mut Work<'_>, state: &mut [f32]) {
    let last = w.g[n - 1];
    let decay = exp(last);
    for i in 0..n {
        let factor = exp(last - w.g[i]);
        w.k[i * dk..(i + 1) * dk].iter_mut().for_each(|k| *k *= factor);
    }
    for (r, row) in state.chunks_exact_mut(dv).enumerate() {
        row.iter_mut().for_each(|s| *s *= decay);
        for i in 0..n {
            add_scaled(row, w.k[i * dk + r], &w.v[i * dv..(i + 1) * dv]);
        }
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
            product(w.k, state, n, dk, dv, w.v);
            product(w.q, state, n, dk, dv, w.y);
            solve(isa, head, segment, from, n, &mut w);
            for i in 0..n {
                let mix = &mut w.mix[i * CHUNK..i * CHUNK + i + 1];
                for (j, m) in mix.iter_mut().enumerate() {
                    let qk = dot(isa, &w.q[i * dk..(i + 1) * dk], &w.k[j * dk..(j + 1) * dk]);
                    *m = qk * exp(w.g[i] - w.g[j]);
                }
                let decay = exp(w.g[i]);
                let y = &mut w.y[i * dv..(i + 1) * dv];
                y.iter_mut().for_each(|y| *y *= decay);
                for (j, m) in mix.iter().enumerate() {
                    add_scaled(y, *m, &w.v[j * dv..(j + 1) * dv]);
                }
                let t = from + i;
                let z = &segment.z[t * segment.z_stride..t * segment.z_stride + dv];
                gated_norm(isa, head, y, z, &mut out[t * out_stride..t * out_stride + dv]);
            }
            update_state(dk, dv, n, &mut w, state);
        }
    }
}
