//! CUDA binding of the convolution: 512 channels of up to `TIME` rows of a sequence a block.
use super::{Conv, host::MAX_TAPS};
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::{bf16_class, define, quads, refused, stored};

static SOURCE: Source = Source { name: "conv.cu", text: include_str!("conv.cu") };
/// Channels of a block: 128 threads of four.
const CHANNELS: usize = 512;
/// Rows of a block: long enough that the window it re-reads (three rows) is under a tenth of its loads.
const TIME: usize = 32;

impl Conv {
    /// The kernel calls of this convolution.
    ///
    /// # Errors
    /// [`BindError`] for another class than bf16, more taps than the host takes, or odd channel counts.
    pub fn bind(&self, plan: &PlanView, _: &Target) -> Result<Vec<KernelCall>, BindError> {
        bf16_class("conv", plan)?;
        quads("conv", "dim", self.dim)?;
        if self.taps == 0 || self.taps > MAX_TAPS {
            return Err(refused("conv", "taps", self.taps, "1 to 8"));
        }
        let longest = if plan.bucket.decode { 1 } else { plan.bucket.rows };
        Ok(vec![KernelCall {
            source: &SOURCE,
            entry: "conv_rows",
            defines: vec![
                define("DIM", self.dim),
                define("TAPS", self.taps),
                ("W_FORMAT", stored("conv", "weight", &self.weight)?),
                define("TIME", TIME),
            ],
            grid: [
                self.dim.div_ceil(CHANNELS) as u32,
                plan.bucket.seqs as u32,
                longest.div_ceil(TIME).max(1) as u32,
            ],
            block: 128,
            shared: 0,
            args: vec![
                Arg::Buf(self.u),
                Arg::Buf(self.weight.buf),
                Arg::Buf(self.state),
                Arg::Buf(self.seg_start),
                Arg::Buf(self.slot),
                Arg::Buf(self.out),
                Arg::Shape,
            ],
            pdl: true,
        }])
    }
}
