//! A step on the device beside the same step on the host, launch by launch: the aid that finds a wrong kernel.
//!
//! Each launch gets the host's memory, so its difference is its own and no predecessor's. Then the step runs on the
//! device alone, kernel by kernel, and once more as graphs of its first one, two, three ... launches with
//! programmatic launch: outputs that are not bit for bit those of the path without a graph name the first launch
//! that starts too early.
use super::{Expected, OracleError, checkpoint, size_for};
use crate::containers::open;
use crate::engine::cuda::CudaSteps;
use crate::engine::{Engine, EngineError, PREFILL_GRID, Phase, Place, Weights};
use crate::pack::{Pack, PackError};
use crate::recipe::Recipe;
use kernels::buffer::{Arena, BufId, Buffer};
use kernels::cuda::{Cuda, CudaError};
use kernels::host::simd::Simd;
use kernels::launch::Op;
use kernels::linear::Epilogue;
use kernels::memory::Memory;
use kernels::numeric::{ActKind, NumericClass, StepShape};
use kernels::plan::Plan;
use ledger::Direction;
use serde::Serialize;
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

/// One launch.
#[derive(Clone, Debug, Serialize)]
pub struct TraceLine {
    /// Which step: the first prompt's first chunk, or the token behind the prompt.
    pub phase: &'static str,
    /// Index in the plan.
    pub launch: usize,
    /// Operation.
    pub op: String,
    /// Its output that differs most from the host's, relative to the output's largest value.
    pub buffer: String,
    /// Index of the value that differs most, the host's value and the device's.
    pub at: (usize, f64, f64),
    /// Largest difference over the output's largest absolute value; infinite where NaN meets a number.
    pub difference: f64,
    /// Bytes of the outputs that are others in a graph, the most of [`REPLAYS`] replays.
    pub graph_bytes: usize,
}

/// Replays of every prefix: a race does not show each time.
pub const REPLAYS: usize = 3;
/// What scratch memory holds before the device's own runs.
const POISON: u8 = 0xff;

/// Traces the first prompt of the oracle in `dir` and the token behind it.
///
/// # Errors
/// [`OracleError`].
pub fn trace(
    dir: &Path,
    class: NumericClass,
    cuda: &Arc<Cuda>,
    threads: usize,
    simd: Simd,
) -> Result<Vec<TraceLine>, OracleError> {
    let io = |source| PackError::Io { path: dir.into(), source };
    let temp = tempfile::tempdir().map_err(io)?;
    let recipe =
        Recipe::builtin("bf16").map_err(|e| OracleError::Folder { dir: dir.into(), what: e.to_string() })?;
    let pack = Pack::write(&checkpoint(dir)?, "trace", &recipe, &temp.path().join("trace.pack"))?;
    let expected = open(&dir.join("expected.safetensors"))?;
    let expected = Expected(&expected, dir);
    let ids = expected.ids("prompt.0.input_ids")?;
    let (size, h) = (size_for(&expected, threads)?, &pack.header);
    let engine = |place: Place| -> Result<Engine, OracleError> {
        Ok(place.engine(&h.model, &h.manifest, class, size, Weights::Host(pack.weights()?))?)
    };
    let mut host = engine(Place::Host { threads, simd })?;
    let mut device = engine(Place::Cuda(Arc::clone(cuda)))?;
    let sequence = host.open(ids.len() + 1)?;
    let mut out = Vec::new();
    for chunk in ids.chunks(PREFILL_GRID) {
        host.stage_prefill(&[(sequence, chunk)], false)?;
        if out.is_empty() {
            out.extend(step(&mut host, &mut device)?);
        } else {
            host.run_staged(None)?;
        }
    }
    let token = host.chosen()[0];
    host.stage_decode(&[(sequence, token)])?;
    out.extend(step(&mut host, &mut device)?);
    Ok(out)
}

