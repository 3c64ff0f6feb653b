//! `qualify --device cuda`: the cells of one model on one device, over weights that all of them share.
use super::device;
use super::identity::{admission_on, cannot_run, now, topology};
use super::ledger::class_of;
use super::qualify::{Progress, Qualify, SERIES, oracle_line, oracle_of, order, print_row, table_head};
use super::state::{self, Named, StateDir};
use super::{Exit, print};
use anyhow::{Context, Result, bail};
use harness::bench::needs;
use harness::engine::cuda::Path;
use harness::engine::device_weights::device_weights;
use harness::engine::{Engine, EngineSize, Place, Plans, Weights};
use harness::instruments::cuda::{CudaCanary, datasheet, device_class, machine, probe_device};
use harness::instruments::curve::Probe;
use harness::instruments::machine::Machine;
use harness::instruments::series::median;
use harness::oracle::OracleResult;
use harness::pack::Pack;
use harness::qualify::cuda::{Instruments, measure_cuda};
use harness::qualify::{Evidence, FillRule, RecordInput, infeasible, receipt};
use kernels::cuda::Cuda;
use kernels::cuda::driver::DeviceBuffer;
use kernels::cuda::nvml::Monitor;
use kernels::cuda::probe::CudaProbe;
use kernels::numeric::NumericClass;
use receipts::{Entry, Kind, Policy, Receipt, Record, Signer, Store, TupleKey, Verdict};
use std::sync::Arc;

struct Session {
    cuda: Arc<Cuda>,
    pack: Pack,
    class: NumericClass,
    weights: Arc<DeviceBuffer>,
    machine: Machine,
    rule: FillRule,
    probe: Probe,
    found: CudaProbe,
    oracle: Option<OracleResult>,
    canary: CudaCanary,
    monitor: Monitor,
    earlier: Vec<Record>,
}

/// A pack of `model` whose weights are made from `seed`.
pub(super) fn synthetic(model: &str, recipe: Option<&str>, seed: u64) -> Result<Pack> {
    let Named::Known(known) = state::resolve(model)? else {
        bail!("--synth makes the weights of a known geometry, '{model}' is none");
    };
    let d = state::describe(known.name, recipe)?;
    Ok(Pack::synthetic(known.name, &d.model, &d.recipe, seed)?)
}

/// Runs the command.
pub fn run(args: &Qualify) -> Result<Exit> {
    let state = StateDir::from_env()?;
    let topology = topology(args.topology.as_ref())?;
    if let Some(refusal) = cannot_run(&topology) {
        bail!("{refusal}");
    }
    let cuda = device::cuda()?;
    let pack = match args.synth {
        true => synthetic(&args.model, args.recipe.as_deref(), args.seed)?,
        false => state::pack_of(&args.model, args.recipe.as_deref(), &state)?,
    };
    state::context_fits(&pack, args.context)?;
    let class = class_of(args.class.as_deref(), device::CUDA_CLASS)?;
    let mut tuples = Vec::new();
    for batch in &args.batch {
        let h = &pack.header;
        let tuple = TupleKey::local(&h.name, &h.recipe.name, class.name(), args.context, *batch);
        tuple.validate()?;
        tuples.push(tuple);
    }
    let policy = Policy::embedded();
    let mut session = session(args, cuda, pack, class, &policy)?;
    let signer = Signer::open_or_create(&state.keys())?;
    let mut store = Store::open(&state.receipts());
    session.earlier = store.list()?;
    if !args.json {
        banner(&session)?;
    }
    let (mut all_pass, mut done) = (true, Vec::new());
    let progress = Progress::new(tuples.len());
    // One row after the other, through a plan of one row: made once, for every cell.
    let one = EngineSize { batch: 1, context: args.context as usize, threads: 1 };
    let mut single = engine(&session, one)?;
    for tuple in order(tuples, args.seed) {
        let receipt = cell(&session, &topology, &policy, tuple, &mut single)?.judged(&policy);
        all_pass &= matches!(receipt.verdict, Some(Verdict::Pass));
        let record = store.append(Entry::Step(receipt.clone()), &signer)?;
        if args.json {
            println!("{}", serde_json::to_string(&receipt)?);
        }
        progress.cell(&receipt);
        done.push((receipt, record.short_id().to_owned()));
    }
    drop(progress);
    done.sort_by_key(|(receipt, _)| receipt.tuple.batch);
    if !args.json {
        done.iter().for_each(|(receipt, id)| print_row(receipt, id));
    }
    Ok(Exit::holds(all_pass))
}

