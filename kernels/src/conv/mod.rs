//! Causal depthwise convolution with SiLU over the channels that feed the delta rule.
pub mod cuda;
pub mod host;
pub mod run;

use crate::access::Part;
use crate::buffer::BufId;
use crate::numeric::SmallWeight;
use ledger::{Amount, Feature};
use serde::Serialize;

/// `c[t] = silu(sum_j w[:, j] * u[t - taps + 1 + j])`; the last `taps - 1` rows of `u` stay in the state slot.
#[derive(Clone, Debug, Serialize)]
pub struct Conv {
    /// `[rows, dim]` f32.
    pub u: BufId,
    /// `[dim, taps]`.
    pub weight: SmallWeight,
    /// `[slots, taps - 1, dim]` f32.
    pub state: BufId,
    /// First row of each sequence.
    pub seg_start: BufId,
    /// State slot of each sequence.
    pub slot: BufId,
    /// Channels.
    pub dim: usize,
    /// Taps.
    pub taps: usize,
    /// `[rows, dim]` f32.
    pub out: BufId,
}

impl Conv {
    /// State bytes of one sequence.
    pub fn state_bytes(&self) -> u64 {
        4 * ((self.taps - 1) * self.dim) as u64
    }

    pub(crate) fn parts(&self) -> Vec<Part> {
        let row = 4 * self.dim as u64;
        vec![
            Part::new("delta.conv")
                .read(self.u, Amount::per(Feature::Rows, row))
                .read(self.weight.buf, Amount::fixed(self.weight.bytes()))
                .read(self.seg_start, Amount::fixed(4).plus(Amount::per(Feature::Sequences, 4)))
                .read(self.slot, Amount::per(Feature::Sequences, 4))
                .update(self.state, Amount::per(Feature::Sequences, self.state_bytes()))
                .write(self.out, Amount::per(Feature::Rows, row)),
        ]
    }
}
