//! CUDA binding of routing: one warp a row, the last block groups.
use super::Route;
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::{bf16_class, define, refused};

static SOURCE: Source = Source { name: "route.cu", text: include_str!("route.cu") };

/// Warps of a block: as many as rows, so that up to 16 rows meet in one block and need no counter.
fn warps(rows: usize) -> u32 {
    rows.next_power_of_two().clamp(4, 16) as u32
}

impl Route {
    /// The kernel calls of this routing.
    ///
    /// # Errors
    /// [`BindError`] for another class than bf16, or more experts or slots than the kernel holds.
    pub fn bind(&self, plan: &PlanView, _: &Target) -> Result<Vec<KernelCall>, BindError> {
        bf16_class("route", plan)?;
        if self.top_k == 0 || self.top_k > 32.min(self.experts) {
            return Err(refused("route", "top_k", self.top_k, "1 to 32, at most the experts"));
        }
        // The histograms are [16][experts] words of the 48 KiB that a block has without asking.
        if self.experts > 512 {
            return Err(refused("route", "experts", self.experts, "up to 512"));
        }
        let rows = plan.bucket.rows;
        let warps = warps(rows);
        Ok(vec![KernelCall {
            source: &SOURCE,
            entry: "route_rows",
            defines: vec![
                define("EXPERTS", self.experts),
                define("TOP_K", self.top_k),
                define("WARPS", warps),
                define("NORM_TOPK", u32::from(self.norm_topk)),
            ],
            grid: [rows.div_ceil(warps as usize) as u32, 1, 1],
            block: 32 * warps,
            shared: 0,
            args: vec![
                Arg::Buf(self.logits),
                Arg::Buf(self.ids),
                Arg::Buf(self.weights),
                Arg::Buf(self.counts),
                Arg::Buf(self.offsets),
                Arg::Buf(self.list),
                Arg::Work(0),
                Arg::Shape,
            ],
            pdl: true,
        }])
    }

    /// The counter of arrived blocks.
    pub fn workspace(&self, _: &PlanView, _: &Target) -> u64 {
        4
    }
}
