//! The engine: sequences, their pages and state slots, and the plans that advance them.
//!
//! One engine serves one tuple: a decode bucket of `batch` rows and a context limit. Its price is fixed before
//! the first allocation. Prefill chunks end on a fixed grid of absolute positions whatever the caller does, and
//! generated tokens go only through the step plan, so a sequence's tokens never depend on its company.
pub mod cuda;
pub mod device_weights;
mod draft;
mod plans;
mod sequence;
pub mod snapshot;

pub use cuda::{Place, Weights};
pub use plans::{EngineSize, MemoryPlan, Plans};
pub use sequence::{Sequence, Sequences};

use crate::families::{Model, PlanError, Summary};
use crate::manifest::Manifest;
use cuda::CudaSteps;
use kernels::cuda::CudaError;
use kernels::host::{HostDevice, LaunchTime, RunError};
use kernels::memory::Memory;
use kernels::numeric::{NumericClass, StepShape};
use kernels::plan::Plan;
use kernels::sys::region::Region;
use ledger::{Bytes, StepFacts};
use thiserror::Error;

/// Prefill chunks end on multiples of this many tokens.
pub const PREFILL_GRID: usize = 256;

/// A prompt's rows of a model with recurrent state begin on multiples of this many tokens: the chunked form of its
/// rule rounds by where chunks begin, so a suffix that began elsewhere would not have the bits of the whole prompt.
pub const STATE_GRID: usize = kernels::delta::host::CHUNK;

/// Rows of a prefill step: one grid cell, or shorter chunks of several sequences.
pub const PREFILL_ROWS: usize = 256;

/// What goes wrong in the engine.
#[derive(Debug, Error)]
pub enum EngineError {
    /// No pages or slots left.
    #[error("{what}: {need} needed, {have} free")]
    Exhausted {
        /// Pages or slots.
        what: &'static str,
        /// Needed.
        need: usize,
        /// Free.
        have: usize,
    },
    /// A value beyond its limit.
    #[error("{field} is {value}, the limit is {limit}")]
    Limit {
        /// Field.
        field: &'static str,
        /// Value.
        value: u64,
        /// Limit.
        limit: u64,
    },
    /// A prompt that goes on where the recurrent state cannot: copies for prompts are taken on the grid.
    #[error(
        "prefill begins at position {position}, this model's state takes prompts from multiples of {grid} on"
    )]
    OffGrid {
        /// Position of the first token.
        position: usize,
        /// The grid.
        grid: usize,
    },
    /// A prompt row without the token behind it, on an engine that drafts; or one too many, on one that does not.
    #[error("prefill with {given} tokens of lookahead, this engine takes {taken}")]
    Lookahead {
        /// Given.
        given: usize,
        /// Taken.
        taken: usize,
    },
    /// A sequence id that is not (or no longer) alive.
    #[error("sequence {0:?} is not alive")]
    Dead(Sequence),
    /// The plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The step.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The CUDA device.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// Something that looks into memory between launches, which only the host device lets it.
    #[error("{0} runs on the host device only")]
    HostOnly(&'static str),
    /// Memory.
    #[error("allocating {bytes}: {source}")]
    Memory {
        /// Bytes asked for.
        bytes: Bytes,
        /// Cause.
        source: std::io::Error,
    },
}

/// Which plan a step ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Decode.
    Decode,
    /// Prefill.
    Prefill,
}

/// Where steps run.
enum Backend {
    /// On this machine's processors, in [`Engine::memory`].
    Host,
    /// On a CUDA device; [`Engine::memory`] then mirrors the inputs and outputs alone.
    Cuda(Box<CudaSteps>),
}

/// The engine on one device.
pub struct Engine {
    summary: Summary,
    size: EngineSize,
    /// Plans.
    pub plans: Plans,
    /// Memory; on a CUDA device only its inputs and outputs hold anything.
    pub memory: Memory,
    device: HostDevice,
    backend: Backend,
    sequences: Sequences,
    last: Phase,
    facts: StepFacts,
}

impl Engine {
    /// Allocates everything. `weights` holds the pack's payload.
    pub fn new(
        model: &Model,
        manifest: &Manifest,
        class: NumericClass,
        size: EngineSize,
        weights: Region,
        simd: kernels::host::simd::Simd,
    ) -> Result<Self, EngineError> {
        Self::over(Plans::build(model, manifest, class, size)?, model, size, weights, simd)
    }

    /// As [`Self::new`], with the draft head behind every step. Its prompts come through [`Self::prefill_ahead`].
    pub fn drafting(
        model: &Model,
        manifest: &Manifest,
        class: NumericClass,
        size: EngineSize,
        weights: Region,
        simd: kernels::host::simd::Simd,
    ) -> Result<Self, EngineError> {
        Self::over(Plans::drafting(model, manifest, class, size)?, model, size, weights, simd)
    }

