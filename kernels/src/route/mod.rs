//! Routing: softmax over the experts, top-k with ties to the lower index, then grouping by expert.
pub mod cuda;
pub mod host;
pub mod run;

use crate::access::Part;
use crate::buffer::BufId;
use ledger::{Amount, Feature};
use serde::Serialize;

/// Chooses `top_k` of `experts` for each row and lists the (row, slot) pairs of each expert in row order.
#[derive(Clone, Debug, Serialize)]
pub struct Route {
    /// `[rows, experts]` f32.
    pub logits: BufId,
    /// Experts.
    pub experts: usize,
    /// Chosen a row.
    pub top_k: usize,
    /// Whether the chosen weights are scaled to sum to one.
    pub norm_topk: bool,
    /// `[rows, top_k]` u32 chosen experts.
    pub ids: BufId,
    /// `[rows, top_k]` f32 weights.
    pub weights: BufId,
    /// `[experts]` u32 pairs of each expert; an output of the step.
    pub counts: BufId,
    /// `[experts + 1]` u32 start of each expert's pairs in `list`.
    pub offsets: BufId,
    /// `[rows * top_k]` u32 pairs (row * top_k + slot), grouped by expert.
    pub list: BufId,
}

impl Route {
    pub(crate) fn parts(&self) -> Vec<Part> {
        let e = self.experts as u64;
        let pairs = Amount::per(Feature::Rows, 4 * self.top_k as u64);
        vec![
            Part::new("moe.route")
                .read(self.logits, Amount::per(Feature::Rows, 4 * e))
                .update(self.ids, pairs.clone())
                .write(self.weights, pairs.clone())
                .write(self.counts, Amount::fixed(4 * e))
                .write(self.offsets, Amount::fixed(4 * (e + 1)))
                .write(self.list, pairs),
        ]
    }
}
