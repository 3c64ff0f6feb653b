//! One cell on a CUDA device: the series is replays of one graph between two events, its tokens are those of the
//! path without a graph, and its lines are graphs of one operation each, cold because every layer has its own weights.
use super::QualifyError;
use super::cell::{CellResult, POISON, distinct_logits, hash_tokens, outputs};
use super::fill::{FillRule, Series};
use crate::checked::TouchedReport;
use crate::engine::cuda::Path;
use crate::engine::{Engine, EngineError, Sequence};
use crate::instruments::cuda::CudaCanary;
use crate::instruments::series::{StopState, median, stop};
use kernels::buffer::Arena;
use kernels::cuda::nvml::{DeviceState, Monitor};
use kernels::cuda::{Cuda, CudaError};
use receipts::ClosureLine;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What only a device's cell has.
#[derive(Clone, Debug)]
pub struct DeviceCell {
    /// Nodes of the captured graph.
    pub nodes: u64,
    /// Median step with programmatic launch off, in nanoseconds.
    pub serial: u64,
    /// Time that overlapping launches win: `serial` less the step.
    pub overlap: u64,
    /// The device's state after the last block.
    pub state: DeviceState,
    /// Whether rows alone, through the one-row plan, chose the same tokens; `None` where none was tried.
    pub alone: Option<bool>,
}

/// What a cell is measured with.
pub struct Instruments<'a> {
    /// Device.
    pub cuda: &'a Arc<Cuda>,
    /// Canary.
    pub canary: &'a CudaCanary,
    /// NVML.
    pub monitor: &'a Monitor,
    /// Nanoseconds of an empty node.
    pub node: u64,
    /// Whether the tokens that are fed come from the seed in place of the last choice: with made-up weights a
    /// greedy text may fall into one word, and then every row routes alike.
    pub seeded: bool,
}

/// Rounds that every cell may have; each starts from a new fill.
const MIN_ROUNDS: usize = 2;
const MAX_ROUNDS: usize = 4;
/// Rows that run alone, too.
const ALONE: usize = 8;
/// Replays of each operation's graph, and of the step without overlap.
const LINE_SAMPLES: usize = 5;

/// Measures `rows` rows on `engine`; `single` is an engine of one row over the same weights.
pub fn measure_cuda(
    engine: &mut Engine,
    single: Option<&mut Engine>,
    rows: usize,
    rule: &FillRule,
    series: &Series,
    with: &Instruments<'_>,
) -> Result<CellResult, QualifyError> {
    fill_arena(engine, Arena::Cache, POISON)?;
    let mut run = Run::new(series, with.seeded);
    set_path(engine, Path::Each);
    let (reference, sequences) = run.round(engine, rows, rule, false)?;
    close(engine, sequences)?;
    set_path(engine, Path::Graph);
    let alone = single.map(|one| rows_alone(one, rows.min(ALONE), rule, &run, &reference)).transpose()?;
    run.clear();
    let reference_hash = hash_tokens(reference.iter().map(Vec::as_slice));
    let blocks = Blocks::run(engine, rows, rule, &mut run, with)?;
    engine.fetch_logits()?;
    let distinct_rows = distinct_logits(engine, rows);
    let experts = engine.facts().experts.iter().map(|e| *e as u32).collect();
    let (lines, gaps, serial) = lines(engine, with)?;
    let nodes = engine.cuda().and_then(|c| c.decode.graph_nodes()).unwrap_or(0);
    close(engine, blocks.open)?;
    let step = median(&mut run.samples.clone());
    let overlap = serial.saturating_sub(step);
    Ok(CellResult {
        series: run.samples,
        warmup: run.warmup,
        stop: blocks.stop,
        lines,
        gaps,
        tokens_hash: blocks.hash,
        reference_hash,
        tokens: (rows * (series.steps() + 1)) as u64,
        distinct_rows,
        experts,
        canary: blocks.worst.unwrap_or((0, 0)),
        discarded: blocks.discarded,
        poisoned: run.poisoned,
        touched: TouchedReport::default(),
        launches: run.launches,
        device: Some(DeviceCell { nodes, serial, overlap, state: blocks.state, alone }),
    })
}

/// What the timed blocks of a cell leave beside their samples.
struct Blocks {
    stop: StopState,
    /// Canary before and after: of the kept block that moved it furthest.
    worst: Option<(u64, u64)>,
    discarded: u64,
    hash: String,
    state: DeviceState,
    /// Sequences of the last block.
    open: Vec<Sequence>,
}

