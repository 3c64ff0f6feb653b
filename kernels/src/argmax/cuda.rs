//! CUDA binding of argmax: pieces of each row, merged through one 64-bit maximum a row.
use super::Argmax;
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::bf16_class;

static SOURCE: Source = Source { name: "argmax.cu", text: include_str!("argmax.cu") };
/// Shortest piece: two 16-byte loads for each of 256 threads.
const SHORTEST: usize = 2048;

/// Values of a piece: about two blocks a multiprocessor over all rows, never under [`SHORTEST`].
fn piece(vocab: usize, rows: usize, target: &Target) -> usize {
    let blocks = (2 * target.sms as usize).div_ceil(rows.max(1));
    vocab.div_ceil(blocks).next_multiple_of(1024).max(SHORTEST)
}

impl Argmax {
    /// The kernel calls of this argmax.
    ///
    /// # Errors
    /// [`BindError`] for another class than bf16.
    pub fn bind(&self, plan: &PlanView, target: &Target) -> Result<Vec<KernelCall>, BindError> {
        bf16_class("argmax", plan)?;
        let rows = plan.bucket.out_rows;
        let piece = piece(self.vocab, rows, target);
        Ok(vec![KernelCall {
            source: &SOURCE,
            entry: "argmax_rows",
            defines: Vec::new(),
            grid: [self.vocab.div_ceil(piece).max(1) as u32, rows.max(1) as u32, 1],
            block: 256,
            shared: 0,
            args: vec![
                Arg::Buf(self.logits),
                Arg::Buf(self.chosen),
                Arg::Work(0),
                Arg::Work(8 * rows as u64),
                Arg::Shape,
                Arg::U32(self.vocab as u32),
                Arg::U32(piece as u32),
            ],
            pdl: true,
        }])
    }

    /// A maximum and a counter a row, zero between launches.
    pub fn workspace(&self, plan: &PlanView, _: &Target) -> u64 {
        12 * plan.bucket.out_rows as u64
    }
}
