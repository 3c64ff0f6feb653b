//! One cell: the series, its launch times, its tokens and its bytes.
use super::QualifyError;
use super::cuda::DeviceCell;
use super::fill::{FillRule, Series};
use crate::checked::{TouchedReport, touched_step};
use crate::engine::{Engine, Sequence};
use crate::instruments::canary::Canary;
use crate::instruments::run_queue::{RunQueue, disturbed};
use crate::instruments::series::{StopState, median, stop};
use kernels::buffer::Arena;
use kernels::host::LaunchTime;
use receipts::ClosureLine;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Everything measured of a cell.
#[derive(Clone, Debug)]
pub struct CellResult {
    /// Step times in execution order.
    pub series: Vec<u64>,
    /// Warm-up step times.
    pub warmup: Vec<u64>,
    /// Stop condition.
    pub stop: StopState,
    /// Time by operation, from the steps with launch timers.
    pub lines: Vec<ClosureLine>,
    /// Time between launches.
    pub gaps: u64,
    /// Hash of all rows' tokens.
    pub tokens_hash: String,
    /// Hash of the reference's tokens for the same rows.
    pub reference_hash: String,
    /// Tokens hashed.
    pub tokens: u64,
    /// Rows whose last logits differ from every other row's.
    pub distinct_rows: usize,
    /// Distinct experts by layer at the last step.
    pub experts: Vec<u32>,
    /// Canary before and after: of the kept block that moved it furthest.
    pub canary: (u64, u64),
    /// Steps thrown away: their block moved the canary, or they waited for a processor.
    pub discarded: u64,
    /// Whether the outputs and the scratch were seen to hold the poison before every series.
    pub poisoned: bool,
    /// Planned and counted bytes of one checked step.
    pub touched: TouchedReport,
    /// Kernels that ran in a step.
    pub launches: u64,
    /// What only a cell on a device has.
    pub device: Option<DeviceCell>,
}

/// Rounds that every cell may have; each one starts from a new fill.
const MIN_ROUNDS: usize = 2;
/// Most rounds, however short they are. One sample far out is diluted by a twentieth in five more from 51 samples on;
/// 16 rounds of 12 are 192, whatever the machine threw away of them.
const MAX_ROUNDS: usize = 16;

/// Measures `rows` rows on `engine`. `reference` holds each row's tokens. After `time` no more than
/// two rounds begin: the series then says which condition it did not meet.
pub fn measure(
    engine: &mut Engine,
    rows: usize,
    rule: &FillRule,
    series: &Series,
    reference: &[Vec<u32>],
    canary: &Canary,
    time: Duration,
) -> Result<CellResult, QualifyError> {
    poison(engine, &[Arena::Cache]);
    let mut run = Run::new(engine, rows, series);
    let mut state = StopState { met: false, reason: "no sample yet".into() };
    let mut worst: Option<(u64, u64)> = None;
    let mut tokens_hash = String::new();
    let mut last = Vec::new();
    let begin = Instant::now();
    for round in 0..MAX_ROUNDS {
        let mark = run.kept.mark();
        let before = canary.run(engine.device());
        let (hash, sequences) = run.round(engine, rule)?;
        let after = canary.run(engine.device());
        last = sequences;
        if round > 0 && hash != tokens_hash {
            tokens_hash = format!("{tokens_hash} then {hash}");
            break;
        }
        tokens_hash = hash;
        let end = round + 1 == MAX_ROUNDS || (round + 1 >= MIN_ROUNDS && begin.elapsed() > time);
        // A block that moved the canary was not measured in one state. The last chance is kept, so that the
        // receipt fails by its canary and not for want of samples.
        if canary.moved(before, after) && !(end && worst.is_none()) {
            run.discarded += run.kept.cut(mark);
        } else if worst.is_none_or(|(b, a)| a.abs_diff(b) < after.abs_diff(before)) {
            worst = Some((before, after));
        }
        state = stop(&run.kept.untimed);
        if state.met || end {
            break;
        }
        for (sequence, _) in &last {
            engine.close(*sequence)?;
        }
    }
    let distinct_rows = distinct_logits(engine, rows);
    let experts = engine.facts().experts.iter().map(|e| *e as u32).collect();
    let touched = checked(engine, &last)?;
    for (sequence, _) in last {
        engine.close(sequence)?;
    }
    // The fewest that any step ran: one short step is enough to differ from the plan.
    let launches = run.counted.iter().copied().min().unwrap_or(0);
    let state = run.settle(state);
    let (lines, gaps) = run.close(engine);
    Ok(CellResult {
        series: run.kept.untimed,
        warmup: run.warmup,
        stop: state,
        lines,
        gaps,
        tokens_hash,
        reference_hash: hash_tokens(reference.iter().take(rows).map(Vec::as_slice)),
        tokens: (rows * (series.steps() + 1)) as u64,
        distinct_rows,
        experts,
        canary: worst.unwrap_or((0, 0)),
        discarded: run.discarded,
        poisoned: run.poisoned,
        touched,
        launches,
        device: None,
    })
}

