//! Launches: an operation with its arguments, its ledger parts and its node count, in one value.
//!
//! The same value is what a device runs and what the ledger prints. There is no way to enqueue work that
//! is not accounted: [`crate::plan::PlanBuilder::launch`] takes an [`Op`] and derives the account itself.
use crate::access::Part;
use crate::{argmax, attend, conv, delta, embed, experts, fold, linear, norm, rope, route};
use serde::Serialize;

/// Every operation of every family. Dispatch is a `match`, resolved statically.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Token embedding.
    Embed(embed::Embed),
    /// RMS norm.
    Norm(norm::Norm),
    /// Matrix products.
    Linear(linear::Linear),
    /// Query/key norm, rotary embedding, cache append.
    Rope(rope::Rope),
    /// Attention.
    Attend(attend::Attend),
    /// Short convolution.
    Conv(conv::Conv),
    /// Delta rule.
    Delta(delta::Delta),
    /// Expert choice.
    Route(route::Route),
    /// First two expert products.
    ExpertUp(experts::ExpertUp),
    /// Last expert product.
    ExpertDown(experts::ExpertDown),
    /// Sum over experts.
    Fold(fold::Fold),
    /// Greedy choice.
    Argmax(argmax::Argmax),
}

impl Op {
    /// Op name, with numeric class and format where they select the kernel.
    pub fn name(&self) -> String {
        match self {
            Self::Embed(o) => format!("embed/{}", o.format.name()),
            Self::Norm(_) => "norm".into(),
            Self::Linear(o) => o.op_name(),
            Self::Rope(o) => format!("rope/kv{}", 8 * o.kv_bytes),
            Self::Attend(o) => format!("attend/kv{}", 8 * o.kv_bytes),
            Self::Conv(_) => "conv".into(),
            Self::Delta(o) => match o.form {
                delta::DeltaForm::Step => "delta/step".into(),
                delta::DeltaForm::Chunk => "delta/chunk".into(),
            },
            Self::Route(_) => "route".into(),
            Self::ExpertUp(o) => format!("expert_up/{}x{}", o.kind.name(), o.gate.format.name()),
            Self::ExpertDown(o) => format!("expert_down/{}x{}", o.kind.name(), o.down.format.name()),
            Self::Fold(_) => "fold".into(),
            Self::Argmax(_) => "argmax".into(),
        }
    }

    /// Whether this is a matrix product over weights (what the replay recorder records instead of running).
    pub fn is_product(&self) -> bool {
        matches!(self, Self::Linear(_) | Self::ExpertUp(_) | Self::ExpertDown(_) | Self::Embed(_))
    }

    /// Ledger parts with their accesses.
    pub fn parts(&self) -> Vec<Part> {
        match self {
            Self::Embed(o) => o.parts(),
            Self::Norm(o) => o.parts(),
            Self::Linear(o) => o.ledger_parts(),
            Self::Rope(o) => o.parts(),
            Self::Attend(o) => o.parts(),
            Self::Conv(o) => o.parts(),
            Self::Delta(o) => o.parts(),
            Self::Route(o) => o.parts(),
            Self::ExpertUp(o) => o.parts(),
            Self::ExpertDown(o) => o.parts(),
            Self::Fold(o) => o.parts(),
            Self::Argmax(o) => o.parts(),
        }
    }
}

/// One launch of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct Launch {
    /// Operation and arguments.
    pub op: Op,
    /// Kind of layer, for reports.
    pub kind: &'static str,
    /// Layer; absent for embedding and head.
    pub layer: Option<u16>,
    /// Ledger parts, derived from `op` when the launch was made.
    pub parts: Vec<Part>,
    /// Graph nodes it becomes.
    pub nodes: u32,
}
