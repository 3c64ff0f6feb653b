//! Embedding: gathers one row of the table a token and decodes it to f32, the residual stream's type.
pub mod cuda;
pub mod host;
pub mod run;

use crate::access::Part;
use crate::buffer::BufId;
use crate::formats::Format;
use ledger::{Amount, Feature};
use serde::Serialize;

/// `out[r] = table[tokens[r]]`; table `[vocab, hidden]` in `format`, out `[rows, hidden]` f32.
#[derive(Clone, Debug, Serialize)]
pub struct Embed {
    /// Token ids.
    pub tokens: BufId,
    /// Table.
    pub table: BufId,
    /// Format of the table.
    pub format: Format,
    /// Rows of the table.
    pub vocab: usize,
    /// Values a row.
    pub hidden: usize,
    /// Residual stream.
    pub out: BufId,
    /// How many distinct ids there are: of the step's own tokens, or of those that follow them.
    pub distinct: Feature,
}

impl Embed {
    /// Bytes of one row of the table.
    pub fn row_bytes(&self) -> u64 {
        (self.hidden / self.format.block_values() * self.format.block_bytes()) as u64
    }

    pub(crate) fn parts(&self) -> Vec<Part> {
        vec![
            Part::new("embed")
                .read(self.tokens, Amount::per(Feature::Rows, 4))
                .read(self.table, Amount::per(self.distinct, self.row_bytes()))
                .write(self.out, Amount::per(Feature::Rows, 4 * self.hidden as u64)),
        ]
    }
}
