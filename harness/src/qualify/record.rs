//! From measurements to a receipt: every field of the schema, nothing judged.
use super::cell::CellResult;
use super::fill::FillRule;
use crate::engine::{EngineSize, MemoryPlan, Plans};
use crate::families::Summary;
use crate::instruments::curve::Probe;
use crate::instruments::machine::Machine;
use crate::oracle::OracleResult;
use kernels::numeric::NumericClass;
use ledger::roofline::{Mix, Residency};
use ledger::{Bytes, StepFacts, StepLedger, TrafficClass};
use receipts::{
    AdmissionIdentity, Canary, CeilingPoint, Ceilings, ClassBytes, Closure, Correctness, CounterKind,
    Counters, DeviceFacts, EvidenceIdentity, Fill, Infeasible, Kind, Limits, Measured, MemoryLine, Oracle,
    Planned, ReadWrite, Receipt, Run, SCHEMA_VERSION, Stop, TupleKey,
};
use std::collections::BTreeMap;

/// What all cells of one run share.
pub struct Evidence<'a> {
    /// Admission identity.
    pub admission: AdmissionIdentity,
    /// Machine facts.
    pub machine: &'a Machine,
    /// Threads of the run.
    pub threads: usize,
    /// Ceilings.
    pub probe: &'a Probe,
    /// Oracle result for the class.
    pub oracle: Option<&'a OracleResult>,
    /// Measured, or synthetic when the weights are.
    pub kind: Kind,
    /// RFC 3339 time.
    pub created: String,
}

/// One cell's own input.
pub struct RecordInput<'a> {
    /// Tuple.
    pub tuple: TupleKey,
    /// Plans.
    pub plans: &'a Plans,
    /// Memory plan.
    pub memory: MemoryPlan,
    /// Summary.
    pub summary: &'a Summary,
    /// Class.
    pub class: NumericClass,
    /// Size.
    pub size: EngineSize,
    /// Fill rule.
    pub rule: FillRule,
    /// Result.
    pub cell: &'a CellResult,
    /// Facts of the measured step, actual experts included.
    pub facts: StepFacts,
    /// Whether row 0 was equal on the scalar kernels.
    pub scalar_equal: Option<bool>,
}

/// The evidence identity of this build.
pub fn evidence() -> EvidenceIdentity {
    EvidenceIdentity {
        sources: env!("SPARKPIPE_SOURCES").into(),
        lockfile: env!("SPARKPIPE_LOCKFILE").into(),
        compiler: env!("SPARKPIPE_RUSTC").into(),
    }
}

fn device(e: &Evidence<'_>) -> DeviceFacts {
    DeviceFacts {
        cpu_model: e.machine.cpu.clone(),
        threads: e.threads as u32,
        memory_bytes: e.machine.memory,
        last_cache_bytes: e.machine.last_cache,
        clock_mhz: None,
        memory_clock_mhz: None,
        temperature_celsius: None,
        power_milliwatts: None,
        throttle_bits: None,
    }
}

fn ceilings(probe: &Probe) -> Ceilings {
    let point = |r: &kernels::host::probe::Rates| CeilingPoint {
        working_set_bytes: r.working_set,
        read_bytes_per_second: r.read,
        copy_bytes_per_second: r.copy,
        update_bytes_per_second: r.update,
    };
    Ceilings {
        points: probe.rates.iter().map(point).collect(),
        launch_ns: probe.launch.as_nanos() as u64,
        datasheet_bytes_per_second: None,
    }
}

fn empty(e: &Evidence<'_>, tuple: TupleKey) -> Receipt {
    Receipt {
        schema_version: SCHEMA_VERSION,
        kind: e.kind,
        tuple,
        admission: e.admission.clone(),
        evidence: evidence(),
        device: device(e),
        ceilings: Some(ceilings(e.probe)),
        planned: None,
        measured: None,
        closure: None,
        correctness: None,
        canary: None,
        counters: None,
        fill: None,
        limits: None,
        infeasible: None,
        rests_on: Vec::new(),
        rests_on_absent: Vec::new(),
        warnings: Vec::new(),
        verdict: None,
        created: e.created.clone(),
    }
}

/// The receipt of a tuple that does not fit: the sum of what it needs against what there is.
pub fn infeasible(e: &Evidence<'_>, tuple: TupleKey, memory: MemoryPlan, available: u64) -> Receipt {
    let parts = [
        ("weights", memory.weights),
        ("kv and state", memory.cache),
        ("scratch", memory.scratch),
        ("inputs and outputs", memory.io),
    ];
    let needs = parts.map(|(name, b)| MemoryLine { name: name.into(), bytes: b.0 }).to_vec();
    let mut receipt = empty(e, tuple);
    receipt.infeasible = Some(Infeasible { needs, available_bytes: available });
    receipt
}