    fn over(
        plans: Plans,
        model: &Model,
        size: EngineSize,
        weights: Region,
        simd: kernels::host::simd::Simd,
    ) -> Result<Self, EngineError> {
        let need = plans.memory(weights.len() as u64);
        let region =
            |bytes: Bytes| Region::zeroed(bytes.0).map_err(|source| EngineError::Memory { bytes, source });
        let memory = Memory::new([weights, region(need.cache)?, region(need.scratch)?, region(need.io)?]);
        let scratch = plans.decode.thread_scratch.max(plans.prefill.thread_scratch);
        let device = HostDevice::new(size.threads, simd, scratch);
        let pages = plans.decode.bucket.pages;
        let sequences = Sequences::new(size.batch, pages);
        let (summary, facts, backend) = (model.summary(), StepFacts::default(), Backend::Host);
        Ok(Self { summary, size, plans, memory, device, backend, sequences, last: Phase::Decode, facts })
    }

    /// What it was built for.
    pub fn size(&self) -> EngineSize {
        self.size
    }

    /// The model's summary.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The device, for probes that share its threads.
    pub fn device(&mut self) -> &mut HostDevice {
        &mut self.device
    }

    /// The sequences.
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// Reserves a slot and pages for a sequence of up to `tokens` tokens. Its state starts at zero.
    pub fn open(&mut self, tokens: usize) -> Result<Sequence, EngineError> {
        if tokens == 0 || tokens > self.size.context {
            let limit = self.size.context as u64;
            return Err(EngineError::Limit { field: "sequence tokens", value: tokens as u64, limit });
        }
        let sequence = self.sequences.open(tokens)?;
        let slot = self.sequences.get(sequence)?.slot;
        self.clear_state(slot)?;
        Ok(sequence)
    }

    /// Gives a sequence's slot and pages back.
    pub fn close(&mut self, sequence: Sequence) -> Result<(), EngineError> {
        self.sequences.close(sequence)
    }

    /// Takes the last `tokens` tokens of a sequence back, so that a step can be repeated at the same length.
    /// Its recurrent state keeps what the tokens did: for counting bytes, never for producing tokens.
    pub fn rewind(&mut self, sequence: Sequence, tokens: usize) -> Result<(), EngineError> {
        let length = self.sequences.get(sequence)?.length;
        self.sequences.set_length(sequence, length.saturating_sub(tokens));
        Ok(())
    }

    /// Tokens of the next prefill chunk of a sequence with `length` tokens and `remaining` to come.
    pub fn chunk_len(length: usize, remaining: usize) -> usize {
        remaining.min(PREFILL_GRID - length % PREFILL_GRID)
    }

    /// Runs one prefill chunk for each sequence. Logits of each chunk's last row, or of all rows, follow.
    pub fn prefill(&mut self, chunks: &[(Sequence, &[u32])], all_logits: bool) -> Result<(), EngineError> {
        self.stage_prefill(chunks, all_logits)?;
        self.run_staged(None)
    }

    /// Writes the inputs of a prefill step.
    pub fn stage_prefill(
        &mut self,
        chunks: &[(Sequence, &[u32])],
        all_logits: bool,
    ) -> Result<(), EngineError> {
        self.stage_chunks(chunks, 0, all_logits)
    }

    /// Chunks that end in `ahead` tokens that are only looked at.
    fn stage_chunks(
        &mut self,
        chunks: &[(Sequence, &[u32])],
        ahead: usize,
        all_logits: bool,
    ) -> Result<(), EngineError> {
        for (sequence, tokens) in chunks {
            let length = self.sequences.get(*sequence)?.length;
            if self.summary.state_bytes > 0 && length % STATE_GRID != 0 {
                return Err(EngineError::OffGrid { position: length, grid: STATE_GRID });
            }
            let limit = PREFILL_GRID - length % PREFILL_GRID;
            let rows = tokens.len().saturating_sub(ahead);
            if rows == 0 || rows > limit {
                let (value, limit) = (rows as u64, limit as u64);
                return Err(EngineError::Limit { field: "prefill chunk tokens", value, limit });
            }
        }
        self.last = Phase::Prefill;
        self.stage(chunks.iter().copied(), ahead, all_logits)
    }

    /// Runs one decode step: one token for each sequence.
    pub fn decode(&mut self, rows: &[(Sequence, u32)]) -> Result<(), EngineError> {
        self.decode_timed(rows, None)
    }

    /// As [`Self::decode`], with each launch's time.
    pub fn decode_timed(
        &mut self,
        rows: &[(Sequence, u32)],
        times: Option<&mut [LaunchTime]>,
    ) -> Result<(), EngineError> {
        self.stage_decode(rows)?;
        self.run_staged(times)
    }

    /// Writes the inputs of a decode step. Split from [`Self::run_staged`] so that a timed region holds only
    /// the step.
    pub fn stage_decode(&mut self, rows: &[(Sequence, u32)]) -> Result<(), EngineError> {
        self.last = Phase::Decode;
        self.stage(rows.iter().map(|(s, t)| (*s, std::slice::from_ref(t))), 0, false)
    }

