//! Steps on a CUDA device: the host writes a step's inputs, replays one graph and reads the choices back.
//!
//! The engine's own memory mirrors the device's inputs and outputs, so that staging and reading are the same code
//! on every device. Logits stay on the device until [`Engine::fetch_logits`] asks for them.
use super::{Backend, Engine, EngineError, EngineSize, Phase, Plans, Sequences};
use crate::families::Model;
use crate::manifest::Manifest;
use kernels::buffer::{Arena, Buffer};
use kernels::cuda::bound::Bound;
use kernels::cuda::driver::{DeviceBuffer, Event, Pinned};
use kernels::cuda::program::{Arenas, Program};
use kernels::cuda::weights::{planar_stacks, upload};
use kernels::cuda::{Cuda, CudaError};
use kernels::host::simd::Simd;
use kernels::host::{HostDevice, LaunchTime};
use kernels::memory::Memory;
use kernels::numeric::{NumericClass, StepShape};
use kernels::plan::Plan;
use kernels::sys::region::Region;
use ledger::StepFacts;
use std::ops::Range;
use std::sync::Arc;

/// The device an engine runs on.
#[derive(Clone)]
pub enum Place {
    /// This machine's processors.
    Host {
        /// Threads.
        threads: usize,
        /// Vector level.
        simd: Simd,
    },
    /// A CUDA device.
    Cuda(Arc<Cuda>),
}

/// A pack's payload, on the host or already on the device.
pub enum Weights {
    /// Mapped or loaded.
    Host(Region),
    /// In device memory, quantised matrices in planes.
    Device(Arc<DeviceBuffer>),
}

impl Place {
    /// Threads of the host; one where the work is elsewhere.
    pub fn threads(&self) -> usize {
        match self {
            Self::Host { threads, .. } => *threads,
            Self::Cuda(_) => 1,
        }
    }

    /// An engine here over `weights`.
    pub fn engine(
        &self,
        model: &Model,
        manifest: &Manifest,
        class: NumericClass,
        size: EngineSize,
        weights: Weights,
    ) -> Result<Engine, EngineError> {
        self.over(Plans::build(model, manifest, class, size)?, model, size, weights)
    }

    /// As [`Self::engine`], with the draft head behind every step.
    pub fn drafting(
        &self,
        model: &Model,
        manifest: &Manifest,
        class: NumericClass,
        size: EngineSize,
        weights: Weights,
    ) -> Result<Engine, EngineError> {
        self.over(Plans::drafting(model, manifest, class, size)?, model, size, weights)
    }

    fn over(
        &self,
        plans: Plans,
        model: &Model,
        size: EngineSize,
        weights: Weights,
    ) -> Result<Engine, EngineError> {
        match (self, weights) {
            (Self::Host { simd, .. }, Weights::Host(region)) => {
                Engine::over(plans, model, size, region, *simd)
            }
            (Self::Host { .. }, Weights::Device(_)) => Err(EngineError::HostOnly("weights on a device")),
            (Self::Cuda(cuda), Weights::Host(region)) => {
                let stacks = planar_stacks([&plans.decode, &plans.prefill]);
                let weights = upload(&cuda.device, region.as_slice(), &stacks)?;
                Engine::over_cuda(cuda, plans, model, size, weights)
            }
            (Self::Cuda(cuda), Weights::Device(weights)) => {
                Engine::over_cuda(cuda, plans, model, size, weights)
            }
        }
    }
}

/// What the argmax kernel chooses where a logit is not finite.
const NOTHING: u32 = u32::MAX;

/// How steps are enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// One graph a step.
    Graph,
    /// Kernel by kernel, nothing overlapped: the reference.
    Each,
}

/// The device side of an engine.
pub struct CudaSteps {
    /// Device.
    pub cuda: Arc<Cuda>,
    /// Memory on the device.
    pub arenas: Arenas,
    /// One row a sequence.
    pub decode: Program,
    /// Chunks of prompts.
    pub prefill: Program,
    /// How steps are enqueued.
    pub path: Path,
    /// Around the last replay.
    pub events: (Event, Event),
    staging: Pinned,
    shape: Option<StepShape>,
}

