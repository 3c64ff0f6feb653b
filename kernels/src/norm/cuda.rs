//! CUDA binding of the norm: one block a row.
use super::Norm;
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::{NULL, bf16_class, define, outputs, quads, stored};

static SOURCE: Source = Source { name: "norm.cu", text: include_str!("norm.cu") };

/// Threads of a block: one or more 16-byte loads a thread, at most 640 threads up to 2560 values.
fn threads(hidden: usize) -> u32 {
    let quads = hidden / 4;
    let loads = quads.div_ceil(640);
    quads.div_ceil(loads).next_multiple_of(32) as u32
}

impl Norm {
    /// The kernel calls of this norm.
    ///
    /// # Errors
    /// [`BindError`] for another class than bf16, Q8 outputs, or widths that are not multiples of 4.
    pub fn bind(&self, plan: &PlanView, _: &Target) -> Result<Vec<KernelCall>, BindError> {
        bf16_class("norm", plan)?;
        for (field, value) in [("hidden", self.hidden), ("width", self.width), ("column", self.column + 4)] {
            quads("norm", field, value)?;
        }
        let (out_f32, out_bf16) = outputs("norm", &self.outs)?;
        let rows = if self.gather.is_some() { plan.bucket.out_rows } else { plan.bucket.rows };
        let block = threads(self.hidden);
        Ok(vec![KernelCall {
            source: &SOURCE,
            entry: "norm_rows",
            defines: vec![
                define("HIDDEN", self.hidden),
                define("THREADS", block),
                ("W_FORMAT", stored("norm", "weight", &self.weight)?),
                define("PLUS_ONE", u32::from(self.plus_one)),
            ],
            grid: [rows.max(1) as u32, 1, 1],
            block,
            shared: 0,
            args: vec![
                Arg::Buf(self.x),
                Arg::Buf(self.weight.buf),
                self.gather.map_or(NULL, Arg::Buf),
                out_f32,
                out_bf16,
                Arg::Shape,
                Arg::F32(self.eps),
                Arg::U32(self.width as u32),
                Arg::U32(self.column as u32),
            ],
            pdl: true,
        }])
    }
}
