//! RMS norm of the residual stream, written once in every form its consumers read (f32, BF16, Q8).
//!
//! Emitting the rounded or quantised row here saves each consumer a pass over the f32 row.
pub mod cuda;
pub mod host;
pub mod run;

use crate::access::Part;
use crate::buffer::BufId;
use crate::numeric::{ActKind, SmallWeight};
use ledger::{Amount, Feature};
use serde::Serialize;

/// `out = x * rsqrt(mean(x^2) + eps) * (w [+ 1])` for each row, or for the rows listed in `gather`.
#[derive(Clone, Debug, Serialize)]
pub struct Norm {
    /// Ledger name.
    pub name: &'static str,
    /// `[rows, hidden]` f32.
    pub x: BufId,
    /// `[hidden]`.
    pub weight: SmallWeight,
    /// Values a row.
    pub hidden: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the stored weight is an offset from one.
    pub plus_one: bool,
    /// Row indices: normalise only these rows (the rows whose logits are wanted).
    pub gather: Option<BufId>,
    /// Outputs, at most one of each kind.
    pub outs: Vec<(ActKind, BufId)>,
    /// Values of an output row: `hidden`, or more where a product reads several norms side by side.
    pub width: usize,
    /// First column of the output rows that this norm writes; of Q8 rows a multiple of 256.
    pub column: usize,
}

impl Norm {
    /// The rows it runs over.
    pub fn rows(&self) -> Feature {
        if self.gather.is_some() { Feature::OutRows } else { Feature::Rows }
    }

    pub(crate) fn parts(&self) -> Vec<Part> {
        let rows = self.rows();
        let mut part = Part::new(self.name)
            .read(self.x, Amount::per(rows, 4 * self.hidden as u64))
            .read(self.weight.buf, Amount::fixed(self.weight.bytes()));
        if let Some(gather) = self.gather {
            part = part.read(gather, Amount::per(Feature::OutRows, 4));
        }
        for (kind, buf) in &self.outs {
            part = part.write(*buf, Amount::per(rows, kind.bytes(self.hidden as u64)));
        }
        vec![part]
    }
}
