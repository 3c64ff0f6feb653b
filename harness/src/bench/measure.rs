//! Runs one case: fill, check against f64, then time it with buffers that rotate.
use super::case::{Case, PhaseOf};
use super::fill::inputs;
use super::reference::{check, tolerance};
use super::sample::{Buffers, Check};
use crate::instruments::curve::Probe;
use crate::instruments::machine::Machine;
use crate::instruments::series::{median, stop};
use kernels::buffer::{Arena, BufId};
use kernels::host::simd::Simd;
use kernels::host::{HostDevice, RunError};
use kernels::launch::Op;
use kernels::memory::Memory;
use kernels::numeric::NumericClass;
use kernels::sys::region::Region;
use ledger::roofline::Mix;
use ledger::{Bytes, Direction, StepFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why a case was not measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// Its buffers do not fit.
    #[error("buffers need {need} bytes, {available} are available")]
    Memory {
        /// Bytes of one copy and of what the check keeps.
        need: u64,
        /// Bytes that can be taken.
        available: u64,
    },
    /// The system refused memory.
    #[error("allocating {need} bytes: {source}")]
    Allocate {
        /// Bytes.
        need: u64,
        /// Cause.
        source: std::io::Error,
    },
    /// No encoder makes an input of the case.
    #[error("no encoder makes a buffer of {0}")]
    Input(String),
    /// The kernel.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The device.
    #[error(transparent)]
    Cuda(#[from] kernels::cuda::CudaError),
}

/// Where a case's bytes were while it was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Every call met other bytes than the calls before it, twice the last cache in all.
    Cold,
    /// Every call met the bytes of the call before it.
    Resident,
}

/// What a bench found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// Model the case comes from.
    pub model: String,
    /// Operation.
    pub op: String,
    /// Shape.
    pub shape: String,
    /// Weight format, or `none`.
    pub format: &'static str,
    /// Numeric class.
    pub class: NumericClass,
    /// Phase.
    pub phase: PhaseOf,
    /// Rows.
    pub batch: usize,
    /// Bytes of one call, by its account.
    pub bytes: u64,
    /// Launches of one call.
    pub launches: u64,
    /// Times of one call, in ns, in order.
    pub series_ns: Vec<u64>,
    /// Their median, in ns.
    pub median_ns: u64,
    /// Bytes a second.
    pub rate: f64,
    /// Ceiling at the working set and mix, in bytes a second.
    pub ceiling: f64,
    /// Rate over ceiling.
    pub fraction: f64,
    /// Copies that rotated.
    pub copies: usize,
    /// Where the bytes were.
    pub state: State,
    /// Largest error against f64 (see [`Check`]).
    pub error: f64,
    /// What a right kernel stays within.
    pub tolerance: f64,
    /// Outputs compared.
    pub checked: usize,
    /// Problems that did not stop the bench.
    pub warnings: Vec<String>,
}

impl Row {
    /// Whether the kernel is right.
    pub fn right(&self) -> bool {
        self.checked > 0 && self.error <= self.tolerance
    }
}

const WARMUP: usize = 3;
const SAMPLES: usize = 40;
const MAX_COPIES: u64 = 24;
/// A sample lasts at least this long, by calling several times.
const SAMPLE: Duration = Duration::from_micros(20);
/// After this long a series ends at its fewest samples.
const LONGEST: Duration = Duration::from_secs(2);

/// A case in memory, checked.
pub struct Bench<'a> {
    case: &'a Case,
    device: HostDevice,
    memory: Memory,
    /// Facts of the step, with the tokens and experts that really occur.
    pub facts: StepFacts,
}

impl<'a> Bench<'a> {
    /// Allocates and fills the case.
    pub fn new(case: &'a Case, threads: usize, simd: Simd, seed: u64) -> Result<Self, BenchError> {
        let (need, available) = (case.buffer_bytes(), Machine::read().available);
        // The buffers that the launch updates are kept a second time for the check.
        let kept: u64 = updated(case).iter().map(|b| case.plan.buffer(*b).bytes).sum();
        if need + kept > available / 10 * 9 {
            return Err(BenchError::Memory { need: need + kept, available });
        }
        let mut memory = allocate(case)?;
        inputs(case, seed, &mut memory).ok_or_else(|| BenchError::Input(case.op.clone()))?;
        let mut device = HostDevice::new(threads, simd, case.plan.thread_scratch);
        let last = case.plan.launches.len() - 1;
        for (index, launch) in case.plan.launches[..last].iter().enumerate() {
            device.launch(&case.plan, &memory, case.step, index, launch)?;
        }
        let facts = facts(case, &memory);
        Ok(Self { case, device, memory, facts })
    }

    /// Runs the launch once and compares it with f64.
    pub fn check(&mut self) -> Result<Check, BenchError> {
        self.check_with(|_, _| ())
    }

    /// As [`Self::check`], with `after` between the kernel and the comparison: a wrong kernel, for tests.
    pub fn check_with(&mut self, after: impl FnOnce(&Case, &mut Memory)) -> Result<Check, BenchError> {
        let plan = &self.case.plan;
        let bytes = |b: &BufId| (*b, self.memory.values::<u8>(plan.buffer(*b)).to_vec());
        let before: BTreeMap<BufId, Vec<u8>> = updated(self.case).iter().map(bytes).collect();
        call(&mut self.device, self.case, &self.memory)?;
        after(self.case, &mut self.memory);
        Ok(check(self.case, &Buffers { plan, memory: &self.memory, before: &before }))
    }

