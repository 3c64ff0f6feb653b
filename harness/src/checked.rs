//! Checked steps: what each launch really read and wrote, byte for byte, against its account.
//!
//! The staged step runs through counting views. For every launch, buffer and direction the distinct bytes must
//! equal the account evaluated at the facts of the step; no byte is handed out for writing twice and weights are
//! read exactly once.
use crate::engine::{Engine, EngineError, Sequence};
use kernels::buffer::BufId;
use kernels::launch::Op;
use kernels::memory::{Memory, Touched};
use kernels::plan::Plan;
use ledger::{Bytes, Direction, StepFacts, Traffic, TrafficClass};
use serde::Serialize;
use std::collections::BTreeMap;

/// A difference between an account and the bytes counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Launch.
    pub launch: usize,
    /// Its operation.
    pub op: String,
    /// Buffer.
    pub buffer: String,
    /// What differs.
    pub what: MismatchKind,
    /// Bytes of the account.
    pub planned: Bytes,
    /// Bytes counted.
    pub counted: Bytes,
}

/// What differs in a [`Mismatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MismatchKind {
    /// Distinct bytes read.
    Read,
    /// Distinct bytes written.
    Write,
    /// Weight bytes handed out more than once.
    WeightReadAgain,
    /// Bytes handed out for writing more than once.
    WrittenAgain,
}

/// Result of a checked step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TouchedReport {
    /// Launches that ran.
    pub launches: usize,
    /// Accounts of all launches at the facts of the step, by class.
    pub planned: Traffic,
    /// Distinct bytes of all launches as counted, by class.
    pub counted: Traffic,
    /// Every difference.
    pub mismatches: Vec<Mismatch>,
}

impl TouchedReport {
    /// Whether every byte is accounted for.
    pub fn exact(&self) -> bool {
        self.launches > 0 && self.mismatches.is_empty() && self.planned == self.counted
    }
}

/// Bytes counted for each (launch, buffer) that was touched at all.
type Counts = BTreeMap<(usize, BufId), Touched>;

/// Runs one decode step of `rows` in checked mode and compares it with its accounts.
pub fn touched_step(engine: &mut Engine, rows: &[(Sequence, u32)]) -> Result<TouchedReport, EngineError> {
    engine.stage_decode(rows)?;
    touched_staged(engine)
}

/// Runs the staged step, decode or prefill, in checked mode.
pub fn touched_staged(engine: &mut Engine) -> Result<TouchedReport, EngineError> {
    let buffers = engine.last_plan().buffers.clone();
    engine.memory.check(&buffers);
    let mut counts = Counts::new();
    let ran = engine.run_each(&mut |_, index, memory| collect(memory, index, &mut counts));
    engine.memory.uncheck();
    ran?;
    Ok(compare(engine.last_plan(), &engine.facts(), &counts))
}

fn collect(memory: &Memory, launch: usize, counts: &mut Counts) {
    for (id, counter) in memory.counters().unwrap_or_default().iter().enumerate() {
        let touched = counter.touched();
        if touched != Touched::default() {
            counts.insert((launch, BufId(id as u32)), touched);
            counter.reset();
        }
    }
}

fn compare(plan: &Plan, facts: &StepFacts, counts: &Counts) -> TouchedReport {
    let mut report = TouchedReport { launches: plan.launches.len(), ..TouchedReport::default() };
    for (index, launch) in plan.launches.iter().enumerate() {
        let mut planned: BTreeMap<BufId, (Bytes, Bytes)> = BTreeMap::new();
        for access in launch.parts.iter().flat_map(|p| &p.accesses) {
            let bytes = access.amount.at(facts);
            report.planned.add(plan.buffer(access.buf).class, access.direction, bytes);
            let entry = planned.entry(access.buf).or_default();
            match access.direction {
                Direction::Read => entry.0 += bytes,
                Direction::Write => entry.1 += bytes,
            }
        }
        let own = (index, BufId(0))..=(index, BufId(u32::MAX));
        let counted: BTreeMap<BufId, Touched> = counts.range(own).map(|((_, b), t)| (*b, *t)).collect();
        let all = planned.keys().chain(counted.keys()).copied().collect::<std::collections::BTreeSet<_>>();
        for buf in all {
            let buffer = plan.buffer(buf);
            let (read, write) = planned.get(&buf).copied().unwrap_or_default();
            let t = counted.get(&buf).copied().unwrap_or_default();
            report.counted.add(buffer.class, Direction::Read, Bytes(t.read));
            report.counted.add(buffer.class, Direction::Write, Bytes(t.write));
            // The embedding gathers: a token that occurs twice has its row read twice.
            let once = buffer.class == TrafficClass::Weight && !matches!(launch.op, Op::Embed(_));
            for (what, planned, counted, applies) in [
                (MismatchKind::Read, read, t.read, true),
                (MismatchKind::Write, write, t.write, true),
                (MismatchKind::WeightReadAgain, read, t.read_total, once && t.read_total != t.read),
                (MismatchKind::WrittenAgain, write, t.write_total, t.write_total != t.write),
            ] {
                if applies && planned.0 != counted {
                    let (op, buffer) = (launch.op.name(), buffer.name.clone());
                    let counted = Bytes(counted);
                    report.mismatches.push(Mismatch { launch: index, op, buffer, what, planned, counted });
                }
            }
        }
    }
    report
}