    /// Runs the staged decode step.
    pub fn run_staged(&mut self, times: Option<&mut [LaunchTime]>) -> Result<(), EngineError> {
        let shape = self.shape();
        let plan = match self.last {
            Phase::Decode => &self.plans.decode,
            Phase::Prefill => &self.plans.prefill,
        };
        match (&mut self.backend, times) {
            (Backend::Host, Some(times)) => self.device.run_timed(plan, &self.memory, shape, times)?,
            (Backend::Host, None) => self.device.run(plan, &self.memory, shape)?,
            (Backend::Cuda(steps), times) => steps.run(self.last, plan, &mut self.memory, shape, times)?,
        }
        Ok(())
    }

    /// As [`Self::prefill`] with all logits, calling `after(layer, residual rows)` when a layer is done.
    pub fn prefill_traced(
        &mut self,
        sequence: Sequence,
        tokens: &[u32],
        after: &mut dyn FnMut(Option<u16>, &[f32]),
    ) -> Result<(), EngineError> {
        self.stage_prefill(&[(sequence, tokens)], true)?;
        let (shape, plan) = (self.shape(), &self.plans.prefill);
        if let Backend::Cuda(steps) = &mut self.backend {
            steps.run_traced(plan, &mut self.memory, shape, self.summary.hidden, after)?;
            return Ok(());
        }
        let residual = plan.buffers.iter().find(|b| b.name == "residual");
        for (index, launch) in plan.launches.iter().enumerate() {
            self.device.launch(plan, &self.memory, shape, index, launch)?;
            let last_of_layer = plan.launches.get(index + 1).is_none_or(|next| next.layer != launch.layer);
            if let (true, Some(b)) = (last_of_layer, residual) {
                let rows = shape.rows * self.summary.hidden;
                after(launch.layer, &self.memory.values::<f32>(b)[..rows]);
            }
        }
        Ok(())
    }

    /// Runs the staged step launch by launch, calling `after(plan, index, memory)` behind each.
    pub fn run_each(&mut self, after: &mut dyn FnMut(&Plan, usize, &Memory)) -> Result<(), EngineError> {
        self.run_with(&mut |_, _, _, _| false, after)
    }

    /// As [`Self::run_each`]; where `replace(plan, memory, index, shape)` is true it stood in for the launch.
    pub fn run_with(
        &mut self,
        replace: &mut dyn FnMut(&Plan, &Memory, usize, StepShape) -> bool,
        after: &mut dyn FnMut(&Plan, usize, &Memory),
    ) -> Result<(), EngineError> {
        if matches!(self.backend, Backend::Cuda(_)) {
            return Err(EngineError::HostOnly("a step that is looked at between launches"));
        }
        let shape = self.shape();
        let plan = match self.last {
            Phase::Decode => &self.plans.decode,
            Phase::Prefill => &self.plans.prefill,
        };
        for (index, launch) in plan.launches.iter().enumerate() {
            if !replace(plan, &self.memory, index, shape) {
                self.device.launch(plan, &self.memory, shape, index, launch)?;
            }
            after(plan, index, &self.memory);
        }
        Ok(())
    }

    /// Which plan the staged or last step belongs to.
    pub fn phase(&self) -> Phase {
        self.last
    }

    fn shape(&self) -> StepShape {
        let (rows, out_rows) = (self.facts.rows as usize, self.facts.out_rows as usize);
        StepShape { rows, out_rows, seqs: self.facts.lengths.len() }
    }

    /// The plan of the last step.
    pub fn last_plan(&self) -> &Plan {
        match self.last {
            Phase::Decode => &self.plans.decode,
            Phase::Prefill => &self.plans.prefill,
        }
    }

    /// Logits of output row `row` of the last step.
    pub fn logits(&self, row: usize) -> &[f32] {
        let plan = self.last_plan();
        let vocab = self.summary.vocab;
        &self.memory.values::<f32>(plan.buffer(plan.io.logits))[row * vocab..(row + 1) * vocab]
    }

    /// Greedy choices of the last step, one for each output row.
    pub fn chosen(&self) -> &[u32] {
        let plan = self.last_plan();
        &self.memory.values::<u32>(plan.buffer(plan.io.chosen))[..self.facts.out_rows as usize]
    }

    /// Experts that the last step's rows chose, by MoE layer and row.
    pub fn routes(&self) -> Vec<Vec<Vec<u32>>> {
        let (plan, Some(moe)) = (self.last_plan(), self.summary.moe) else { return Vec::new() };
        let rows = self.facts.rows as usize * moe.top_k as usize;
        let layer = |b: &kernels::buffer::BufId| {
            let ids = &self.memory.values::<u32>(plan.buffer(*b))[..rows];
            ids.chunks(moe.top_k as usize).map(<[u32]>::to_vec).collect()
        };
        plan.io.expert_ids.iter().map(layer).collect()
    }

    /// Facts of the last step, with the experts its router really chose.
    pub fn facts(&self) -> StepFacts {
        let mut facts = self.facts.clone();
        let plan = self.last_plan();
        let active = |b: &kernels::buffer::BufId| {
            self.memory.values::<u32>(plan.buffer(*b)).iter().filter(|c| **c > 0).count() as f64
        };
        facts.experts = plan.io.expert_counts.iter().map(active).collect();
        facts.next_tokens = self.distinct_next();
        facts
    }
}
