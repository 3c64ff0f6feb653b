//! A program: a bound plan on a device, launch by launch or as one graph.
use super::bound::Bound;
use super::call::Arg;
use super::driver::{Device, DeviceBuffer, Event};
use super::error::CudaError;
use super::graph::{Function, Graph, LaunchShape, Module};
use super::overlap::Overlap;
use super::unit::{Compiler, Unit, UnitKey, units};
use crate::buffer::{Arena, BufId, Buffer};
use crate::host::LaunchTime;
use crate::numeric::StepShape;
use crate::plan::Plan;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where the buffers of plans lie on a device.
pub struct Arenas {
    /// Weights, which engines may share.
    pub weights: Arc<DeviceBuffer>,
    /// KV pages and state slots.
    pub cache: DeviceBuffer,
    /// Values inside a step.
    pub scratch: DeviceBuffer,
    /// Inputs and outputs.
    pub io: DeviceBuffer,
    /// What launches keep between their kernels; zero before the first.
    pub work: DeviceBuffer,
    /// The step's [`StepShape`] as four u32.
    pub shape: DeviceBuffer,
}

impl Arenas {
    /// Arenas over `weights` for plans that need `cache`, `scratch`, `io` and `work` bytes. Cleared.
    pub fn new(
        device: &Arc<Device>,
        weights: Arc<DeviceBuffer>,
        [cache, scratch, io]: [u64; 3],
        work: u64,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            weights,
            cache: DeviceBuffer::zeroed(device, cache, "KV and state")?,
            scratch: DeviceBuffer::zeroed(device, scratch, "scratch")?,
            io: DeviceBuffer::zeroed(device, io, "inputs and outputs")?,
            work: DeviceBuffer::zeroed(device, work, "workspace")?,
            shape: DeviceBuffer::zeroed(device, 16, "shape")?,
        })
    }

    /// An arena.
    pub fn arena(&self, arena: Arena) -> &DeviceBuffer {
        match arena {
            Arena::Weights => &self.weights,
            Arena::Cache => &self.cache,
            Arena::Scratch => &self.scratch,
            Arena::Io => &self.io,
        }
    }

    /// Reads the first `out.len()` bytes of a buffer, and waits.
    pub fn read(&self, buffer: &Buffer, out: &mut [u8]) -> Result<(), CudaError> {
        self.arena(buffer.arena).read(buffer.offset, out)
    }

    /// Tells the kernels the step's sizes.
    pub fn set_shape(&self, shape: StepShape) -> Result<(), CudaError> {
        let words = [shape.rows as u32, shape.out_rows as u32, shape.seqs as u32, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.shape.write(0, &bytes)
    }
}

/// A call with everything resolved.
struct Prepared {
    entry: &'static str,
    launch: usize,
    function: Function,
    shape: LaunchShape,
    args: Vec<u64>,
}

/// A bound plan on a device.
pub struct Program {
    device: Arc<Device>,
    calls: Vec<Prepared>,
    /// Calls of each launch: `first[i] .. first[i + 1]`.
    first: Vec<usize>,
    graph: Option<Graph>,
    planned: u64,
    launched: u64,
}

/// Modules by unit, kept so that two plans share them.
#[derive(Default)]
pub struct Modules {
    modules: BTreeMap<UnitKey, Arc<Module>>,
    hashes: BTreeMap<UnitKey, blake3::Hash>,
}

impl Modules {
    /// Compiles and loads every unit of `bound` that is not loaded yet.
    pub fn add(&mut self, device: &Arc<Device>, compiler: &Compiler, bound: &Bound) -> Result<(), CudaError> {
        self.load(device, compiler, &units(bound.calls.iter().map(|(_, call)| call)))
    }

    /// Compiles and loads those of `units` that are not loaded yet.
    pub fn load(
        &mut self,
        device: &Arc<Device>,
        compiler: &Compiler,
        units: &[Unit],
    ) -> Result<(), CudaError> {
        let wanted: Vec<Unit> =
            units.iter().filter(|unit| !self.modules.contains_key(&unit.key())).cloned().collect();
        for (key, compiled) in compiler.all(&wanted, device.target().sm)? {
            self.modules.insert(key.clone(), Module::load(device, &compiled.cubin)?);
            self.hashes.insert(key, blake3::hash(&compiled.cubin));
        }
        Ok(())
    }

    /// The entry point `entry` of a loaded unit, with `shared` bytes of dynamic shared memory.
    pub fn entry(&self, unit: &Unit, entry: &str, shared: u32) -> Result<Function, CudaError> {
        let missing = || CudaError::Kernel { kernel: entry.into(), what: "not loaded".into() };
        self.modules.get(&unit.key()).ok_or_else(missing)?.function(entry, shared)
    }

    /// Hash over all device code loaded so far.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.hashes.values().for_each(|h| {
            hasher.update(h.as_bytes());
        });
        hasher.finalize().to_hex().to_string()
    }
}

