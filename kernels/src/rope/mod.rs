//! Per-head RMS norm of queries and keys, rotary embedding and the KV append, one pass over the row.
pub mod cuda;
pub mod host;
pub mod run;

use crate::access::Part;
use crate::buffer::BufId;
use crate::numeric::SmallWeight;
use ledger::{Amount, Feature};
use serde::Serialize;

/// Normalises and rotates `q` and `k` of each row, writes `q` f32 and appends `k`, `v` to the cache.
#[derive(Clone, Debug, Serialize)]
pub struct Rope {
    /// `[rows, heads * stride]` f32; each head starts with `head_dim` query values.
    pub q: BufId,
    /// Values from one head of `q` to the next: `head_dim`, or twice that where a gate follows each head.
    pub q_stride: usize,
    /// `[rows, kv_heads head_dim]` f32.
    pub k: BufId,
    /// `[rows, kv_heads head_dim]` f32.
    pub v: BufId,
    /// `[head_dim]` norm of the queries.
    pub q_norm: SmallWeight,
    /// `[head_dim]` norm of the keys.
    pub k_norm: SmallWeight,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the stored norm weights are offsets from one.
    pub plus_one: bool,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Head width.
    pub head_dim: usize,
    /// Rotated dimensions, from the start of the head.
    pub rotary_dims: usize,
    /// Rotary base.
    pub theta: f64,
    /// Positions.
    pub pos: BufId,
    /// Cache slots.
    pub kv_slot: BufId,
    /// `[pages, kv_heads, page_tokens, head_dim]` keys.
    pub k_cache: BufId,
    /// Values, same shape.
    pub v_cache: BufId,
    /// Bytes of one cached value: 2 (BF16) or 4 (f32).
    pub kv_bytes: u64,
    /// `[rows, heads head_dim]` f32; rounded to BF16 values where the cache is BF16.
    pub q_out: BufId,
}

impl Rope {
    pub(crate) fn parts(&self) -> Vec<Part> {
        let d = self.head_dim as u64;
        let q = 4 * self.heads as u64 * d;
        let kv = self.kv_heads as u64 * d;
        vec![
            Part::new("attention.rope_append")
                .read(self.q, Amount::per(Feature::Rows, q))
                .read(self.k, Amount::per(Feature::Rows, 4 * kv))
                .read(self.v, Amount::per(Feature::Rows, 4 * kv))
                .read(self.q_norm.buf, Amount::fixed(self.q_norm.bytes()))
                .read(self.k_norm.buf, Amount::fixed(self.k_norm.bytes()))
                .read(self.pos, Amount::per(Feature::Rows, 4))
                .read(self.kv_slot, Amount::per(Feature::Rows, 4))
                .write(self.k_cache, Amount::per(Feature::Rows, kv * self.kv_bytes))
                .write(self.v_cache, Amount::per(Feature::Rows, kv * self.kv_bytes))
                .write(self.q_out, Amount::per(Feature::Rows, q)),
        ]
    }
}