/// One more step in checked mode. The bucket is full, so the last token is taken back first.
fn checked(engine: &mut Engine, rows: &[(Sequence, u32)]) -> Result<TouchedReport, QualifyError> {
    for (sequence, _) in rows {
        engine.rewind(*sequence, 1)?;
    }
    Ok(touched_step(engine, rows)?)
}

/// Samples of one kind of step each: without launch timers, and with them.
struct Samples {
    untimed: Vec<u64>,
    /// For each launch, its time in every timed step.
    launches: Vec<Vec<u64>>,
    gaps: Vec<u64>,
}

/// Samples and timed steps there were when a block began.
struct Mark(usize, usize);

impl Samples {
    fn new(launches: usize) -> Self {
        Self { untimed: Vec::new(), launches: vec![Vec::new(); launches], gaps: Vec::new() }
    }

    fn take_times(&mut self, times: &[LaunchTime]) {
        for (kept, time) in self.launches.iter_mut().zip(times) {
            kept.push(time.nanos);
        }
        // From the end of a launch to the start of the next; nothing is solved for.
        let gap = |w: &[LaunchTime]| w[1].start.saturating_sub(w[0].start + w[0].nanos);
        self.gaps.push(times.windows(2).map(gap).sum());
    }

    fn mark(&self) -> Mark {
        Mark(self.untimed.len(), self.gaps.len())
    }

    /// Drops what came after the mark. Returns how many steps that were.
    fn cut(&mut self, Mark(samples, timed): Mark) -> u64 {
        let dropped = self.untimed.len() - samples + self.gaps.len() - timed;
        self.untimed.truncate(samples);
        self.gaps.truncate(timed);
        self.launches.iter_mut().for_each(|times| times.truncate(timed));
        dropped as u64
    }

    /// Adds all of `other`. Returns how many steps that were.
    fn append(&mut self, mut other: Self) -> u64 {
        let more = other.untimed.len() + other.gaps.len();
        self.untimed.append(&mut other.untimed);
        self.gaps.append(&mut other.gaps);
        for (mine, theirs) in self.launches.iter_mut().zip(&mut other.launches) {
            mine.append(theirs);
        }
        more as u64
    }
}

struct Run {
    rows: usize,
    series: Series,
    warmup: Vec<u64>,
    kept: Samples,
    times: Vec<LaunchTime>,
    /// Launches counted by the device in each step.
    counted: Vec<u64>,
    discarded: u64,
    /// Samples that waited for a processor.
    disturbed: Samples,
    poisoned: bool,
    queue: RunQueue,
}

impl Run {
    fn new(engine: &Engine, rows: usize, series: &Series) -> Self {
        let n = engine.plans.decode.launches.len();
        Self {
            rows,
            series: *series,
            warmup: Vec::new(),
            kept: Samples::new(n),
            times: vec![LaunchTime::default(); n],
            counted: Vec::new(),
            discarded: 0,
            disturbed: Samples::new(n),
            poisoned: true,
            queue: RunQueue::open(),
        }
    }

