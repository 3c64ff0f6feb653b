//! Weight-stationary expert products: each active expert's matrices are read once a layer, for all its rows.
pub mod cuda;
pub mod host;
pub mod run;

use crate::access::Part;
use crate::buffer::BufId;
use crate::linear::Matrix;
use crate::numeric::ActKind;
use ledger::{Amount, Feature};
use serde::Serialize;

/// Routing tables of the layer, as `route` wrote them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Groups {
    /// `[experts + 1]` u32.
    pub offsets: BufId,
    /// `[rows * top_k]` u32.
    pub list: BufId,
    /// Experts.
    pub experts: usize,
    /// Chosen a row.
    pub top_k: usize,
    /// Index among the MoE layers, for [`Feature::Experts`].
    pub moe_layer: u16,
}

/// `h[pair] = silu(x[row] . gate_e^T) * (x[row] . up_e^T)` for each pair (row, slot) of each active expert.
#[derive(Clone, Debug, Serialize)]
pub struct ExpertUp {
    /// `[rows, k]` in `kind`.
    pub x: BufId,
    /// Kind of the input rows.
    pub kind: ActKind,
    /// Groups.
    pub groups: Groups,
    /// One expert's gate matrix; the experts lie one after the other in the buffer.
    pub gate: Matrix,
    /// One expert's up matrix.
    pub up: Matrix,
    /// `[rows * top_k, n]` in `out_kind`.
    pub out: BufId,
    /// Kind of the output rows.
    pub out_kind: ActKind,
}

/// `y[pair] = h[pair] . down_e^T`.
#[derive(Clone, Debug, Serialize)]
pub struct ExpertDown {
    /// `[rows * top_k, k]` in `kind`.
    pub h: BufId,
    /// Kind of the input rows.
    pub kind: ActKind,
    /// Groups.
    pub groups: Groups,
    /// One expert's down matrix.
    pub down: Matrix,
    /// `[rows * top_k, n]` f32.
    pub out: BufId,
}

impl Groups {
    fn reads(&self, part: Part) -> Part {
        part.read(self.offsets, Amount::fixed(4 * (self.experts as u64 + 1)))
            .read(self.list, Amount::per(Feature::Rows, 4 * self.top_k as u64))
    }

    fn weights(&self, bytes: u64) -> Amount {
        Amount::per(Feature::Experts(self.moe_layer), bytes)
    }
}

impl ExpertUp {
    pub(crate) fn parts(&self) -> Vec<Part> {
        let g = &self.groups;
        let out = g.top_k as u64 * self.out_kind.bytes(self.gate.n as u64);
        let part = Part::new("moe.gate_up")
            .read(self.x, Amount::per(Feature::Rows, self.kind.bytes(self.gate.k as u64)))
            .read(self.gate.buf, g.weights(self.gate.bytes()))
            .read(self.up.buf, g.weights(self.up.bytes()))
            .write(self.out, Amount::per(Feature::Rows, out));
        vec![g.reads(part)]
    }
}

impl ExpertDown {
    pub(crate) fn parts(&self) -> Vec<Part> {
        let g = &self.groups;
        let k = g.top_k as u64;
        let part = Part::new("moe.down")
            .read(self.h, Amount::per(Feature::Rows, k * self.kind.bytes(self.down.k as u64)))
            .read(self.down.buf, g.weights(self.down.bytes()))
            .write(self.out, Amount::per(Feature::Rows, k * 4 * self.down.n as u64));
        vec![g.reads(part)]
    }
}
