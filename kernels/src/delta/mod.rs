//! Gated delta rule: decay, correction and read-out of the recurrent state, output norm and gate fused.
//!
//! Decode runs the recurrence; prefill runs the chunked form. The two round differently, so prefill chunks
//! lie on a fixed grid of absolute positions and generated tokens are never re-prefilled.
pub mod cuda;
pub mod host;
mod host_chunk;
pub mod run;

use crate::access::Part;
use crate::buffer::BufId;
use crate::numeric::{ActKind, SmallWeight};
use ledger::{Amount, Feature};
use serde::Serialize;

/// Which form runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeltaForm {
    /// One token a sequence, the plain recurrence.
    Step,
    /// Many tokens a sequence, in chunks of [`host::CHUNK`].
    Chunk,
}

/// One layer's delta rule for all value heads. Value head `j` uses key head `j / (v_heads / k_heads)`.
#[derive(Clone, Debug, Serialize)]
pub struct Delta {
    /// Form.
    pub form: DeltaForm,
    /// `[rows, 2 k_heads dk + v_heads dv]` f32: q, k and v after the convolution.
    pub qkv: BufId,
    /// `[rows, v_heads dv]` f32 gate.
    pub z: BufId,
    /// `[rows, v_heads]` f32, decay input.
    pub a: BufId,
    /// `[rows, v_heads]` f32, write strength input.
    pub b: BufId,
    /// `[v_heads]`.
    pub a_log: SmallWeight,
    /// `[v_heads]`.
    pub dt_bias: SmallWeight,
    /// `[dv]` output norm weight.
    pub norm: SmallWeight,
    /// Added to the mean square of the output norm.
    pub eps: f32,
    /// `[slots, v_heads, dk, dv]` f32.
    pub state: BufId,
    /// First row of each sequence.
    pub seg_start: BufId,
    /// State slot of each sequence.
    pub slot: BufId,
    /// Key heads.
    pub k_heads: usize,
    /// Value heads.
    pub v_heads: usize,
    /// Key width of a head.
    pub dk: usize,
    /// Value width of a head.
    pub dv: usize,
    /// `[rows, v_heads dv]` in `out_kind`.
    pub out: BufId,
    /// Kind of the output rows.
    pub out_kind: ActKind,
}

impl Delta {
    /// State bytes of one sequence.
    pub fn state_bytes(&self) -> u64 {
        4 * (self.v_heads * self.dk * self.dv) as u64
    }

    /// Values of a row of `qkv`.
    pub fn qkv_dim(&self) -> usize {
        2 * self.k_heads * self.dk + self.v_heads * self.dv
    }

    pub(crate) fn parts(&self) -> Vec<Part> {
        let per_row = |values: usize| Amount::per(Feature::Rows, 4 * values as u64);
        let width = self.v_heads * self.dv;
        vec![
            Part::new("delta.rule")
                .read(self.qkv, per_row(self.qkv_dim()))
                .read(self.z, per_row(width))
                .read(self.a, per_row(self.v_heads))
                .read(self.b, per_row(self.v_heads))
                .read(self.a_log.buf, Amount::fixed(self.a_log.bytes()))
                .read(self.dt_bias.buf, Amount::fixed(self.dt_bias.bytes()))
                .read(self.norm.buf, Amount::fixed(self.norm.bytes()))
                .read(self.seg_start, Amount::fixed(4).plus(Amount::per(Feature::Sequences, 4)))
                .read(self.slot, Amount::per(Feature::Sequences, 4))
                .update(self.state, Amount::per(Feature::Sequences, self.state_bytes()))
                .write(self.out, Amount::per(Feature::Rows, self.out_kind.bytes(width as u64))),
        ]
    }
}