impl Engine {
    fn over_cuda(
        cuda: &Arc<Cuda>,
        mut plans: Plans,
        model: &Model,
        size: EngineSize,
        weights: Arc<DeviceBuffer>,
    ) -> Result<Self, EngineError> {
        let target = *cuda.device.target();
        let decode = Bound::of(&mut plans.decode, &target)?;
        let prefill = Bound::of(&mut plans.prefill, &target)?;
        let need = plans.memory(weights.len());
        let region = |bytes| {
            Region::zeroed(bytes)
                .map_err(|source| EngineError::Memory { bytes: ledger::Bytes(bytes), source })
        };
        let sizes = [need.cache.0, need.scratch.0, need.io.0];
        let work = decode.workspace.max(prefill.workspace);
        let arenas = Arenas::new(&cuda.device, weights, sizes, work)?;
        let staged = inputs(&plans.decode).chain(inputs(&plans.prefill)).map(|r| r.end - r.start).max();
        let steps = CudaSteps {
            cuda: Arc::clone(cuda),
            decode: cuda.program(&plans.decode, &decode, &arenas)?,
            prefill: cuda.program(&plans.prefill, &prefill, &arenas)?,
            path: Path::Graph,
            events: (cuda.device.event()?, cuda.device.event()?),
            staging: Pinned::new(&cuda.device, staged.unwrap_or(0))?,
            shape: None,
            arenas,
        };
        let memory = Memory::new([region(0)?, region(0)?, region(0)?, region(need.io.0)?]);
        let (summary, facts) = (model.summary(), StepFacts::default());
        let sequences = Sequences::new(size.batch, plans.decode.bucket.pages);
        let (device, backend) = (HostDevice::new(1, Simd::SCALAR, 0), Backend::Cuda(Box::new(steps)));
        Ok(Self { summary, size, plans, memory, device, backend, sequences, last: Phase::Decode, facts })
    }

    /// The device side, on a CUDA device.
    pub fn cuda(&mut self) -> Option<&mut CudaSteps> {
        match &mut self.backend {
            Backend::Host => None,
            Backend::Cuda(steps) => Some(steps),
        }
    }

    /// Brings the logits of the last step where [`Engine::logits`] reads them. On the host they are there.
    pub fn fetch_logits(&mut self) -> Result<(), EngineError> {
        let plan = match self.last {
            Phase::Decode => &self.plans.decode,
            Phase::Prefill => &self.plans.prefill,
        };
        let Backend::Cuda(steps) = &self.backend else { return Ok(()) };
        let bytes = 4 * self.facts.out_rows as usize * self.summary.vocab;
        for id in [Some(plan.io.logits), plan.io.draft.map(|d| d.logits)].into_iter().flatten() {
            let buffer = plan.buffer(id);
            let to = &mut self.memory.values_mut::<u8>(buffer)[..bytes];
            steps.arenas.read(buffer, to)?;
        }
        Ok(())
    }
}

/// Ranges of the Io arena that the host writes: the inputs lie before the logits, and a draft head's known tokens
/// behind everything else.
fn inputs(plan: &Plan) -> impl Iterator<Item = Range<usize>> {
    let span = |b: &Buffer| b.offset as usize..(b.offset + b.bytes) as usize;
    let end = plan.buffer(plan.io.out_index);
    let next = plan.io.draft.filter(|_| !plan.bucket.decode).map(|d| span(plan.buffer(d.next)));
    std::iter::once(0..(end.offset + end.bytes) as usize).chain(next)
}

/// Ranges of the Io arena that are read back after every step: choices, and the experts that were chosen.
fn outputs(plan: &Plan) -> impl Iterator<Item = Range<usize>> {
    let io = &plan.io;
    let last = io.expert_ids.last().or(io.expert_counts.last()).copied().unwrap_or(io.chosen);
    let (first, last) = (plan.buffer(io.chosen), plan.buffer(last));
    let whole = first.offset as usize..(last.offset + last.bytes) as usize;
    let draft = io.draft.map(|d| plan.buffer(d.chosen));
    let draft = draft.map(|b| b.offset as usize..(b.offset + b.bytes) as usize);
    std::iter::once(whole).chain(draft)
}

impl CudaSteps {
    /// The program of `phase`.
    pub fn program(&mut self, phase: Phase) -> &mut Program {
        match phase {
            Phase::Decode => &mut self.decode,
            Phase::Prefill => &mut self.prefill,
        }
    }