    /// Checks and times the case.
    pub fn run(mut self, probe: &Probe, machine: &Machine) -> Result<Row, BenchError> {
        let found = self.check()?;
        let (mix, spans) = traffic(self.case, &self.facts);
        let (copies, state) = rotation(spans, self.case.buffer_bytes(), machine);
        let mut memories = vec![self.memory];
        while memories.len() < copies {
            let mut copy = allocate(self.case)?;
            for arena in Arena::ALL {
                copy.arena_mut(arena).copy_from_slice(memories[0].arena(arena));
            }
            memories.push(copy);
        }
        let series_ns = series(&mut self.device, self.case, &memories)?;
        let case = self.case;
        let median_ns = median(&mut series_ns.clone()).max(1);
        let bytes = (mix.read + mix.write).0;
        let working_set = Bytes(spans * copies as u64);
        let ceiling = probe.curve.ceiling_for(working_set, mix).rate.0;
        let rate = bytes as f64 / (median_ns as f64 / 1e9);
        let tolerance = tolerance(&case.launch().op);
        let mut warnings = Vec::new();
        let end = stop(&series_ns);
        if !end.met {
            warnings.push(end.reason);
        }
        if rate > ceiling * ledger::roofline::TOLERANCE {
            warnings.push(
                "rate above the probed ceiling: a set below the probed sizes, or a disturbed probe".into(),
            );
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
            launches: u64::from(case.launch().nodes),
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
}

/// Reads and writes of one call, and the bytes it spans.
pub(super) fn traffic(case: &Case, facts: &StepFacts) -> (Mix, u64) {
    let mut by_buffer: BTreeMap<BufId, [u64; 2]> = BTreeMap::new();
    for access in case.launch().parts.iter().flat_map(|p| &p.accesses) {
        let at = usize::from(access.direction == Direction::Write);
        by_buffer.entry(access.buf).or_default()[at] += access.amount.at(facts).0;
    }
    let sum = |i: usize| Bytes(by_buffer.values().map(|b| b[i]).sum());
    let spans = by_buffer.values().map(|[r, w]| *r.max(w)).sum();
    (Mix { read: sum(0), write: sum(1), in_place: !updated(case).is_empty() }, spans)
}

fn call(device: &mut HostDevice, case: &Case, memory: &Memory) -> Result<(), RunError> {
    device.launch(&case.plan, memory, case.step, case.plan.launches.len() - 1, case.launch())
}

/// Copies that together are twice the last cache, where a bounded number of them is; else one.
fn rotation(spans: u64, buffers: u64, machine: &Machine) -> (usize, State) {
    let twice = 2 * machine.last_cache.unwrap_or(32 << 20);
    let copies = twice.div_ceil(spans.max(1)).max(1);
    let fits = copies.saturating_mul(buffers) < Machine::read().available / 2;
    if copies == 1 || (copies <= MAX_COPIES && fits) {
        return (copies as usize, State::Cold);
    }
    (1, State::Resident)
}

fn series(device: &mut HostDevice, case: &Case, memories: &[Memory]) -> Result<Vec<u64>, BenchError> {
    let mut next = (0..memories.len()).cycle();
    let mut once = |device: &mut HostDevice| call(device, case, &memories[next.next().unwrap_or(0)]);
    let mut longest = Duration::ZERO;
    for _ in 0..WARMUP.max(memories.len()) {
        let begin = Instant::now();
        once(device)?;
        longest = begin.elapsed();
    }
    let calls = (SAMPLE.as_nanos() / longest.as_nanos().max(1)).clamp(1, 64) as u64;
    let (begin, mut out) = (Instant::now(), Vec::with_capacity(SAMPLES));
    while out.len() < SAMPLES {
        let start = Instant::now();
        for _ in 0..calls {
            once(device)?;
        }
        out.push((start.elapsed().as_nanos() as u64 / calls).max(1));
        let enough = out.len() >= crate::instruments::series::MIN_SAMPLES;
        if enough && (begin.elapsed() > LONGEST || stop(&out).met) {
            break;
        }
    }
    Ok(out)
}

pub(super) fn allocate(case: &Case) -> Result<Memory, BenchError> {
    let region = |need: u64| Region::zeroed(need).map_err(|source| BenchError::Allocate { need, source });
    let [w, c, s, i] = case.plan.arena_bytes;
    Ok(Memory::new([region(w)?, region(c)?, region(s)?, region(i)?]))
}

/// Buffers that the launch both reads and writes.
pub(super) fn updated(case: &Case) -> BTreeSet<BufId> {
    let accesses = || case.launch().parts.iter().flat_map(|p| &p.accesses);
    let of = |d: Direction| accesses().filter(move |a| a.direction == d).map(|a| a.buf);
    let read: BTreeSet<BufId> = of(Direction::Read).collect();
    of(Direction::Write).filter(|b| read.contains(b)).collect()
}

/// What the step processes, with the tokens and experts that are really in memory.
pub(super) fn facts(case: &Case, memory: &Memory) -> StepFacts {
    let mut facts = StepFacts {
        rows: case.step.rows as u64,
        out_rows: case.step.out_rows as u64,
        lengths: vec![case.context as u64; case.step.seqs],
        ..StepFacts::default()
    };
    let u32s = |buf: BufId| memory.values::<u32>(case.plan.buffer(buf));
    if let Op::Embed(o) = &case.launch().op {
        facts.distinct_tokens = u32s(o.tokens).iter().collect::<BTreeSet<_>>().len() as u64;
        facts.next_tokens = facts.distinct_tokens;
    }
    let groups = match &case.launch().op {
        Op::ExpertUp(o) => Some(o.groups),
        Op::ExpertDown(o) => Some(o.groups),
        _ => None,
    };
    if let Some(g) = groups {
        let active = u32s(g.offsets).windows(2).filter(|w| w[1] > w[0]).count();
        facts.experts = vec![0.0; usize::from(g.moe_layer) + 1];
        facts.experts[usize::from(g.moe_layer)] = active as f64;
    }
    facts
}