impl Blocks {
    /// Rounds until the series is quiet, each from a new fill.
    fn run(
        engine: &mut Engine,
        rows: usize,
        rule: &FillRule,
        run: &mut Run,
        with: &Instruments<'_>,
    ) -> Result<Self, QualifyError> {
        let stop_state = StopState { met: false, reason: "no sample yet".into() };
        let (hash, open, state) = (String::new(), Vec::new(), DeviceState::default());
        let mut b = Self { stop: stop_state, worst: None, discarded: 0, hash, state, open };
        for round in 0..MAX_ROUNDS {
            let (mark, before) = (run.samples.len(), with.canary.run()?);
            let (tokens, sequences) = run.round(engine, rows, rule, true)?;
            let after = with.canary.run()?;
            b.state = with.monitor.state();
            b.open = sequences;
            let hash = hash_tokens(tokens.iter().map(Vec::as_slice));
            if round > 0 && hash != b.hash {
                b.hash = format!("{} then {hash}", b.hash);
                break;
            }
            b.hash = hash;
            let end = round + 1 == MAX_ROUNDS;
            let bad = with.canary.moved(before, after) || b.state.slowed() == Some(true);
            // A block that moved the canary or ran slowed down was not measured in one state. The last chance is kept.
            if bad && !(end && mark == 0) {
                b.discarded += (run.samples.len() - mark) as u64;
                run.samples.truncate(mark);
            } else if b.worst.is_none_or(|(x, y)| x.abs_diff(y) < after.abs_diff(before)) {
                b.worst = Some((before, after));
            }
            b.stop = stop(&run.samples);
            if end || (b.stop.met && round + 1 >= MIN_ROUNDS) {
                break;
            }
            close(engine, std::mem::take(&mut b.open))?;
        }
        Ok(b)
    }
}

fn set_path(engine: &mut Engine, path: Path) {
    if let Some(cuda) = engine.cuda() {
        cuda.path = path;
    }
}

fn close(engine: &mut Engine, sequences: Vec<Sequence>) -> Result<(), EngineError> {
    sequences.into_iter().try_for_each(|s| engine.close(s))
}

fn device(engine: &mut Engine) -> Result<&mut crate::engine::cuda::CudaSteps, EngineError> {
    engine.cuda().ok_or(EngineError::HostOnly("a cell of the host"))
}

fn fill_arena(engine: &mut Engine, arena: Arena, value: u8) -> Result<(), EngineError> {
    let buffer = device(engine)?.arenas.arena(arena);
    Ok(buffer.fill(0, buffer.len(), value)?)
}

struct Run {
    series: Series,
    seeded: bool,
    warmup: Vec<u64>,
    samples: Vec<u64>,
    launches: u64,
    poisoned: bool,
}

/// Each row's tokens, and the sequences that are still open.
type Round = (Vec<Vec<u32>>, Vec<Sequence>);

impl Run {
    fn new(series: &Series, seeded: bool) -> Self {
        let (warmup, samples) = (Vec::new(), Vec::new());
        Self { series: *series, seeded, warmup, samples, launches: u64::MAX, poisoned: true }
    }

    fn clear(&mut self) {
        self.warmup.clear();
        self.samples.clear();
        self.launches = u64::MAX;
    }

    /// The token fed at `step` to `row`, which chose `token`.
    fn fed(&self, rule: &FillRule, row: usize, step: usize, token: u32) -> u32 {
        if self.seeded { rule.token((1 << 32) | row as u64, step) } else { token }
    }