fn session(
    args: &Qualify,
    cuda: Arc<Cuda>,
    pack: Pack,
    class: NumericClass,
    policy: &Policy,
) -> Result<Session> {
    let vocab = pack.header.model.summary().vocab;
    let rule = FillRule::new(args.seed, args.context as usize, &SERIES, vocab)?;
    let oracle = oracle_of(args, &pack, class, &Place::Cuda(Arc::clone(&cuda)))?;
    let (probe, found) = probe_device(&cuda)?;
    let limit = policy.device(&device_class(&cuda)).map_or(100_000, |d| d.canary_ppm);
    let canary = CudaCanary::new(&cuda, limit)?;
    let weights = device_weights(&cuda, &pack, class, args.synth.then_some(args.seed))?;
    let (machine, monitor) = (machine(&cuda)?, Monitor::new(&cuda.device.facts().pci));
    let earlier = Vec::new();
    Ok(Session { cuda, pack, class, weights, machine, rule, probe, found, oracle, canary, monitor, earlier })
}

fn engine(s: &Session, size: EngineSize) -> Result<Engine> {
    let h = &s.pack.header;
    let place = Place::Cuda(Arc::clone(&s.cuda));
    Ok(place.engine(&h.model, &h.manifest, s.class, size, Weights::Device(Arc::clone(&s.weights)))?)
}

fn cell(
    s: &Session,
    topology: &topologies::Topology,
    policy: &Policy,
    tuple: TupleKey,
    single: &mut Engine,
) -> Result<Receipt> {
    let (batch, context) = (tuple.batch as usize, tuple.context as usize);
    let size = EngineSize { batch, context, threads: 1 };
    let h = &s.pack.header;
    let evidence = Evidence {
        admission: admission_on(&s.cuda, &s.monitor, &s.pack, topology, policy)?,
        machine: &s.machine,
        threads: 1,
        probe: &s.probe,
        oracle: s.oracle.as_ref(),
        kind: if h.synthetic { Kind::Synthetic } else { Kind::Measured },
        created: now(),
    };
    let memory = Plans::build(&h.model, &h.manifest, s.class, size)?.memory(h.manifest.payload);
    // The weights are there already, for every cell.
    let free = s.cuda.device.free()? + s.weights.len();
    let mut receipt = if memory.total().0 > free {
        infeasible(&evidence, tuple, memory, free)
    } else {
        let mut engine = engine(s, size)?;
        let node = median(&mut s.found.chain.clone());
        let seeded = h.synthetic;
        let (cuda, canary, monitor) = (&s.cuda, &s.canary, &s.monitor);
        let with = Instruments { cuda, canary, monitor, node, seeded };
        if let Some(steps) = single.cuda() {
            steps.path = Path::Graph;
        }
        let result = measure_cuda(&mut engine, Some(single), batch, &s.rule, &SERIES, &with)?;
        let input = RecordInput {
            tuple,
            plans: &engine.plans,
            memory,
            summary: engine.summary(),
            class: s.class,
            size,
            rule: s.rule,
            cell: &result,
            facts: engine.facts(),
            // The reference is the path without a graph, run for every row.
            scalar_equal: Some(true),
        };
        let mut receipt = receipt(&evidence, &input).context("the series is empty")?;
        receipt.rest_on(&s.earlier, &needs(&engine.plans.decode, context));
        receipt
    };
    if let Some(ceilings) = &mut receipt.ceilings {
        ceilings.datasheet_bytes_per_second = datasheet(&s.cuda);
    }
    Ok(receipt)
}

fn banner(s: &Session) -> Result<()> {
    let (h, facts) = (&s.pack.header, s.cuda.device.facts());
    let mut out = format!(
        "model {} ({}), recipe {}, class {}, pack {}{}\n",
        h.name,
        h.model.family(),
        h.recipe.name,
        s.class,
        &s.pack.id[..16],
        if h.synthetic { ", made-up weights" } else { "" }
    );
    out += &format!(
        "device {}: {}, {} multiprocessors, {} B, driver CUDA {}.{}\n",
        device_class(&s.cuda),
        facts.name,
        facts.target.sms,
        facts.memory,
        facts.driver / 1000,
        facts.driver % 1000 / 10
    );
    for (name, value) in state::switches().1 {
        out += &format!("  {name}={value}\n");
    }
    let best = |f: fn(&kernels::host::probe::Rates) -> u64| {
        let largest = s.probe.rates.iter().filter(|r| r.working_set >= 8 * facts.target.l2);
        largest.map(f).max().unwrap_or(0) as f64 / 1e9
    };
    out += &format!(
        "ceilings: read {:.1}, copy {:.1}, update {:.1}, matrix-vector {:.1} GB/s; node {} ns, with overlap {} ns\n",
        best(|r| r.read),
        best(|r| r.copy),
        best(|r| r.update),
        s.found.gemv.passes.median() as f64 / 1e9,
        median(&mut s.found.chain.clone()),
        median(&mut s.found.chain_pdl.clone()),
    );
    if let Some(o) = &s.oracle {
        out += &oracle_line(o);
    }
    print(&(out + &table_head(&s.rule)))
}
