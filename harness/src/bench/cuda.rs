//! A case on a CUDA device: the same inputs, the same comparison with f64, timed in a graph of rotating copies.
use super::case::Case;
use super::fill::inputs;
use super::measure::{BenchError, Row, State, allocate, facts, traffic, updated};
use super::reference::{check, tolerance};
use super::sample::{Buffers, Check};
use crate::instruments::curve::Probe;
use crate::instruments::series::{median, stop};
use kernels::buffer::{Arena, BufId};
use kernels::cuda::bound::Bound;
use kernels::cuda::driver::DeviceBuffer;
use kernels::cuda::graph::Graph;
use kernels::cuda::program::{Arenas, Program};
use kernels::cuda::weights::{planar_stacks, write};
use kernels::cuda::{Cuda, CudaError};
use kernels::memory::Memory;
use kernels::plan::Plan;
use ledger::{Bytes, Direction, StepFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SAMPLES: usize = 12;
const MAX_COPIES: u64 = 24;
/// Calls of one graph: enough that an empty node's cost is known to a few nanoseconds a call.
const CALLS: usize = 24;
/// Outputs hold this before the call that is compared.
const POISON: u8 = 0xff;

/// A case on a device, filled.
pub struct CudaBench<'a> {
    case: &'a Case,
    cuda: Arc<Cuda>,
    plan: Plan,
    bound: Bound,
    memory: Memory,
    arenas: Arenas,
    program: Program,
    facts: StepFacts,
}

fn arenas(cuda: &Arc<Cuda>, plan: &Plan, work: u64) -> Result<Arenas, CudaError> {
    let [weights, cache, scratch, io] = plan.arena_bytes;
    let weights = Arc::new(DeviceBuffer::new(&cuda.device, weights, "weights")?);
    Arenas::new(&cuda.device, weights, [cache, scratch, io], work)
}