    /// Fills, poisons, runs the series once; with `timed` it keeps the replays' times.
    fn round(
        &mut self,
        engine: &mut Engine,
        rows: usize,
        rule: &FillRule,
        timed: bool,
    ) -> Result<Round, QualifyError> {
        let filled = rule.fill(engine, rows)?;
        fill_arena(engine, Arena::Scratch, POISON)?;
        for buffer in outputs(engine) {
            let io = &device(engine)?.arenas.io;
            io.fill(buffer.offset, buffer.bytes, POISON).map_err(EngineError::from)?;
        }
        self.poisoned &= is_poisoned(engine)?;
        let mut tokens: Vec<Vec<u32>> = filled.iter().map(|(_, t)| vec![*t]).collect();
        let sequences: Vec<Sequence> = filled.iter().map(|(s, _)| *s).collect();
        for step in 0..self.series.steps() {
            let inputs: Vec<(Sequence, u32)> = sequences
                .iter()
                .zip(&tokens)
                .enumerate()
                .map(|(row, (s, t))| (*s, self.fed(rule, row, step, t[step])))
                .collect();
            engine.stage_decode(&inputs)?;
            let before = device(engine)?.decode.launched();
            engine.run_staged(None)?;
            let cuda = device(engine)?;
            self.launches = self.launches.min(cuda.decode.launched() - before);
            if timed {
                let nanos = cuda.last_replay().map_err(EngineError::from)?;
                if step < self.series.warmup { self.warmup.push(nanos) } else { self.samples.push(nanos) }
            }
            tokens.iter_mut().zip(engine.chosen()).for_each(|(kept, t)| kept.push(*t));
        }
        Ok((tokens, sequences))
    }
}

/// Looks on the device: every word of the outputs and of the scratch holds the poison.
fn is_poisoned(engine: &mut Engine) -> Result<bool, EngineError> {
    let outputs = outputs(engine);
    let cuda = device(engine)?;
    let pattern = u32::from_le_bytes([POISON; 4]);
    let scratch = &cuda.arenas.scratch;
    let mut others = u64::from(cuda.cuda.count_other(scratch, 0, scratch.len(), pattern)?);
    for b in outputs {
        others += u64::from(cuda.cuda.count_other(&cuda.arenas.io, b.offset, b.bytes, pattern)?);
    }
    Ok(others == 0)
}

/// Whether the first rows, each alone through the one-row plan, choose what they chose in company.
fn rows_alone(
    one: &mut Engine,
    rows: usize,
    rule: &FillRule,
    run: &Run,
    reference: &[Vec<u32>],
) -> Result<bool, QualifyError> {
    for (row, want) in reference.iter().enumerate().take(rows) {
        let sequence = one.open(rule.context)?;
        rule.prefill(one, sequence, &rule.prefix_tokens())?;
        let mut tokens = vec![rule.prefill(one, sequence, &rule.suffix_tokens(row))?];
        for step in 0..run.series.steps() {
            one.decode(&[(sequence, run.fed(rule, row, step, tokens[step]))])?;
            tokens.push(one.chosen()[0]);
        }
        one.close(sequence)?;
        if tokens != *want {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Time of each operation's launches alone in a graph, net of empty nodes; the nodes' cost; the step without overlap.
fn lines(engine: &mut Engine, with: &Instruments<'_>) -> Result<(Vec<ClosureLine>, u64, u64), EngineError> {
    let facts = engine.facts();
    let mut groups: BTreeMap<String, (Vec<usize>, u64)> = BTreeMap::new();
    for (index, launch) in engine.plans.decode.launches.iter().enumerate() {
        let group = groups.entry(launch.op.name()).or_default();
        group.0.push(index);
        let accesses = launch.parts.iter().flat_map(|p| &p.accesses);
        group.1 += accesses.map(|a| a.amount.at(&facts).0).sum::<u64>();
    }
    let cuda = device(engine)?;
    let events = (with.cuda.device.event()?, with.cuda.device.event()?);
    let mut timed = |wanted: &dyn Fn(usize) -> bool| -> Result<(u64, u64), CudaError> {
        let mut graph = cuda.decode.capture(wanted, false)?;
        let mut samples = Vec::with_capacity(LINE_SAMPLES);
        for sample in 0..=LINE_SAMPLES {
            events.0.record()?;
            graph.replay()?;
            events.1.record()?;
            let nanos = events.1.since(&events.0)?;
            if sample > 0 {
                samples.push(nanos);
            }
        }
        Ok((median(&mut samples), graph.nodes()))
    };
    let (mut out, mut gaps) = (Vec::new(), 0);
    for (name, (launches, bytes)) in groups {
        let (nanos, nodes) = timed(&|index| launches.binary_search(&index).is_ok())?;
        gaps += nodes * with.node;
        let (count, ns) = (launches.len() as u64, nanos.saturating_sub(nodes * with.node));
        out.push(ClosureLine { name, count, ns, bytes });
    }
    let (serial, _) = timed(&|_| true)?;
    Ok((out, gaps, serial))
}