/// Traces the step staged on `host`; the device takes all memory from it.
fn step(host: &mut Engine, device: &mut Engine) -> Result<Vec<TraceLine>, EngineError> {
    let phase = host.phase();
    let steps = device.cuda().ok_or(EngineError::HostOnly("a trace of the host"))?;
    let start = [Arena::Cache, Arena::Io].map(|a| (a, host.memory.arena(a).to_vec()));
    // Both callbacks of the host's step look at the device.
    let have = Outputs::default();
    let state = RefCell::new((steps, have, Vec::new(), StepShape { rows: 0, out_rows: 0, seqs: 0 }));
    let fault: RefCell<Option<CudaError>> = RefCell::new(None);
    host.run_with(
        &mut |plan, memory, index, shape| {
            let (steps, have, _, last) = &mut *state.borrow_mut();
            *last = shape;
            match alone(steps, phase, plan, memory, index, shape) {
                Ok(outputs) => *have = outputs,
                Err(error) => drop(fault.borrow_mut().get_or_insert(error)),
            }
            false
        },
        &mut |plan, index, memory| {
            let (_, have, lines, _) = &mut *state.borrow_mut();
            lines.push(line(phase, plan, index, memory, have));
        },
    )?;
    if let Some(error) = fault.into_inner() {
        return Err(error.into());
    }
    let (steps, _, mut lines, shape) = state.into_inner();
    let plan = host.last_plan();
    steps.arenas.set_shape(shape)?;
    reset(steps, &start)?;
    let mut want = Vec::new();
    for index in 0..plan.launches.len() {
        steps.program(phase).launch(index)?;
        want.push(fetch(steps, plan, index)?);
    }
    for (index, line) in lines.iter_mut().enumerate() {
        let mut graph = steps.program(phase).capture(|launch| launch <= index, true)?;
        for _ in 0..REPLAYS {
            reset(steps, &start)?;
            graph.replay()?;
            let have = fetch(steps, plan, index)?;
            let differ = |(a, b): (&Vec<u8>, &Vec<u8>)| a.iter().zip(b).filter(|(a, b)| a != b).count();
            line.graph_bytes = line.graph_bytes.max(have.iter().zip(&want[index]).map(differ).sum());
        }
    }
    Ok(lines)
}

/// What a launch's outputs held before it and hold behind it on the device.
#[derive(Default)]
struct Outputs {
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
}

/// Runs launch `index` on the device over the host's memory and returns its outputs.
fn alone(
    steps: &mut CudaSteps,
    phase: Phase,
    plan: &Plan,
    memory: &Memory,
    index: usize,
    shape: StepShape,
) -> Result<Outputs, CudaError> {
    for arena in [Arena::Cache, Arena::Scratch, Arena::Io] {
        steps.arenas.arena(arena).write(0, memory.arena(arena))?;
    }
    steps.arenas.set_shape(shape)?;
    let before = outputs(plan, index).into_iter().map(|(_, b)| memory.values::<u8>(b).to_vec()).collect();
    steps.program(phase).launch(index)?;
    Ok(Outputs { before, after: fetch(steps, plan, index)? })
}

/// The device's memory as the step finds it, with poison in the scratch.
fn reset(steps: &CudaSteps, start: &[(Arena, Vec<u8>)]) -> Result<(), CudaError> {
    let scratch = &steps.arenas.scratch;
    scratch.fill(0, scratch.len(), POISON)?;
    start.iter().try_for_each(|(arena, bytes)| steps.arenas.arena(*arena).write(0, bytes))
}

/// The outputs of a launch, each buffer once.
fn outputs(plan: &Plan, index: usize) -> Vec<(BufId, &Buffer)> {
    let accesses = plan.launches[index].parts.iter().flat_map(|p| &p.accesses);
    let mut ids: Vec<BufId> = accesses.filter(|a| a.direction == Direction::Write).map(|a| a.buf).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(|id| (id, plan.buffer(id))).collect()
}

