//! `ledger --measure`: planned bytes beside the bytes that the memory bus counted, for every operation and the step.
//!
//! The command starts itself under the profiler. The child fills the cache, runs one step kernel by kernel and then
//! replays the step's graph, between two marks; the parent joins the counts with the plan's own accounts.
use super::device::{CUDA_CLASS, cuda};
use super::ledger::LedgerArgs;
use super::state::{self, StateDir};
use super::{Exit, print, print_json};
use anyhow::{Context, Result, bail};
use harness::engine::cuda::Path;
use harness::engine::device_weights::device_weights;
use harness::engine::{Engine, EngineSize, Place, Sequence, Weights};
use harness::instruments::ncu::{self, Counted};
use harness::qualify::{FillRule, Series};
use kernels::cuda::bound::Bound;
use ledger::{Bytes, StepLedger, grouped};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path as FilePath;

/// Steps before the counted ones.
const SERIES: Series = Series { warmup: 2, samples: 1 };
/// Replays of the graph that are counted: writes leave the last cache late, so that one replay alone misses some.
const REPLAYS: usize = 8;

/// Planned bytes on the memory bus.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Pair {
    read: u64,
    write: u64,
}

/// What the child tells its parent.
#[derive(Debug, Serialize, Deserialize)]
struct Planned {
    /// Launch of each kernel, in order.
    kernels: Vec<usize>,
    /// Operation and bytes of each launch.
    launches: Vec<(String, Pair)>,
    /// The whole step.
    step: Pair,
    replays: usize,
}

