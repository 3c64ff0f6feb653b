//! A cell measured for real, and what a run that leaves something out turns into.
mod common;

use common::{BUILTIN, engine, pack, simd};
use harness::engine::{EngineSize, Plans};
use harness::instruments::canary::Canary;
use harness::instruments::curve::{Probe, probe};
use harness::instruments::machine::Machine;
use harness::pack::Pack;
use harness::qualify::{CellResult, Evidence, FillRule, RecordInput, Reference, Series, measure, receipt};
use kernels::host::HostDevice;
use kernels::host::simd::Simd;
use kernels::numeric::NumericClass;
use ledger::StepFacts;
use receipts::{AdmissionIdentity, ClauseName, Kind, Policy, Receipt, TupleKey, Verdict};
use std::collections::BTreeMap;
use std::time::Duration;

const SERIES: Series = Series { warmup: 2, samples: 12 };
const SIZE: EngineSize = EngineSize { batch: 2, context: 96, threads: 2 };
const CLASS: NumericClass = NumericClass::Bf16;

fn rule(pack: &Pack) -> FillRule {
    FillRule::new(3, SIZE.context, &SERIES, pack.header.model.summary().vocab).unwrap()
}

/// Measures a cell on a plan without the launch at `skip`.
fn cell(pack: &Pack, skip: Option<usize>) -> (CellResult, StepFacts, Option<bool>) {
    let one = EngineSize { batch: 1, ..SIZE };
    let fast = engine(pack, CLASS, one, simd());
    let slow = engine(pack, CLASS, one, Simd::SCALAR);
    let mut reference = Reference::new(fast, slow, rule(pack), &SERIES);
    let tokens = reference.tokens(SIZE.batch, |_| {}).unwrap().to_vec();
    let mut engine = engine(pack, CLASS, SIZE, simd());
    if let Some(index) = skip {
        engine.plans.decode.launches.remove(index);
    }
    let canary = Canary::new(1_000_000_000);
    let time = Duration::from_secs(12);
    let result = measure(&mut engine, SIZE.batch, &rule(pack), &SERIES, &tokens, &canary, time).unwrap();
    (result, engine.facts(), reference.scalar_equal())
}

fn identity() -> AdmissionIdentity {
    let hash = "0".repeat(64);
    AdmissionIdentity {
        executable: hash.clone(),
        cubins: receipts::identity::NONE.into(),
        driver: receipts::identity::NONE.into(),
        device_class: "host".into(),
        device_name: "a test".into(),
        pack: hash.clone(),
        recipe: hash.clone(),
        topology: hash,
        policy: Policy::embedded().hash(),
        switches: BTreeMap::from([("SPARKPIPE_DISABLE_AVX2".into(), "0".into())]),
    }
}

fn judged(pack: &Pack, probe: &Probe, cell: &CellResult, facts: StepFacts, scalar: Option<bool>) -> Receipt {
    let machine = Machine::read();
    let oracle =
        harness::oracle::run_pack(pack, &harness::builtin::expected().unwrap(), "expected", CLASS, 2, simd())
            .unwrap();
    let evidence = Evidence {
        admission: identity(),
        machine: &machine,
        threads: SIZE.threads,
        probe,
        oracle: Some(&oracle),
        kind: Kind::Measured,
        created: "2026-11-30T00:00:00Z".into(),
    };
    let h = &pack.header;
    let plans = Plans::build(&h.model, &h.manifest, CLASS, SIZE).unwrap();
    let input = RecordInput {
        tuple: TupleKey::local("test", "bf16", "bf16", 2048, SIZE.batch as u32),
        plans: &plans,
        memory: plans.memory(h.manifest.payload),
        summary: &h.model.summary(),
        class: CLASS,
        size: SIZE,
        rule: rule(pack),
        cell,
        facts,
        scalar_equal: scalar,
    };
    receipt(&evidence, &input).unwrap().judged(&Policy::embedded())
}

fn clauses(receipt: &Receipt) -> Vec<ClauseName> {
    match receipt.verdict.as_ref().unwrap() {
        Verdict::Fail { clauses } => clauses.iter().map(|c| c.name).collect(),
        _ => Vec::new(),
    }
}

fn ceilings() -> Probe {
    probe(&mut HostDevice::new(SIZE.threads, simd(), 0), &Machine::read()).unwrap()
}

/// Clauses that a busy machine may fail; the others may not.
const TIMING: [ClauseName; 6] = [
    ClauseName::Unexplained,
    ClauseName::Samples,
    ClauseName::StopCondition,
    ClauseName::Canary,
    ClauseName::RateAboveCeiling,
    ClauseName::FractionFloor,
];

#[test]
fn a_real_cell_fails_no_clause_that_noise_cannot_explain_and_needs_its_poison() {
    let (pack, _guard) = pack(BUILTIN);
    let (mut cell, facts, scalar) = cell(&pack, None);
    let h = &pack.header;
    let planned = Plans::build(&h.model, &h.manifest, CLASS, SIZE).unwrap().decode.launches.len() as u64;
    assert_eq!(cell.launches, planned);
    assert!(cell.poisoned);
    assert_eq!(cell.tokens_hash, cell.reference_hash);
    assert_eq!(cell.distinct_rows, SIZE.batch);
    let ceilings = ceilings();
    let receipt = judged(&pack, &ceilings, &cell, facts.clone(), scalar);
    let bad: Vec<_> = clauses(&receipt).into_iter().filter(|c| !TIMING.contains(c)).collect();
    assert!(bad.is_empty(), "{bad:?}: {:?}", receipt.verdict);
    // The same cell with outputs that were not seen to hold the poison.
    cell.poisoned = false;
    let receipt = judged(&pack, &ceilings, &cell, facts, scalar);
    assert!(clauses(&receipt).contains(&ClauseName::TimedTokens), "{:?}", receipt.verdict);
}

#[test]
fn a_run_that_skips_a_launch_fails_by_its_launches() {
    let (pack, _guard) = pack(BUILTIN);
    let h = &pack.header;
    let plan = Plans::build(&h.model, &h.manifest, CLASS, SIZE).unwrap().decode;
    // A whole matrix product in the middle of the step is left out: the step still ends and still chooses tokens.
    let index = plan.launches.iter().rposition(|l| l.op.name().starts_with("linear") && l.layer.is_some());
    let (cell, facts, scalar) = cell(&pack, index);
    assert_eq!(cell.launches + 1, plan.launches.len() as u64);
    let receipt = judged(&pack, &ceilings(), &cell, facts, scalar);
    assert!(clauses(&receipt).contains(&ClauseName::Launches), "{:?}", receipt.verdict);
}
