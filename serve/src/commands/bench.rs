//! `sparkpipe bench`: runs each kernel of the plans alone and appends a kernel receipt for each.
use super::identity::now;
use super::state::{self, StateDir};
use super::{Exit, print};
use anyhow::{Context, Result, bail};
use clap::Args;
use harness::bench::cuda::CudaBench;
use harness::bench::{self, BenchError, Case, Geometry, Row, State};
use harness::instruments::cuda::{device_class, machine, probe_device};
use harness::instruments::curve::{Probe, probe};
use harness::instruments::machine::Machine;
use harness::instruments::series::median;
use kernels::cuda::{Cuda, CudaError};
use kernels::host::HostDevice;
use kernels::numeric::NumericClass;
use receipts::{Entry, KernelReceipt, Kind, SCHEMA_VERSION, Signer, Store, hash_running_executable};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct Bench {
    /// Operations whose name starts with this (`linear`, `linear/q8xq4_k`, `attend`, ...).
    #[arg(required_unless_present = "all")]
    pub op: Option<String>,
    /// Every operation of the plans.
    #[arg(long, conflicts_with = "op")]
    pub all: bool,
    /// Only shapes that hold this text.
    #[arg(long)]
    pub shape: Option<String>,
    /// Only this weight format.
    #[arg(long)]
    pub format: Option<String>,
    /// Numeric class; all by default.
    #[arg(long)]
    pub class: Option<String>,
    /// Rows of the decode plans.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])]
    pub batch: Vec<usize>,
    /// Tokens in the cache of each sequence.
    #[arg(long, default_value_t = 2048)]
    pub context: usize,
    /// Device.
    #[arg(long, default_value = "host")]
    pub device: String,
    /// Model: a known geometry, the built-in model, a pack or a checkpoint (its geometry, no weights are read).
    #[arg(long)]
    pub model: Option<String>,
    /// Recipe, where the model has no own.
    #[arg(long, requires = "model")]
    pub recipe: Option<String>,
    /// The plans of every known full-size model too.
    #[arg(long)]
    pub full: bool,
    /// Threads.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Seed of weights and inputs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON lines instead of the table.
    #[arg(long)]
    pub json: bool,
}

struct Session {
    machine: Machine,
    threads: usize,
    probe: Probe,
    executable: String,
    device_name: String,
    device_class: String,
    cuda: Option<Arc<Cuda>>,
}

/// Largest batch and context of a plan.
const LIMITS: [(&str, usize); 2] = [("--batch", 1024), ("--context", 1 << 20)];

/// Runs the command.
pub fn run(args: &Bench) -> Result<Exit> {
    let cuda = match args.device.as_str() {
        "host" => None,
        "cuda" => Some(super::device::cuda()?),
        other => bail!("--device is '{other}', known: host, cuda"),
    };
    let batches = args.batch.iter().map(|b| (LIMITS[0], *b));
    for ((name, limit), value) in batches.chain([(LIMITS[1], args.context)]) {
        if value == 0 || value > limit {
            bail!("{name} is {value}, the limit is 1 to {limit}");
        }
    }
    let cases = chosen(args)?;
    if cases.is_empty() {
        bail!("no launch of the plans fits the filters");
    }
    let session = session(args, cuda)?;
    let state = StateDir::from_env()?;
    let signer = Signer::open_or_create(&state.keys())?;
    let mut store = Store::open(&state.receipts());
    if !args.json {
        head(&session)?;
    }
    let (mut right, mut skipped) = (true, 0);
    for case in &cases {
        let made = match &session.cuda {
            None => bench::Bench::new(case, session.threads, state::simd(), args.seed)
                .and_then(|b| b.run(&session.probe, &session.machine)),
            Some(cuda) => {
                let node = median(&mut session.probe.launches.clone());
                CudaBench::new(case, cuda, args.seed).and_then(|b| b.run(&session.probe, node))
            }
        };
        let row = match made {
            Ok(row) => row,
            Err(
                error @ (BenchError::Memory { .. }
                | BenchError::Allocate { .. }
                | BenchError::Cuda(CudaError::Memory { .. })),
            ) => {
                skipped += 1;
                skip(args, case, &error)?;
                continue;
            }
            Err(error) => return Err(error).with_context(|| format!("{} {}", case.op, case.shape)),
        };
        right &= row.right();
        let receipt = receipt(&session, &row).context("the series is empty")?;
        let id = store.append(Entry::Kernel(receipt), &signer)?;
        if args.json {
            print(&format!("{}\n", serde_json::to_string(&row)?))?;
        } else {
            line(&row, id.short_id())?;
        }
    }
    if !args.json {
        print(&format!("{} cases, {skipped} skipped\n", cases.len()))?;
    }
    Ok(Exit::holds(right))
}

