//! Dispatch of an operation to its binding.
use super::call::{BindError, KernelCall, PlanView, Target};
use crate::launch::Op;

/// The kernel calls of `op`.
///
/// # Errors
/// [`BindError`] where the operation has no kernels for this class or shape.
pub fn bind(op: &Op, plan: &PlanView, target: &Target) -> Result<Vec<KernelCall>, BindError> {
    match op {
        Op::Embed(o) => o.bind(plan, target),
        Op::Norm(o) => o.bind(plan, target),
        Op::Linear(o) => o.bind(plan, target),
        Op::Rope(o) => o.bind(plan, target),
        Op::Attend(o) => o.bind(plan, target),
        Op::Conv(o) => o.bind(plan, target),
        Op::Delta(o) => o.bind(plan, target),
        Op::Route(o) => o.bind(plan, target),
        Op::ExpertUp(o) => o.bind(plan, target),
        Op::ExpertDown(o) => o.bind(plan, target),
        Op::Fold(o) => o.bind(plan, target),
        Op::Argmax(o) => o.bind(plan, target),
    }
}

/// Bytes of workspace that `op` needs.
pub fn workspace(op: &Op, plan: &PlanView, target: &Target) -> u64 {
    match op {
        Op::Embed(o) => o.workspace(plan, target),
        Op::Norm(o) => o.workspace(plan, target),
        Op::Linear(o) => o.workspace(plan, target),
        Op::Rope(o) => o.workspace(plan, target),
        Op::Attend(o) => o.workspace(plan, target),
        Op::Conv(o) => o.workspace(plan, target),
        Op::Delta(o) => o.workspace(plan, target),
        Op::Route(o) => o.workspace(plan, target),
        Op::ExpertUp(o) => o.workspace(plan, target),
        Op::ExpertDown(o) => o.workspace(plan, target),
        Op::Fold(o) => o.workspace(plan, target),
        Op::Argmax(o) => o.workspace(plan, target),
    }
}

/// Operations whose kernels keep no workspace: an inherent method of the same name wins over this one.
trait NoWorkspace {
    fn workspace(&self, _plan: &PlanView, _target: &Target) -> u64 {
        0
    }
}

impl NoWorkspace for crate::embed::Embed {}
impl NoWorkspace for crate::norm::Norm {}
impl NoWorkspace for crate::rope::Rope {}
impl NoWorkspace for crate::conv::Conv {}
impl NoWorkspace for crate::fold::Fold {}
