//! CUDA binding of the fold: 512 columns of a row a block.
use super::{Fold, MAX_TOP_K};
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::{bf16_class, define, quads, refused};

static SOURCE: Source = Source { name: "fold.cu", text: include_str!("fold.cu") };
/// Columns of a block: 128 threads of four.
const COLUMNS: usize = 512;

impl Fold {
    /// The kernel calls of this fold.
    ///
    /// # Errors
    /// [`BindError`] for another class than bf16 or widths that are not multiples of 4.
    pub fn bind(&self, plan: &PlanView, _: &Target) -> Result<Vec<KernelCall>, BindError> {
        bf16_class("fold", plan)?;
        quads("fold", "hidden", self.hidden)?;
        if self.top_k == 0 || self.top_k > MAX_TOP_K {
            return Err(refused("fold", "top_k", self.top_k, "1 to 64"));
        }
        Ok(vec![KernelCall {
            source: &SOURCE,
            entry: "fold_rows",
            defines: vec![define("TOP_K", self.top_k), define("HIDDEN", self.hidden)],
            grid: [self.hidden.div_ceil(COLUMNS) as u32, plan.bucket.rows as u32, 1],
            block: 128,
            shared: 0,
            args: vec![Arg::Buf(self.y), Arg::Buf(self.weights), Arg::Buf(self.residual), Arg::Shape],
            pdl: true,
        }])
    }
}