    /// Fills, poisons, runs the series once. Returns the tokens' hash and each row's last token.
    fn round(
        &mut self,
        engine: &mut Engine,
        rule: &FillRule,
    ) -> Result<(String, Vec<(Sequence, u32)>), QualifyError> {
        let mut rows = rule.fill(engine, self.rows)?;
        poison(engine, &[Arena::Scratch]);
        poison_outputs(engine);
        self.poisoned &= is_poisoned(engine);
        let mut tokens: Vec<Vec<u32>> = rows.iter().map(|(_, t)| vec![*t]).collect();
        for step in 0..self.series.steps() {
            engine.stage_decode(&rows)?;
            // Steps with and without launch timers alternate, so a drift of the machine meets both alike.
            let with_timers = step >= self.series.warmup && (step - self.series.warmup) % 2 == 1;
            let before = engine.device().launched();
            let waited = self.queue.wait();
            let start = Instant::now();
            engine.run_staged(with_timers.then_some(&mut self.times[..]))?;
            let nanos = start.elapsed().as_nanos() as u64;
            self.counted.push(engine.device().launched() - before);
            if step < self.series.warmup {
                self.warmup.push(nanos);
            } else {
                let lost = disturbed(waited, self.queue.wait(), nanos);
                self.discarded += u64::from(lost);
                let samples = if lost { &mut self.disturbed } else { &mut self.kept };
                match with_timers {
                    true => samples.take_times(&self.times),
                    false => samples.untimed.push(nanos),
                }
            }
            for ((row, token), kept) in rows.iter_mut().zip(engine.chosen()).zip(&mut tokens) {
                row.1 = *token;
                kept.push(*token);
            }
        }
        // Fed tokens end one before the last choice, as in the reference.
        let fed = rows.iter().zip(&tokens).map(|((s, _), t)| (*s, t[t.len() - 2])).collect();
        Ok((hash_tokens(tokens.iter().map(Vec::as_slice)), fed))
    }

    /// Where one kind of step has no undisturbed sample, the disturbed ones of both kinds stand in, so that the lines
    /// are closed against steps of their own sort. Such a series has not met its condition.
    fn settle(&mut self, state: StopState) -> StopState {
        if !self.kept.untimed.is_empty() && !self.kept.gaps.is_empty() {
            return state;
        }
        let empty = Samples::new(self.times.len());
        self.discarded -= self.kept.append(std::mem::replace(&mut self.disturbed, empty));
        StopState { met: false, reason: "every sample waited for a processor".into() }
    }

    /// Lines by operation and the gap line.
    fn close(&mut self, engine: &Engine) -> (Vec<ClosureLine>, u64) {
        let mut lines: BTreeMap<String, ClosureLine> = BTreeMap::new();
        let plan = &engine.plans.decode;
        let facts = engine.facts();
        for (launch, times) in plan.launches.iter().zip(&mut self.kept.launches) {
            let name = launch.op.name();
            let line = lines.entry(name.clone()).or_insert(ClosureLine { name, count: 0, ns: 0, bytes: 0 });
            line.count += 1;
            line.ns += median(times);
            let accesses = launch.parts.iter().flat_map(|p| &p.accesses);
            line.bytes += accesses.map(|a| a.amount.at(&facts).0).sum::<u64>();
        }
        (lines.into_values().collect(), median(&mut self.kept.gaps))
    }
}

/// NaN as f32 and BF16, an impossible index as u32.
pub(super) const POISON: u8 = 0xff;

/// Fills arenas with poison.
fn poison(engine: &mut Engine, arenas: &[Arena]) {
    for arena in arenas {
        engine.memory.arena_mut(*arena).fill(POISON);
    }
}

pub(super) fn outputs(engine: &Engine) -> Vec<kernels::buffer::Buffer> {
    let plan = &engine.plans.decode;
    let ids = [plan.io.logits, plan.io.chosen].into_iter().chain(plan.io.expert_counts.iter().copied());
    ids.map(|id| plan.buffer(id).clone()).collect()
}

fn poison_outputs(engine: &mut Engine) {
    for buffer in outputs(engine) {
        engine.memory.values_mut::<u8>(&buffer).fill(POISON);
    }
}

/// Looks: every byte of the outputs and of the scratch holds the poison, so what a series leaves there it wrote.
fn is_poisoned(engine: &Engine) -> bool {
    let all = |bytes: &[u8]| bytes.iter().all(|b| *b == POISON);
    all(engine.memory.arena(Arena::Scratch)) && outputs(engine).iter().all(|b| all(engine.memory.values(b)))
}

/// BLAKE3 over all rows' tokens, row by row.
pub fn hash_tokens<'t>(rows: impl Iterator<Item = &'t [u32]>) -> String {
    let mut hasher = blake3::Hasher::new();
    for row in rows {
        for token in row {
            hasher.update(&token.to_le_bytes());
        }
        hasher.update(b"|");
    }
    hasher.finalize().to_hex().to_string()
}

pub(super) fn distinct_logits(engine: &Engine, rows: usize) -> usize {
    let hash = |row: usize| {
        let mut hasher = blake3::Hasher::new();
        engine.logits(row).iter().for_each(|v| {
            hasher.update(&v.to_le_bytes());
        });
        *hasher.finalize().as_bytes()
    };
    (0..rows).map(hash).collect::<BTreeSet<_>>().len()
}