fn fetch(steps: &CudaSteps, plan: &Plan, index: usize) -> Result<Vec<Vec<u8>>, CudaError> {
    let read = |(_, buffer): (BufId, &Buffer)| {
        let mut bytes = vec![0; buffer.bytes as usize];
        steps.arenas.read(buffer, &mut bytes).map(|()| bytes)
    };
    outputs(plan, index).into_iter().map(read).collect()
}

fn line(phase: Phase, plan: &Plan, index: usize, memory: &Memory, have: &Outputs) -> TraceLine {
    let op = &plan.launches[index].op;
    let phase = if phase == Phase::Decode { "decode" } else { "prefill" };
    let mut out = TraceLine {
        phase,
        launch: index,
        op: op.name(),
        buffer: String::new(),
        at: (0, 0.0, 0.0),
        difference: -1.0,
        graph_bytes: 0,
    };
    let both = have.before.iter().zip(&have.after);
    for ((id, buffer), (before, have)) in outputs(plan, index).into_iter().zip(both) {
        let kind = kind(op, id);
        let (want, have) = (values(kind, memory.values(buffer)), values(kind, have));
        // Rows beyond the step's hold what other buffers left there: the scale is that of what was written.
        let written = want.iter().zip(values(kind, before)).filter(|(w, b)| w != &b && w.is_finite());
        let most = written.fold(0.0f64, |m, (w, _)| m.max(w.abs()));
        for (i, (want, have)) in want.iter().zip(&have).enumerate() {
            let equal = want == have || (want.is_nan() && have.is_nan());
            let off = if equal { 0.0 } else { (want - have).abs() / most.max(1e-30) };
            let off = if off.is_nan() { f64::INFINITY } else { off };
            if off > out.difference {
                (out.buffer, out.at, out.difference) = (buffer.name.clone(), (i, *want, *have), off);
            }
        }
    }
    out
}

/// What an output holds.
#[derive(Clone, Copy)]
enum Kind {
    F32,
    Bf16,
    U32,
}

fn kind(op: &Op, id: BufId) -> Kind {
    let act = |kind: ActKind| if kind == ActKind::Bf16 { Kind::Bf16 } else { Kind::F32 };
    let own = |out: BufId, kind: ActKind| if out == id { act(kind) } else { Kind::F32 };
    match op {
        Op::Norm(o) => o.outs.iter().find(|(_, out)| *out == id).map_or(Kind::F32, |(kind, _)| act(*kind)),
        Op::Linear(o) => match o.parts.iter().find(|p| p.out == id).map(|p| &p.epilogue) {
            Some(Epilogue::SiluMul { kind, .. }) => act(*kind),
            _ => Kind::F32,
        },
        Op::Rope(o) if id == o.q_out || o.kv_bytes == 4 => Kind::F32,
        Op::Rope(_) => Kind::Bf16,
        Op::Attend(o) => own(o.out, o.out_kind),
        Op::Delta(o) => own(o.out, o.out_kind),
        Op::ExpertUp(o) => own(o.out, o.out_kind),
        Op::Route(o) if id == o.weights => Kind::F32,
        Op::Route(_) | Op::Argmax(_) => Kind::U32,
        Op::Embed(_) | Op::Conv(_) | Op::ExpertDown(_) | Op::Fold(_) => Kind::F32,
    }
}

fn values(kind: Kind, bytes: &[u8]) -> Vec<f64> {
    let word = |b: &[u8; 4]| u32::from_le_bytes(*b);
    match kind {
        Kind::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_bits(word(b)))).collect(),
        Kind::U32 => bytes.as_chunks::<4>().0.iter().map(|b| f64::from(word(b))).collect(),
        Kind::Bf16 => {
            let pairs = bytes.as_chunks::<2>().0.iter();
            pairs.map(|b| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16))).collect()
        }
    }
}
