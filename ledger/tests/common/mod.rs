//! A small model's ledger lines, made from shapes, shared by the tests of reports.
#![allow(dead_code, clippy::unwrap_used)]
use ledger::account::{Account, Amount, Direction, TrafficClass};
use ledger::*;
use std::collections::BTreeMap;

/// Routed experts of a layer, and how many a row is sent to.
pub const EXPERTS: (u64, u64) = (64, 4);
/// Hidden width.
const HIDDEN: u64 = 1024;

fn line(launch: usize, kind: &str, name: &str, op: &str, layer: Option<u16>) -> Line {
    let (kind, name, op) = (kind.into(), name.into(), op.into());
    Line { launch, op, name, kind, layer, account: Account::default(), reads_from: vec![] }
}

/// A line that reads activations of `input` and writes `output` values a row, with `weights`.
fn linear(
    launch: usize,
    kind: &str,
    name: &str,
    layer: Option<u16>,
    weights: Amount,
    widths: (u64, u64),
) -> Line {
    let mut line = line(launch, kind, name, "linear/bf16xbf16", layer);
    line.account.add(TrafficClass::Weight, Direction::Read, weights);
    let values = |n| Amount::per(Feature::Rows, 2 * n);
    line.account.add(TrafficClass::Activation, Direction::Read, values(widths.0));
    line.account.add(TrafficClass::Activation, Direction::Write, values(widths.1));
    if launch > 0 {
        let (class, producer, amount) = (TrafficClass::Activation, launch - 1, values(widths.0));
        line.reads_from.push(ReadFrom { class, producer, amount });
    }
    line
}

/// Lines of a model of `layers` layers, each an attention or a delta layer followed by experts.
pub fn lines(layers: u16) -> Vec<Line> {
    let square = |n: u64| Amount::fixed(2 * HIDDEN * n);
    let mut all = Vec::new();
    let mut embed = line(0, "embed", "embed.rows", "gather/bf16", None);
    embed.account.add(
        TrafficClass::Weight,
        Direction::Read,
        Amount::per(Feature::DistinctTokens, 2 * HIDDEN),
    );
    embed.account.add(TrafficClass::Activation, Direction::Write, Amount::per(Feature::Rows, 2 * HIDDEN));
    all.push(embed);
    for layer in 0..layers {
        let at = all.len();
        let some = Some(layer);
        if layer % 4 == 3 {
            all.push(linear(at, "attention", "attn.qkv", some, square(3 * HIDDEN), (HIDDEN, 3 * HIDDEN)));
            let mut split = line(at + 1, "attention", "attn.split", "attention/bf16", some);
            split.account.add(TrafficClass::Kv, Direction::Read, Amount::per(Feature::KvTokens, 1024));
            split.account.add(TrafficClass::Kv, Direction::Write, Amount::per(Feature::Rows, 1024));
            split.account.add(TrafficClass::Scratch, Direction::Write, Amount::per(Feature::KvPages, 520));
            all.push(split);
        } else {
            all.push(linear(at, "delta", "delta.in", some, square(2 * HIDDEN), (HIDDEN, 2 * HIDDEN)));
            let mut state = line(at + 1, "delta", "delta.state", "delta/f32", some);
            for direction in [Direction::Read, Direction::Write] {
                state.account.add(TrafficClass::State, direction, Amount::per(Feature::Sequences, 1 << 19));
            }
            all.push(state);
        }
        let expert = Amount::per(Feature::Experts(layer), 3 * 2 * HIDDEN * 256);
        all.push(linear(at + 2, "moe", "moe.experts", some, expert, (HIDDEN, HIDDEN)));
    }
    all.push(linear(all.len(), "head", "head.logits", None, square(32_000), (HIDDEN, 32_000)));
    all
}

/// The ledger of [`lines`] at `batch` rows of 1,000 cached tokens.
pub fn ledger(layers: u16, batch: u64) -> StepLedger {
    let lines = lines(layers);
    let experts = expected_distinct_experts(EXPERTS.0, EXPERTS.1, batch);
    let facts = StepFacts::decode(batch, 1000, usize::from(layers), experts);
    StepLedger::evaluate(&lines, lines.len(), &facts, Bytes(24_000_000))
}

/// A report with everything: four batches, a probe, measurements and a closure.
pub fn report(layers: u16, batches: &[u64]) -> Report {
    let ledgers: BTreeMap<u64, StepLedger> = batches.iter().map(|b| (*b, ledger(layers, *b))).collect();
    let device = DeviceProfile::named("gb10").unwrap();
    let mut report = Report::new("tiny <moe> & co", "bf16", device, Bytes(1_234_567_890), ledgers);
    let summary = report.summary();
    report.measured =
        summary.iter().filter_map(|s| Some((s.batch, Nanos(s.floor?.0 * 5 / 4 + 20_000)))).collect();
    if let (Some(first), Some(step)) = (report.ledgers.values().next(), report.measured.values().next()) {
        let lines = first.groups().into_iter().map(|g| ClosureLine {
            time: Nanos(g.dram.total().0 / 250 + 2_000),
            bytes: g.dram.total(),
            count: g.launches,
            name: g.key.name,
            kind: g.key.kind,
        });
        report.closure = Some(Closure::new(lines.collect(), Nanos(30_000), Nanos(12_000), *step).unwrap());
    }
    report
}
