//! CPU Gated DeltaNet: one item is one value head, for one token ([`step_head`]) or a segment
//! ([`chunk_head`]).
//!
//! Per head, all f32: q and k divided by (sum of squares + 1e-6)^1/2, q then times dk^-1/2;
//! beta = sigmoid(b), gamma = -exp(A_log) softplus(a + dt_bias), alpha = exp(gamma); S is `[dk][dv]`:
//! S <- alpha S; m = S^T k; delta = beta (v - m); S <- S + k delta^T; y = S^T q;
//! out = w (y (mean(y^2) + eps)^-1/2) SiLU(z).
//!
//! **Tree.** m_c = alpha sum_i k_i S_ic and y_c = sum_i q_i S'_ic run over i in index order, one fused add a
//! term; S'_ic = fma(k_i, delta_c, alpha S_ic). Columns are independent, so strips do not change a bit.
//! **Rules.** NaN in q, k, a, b or the state reaches the whole head; NaN in v column c reaches the state only
//! in that column, and through the output norm the whole output row.

pub use super::host_chunk::{Segment, chunk_head, chunk_scratch_len};
use crate::lanes::{Isa, WIDTH, dot, eight, eight_mut, lanes};
use crate::norm::host::BLOCK;
use crate::values::{Vector, exp, sigmoid, silu, softplus};

/// Tokens of a prefill chunk.
pub const CHUNK: usize = 64;
/// Added to the sum of squares of q and k inside the root.
pub const L2_EPS: f32 = 1e-6;
/// Columns of a strip: 16 KB of state at dk = 128 stay in the first cache between the two passes.
const STRIP: usize = 32;

/// What a value head brings along from the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Width of q and k.
    pub dk: usize,
    /// Width of v, z and the output.
    pub dv: usize,
    /// The head's `A_log`.
    pub a_log: f32,
    /// The head's `dt_bias`.
    pub dt_bias: f32,
    /// Weight of the output norm over dv, shared by the heads.
    pub norm_w: Vector<'a>,
    /// Added to the mean square of the output norm.
    pub eps: f32,
    /// The normed output is rounded to BF16 before the weight (the `bf16` class of some references).
    pub round_normed: bool,
}

/// f32 values of scratch that [`step_head`] needs.
pub const fn step_scratch_len(dk: usize, dv: usize) -> usize {
    2 * dk + dv
}

/// gamma = -exp(A_log) softplus(a + dt_bias): the log of the decay, never positive.
#[inline(always)]
pub(super) fn log_decay(head: &Head<'_>, a: f32) -> f32 {
    -exp(head.a_log) * softplus(a + head.dt_bias)
}

/// Unit-length q (then times dk^-1/2) and k.
#[inline(always)]
pub(super) fn normalise<I: Isa>(isa: I, q: &[f32], k: &[f32], q_out: &mut [f32], k_out: &mut [f32]) {
    let scale = 1.0 / (q.len() as f32).sqrt();
    let (qn, kn) = ((dot(isa, q, q) + L2_EPS).sqrt(), (dot(isa, k, k) + L2_EPS).sqrt());
    q_out.iter_mut().zip(q).for_each(|(o, x)| *o = x / qn * scale);
    k_out.iter_mut().zip(k).for_each(|(o, x)| *o = x / kn);
}

/// The gated output norm of one row.
#[inline(always)]
pub(super) fn gated_norm<I: Isa>(isa: I, head: &Head<'_>, y: &[f32], z: &[f32], out: &mut [f32]) {
    let inverse = 1.0 / (dot(isa, y, y) / y.len() as f32 + head.eps).sqrt();
    let mut weights = [0.0f32; BLOCK];
    for start in (0..y.len()).step_by(BLOCK) {
        let n = BLOCK.min(y.len() - start);
        let (z, out) = (&z[start..start + n], &mut out[start..start + n]);
        out.iter_mut().zip(&y[start..start + n]).for_each(|(o, y)| *o = y * inverse);
        if head.round_normed {
            out.iter_mut().for_each(|o| *o = crate::values::round_bf16(*o));
        }
        let weights = &mut weights[..n];
        head.norm_w.load(start, weights);
        let whole = n - n % WIDTH;
        for c in (0..whole).step_by(WIDTH) {
            let scaled = isa.mul(isa.load(eight(out, c)), isa.load(eight(weights, c)));
            isa.store(isa.mul(scaled, isa.silu(isa.load(eight(z, c)))), eight_mut(out, c));
        }
        for c in whole..n {
            out[c] = out[c] * weights[c] * silu(z[c]);
        }
    }
}

/// One strip of `W` columns of the state: read pass, then write pass.
#[inline(always)]
fn strip<const W: usize>(
    state: &mut [f32],
    dv: usize,
    column: usize,
    (q, k): (&[f32], &[f32]),
    v: &[f32],
    (alpha, beta): (f32, f32),
    y: &mut [f32],
) {
    let mut m = [0.0f32; W];
    for (row, k) in state.chunks_exact(dv).zip(k) {
        let s: &[f32; W] = row[column..].first_chunk().expect("the strip lies inside the row");
        for c in 0..W {
            m[c] = k.mul_add(s[c], m[c]);
        }
    }
    let mut delta = [0.0f32; W];
    for c in 0..W {
        delta[c] = beta * (v[column + c] - alpha * m[c]);
    }
    let mut sum = [0.0f32; W];
    for ((row, k), q) in state.chunks_exact_mut(dv).zip(k).zip(q) {
        let s: &mut [f32; W] = row[column..].first_chunk_mut().expect("the strip lies inside the row");
        for c in 0..W {
            s[c] = k.mul_add(delta[c], alpha * s[c]);
            sum[c] = q.mul_add(s[c], sum[c]);
        }
    }
    y[column..column + W].copy_from_slice(&sum);
}

lanes! {
    /// One token of one value head. `q`, `k` are the conv outputs of its key head (`dk`), `v`, `z` have `dv`
    /// values, `a`, `b` are the head's scalars; `state` is `[dk][dv]`, updated in place; `scratch` holds
    /// [`step_scratch_len`] values; `out` has `dv`.
    pub fn step_head [](isa; head: &Head<'_>, q: &[f32], k: &[f32], v: &[f32], z: &[f32], a: f32, b: f32,
                        state: &mut [f32], scratch: &mut [f32], out: &mut [f32]) {
        let (dk, dv) = (head.dk, head.dv);
        let (qn, rest) = scratch.split_at_mut(dk);
        let (kn, rest) = rest.split_at_mut(dk);
        let y = &mut rest[..dv];
        normalise(isa, &q[..dk], &k[..dk], qn, kn);
        let gates = (exp(log_decay(head, a)), sigmoid(b));
        let state = &mut state[..dk * dv];
        let mut column = 0;
        while column + STRIP <= dv {
            strip::<STRIP>(state, dv, column, (qn, kn), v, gates, y);
            column += STRIP;
        }
        while column < dv {
            strip::<1>(state, dv, column, (qn, kn), v, gates, y);
            column += 1;
        }
        gated_norm(isa, head, y, &z[..dv], &mut out[..dv]);
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
