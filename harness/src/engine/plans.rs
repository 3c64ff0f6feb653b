//! What an engine is built for, the two plans it runs and the bytes they need.
use crate::engine::PREFILL_ROWS;
use crate::families::{Model, PlanError};
use crate::manifest::Manifest;
use kernels::buffer::Arena;
use kernels::numeric::NumericClass;
use kernels::plan::{Bucket, Plan};
use ledger::{Bytes, PAGE_TOKENS};

/// What an engine is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineSize {
    /// Rows of a decode step.
    pub batch: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Threads.
    pub threads: usize,
}

/// Bytes an engine allocates, printed before it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights (mapped or loaded).
    pub weights: Bytes,
    /// KV pages and state slots.
    pub cache: Bytes,
    /// Scratch.
    pub scratch: Bytes,
    /// Inputs and outputs.
    pub io: Bytes,
}

impl MemoryPlan {
    /// Sum.
    pub fn total(&self) -> Bytes {
        self.weights + self.cache + self.scratch + self.io
    }
}

/// Decode and prefill plans of one engine.
pub struct Plans {
    /// One row a sequence.
    pub decode: Plan,
    /// Chunks of prompts.
    pub prefill: Plan,
}

impl Plans {
    /// Builds both plans.
    pub fn build(
        model: &Model,
        manifest: &Manifest,
        class: NumericClass,
        size: EngineSize,
    ) -> Result<Self, PlanError> {
        Self::of(size, |bucket| model.plan(manifest, class, bucket))
    }

    /// Both plans with the draft head behind the step.
    pub fn drafting(
        model: &Model,
        manifest: &Manifest,
        class: NumericClass,
        size: EngineSize,
    ) -> Result<Self, PlanError> {
        Self::of(size, |bucket| model.draft_plan(manifest, class, bucket))
    }

    fn of(size: EngineSize, plan: impl Fn(Bucket) -> Result<Plan, PlanError>) -> Result<Self, PlanError> {
        let pages = size.batch * size.context.div_ceil(PAGE_TOKENS as usize);
        let slots = size.batch;
        let decode = Bucket {
            rows: size.batch,
            seqs: size.batch,
            out_rows: size.batch,
            context: size.context,
            pages,
            slots,
            decode: true,
        };
        let seqs = PREFILL_ROWS.min(size.batch);
        let prefill = Bucket { rows: PREFILL_ROWS, seqs, out_rows: PREFILL_ROWS, decode: false, ..decode };
        Ok(Self { decode: plan(decode)?, prefill: plan(prefill)? })
    }

    /// Bytes of the shared arenas: the maximum over the plans.
    pub fn memory(&self, weights: u64) -> MemoryPlan {
        let most =
            |a: Arena| Bytes(self.decode.arena_bytes[a as usize].max(self.prefill.arena_bytes[a as usize]));
        MemoryPlan {
            weights: Bytes(weights),
            cache: most(Arena::Cache),
            scratch: most(Arena::Scratch),
            io: most(Arena::Io),
        }
    }
}