/// The geometries asked for.
fn geometries(args: &Bench) -> Result<Vec<Geometry>> {
    let of = |name: &str, recipe: Option<&str>| -> Result<Geometry> {
        let d = state::describe(name, recipe)?;
        let manifest = d.model.manifest_with_draft(&d.recipe)?;
        Ok(Geometry { name: d.name, model: d.model, manifest })
    };
    let mut out = match &args.model {
        Some(name) => vec![of(name, args.recipe.as_deref())?],
        None => bench::builtin_geometries()?,
    };
    if args.full {
        for known in state::known_models() {
            if args.model.as_deref() != Some(known.name) {
                out.push(of(known.name, None)?);
            }
        }
    }
    Ok(out)
}

/// The cases that pass the filters, each once.
fn chosen(args: &Bench) -> Result<Vec<Case>> {
    let classes = match args.class.as_deref() {
        // The device holds kernels of this class alone.
        None if args.device == "cuda" => vec![super::device::CUDA_CLASS],
        None => NumericClass::ALL.to_vec(),
        Some(name) => vec![
            NumericClass::from_name(name)
                .with_context(|| format!("--class is '{name}', known: f32, bf16, int8act"))?,
        ],
    };
    let (mut seen, mut out) = (BTreeSet::new(), Vec::new());
    for geometry in geometries(args)? {
        for class in &classes {
            out.extend(bench::cases(&geometry, *class, &args.batch, args.context, &mut seen)?);
        }
    }
    let fits = |case: &Case| {
        args.op.as_ref().is_none_or(|op| case.op.starts_with(op.as_str()))
            && args.shape.as_ref().is_none_or(|shape| case.shape.contains(shape.as_str()))
            && args.format.as_ref().is_none_or(|format| case.format == format)
    };
    out.retain(fits);
    Ok(out)
}

fn session(args: &Bench, cuda: Option<Arc<Cuda>>) -> Result<Session> {
    let executable = hash_running_executable()?;
    if let Some(cuda) = cuda {
        let (machine, probe) = (machine(&cuda)?, probe_device(&cuda)?.0);
        let (device_name, device_class) = (machine.cpu.clone(), device_class(&cuda));
        let (threads, cuda) = (1, Some(cuda));
        return Ok(Session { machine, threads, probe, executable, device_name, device_class, cuda });
    }
    let machine = Machine::read();
    let threads = state::threads(args.threads)?;
    let simd = state::simd();
    let probe = probe(&mut HostDevice::new(threads, simd, 0), &machine)?;
    let device_name = format!("{}, {threads} threads, {}", machine.cpu, simd.name());
    let device_class = "host".into();
    Ok(Session { machine, threads, probe, executable, device_name, device_class, cuda })
}

fn receipt(s: &Session, row: &Row) -> Option<KernelReceipt> {
    let mut warnings = row.warnings.clone();
    if row.state == State::Resident {
        warnings.push("resident: each call met the bytes of the call before it".into());
    }
    KernelReceipt {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Measured,
        op: row.op.clone(),
        shape: row.shape.clone(),
        format: row.format.into(),
        numeric_class: row.class.name().into(),
        batch: row.batch as u32,
        device_class: s.device_class.clone(),
        device_name: s.device_name.clone(),
        executable: s.executable.clone(),
        evidence: harness::qualify::evidence(),
        series_ns: row.series_ns.clone(),
        median_ns: 0,
        bytes: row.bytes,
        launches: row.launches,
        ceiling_bytes_per_second: row.ceiling as u64,
        fraction_ppm: 0,
        error_nano: if row.error.is_finite() {
            (row.error * 1e9).min(9e15) as u64
        } else {
            9_000_000_000_000_000
        },
        warnings,
        created: now(),
    }
    .derived()
}

fn head(s: &Session) -> Result<()> {
    print(&format!(
        "device {}: {}; launch {} ns\n\
         {:<22} {:<40} {:>6} {:>7} {:>5} {:>12} {:>8} {:>11} {:>8} {:>6} {:>8} {:>9}\n",
        s.device_class,
        s.device_name,
        s.probe.launch.as_nanos(),
        "op",
        "shape",
        "format",
        "phase",
        "batch",
        "bytes",
        "launches",
        "us",
        "GB/s",
        "% ceil",
        "state",
        "error"
    ))
}

fn line(row: &Row, id: &str) -> Result<()> {
    print(&format!(
        "{:<22} {:<40} {:>6} {:>7} {:>5} {:>12} {:>8} {:>11.2} {:>8.2} {:>6.1} {:>8} {:>9.2e} {} [{id}]\n",
        row.op,
        row.shape,
        row.format,
        row.phase.to_string(),
        row.batch,
        row.bytes,
        row.launches,
        row.median_ns as f64 / 1e3,
        row.rate / 1e9,
        row.fraction * 100.0,
        if row.state == State::Cold { "cold" } else { "resident" },
        row.error,
        if row.right() { "right" } else { "WRONG" },
    ))
}

fn skip(args: &Bench, case: &Case, error: &BenchError) -> Result<()> {
    let text = format!("{} {} batch {} of {}: {error}", case.op, case.shape, case.batch, case.model);
    if args.json {
        return print(&format!("{}\n", serde_json::json!({ "skipped": text })));
    }
    print(&format!("skipped {text}\n"))
}