impl<'a> CudaBench<'a> {
    /// Allocates, fills and binds the case.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn new(case: &'a Case, cuda: &Arc<Cuda>, seed: u64) -> Result<Self, BenchError> {
        let (need, available) = (case.buffer_bytes(), cuda.device.free()?);
        if need > available / 10 * 9 {
            return Err(BenchError::Memory { need, available });
        }
        let mut memory = allocate(case)?;
        inputs(case, seed, &mut memory).ok_or_else(|| BenchError::Input(case.op.clone()))?;
        let mut plan = case.plan.clone();
        let bound = Bound::of(&mut plan, cuda.device.target())?;
        let arenas = arenas(cuda, &plan, bound.workspace)?;
        fill(&arenas, &plan, &memory)?;
        arenas.set_shape(case.step)?;
        let program = cuda.program(&plan, &bound, &arenas)?;
        let (cuda, facts) = (Arc::clone(cuda), StepFacts::default());
        let mut bench = Self { case, cuda, plan, bound, memory, arenas, program, facts };
        bench.route()?;
        bench.facts = self::facts(case, &bench.memory);
        Ok(bench)
    }

    /// Runs the launches before the last one: expert products need their routing.
    fn route(&mut self) -> Result<(), CudaError> {
        for index in 0..self.plan.launches.len() - 1 {
            self.program.launch(index)?;
            self.fetch(index)?;
        }
        Ok(())
    }

    /// Brings what launch `index` wrote to the host.
    fn fetch(&mut self, index: usize) -> Result<(), CudaError> {
        for id in written(&self.plan, index) {
            let buffer = self.plan.buffer(id).clone();
            self.arenas.read(&buffer, self.memory.values_mut::<u8>(&buffer))?;
        }
        Ok(())
    }

    /// Runs the launch once over poisoned outputs and compares it with f64.
    ///
    /// # Errors
    /// [`CudaError`] of the driver.
    pub fn check(&mut self) -> Result<Check, CudaError> {
        let last = self.plan.launches.len() - 1;
        let updated = updated(self.case);
        let bytes = |b: &BufId| (*b, self.memory.values::<u8>(self.plan.buffer(*b)).to_vec());
        let before: BTreeMap<BufId, Vec<u8>> = updated.iter().map(bytes).collect();
        for id in written(&self.plan, last).difference(&updated) {
            let buffer = self.plan.buffer(*id);
            self.arenas.arena(buffer.arena).fill(buffer.offset, buffer.bytes, POISON)?;
            // What the kernel does not write keeps the poison in the host's copy too.
            self.memory.values_mut::<u8>(&buffer.clone()).fill(POISON);
        }
        self.program.launch(last)?;
        self.fetch(last)?;
        Ok(check(self.case, &Buffers { plan: &self.plan, memory: &self.memory, before: &before }))
    }

    /// Checks and times the case; `node` is the cost of an empty node in nanoseconds.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn run(mut self, probe: &Probe, node: u64) -> Result<Row, BenchError> {
        let found = self.check()?;
        let (mix, spans) = traffic(self.case, &self.facts);
        let (copies, state) = self.rotation(spans)?;
        let launches = self.plan.launches.last().map_or(0, |l| u64::from(l.nodes));
        let case = self.case;
        let series_ns = self.series(copies, node)?;
        let median_ns = median(&mut series_ns.clone()).max(1);
        let bytes = (mix.read + mix.write).0;
        let ceiling = probe.curve.ceiling_for(Bytes(spans * copies as u64), mix).rate.0;
        let rate = bytes as f64 / (median_ns as f64 / 1e9);
        let tolerance = tolerance(&case.launch().op);
        let mut warnings = Vec::new();
        let end = stop(&series_ns);
        if !end.met {
            warnings.push(end.reason);
        }
        if rate > ceiling * ledger::roofline::TOLERANCE {
            warnings.push("rate above the probed ceiling: a set below the probed sizes".into());
        }
        if found.error > tolerance {
            warnings.push(format!("error {:.3e} against f64 is above {tolerance:.3e}", found.error));
        }
        Ok(Row {
            model: case.model.clone(),
            op: case.op.clone(),
            shape: case.shape.clone(),
            format: case.format,
            class: case.class,
            phase: case.phase,
            batch: case.batch,
            bytes,
            launches,
            series_ns,
            median_ns,
            rate,
            ceiling,
            fraction: rate / ceiling,
            copies,
            state,
            error: found.error,
            tolerance,
            checked: found.values,
            warnings,
        })
    }

    /// Copies that together are twice the last cache, where a bounded number of them fits; else one.
    fn rotation(&self, spans: u64) -> Result<(usize, State), CudaError> {
        let twice = 2 * self.cuda.device.target().l2;
        let copies = twice.div_ceil(spans.max(1)).max(1);
        let fits = copies.saturating_mul(self.case.buffer_bytes()) < self.cuda.device.free()? / 2;
        let cold = copies == 1 || (copies <= MAX_COPIES && fits);
        Ok(if cold { (copies as usize, State::Cold) } else { (1, State::Resident) })
    }

    /// Times of one call net of its empty nodes, from replays of a graph over the copies.
    fn series(self, copies: usize, node: u64) -> Result<Vec<u64>, CudaError> {
        let (cuda, plan, last) = (self.cuda, self.plan, self.case.plan.launches.len() - 1);
        let mut sets = vec![(self.arenas, self.program)];
        while sets.len() < copies {
            let more = arenas(&cuda, &plan, self.bound.workspace)?;
            fill(&more, &plan, &self.memory)?;
            more.set_shape(self.case.step)?;
            let mut program = cuda.program(&plan, &self.bound, &more)?;
            (0..last).try_for_each(|index| program.launch(index))?;
            sets.push((more, program));
        }
        let calls = CALLS.max(copies);
        let nodes = sets[0].1.kernels(last) as u64;
        let mut graph = Graph::capture(&cuda.device, || {
            (0..calls).try_for_each(|call| sets[call % copies].1.launch(last))
        })?;
        let events = (cuda.device.event()?, cuda.device.event()?);
        let mut out = Vec::with_capacity(SAMPLES);
        for sample in 0..SAMPLES + 2 {
            events.0.record()?;
            graph.replay()?;
            events.1.record()?;
            let nanos = events.1.since(&events.0)? / calls as u64;
            if sample >= 2 {
                out.push(nanos.saturating_sub(nodes * node).max(1));
            }
        }
        drop(graph);
        Ok(out)
    }
}

/// Buffers that launch `index` writes.
fn written(plan: &Plan, index: usize) -> BTreeSet<BufId> {
    let accesses = plan.launches[index].parts.iter().flat_map(|p| &p.accesses);
    accesses.filter(|a| a.direction == Direction::Write).map(|a| a.buf).collect()
}

/// Copies the host's arenas to the device, matrices of blocks in planes.
fn fill(arenas: &Arenas, plan: &Plan, memory: &Memory) -> Result<(), CudaError> {
    write(&arenas.weights, memory.arena(Arena::Weights), &planar_stacks([plan]))?;
    for arena in [Arena::Cache, Arena::Scratch, Arena::Io] {
        arenas.arena(arena).write(0, memory.arena(arena))?;
    }
    Ok(())
}
