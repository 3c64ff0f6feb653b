//! CPU query/key preparation: one item is one row, a head at a time.
//!
//! Rotary pairs are (m, m + rotary/2) for m < rotary/2 ("rotate half"), dimensions from `rotary` on pass
//! through. The table of one position is `[cos_0 .. cos_{r/2}, sin_0 .. sin_{r/2}]`, computed in f64 and
//! rounded once, so it is the same whoever computes it. The rotation itself is f32: two products, the second
//! joined by one fused add.

use crate::lanes::{Isa, lanes};
use crate::norm::host::norm_in_place;
use crate::values::{KvElem, Vector, round_bf16};

/// Fills the cos and sin table of one position; `out` has `rotary_dims` values (an even number).
///
/// Frequency m is theta^(-2m / rotary_dims); the angle is the f64 product with the position.
pub fn fill_cos_sin(position: u32, theta: f64, rotary_dims: usize, out: &mut [f32]) {
    let half = rotary_dims / 2;
    let (cos, sin) = out[..2 * half].split_at_mut(half);
    for m in 0..half {
        let frequency = theta.powf(-2.0 * m as f64 / rotary_dims as f64);
        let (s, c) = (f64::from(position) * frequency).sin_cos();
        (cos[m], sin[m]) = (c as f32, s as f32);
    }
}

/// The norm that q and k heads pass through before rotation.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm<'a> {
    /// Weight over the head dimension.
    pub weight: Vector<'a>,
    /// Added to the mean square.
    pub eps: f32,
    /// The stored weight is centred around zero.
    pub plus_one: bool,
}

#[inline(always)]
fn norm_head<I: Isa>(isa: I, head: &mut [f32], norm: &HeadNorm<'_>) {
    norm_in_place(isa, head, &norm.weight, norm.eps, norm.plus_one);
}

#[inline(always)]
fn rotate_head(head: &mut [f32], cos_sin: &[f32]) {
    let half = cos_sin.len() / 2;
    let (cos, sin) = cos_sin.split_at(half);
    let (a, b) = head[..2 * half].split_at_mut(half);
    for m in 0..half {
        let (x, y) = (a[m], b[m]);
        a[m] = x.mul_add(cos[m], -(y * sin[m]));
        b[m] = y.mul_add(cos[m], x * sin[m]);
    }
}

lanes! {
    /// Norms and rotates one q or k head in place. `cos_sin` has the rotary dimensions (0 for none); without
    /// `norm` the head is only rotated.
    pub fn qk_row [](isa; head: &mut [f32], norm: Option<&HeadNorm<'_>>, cos_sin: &[f32]) {
        if let Some(norm) = norm {
            norm_head(isa, head, norm);
        }
        rotate_head(head, cos_sin);
    }
}

/// Shapes and weights of a layer's q, k, v preparation.
#[derive(Clone, Copy, Debug)]
pub struct QkvLayer<'a> {
    /// Width of a head.
    pub head_dim: usize,
    /// Query heads are stored `[q | gate]` per head, so their stride is two heads.
    pub gated: bool,
    /// Norm of query heads.
    pub q_norm: Option<HeadNorm<'a>>,
    /// Norm of key heads.
    pub k_norm: Option<HeadNorm<'a>>,
    /// Queries are rounded to BF16 values (the `bf16` numeric class).
    pub round_q: bool,
}

lanes! {
    /// Prepares one row: raw q, k, v to rotated queries and cache slots.
    ///
    /// `q_raw` is `[heads][head_dim]`, or `[heads][q | gate]` when gated (the gate stays where it is, see
    /// [`gate_of`]); `q_out` is `[heads][head_dim]`; `k_raw`, `v_raw` are `[kv_heads][head_dim]`. `slot(h)`
    /// gives the key and value slots of KV head `h` for this position, each `head_dim` long. `scratch` holds
    /// `head_dim` values.
    pub fn qkv_row [E: KvElem, S: SlotsOf<E>](isa; layer: &QkvLayer<'_>, cos_sin: &[f32], q_raw: &[f32],
            k_raw: &[f32], v_raw: &[f32], q_out: &mut [f32], slots: &mut S, scratch: &mut [f32]) {
        let d = layer.head_dim;
        let stride = if layer.gated { 2 * d } else { d };
        for (raw, out) in q_raw.chunks_exact(stride).zip(q_out.chunks_exact_mut(d)) {
            out.copy_from_slice(&raw[..d]);
            if let Some(norm) = &layer.q_norm {
                norm_head(isa, out, norm);
            }
            rotate_head(out, cos_sin);
            if layer.round_q {
                out.iter_mut().for_each(|x| *x = round_bf16(*x));
            }
        }
        let head = &mut scratch[..d];
        for (h, (k, v)) in k_raw.chunks_exact(d).zip(v_raw.chunks_exact(d)).enumerate() {
            head.copy_from_slice(k);
            if let Some(norm) = &layer.k_norm {
                norm_head(isa, head, norm);
            }
            rotate_head(head, cos_sin);
            let (k_slot, v_slot) = slots.slots(h);
            k_slot.iter_mut().zip(head.iter()).for_each(|(s, x)| *s = E::from_f32(*x));
            v_slot.iter_mut().zip(v).for_each(|(s, x)| *s = E::from_f32(*x));
        }
    }
}

/// Where a row's keys and values go.
pub trait SlotsOf<E> {
    /// Key and value slots of one KV head at the row's position, `head_dim` elements each.
    fn slots(&mut self, kv_head: usize) -> (&mut [E], &mut [E]);
}

/// Slots that lie in two slices, KV heads `stride` elements apart: `[head][.. position ..][head_dim]`.
#[derive(Debug)]
pub struct Strided<'a, E> {
    /// Keys, starting at head 0's slot.
    pub k: &'a mut [E],
    /// Values, starting at head 0's slot.
    pub v: &'a mut [E],
    /// Elements from one head's slot to the next head's.
    pub stride: usize,
    /// Elements of a slot.
    pub head_dim: usize,
}

impl<E> SlotsOf<E> for Strided<'_, E> {
    fn slots(&mut self, kv_head: usize) -> (&mut [E], &mut [E]) {
        let range = kv_head * self.stride..kv_head * self.stride + self.head_dim;
        (&mut self.k[range.clone()], &mut self.v[range])
    }
}

/// The gate of query head `head` in a gated raw q row.
pub fn gate_of(q_raw: &[f32], head_dim: usize, head: usize) -> &[f32] {
    let start = head * 2 * head_dim + head_dim;
    &q_raw[start..start + head_dim]
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
