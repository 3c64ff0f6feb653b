//! The host device: runs a plan's launches on the CPU, with or without counting views.
pub mod device;
pub mod pool;
pub mod probe;
pub mod simd;

pub use device::{HostDevice, LaunchTime, RunError, RunMode};

use crate::launch::Op;
use crate::plan::Plan;

/// Floats of scratch that the largest launch of `plan` needs on a thread.
pub fn thread_scratch(plan: &Plan) -> usize {
    plan.launches.iter().map(|l| launch_scratch(&l.op, plan.bucket.rows)).max().unwrap_or(0)
}

fn launch_scratch(op: &Op, rows: usize) -> usize {
    match op {
        Op::Embed(_) | Op::Argmax(_) | Op::Fold(_) | Op::Route(_) => 0,
        Op::Norm(o) => crate::norm::run::scratch(o),
        Op::Linear(o) => crate::linear::run::scratch(o, rows),
        Op::Rope(o) => crate::rope::run::scratch(o),
        Op::Attend(o) => crate::attend::run::scratch(o, rows),
        Op::Conv(o) => crate::conv::run::scratch(o),
        Op::Delta(o) => crate::delta::run::scratch(o, rows),
        Op::ExpertUp(o) => crate::experts::run::up_scratch(o, rows),
        Op::ExpertDown(o) => crate::experts::run::down_scratch(o, rows),
    }
}