/// The unjudged receipt of a measured cell. `None` when the series is empty.
pub fn receipt(e: &Evidence<'_>, input: &RecordInput<'_>) -> Option<Receipt> {
    let plan = &input.plans.decode;
    let lines = plan.lines();
    let last_cache = Bytes(e.machine.last_cache.unwrap_or(0));
    let ledger = StepLedger::evaluate(&lines, plan.launches.len(), &input.facts, last_cache);
    let (dram, cell) = (ledger.dram(), input.cell);
    let mix = Mix { read: dram.reads(), write: dram.writes(), in_place: true };
    let ceiling = e.probe.curve.ceiling_for(dram.total(), mix);
    let run = Run {
        series_ns: cell.series.clone(),
        warmup_ns: cell.warmup.clone(),
        stop: Stop { met: cell.stop.met, reason: cell.stop.reason.clone() },
        discarded_samples: cell.discarded,
        batch: input.size.batch as u32,
        launches: cell.launches,
        graph_nodes: cell.device.as_ref().map_or(cell.launches, |d| d.nodes),
        bytes_per_step: dram.total().0,
        working_set_bytes: dram.total().0,
        ceiling_bytes_per_second: ceiling.rate.0 as u64,
        residency: match ceiling.residency {
            Residency::L2 => receipts::Residency::L2,
            Residency::L3 => receipts::Residency::L3,
            Residency::Dram => receipts::Residency::Dram,
        },
    };
    let measured = Measured::from_run(run)?;
    let mut receipt = empty(e, input.tuple.clone());
    receipt.planned = Some(Planned {
        // Kernels: on the host one a launch, on a device what the launches were bound to.
        launches: plan.nodes(),
        graph_nodes: plan.nodes(),
        bytes: classes(&ledger),
    });
    let overlap = cell.device.as_ref().map_or(0, |d| d.overlap);
    receipt.closure = Closure::close(measured.step_ns, cell.lines.clone(), cell.gaps, overlap);
    receipt.measured = Some(measured);
    receipt.correctness = Some(correctness(e, input));
    receipt.canary = Canary::new(cell.canary.0, cell.canary.1);
    receipt.counters = Some(counters(cell, &ledger));
    if let Some(device) = &cell.device {
        receipt.device.clock_mhz = device.state.clock_mhz;
        receipt.device.memory_clock_mhz = device.state.memory_clock_mhz;
        receipt.device.temperature_celsius = device.state.temperature;
        receipt.device.power_milliwatts = device.state.power;
        receipt.device.throttle_bits = device.state.throttle;
    }
    receipt.fill = Some(Fill {
        prefix_tokens: input.rule.prefix as u64,
        suffix_tokens: input.rule.suffix as u64,
        distinct_rows: cell.distinct_rows as u32,
        distinct_experts: cell.experts.clone(),
    });
    receipt.limits = Some(Limits {
        batch: input.size.batch as u32,
        context: input.size.context as u64,
        sequence_bytes: input.summary.sequence_price(input.class, input.size.context as u64).0,
        total_bytes: input.memory.total().0,
    });
    if cell.distinct_rows != input.size.batch {
        let (have, want) = (cell.distinct_rows, input.size.batch);
        receipt.warnings.push(format!("void: {have} of {want} rows have logits of their own"));
    }
    Some(receipt)
}

/// Checked mode counts on the host; on a device nothing counts while a step is timed.
fn counters(cell: &CellResult, ledger: &StepLedger) -> Counters {
    let pair = |read: Bytes, write: Bytes| ReadWrite { read_bytes: read.0, write_bytes: write.0 };
    let t = &cell.touched;
    match cell.device {
        None => Counters {
            kind: CounterKind::Touched,
            planned: pair(t.planned.reads(), t.planned.writes()),
            counted: Some(pair(t.counted.reads(), t.counted.writes())),
        },
        Some(_) => Counters {
            kind: CounterKind::None,
            planned: pair(ledger.dram().reads(), ledger.dram().writes()),
            counted: None,
        },
    }
}

fn classes(ledger: &StepLedger) -> BTreeMap<String, ClassBytes> {
    let (touched, dram) = (ledger.touched(), ledger.dram());
    let class = |c: TrafficClass| ClassBytes {
        touched_read_bytes: touched.read[c as usize].0,
        touched_write_bytes: touched.write[c as usize].0,
        dram_read_bytes: dram.read[c as usize].0,
        dram_write_bytes: dram.write[c as usize].0,
    };
    TrafficClass::ALL.into_iter().map(|c| (c.name().to_owned(), class(c))).collect()
}

fn correctness(e: &Evidence<'_>, input: &RecordInput<'_>) -> Correctness {
    let nano = |x: f64| if x.is_finite() { (x * 1e9).min(9e15) as u64 } else { 9_000_000_000_000_000 };
    let oracle = e.oracle.map(|o| Oracle {
        name: o.name.clone(),
        scope: o.scope,
        max_abs_nano: nano(o.max_abs()),
        tolerance_nano: nano(o.tolerance),
        greedy_equal: o.prompts.iter().all(|p| p.greedy_equal),
    });
    let cell = input.cell;
    // A batch whose rows share logits proves nothing, and a scalar path that differs is another result.
    let void = cell.distinct_rows != input.size.batch;
    let reference = match input.scalar_equal {
        Some(true) if !void => cell.reference_hash.clone(),
        Some(true) => format!("void: {} distinct rows", cell.distinct_rows),
        Some(false) => format!("scalar path differs from {}", cell.reference_hash),
        None => String::new(),
    };
    Correctness {
        oracle,
        timed_tokens_hash: cell.tokens_hash.clone(),
        batch_invariant: match &cell.device {
            Some(device) => device.alone,
            None => Some(cell.tokens_hash == cell.reference_hash),
        },
        reference_tokens_hash: reference,
        tokens: cell.tokens,
        poisoned: cell.poisoned,
    }
}