impl Program {
    /// Resolves the calls of `bound`, which was made from `plan`, against `arenas`. Graphs use programmatic launch
    /// where both the call and `overlap` allow it.
    pub fn new(
        device: &Arc<Device>,
        plan: &Plan,
        bound: &Bound,
        arenas: &Arenas,
        modules: &Modules,
        overlap: &Overlap,
    ) -> Result<Self, CudaError> {
        let mut calls = Vec::with_capacity(bound.calls.len());
        let mut first = vec![0; plan.launches.len() + 1];
        for (launch, call) in &bound.calls {
            let args = call.args.iter().map(|a| resolve(*a, plan, arenas)).collect();
            let pdl = call.pdl && overlap.allows(&plan.launches[*launch].op.name());
            let shape = LaunchShape { grid: call.grid, block: call.block, shared: call.shared, pdl };
            calls.push(Prepared {
                entry: call.entry,
                launch: *launch,
                function: modules.entry(&Unit::of(call), call.entry, call.shared)?,
                shape,
                args,
            });
            first[launch + 1] += 1;
        }
        for i in 1..first.len() {
            first[i] += first[i - 1];
        }
        let (device, graph) = (Arc::clone(device), None);
        Ok(Self { device, calls, first, graph, planned: plan.nodes(), launched: 0 })
    }

    /// Kernels of launch `index`.
    pub fn kernels(&self, index: usize) -> usize {
        self.first[index + 1] - self.first[index]
    }

    /// Kernels enqueued so far, by replays and one by one.
    pub fn launched(&self) -> u64 {
        self.launched
    }

    /// Enqueues the kernels of launch `index` one by one, without programmatic launch.
    pub fn launch(&mut self, index: usize) -> Result<(), CudaError> {
        self.device.current()?;
        for call in &mut self.calls[self.first[index]..self.first[index + 1]] {
            debug_assert_eq!(call.launch, index);
            call.function.launch(&LaunchShape { pdl: false, ..call.shape }, &mut call.args)?;
            self.device.launched(call.entry, index)?;
            self.launched += 1;
        }
        Ok(())
    }

    /// Enqueues all launches one by one: the reference path.
    pub fn run(&mut self) -> Result<(), CudaError> {
        (0..self.first.len() - 1).try_for_each(|index| self.launch(index))
    }

    /// As [`Self::run`], with the time from before the first to behind the last kernel of each launch.
    pub fn run_timed(&mut self, times: &mut [LaunchTime]) -> Result<(), CudaError> {
        let launches = self.first.len() - 1;
        let events: Vec<Event> = (0..=launches).map(|_| self.device.event()).collect::<Result<_, _>>()?;
        events[0].record()?;
        for index in 0..launches {
            self.launch(index)?;
            events[index + 1].record()?;
        }
        for (index, time) in times.iter_mut().enumerate().take(launches) {
            let start = events[index].since(&events[0])?;
            *time = LaunchTime { start, nanos: events[index + 1].since(&events[index])? };
        }
        Ok(())
    }

    /// Captures the launches that `wanted` names as one graph, with programmatic launch where `overlap` is set.
    pub fn capture(&mut self, wanted: impl Fn(usize) -> bool, overlap: bool) -> Result<Graph, CudaError> {
        let calls = &mut self.calls;
        Graph::capture(&self.device, || {
            for call in calls.iter_mut().filter(|c| wanted(c.launch)) {
                let shape = LaunchShape { pdl: overlap && call.shape.pdl, ..call.shape };
                call.function.launch(&shape, &mut call.args)?;
            }
            Ok(())
        })
    }

    /// Replays the whole plan as one graph, captured at the first call. Its nodes are the plan's.
    pub fn replay(&mut self) -> Result<(), CudaError> {
        if self.graph.is_none() {
            let graph = self.capture(|_| true, true)?;
            if graph.nodes() != self.planned {
                return Err(CudaError::Nodes { planned: self.planned, captured: graph.nodes() });
            }
            self.graph = Some(graph);
        }
        let Some(graph) = &mut self.graph else { return Ok(()) };
        graph.replay()?;
        self.launched += graph.nodes();
        Ok(())
    }

    /// Nodes of the captured graph; none before the first replay.
    pub fn graph_nodes(&self) -> Option<u64> {
        self.graph.as_ref().map(Graph::nodes)
    }

    /// Replays between two events and waits: nanoseconds on the device.
    pub fn replay_timed(&mut self, events: &(Event, Event)) -> Result<u64, CudaError> {
        events.0.record()?;
        self.replay()?;
        events.1.record()?;
        events.1.since(&events.0)
    }
}

/// The eight bytes of an argument of a plan's kernel.
fn resolve(arg: Arg, plan: &Plan, arenas: &Arenas) -> u64 {
    match arg {
        Arg::Shape => arenas.shape.address(0),
        Arg::Work(offset) => arenas.work.address(offset),
        other => constant(other, &|id| {
            let buffer: &Buffer = plan.buffer(id);
            arenas.arena(buffer.arena).address(buffer.offset)
        }),
    }
}

/// The eight bytes of an argument that is a number or lies in a buffer; zero for the step's shape and workspace.
pub(super) fn constant(arg: Arg, at: &dyn Fn(BufId) -> u64) -> u64 {
    match arg {
        Arg::Buf(id) => at(id),
        Arg::BufAt(id, offset) => at(id) + offset,
        Arg::U32(value) => u64::from(value),
        Arg::F32(value) => u64::from(value.to_bits()),
        Arg::U64(value) => value,
        Arg::Shape | Arg::Work(_) => 0,
    }
}