/// Runs the command, as parent or as child.
pub fn run(args: &LedgerArgs) -> Result<Exit> {
    if args.device != "cuda" {
        bail!("--measure needs --device cuda: on the host `qualify` counts every byte that is touched");
    }
    let (batch, context) = (*args.batch.first().unwrap_or(&1), args.context.unwrap_or(2048));
    if let Some(path) = &args.child {
        return child(args, batch as usize, context as usize, path);
    }
    drop(cuda()?);
    let folder = StateDir::from_env()?.path().join(format!("measure.{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let done = measured(args, batch, context, &folder);
    // What the profiler and the child left is of no further use, whatever came of it.
    let _ = std::fs::remove_dir_all(&folder);
    done
}

/// Starts the child under the profiler, with its files in `folder`, and prints what both found.
fn measured(args: &LedgerArgs, batch: u64, context: u64, folder: &FilePath) -> Result<Exit> {
    let (report, planned) = (folder.join("ncu.csv"), folder.join("planned.json"));
    let program = std::env::current_exe()?;
    let model = args.model.clone().context("--measure takes a model")?;
    let mut own = vec!["ledger".to_owned(), model, "--measure".into(), "--device".into(), "cuda".into()];
    own.extend(["--batch".into(), batch.to_string(), "--context".into(), context.to_string()]);
    own.extend(["--seed".into(), args.seed.to_string()]);
    if args.synth {
        own.push("--synth".into());
    }
    own.extend(["--child".into(), planned.display().to_string()]);
    let counted = ncu::run(&report, &program, &own)?;
    let planned: Planned = serde_json::from_slice(&std::fs::read(&planned)?)?;
    let table = join(&planned, &counted)?;
    if args.json {
        print_json(&table)?;
    } else {
        print(&text(&table, batch, context))?;
    }
    Ok(Exit::Done)
}

/// Planned and counted bytes of one operation or of the step.
#[derive(Debug, Serialize)]
struct Row {
    op: String,
    launches: usize,
    planned: Pair,
    counted: Pair,
}

#[derive(Debug, Serialize)]
struct Table {
    ops: Vec<Row>,
    /// Mean of the counted replays.
    step: Row,
    kernels: usize,
}

fn join(planned: &Planned, counted: &[Counted]) -> Result<Table> {
    let (n, replays) = (planned.kernels.len(), planned.replays);
    if counted.len() != n + replays {
        bail!(
            "the profiler counted {} kernels and graphs, {n} + {replays} ran between the marks",
            counted.len()
        );
    }
    let mut ops: BTreeMap<&str, Row> = BTreeMap::new();
    for (op, bytes) in &planned.launches {
        let row = ops.entry(op).or_insert_with(|| Row {
            op: op.clone(),
            launches: 0,
            planned: Pair::default(),
            counted: Pair::default(),
        });
        row.launches += 1;
        row.planned.read += bytes.read;
        row.planned.write += bytes.write;
    }
    for (launch, count) in planned.kernels.iter().zip(counted) {
        if let Some(row) = ops.get_mut(planned.launches[*launch].0.as_str()) {
            row.counted.read += count.read;
            row.counted.write += count.write;
        }
    }
    let graphs = &counted[n..];
    let mean = |of: fn(&Counted) -> u64| graphs.iter().map(of).sum::<u64>() / replays.max(1) as u64;
    let counted = Pair { read: mean(|c| c.read), write: mean(|c| c.write) };
    let step = Row { op: "step".into(), launches: planned.launches.len(), planned: planned.step, counted };
    Ok(Table { ops: ops.into_values().collect(), step, kernels: n })
}

fn text(t: &Table, batch: u64, context: u64) -> String {
    let mut out = format!(
        "B{batch}, context {context}: {} launches, {} kernels; bytes on the memory bus, operations kernel by kernel, \
         the step as the mean of {REPLAYS} graph replays\n{:<28} {:>8} {:>18} {:>18} {:>8} {:>16} {:>16} {:>8}\n",
        t.step.launches,
        t.kernels,
        "op",
        "launches",
        "planned read",
        "counted read",
        "off",
        "planned write",
        "counted write",
        "off"
    );
    let off = |planned: u64, counted: u64| match planned {
        0 => "-".to_owned(),
        p => format!("{:+.2} %", 100.0 * (counted as f64 - p as f64) / p as f64),
    };
    for r in t.ops.iter().chain([&t.step]) {
        out += &format!(
            "{:<28} {:>8} {:>18} {:>18} {:>8} {:>16} {:>16} {:>8}\n",
            r.op,
            r.launches,
            grouped(r.planned.read),
            grouped(r.counted.read),
            off(r.planned.read, r.counted.read),
            grouped(r.planned.write),
            grouped(r.counted.write),
            off(r.planned.write, r.counted.write)
        );
    }
    out
}

fn child(args: &LedgerArgs, batch: usize, context: usize, to: &FilePath) -> Result<Exit> {
    let cuda = cuda()?;
    let state = StateDir::from_env()?;
    let model = args.model.as_deref().context("--measure takes a model")?;
    let pack = match args.synth {
        true => super::qualify_cuda::synthetic(model, args.recipe.as_deref(), args.seed)?,
        false => state::pack_of(model, args.recipe.as_deref(), &state)?,
    };
    let h = &pack.header;
    let class = super::ledger::class_of(args.class.as_deref(), CUDA_CLASS)?;
    let weights = device_weights(&cuda, &pack, class, args.synth.then_some(args.seed))?;
    let size = EngineSize { batch, context, threads: 1 };
    let place = Place::Cuda(cuda.clone());
    let mut engine = place.engine(&h.model, &h.manifest, class, size, Weights::Device(weights))?;
    let rule = FillRule::new(args.seed, context, &SERIES, h.model.summary().vocab)?;
    let filled = rule.fill(&mut engine, batch)?;
    let sequences: Vec<Sequence> = filled.iter().map(|(s, _)| *s).collect();
    let mut at = 0;
    let mut step = |engine: &mut Engine| -> Result<()> {
        let row = |row: usize| rule.token((1 << 32) | row as u64, at);
        let rows: Vec<(Sequence, u32)> = sequences.iter().enumerate().map(|(r, s)| (*s, row(r))).collect();
        engine.decode(&rows)?;
        at += 1;
        Ok(())
    };
    step(&mut engine)?;
    step(&mut engine)?;
    path(&mut engine, Path::Each);
    cuda.device.profile(true)?;
    step(&mut engine)?;
    cuda.device.profile(false)?;
    let mut plan = engine.plans.decode.clone();
    let bound = Bound::of(&mut plan, cuda.device.target())?;
    let ledger = |engine: &Engine| {
        let last_cache = Bytes(cuda.device.target().l2);
        StepLedger::evaluate(&plan.lines(), plan.launches.len(), &engine.facts(), last_cache)
    };
    let each = ledger(&engine);
    let mut launches: Vec<(String, Pair)> =
        plan.launches.iter().map(|l| (l.op.name(), Pair::default())).collect();
    for line in &each.lines {
        launches[line.launch].1.read += line.dram.reads().0;
        launches[line.launch].1.write += line.dram.writes().0;
    }
    path(&mut engine, Path::Graph);
    for _ in 0..REPLAYS {
        sequences.iter().try_for_each(|s| engine.rewind(*s, 1))?;
        let rows: Vec<(Sequence, u32)> =
            sequences.iter().enumerate().map(|(r, s)| (*s, rule.token((1 << 32) | r as u64, 2))).collect();
        engine.stage_decode(&rows)?;
        cuda.device.profile(true)?;
        engine.run_staged(None)?;
        cuda.device.profile(false)?;
    }
    let dram = ledger(&engine).dram();
    let step = Pair { read: dram.reads().0, write: dram.writes().0 };
    let kernels = bound.calls.iter().map(|(launch, _)| *launch).collect();
    let planned = Planned { kernels, launches, step, replays: REPLAYS };
    std::fs::write(to, serde_json::to_vec(&planned)?).with_context(|| to.display().to_string())?;
    Ok(Exit::Done)
}

fn path(engine: &mut Engine, path: Path) {
    if let Some(steps) = engine.cuda() {
        steps.path = path;
    }
}
