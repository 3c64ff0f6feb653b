//! Paged attention over splits of one page each: every split from scratch, merged in index order.
//!
//! The same items serve decode and prefill, so a row's result does not depend on which of the two ran it.
pub mod cuda;
pub mod host;
mod inner;
pub mod run;

use crate::access::Part;
use crate::buffer::BufId;
use crate::numeric::ActKind;
use ledger::{Amount, Feature};
use serde::Serialize;

/// Grouped-query attention of each row over its sequence's cache up to the row's position.
#[derive(Clone, Debug, Serialize)]
pub struct Attend {
    /// `[rows, heads head_dim]` f32.
    pub q: BufId,
    /// Buffer that holds, after each head's `head_dim` query values, the head's gate (`sigmoid` applied here).
    pub gate: Option<BufId>,
    /// `[pages, kv_heads, page_tokens, head_dim]` keys.
    pub k_cache: BufId,
    /// Values, same shape.
    pub v_cache: BufId,
    /// Bytes of one cached value: 2 (BF16) or 4 (f32).
    pub kv_bytes: u64,
    /// Positions.
    pub pos: BufId,
    /// Sequence index of each row.
    pub seg: BufId,
    /// Page table.
    pub table: BufId,
    /// Row length of the table.
    pub max_pages: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Head width.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// `[rows, heads head_dim]` in `out_kind`.
    pub out: BufId,
    /// Kind of the output rows.
    pub out_kind: ActKind,
}

impl Attend {
    pub(crate) fn parts(&self) -> Vec<Part> {
        let width = (self.heads * self.head_dim) as u64;
        let kv = Amount::per(Feature::KvTokens, (self.kv_heads * self.head_dim) as u64 * self.kv_bytes);
        let mut part = Part::new("attention.attend")
            .read(self.q, Amount::per(Feature::Rows, 4 * width))
            .read(self.k_cache, kv.clone())
            .read(self.v_cache, kv)
            .read(self.pos, Amount::per(Feature::Rows, 4))
            .read(self.seg, Amount::per(Feature::Rows, 4))
            .read(self.table, Amount::per(Feature::KvPages, 4));
        if let Some(gate) = self.gate {
            part = part.read(gate, Amount::per(Feature::Rows, 4 * width));
        }
        vec![part.write(self.out, Amount::per(Feature::Rows, self.out_kind.bytes(width)))]
    }
}
