//! A bound plan: the kernel calls of every launch, fixed before anything is compiled.
use super::bind::{bind, workspace};
use super::call::{Arg, KernelCall, PlanView, Target};
use super::error::CudaError;
use crate::plan::Plan;

/// Alignment of a launch's part of the workspace.
pub const WORK_ALIGN: u64 = 256;

/// The kernel calls of a plan.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Calls in order, each with the launch it belongs to.
    pub calls: Vec<(usize, KernelCall)>,
    /// Bytes of workspace the launches share.
    pub workspace: u64,
}

impl Bound {
    /// Binds every launch of `plan` for `target`, and stamps each launch with the nodes it becomes.
    ///
    /// # Errors
    /// [`CudaError::Bind`] naming the first launch without kernels.
    pub fn of(plan: &mut Plan, target: &Target) -> Result<Self, CudaError> {
        let (mut calls, mut most) = (Vec::new(), 0);
        let mut nodes = Vec::with_capacity(plan.launches.len());
        let view = PlanView::new(plan);
        for (index, launch) in plan.launches.iter().enumerate() {
            let fail = |source| CudaError::Bind { launch: index, source };
            let made = bind(&launch.op, &view, target).map_err(fail)?;
            most = most.max(workspace(&launch.op, &view, target));
            nodes.push(made.len() as u32);
            calls.extend(made.into_iter().map(|call| (index, call)));
        }
        for (launch, nodes) in plan.launches.iter_mut().zip(nodes) {
            launch.nodes = nodes;
        }
        let bound = Self { calls, workspace: most.next_multiple_of(WORK_ALIGN) };
        bound.check(plan, target)?;
        Ok(bound)
    }

    /// What can be said of a call without a device: it has blocks and threads, its shared memory fits, its
    /// arguments lie inside their buffers and the workspace.
    fn check(&self, plan: &Plan, target: &Target) -> Result<(), CudaError> {
        for (launch, call) in &self.calls {
            let wrong = |what: String| {
                Err(CudaError::Kernel { kernel: format!("{} (launch {launch})", call.entry), what })
            };
            if call.grid.contains(&0) || call.grid[1] > 65_535 || call.grid[2] > 65_535 {
                return wrong(format!("grid {:?}", call.grid));
            }
            if call.block == 0 || call.block > 1024 || call.block % 32 != 0 {
                return wrong(format!("{} threads a block", call.block));
            }
            if call.shared > target.shared_per_block {
                let limit = target.shared_per_block;
                return wrong(format!(
                    "{} B of shared memory a block, {} has {limit}",
                    call.shared, target.sm
                ));
            }
            for arg in &call.args {
                match arg {
                    Arg::BufAt(id, at) if *at >= plan.buffer(*id).bytes.max(1) => {
                        let buffer = plan.buffer(*id);
                        return wrong(format!("byte {at} of buffer {}, {} B", buffer.name, buffer.bytes));
                    }
                    Arg::Work(at) if *at >= self.workspace.max(1) => {
                        return wrong(format!("byte {at} of a workspace of {} B", self.workspace));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
