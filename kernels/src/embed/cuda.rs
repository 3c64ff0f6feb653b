//! CUDA binding of the embedding: 1024 values of a row a block.
use super::Embed;
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::{bf16_class, define, refused};
use crate::formats::Format;

static SOURCE: Source = Source { name: "embed.cu", text: include_str!("embed.cu") };
/// Values of a block: 128 threads of eight.
const VALUES: usize = 1024;

/// The code by which `embed.cu` knows a table's format.
fn code(format: Format) -> u32 {
    match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::Bf16 => 2,
        Format::Q8_0 => 3,
        Format::Q4_K => 4,
        Format::Q5_K => 5,
        Format::Q6_K => 6,
        Format::Q2_K => 7,
    }
}

impl Embed {
    /// The kernel calls of this embedding.
    ///
    /// # Errors
    /// [`BindError`] for another class than bf16 or a width that is not a multiple of 8.
    pub fn bind(&self, plan: &PlanView, _: &Target) -> Result<Vec<KernelCall>, BindError> {
        bf16_class("embed", plan)?;
        if self.hidden == 0 || !self.hidden.is_multiple_of(8) {
            return Err(refused("embed", "hidden", self.hidden, "positive multiples of 8"));
        }
        Ok(vec![KernelCall {
            source: &SOURCE,
            entry: "embed_rows",
            defines: vec![define("FORMAT", code(self.format)), define("HIDDEN", self.hidden)],
            grid: [self.hidden.div_ceil(VALUES) as u32, plan.bucket.rows as u32, 1],
            block: 128,
            shared: 0,
            args: vec![
                Arg::Buf(self.tokens),
                Arg::Buf(self.table),
                Arg::Buf(self.out),
                Arg::Shape,
                Arg::U32(self.vocab as u32),
            ],
            pdl: true,
        }])
    }
}
