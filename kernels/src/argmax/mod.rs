//! Argmax of each row of logits; the lower index wins a tie.
pub mod cuda;
pub mod host;
pub mod run;

use crate::access::Part;
use crate::buffer::BufId;
use ledger::{Amount, Feature};
use serde::Serialize;

/// `chosen[r] = argmax(logits[r])`.
#[derive(Clone, Debug, Serialize)]
pub struct Argmax {
    /// `[out_rows, vocab]` f32.
    pub logits: BufId,
    /// Values a row.
    pub vocab: usize,
    /// `[out_rows]` u32.
    pub chosen: BufId,
}

impl Argmax {
    pub(crate) fn parts(&self) -> Vec<Part> {
        vec![
            Part::new("head.argmax")
                .read(self.logits, Amount::per(Feature::OutRows, 4 * self.vocab as u64))
                .write(self.chosen, Amount::per(Feature::OutRows, 4)),
        ]
    }
}
