//! Fold: adds each row's weighted expert outputs to the residual stream, in slot order.
pub mod cuda;
pub mod host;
pub mod run;

use crate::access::Part;
use crate::buffer::BufId;
use ledger::{Amount, Feature};
use serde::Serialize;

/// Most experts a token may have: the pair indices of a row live on the stack.
pub const MAX_TOP_K: usize = 64;

/// `residual[r] += sum_s weights[r, s] * y[r * top_k + s]`.
#[derive(Clone, Debug, Serialize)]
pub struct Fold {
    /// `[rows * top_k, hidden]` f32.
    pub y: BufId,
    /// `[rows, top_k]` f32.
    pub weights: BufId,
    /// Chosen a row.
    pub top_k: usize,
    /// Values a row.
    pub hidden: usize,
    /// `[rows, hidden]` f32.
    pub residual: BufId,
}

impl Fold {
    pub(crate) fn parts(&self) -> Vec<Part> {
        let (k, h) = (self.top_k as u64, self.hidden as u64);
        vec![
            Part::new("moe.fold")
                .read(self.y, Amount::per(Feature::Rows, 4 * k * h))
                .read(self.weights, Amount::per(Feature::Rows, 4 * k))
                .update(self.residual, Amount::per(Feature::Rows, 4 * h)),
        ]
    }
}