    /// Runs a staged step and brings its choices into `memory`. With `times` it runs launch by launch.
    pub(super) fn run(
        &mut self,
        phase: Phase,
        plan: &Plan,
        memory: &mut Memory,
        shape: StepShape,
        times: Option<&mut [LaunchTime]>,
    ) -> Result<(), CudaError> {
        self.send(plan, memory, shape)?;
        let path = self.path;
        let program = match phase {
            Phase::Decode => &mut self.decode,
            Phase::Prefill => &mut self.prefill,
        };
        match (times, path) {
            (Some(times), _) => program.run_timed(times)?,
            (None, Path::Each) => program.run()?,
            (None, Path::Graph) => {
                self.events.0.record()?;
                program.replay()?;
                self.events.1.record()?;
            }
        }
        self.receive(plan, memory)?;
        let chosen = &memory.values::<u32>(plan.buffer(plan.io.chosen))[..shape.out_rows];
        match chosen.iter().position(|token| *token == NOTHING) {
            None => Ok(()),
            Some(row) => {
                let what = format!("output row {row} holds a logit that is not finite");
                Err(CudaError::Kernel { kernel: "argmax".into(), what })
            }
        }
    }

    /// Nanoseconds on the device of the last step that ran as a graph.
    pub fn last_replay(&self) -> Result<u64, CudaError> {
        self.events.1.since(&self.events.0)
    }

    /// Runs a staged prefill launch by launch, calling `after(layer, residual rows)` when a layer is done.
    pub(super) fn run_traced(
        &mut self,
        plan: &Plan,
        memory: &mut Memory,
        shape: StepShape,
        hidden: usize,
        after: &mut dyn FnMut(Option<u16>, &[f32]),
    ) -> Result<(), CudaError> {
        self.send(plan, memory, shape)?;
        let residual = plan.buffers.iter().find(|b| b.name == "residual");
        let mut bytes = vec![0u8; 4 * shape.rows * hidden];
        for (index, launch) in plan.launches.iter().enumerate() {
            self.prefill.launch(index)?;
            let last_of_layer = plan.launches.get(index + 1).is_none_or(|next| next.layer != launch.layer);
            if let (true, Some(buffer)) = (last_of_layer, residual) {
                self.arenas.read(buffer, &mut bytes)?;
                let values: Vec<f32> =
                    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                after(launch.layer, &values);
            }
        }
        self.receive(plan, memory)
    }

    /// Sends the inputs that `memory` holds, and the step's sizes where they changed.
    pub(super) fn send(&mut self, plan: &Plan, memory: &Memory, shape: StepShape) -> Result<(), CudaError> {
        let bucket = &plan.bucket;
        for (field, value, limit) in [
            ("rows", shape.rows, bucket.rows),
            ("out_rows", shape.out_rows, bucket.out_rows),
            ("seqs", shape.seqs, bucket.seqs),
        ] {
            if value > limit {
                return Err(CudaError::Bucket { field, value: value as u64, limit: limit as u64 });
            }
        }
        if self.shape != Some(shape) {
            self.arenas.set_shape(shape)?;
            self.shape = Some(shape);
        }
        for range in inputs(plan) {
            let (at, len) = (range.start as u64, range.len());
            // The staging area is free: every step waits for its outputs, which come after its inputs.
            self.staging.bytes()[..len].copy_from_slice(&memory.arena(Arena::Io)[range]);
            self.staging.send(len, &self.arenas.io, at)?;
            if plan.io.draft.is_some() {
                self.cuda.device.sync()?;
            }
        }
        Ok(())
    }

    fn receive(&self, plan: &Plan, memory: &mut Memory) -> Result<(), CudaError> {
        for range in outputs(plan) {
            let at = range.start as u64;
            self.arenas.io.read(at, &mut memory.arena_mut(Arena::Io)[range])?;
        }
        Ok(())
    }

    pub(super) fn read_cache(&self, at: usize, out: &mut [u8]) -> Result<(), CudaError> {
        self.arenas.cache.read(at as u64, out)
    }

    pub(super) fn write_cache(&self, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.arenas.cache.write(at as u64, bytes)
    }

    pub(super) fn clear_cache(&self, at: usize, len: usize) -> Result<(), CudaError> {
        self.arenas.cache.fill(at as u64, len as u64, 0)
    }

    /// Copies `(from, to, bytes)` inside the cache.
    pub(super) fn copy_cache(
        &self,
        moves: impl Iterator<Item = (usize, usize, usize)>,
    ) -> Result<(), CudaError> {
        let moves: Vec<(u64, u64, u64)> = moves.map(|(a, b, len)| (a as u64, b as u64, len as u64)).collect();
        self.cuda.copy_ranges(&self.arenas.cache, &moves)
    }
}
