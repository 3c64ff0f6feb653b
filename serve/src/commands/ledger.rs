//! `ledger`: what a decode step of a geometry in a recipe must move, without any weights.
//!
//! One idea: the command plans the step as a device would run it and prints the plan's own accounts.
use super::Exit;
use super::host;
use super::state::{self, Described};
use anyhow::{Context, Result, bail};
use clap::Args;
use harness::families::{Model, Summary};
use harness::recipe::Recipe;
use kernels::numeric::NumericClass;
use kernels::plan::Bucket;
use ledger::{
    Bytes, DeviceProfile, Format, PAGE_TOKENS, Report, RouteLimits, Routes, StepFacts, StepLedger, grouped,
    render,
};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Largest batch bucket.
pub const MAX_BATCH: u64 = 1024;
/// Largest context bucket in tokens.
pub const MAX_CONTEXT: u64 = 1 << 20;
/// Context where none is asked for.
const DEFAULT_CONTEXT: u64 = 2048;
/// Longest config.json read.
const MAX_CONFIG: u64 = 16 << 20;

/// Prints the bandwidth ledger of a decode step, from geometry and recipe, without weights.
#[derive(Args, Debug)]
pub struct LedgerArgs {
    /// A known geometry, the built-in model, a pack or a checkpoint.
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    pub model: Option<String>,
    /// Rows of the step; several are separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub batch: Vec<u64>,
    /// Tokens in the cache of each row after the step; 2048, or the model's longest where that is less.
    #[arg(long)]
    pub context: Option<u64>,
    /// Device whose last cache and rate are used: host, h200, gb10, rtx5090 or thor.
    #[arg(long, default_value = "host")]
    pub device: String,
    /// Numeric class (f32, bf16, int8act); the recipe's own where none is given.
    #[arg(long)]
    pub class: Option<String>,
    /// Recipe: a built-in name or a TOML file; the model's own where none is given.
    #[arg(long)]
    pub recipe: Option<String>,
    /// A config.json of a known family, in place of a model.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// table, csv, summary-csv, json, svg, svg-time, svg-closure (of a measured step) or html.
    #[arg(long, default_value = "table")]
    pub format: String,
    /// The same as `--format json`.
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Writes to a file in place of standard output.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// The step with the model's draft head behind it.
    #[arg(long)]
    pub draft: bool,
    /// Counts the step's bytes on the device (`--device cuda`) with Nsight Compute, beside the planned ones.
    #[arg(long)]
    pub measure: bool,
    /// With `--measure`: weights made from the seed in device memory, of a known geometry.
    #[arg(long, requires = "measure")]
    pub synth: bool,
    /// With `--measure`: seed of the fill and of made-up weights.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the child of `--measure` writes what it planned.
    #[arg(long, hide = true)]
    pub child: Option<PathBuf>,
    /// Recorded expert routes that price routed experts in place of the uniform expectation.
    #[arg(long)]
    pub routes: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &LedgerArgs) -> Result<Exit> {
    if args.measure {
        return super::measure::run(args);
    }
    let d = described(args)?;
    let summary = d.model.summary();
    let format: Format = if args.json { Format::Json } else { args.format.parse()? };
    let class = class_of(args.class.as_deref(), d.recipe.numeric_class)?;
    let longest = (summary.max_context as u64).min(MAX_CONTEXT);
    let context = args.context.unwrap_or(DEFAULT_CONTEXT.min(longest));
    in_range("--context", context, longest)?;
    let routes = args.routes.as_deref().map(|path| read_routes(path, &summary)).transpose()?;
    let batches = batches(&args.batch, routes.as_ref())?;
    let device = device(&args.device)?;
    let report = report_of(&d, class, device, &batches, context, routes.as_ref(), args.draft)?;
    let mut text = render(&report, format)?;
    if format == Format::Table {
        let mut head = headline(&report, context);
        if let Some(routes) = &routes {
            head += &beside(
                &report,
                &self::report(&d, class, report.device.clone(), &batches, context, None)?,
                routes,
            );
        }
        text = format!("{head}\n{text}");
    }
    match &args.output {
        Some(path) => std::fs::write(path, text).with_context(|| path.display().to_string())?,
        None => super::print(&text)?,
    }
    Ok(Exit::Done)
}

fn described(args: &LedgerArgs) -> Result<Described> {
    if let Some(path) = &args.config {
        let text = state::read_text(path, MAX_CONFIG)?;
        let config: serde_json::Value =
            serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let model = Model::from_config(&config).with_context(|| path.display().to_string())?;
        let recipe = state::recipe(args.recipe.as_deref().unwrap_or("bf16"))?;
        let folder = path.canonicalize().ok().and_then(|p| p.parent().map(state::checkpoint_name));
        return Ok(Described { name: folder.unwrap_or_else(|| "model".into()), model, recipe });
    }
    state::describe(args.model.as_deref().unwrap_or(harness::builtin::NAME), args.recipe.as_deref())
}

/// The class called `name`, or `own`.
pub fn class_of(name: Option<&str>, own: NumericClass) -> Result<NumericClass> {
    let Some(name) = name else { return Ok(own) };
    let known = NumericClass::ALL.map(NumericClass::name).join(", ");
    NumericClass::from_name(name).with_context(|| format!("--class is '{name}'; known: {known}"))
}

fn in_range(field: &str, value: u64, limit: u64) -> Result<()> {
    if (1..=limit).contains(&value) {
        return Ok(());
    }
    bail!("{field} is {value}, the limit is 1 to {limit}")
}

/// The batches to report: as asked for, else every number of rows that the routes hold, else 1.
fn batches(asked: &[u64], routes: Option<&Routes>) -> Result<Vec<u64>> {
    let mut batches = asked.to_vec();
    if let Some(routes) = routes {
        let have: Vec<u64> = routes.row_counts().into_iter().map(|r| r as u64).collect();
        if let Some(none) = batches.iter().find(|b| !have.contains(b)) {
            bail!("--batch is {none}, but the steps of --routes have {have:?} rows");
        }
        if batches.is_empty() {
            batches = have;
        }
    }
    if batches.is_empty() {
        batches.push(1);
    }
    batches.iter().try_for_each(|b| in_range("--batch", *b, MAX_BATCH))?;
    Ok(batches)
}

fn read_routes(path: &Path, summary: &Summary) -> Result<Routes> {
    let Some(moe) = summary.moe else { bail!("--routes: the model has no routed experts") };
    let experts = u16::try_from(moe.experts).context("--routes: more experts than a routes file can name")?;
    let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    let routes = Routes::read(BufReader::new(file), RouteLimits::new(experts))
        .with_context(|| path.display().to_string())?;
    if routes.layers().len() != moe.layers {
        let have = routes.layers().len();
        bail!(
            "{}: routes of {have} layers, the model has {} with routed experts",
            path.display(),
            moe.layers
        );
    }
    Ok(routes)
}

/// The device called `name`.
pub fn device(name: &str) -> Result<DeviceProfile> {
    if name == "host" {
        return Ok(DeviceProfile::host(Bytes(host::last_cache().unwrap_or(0))));
    }
    let known: Vec<&str> = DeviceProfile::names().collect();
    DeviceProfile::named(name)
        .with_context(|| format!("--device is '{name}'; known: host, {}", known.join(", ")))
}

/// The bucket of a decode step of `batch` rows with `context` tokens each.
pub fn decode_bucket(batch: u64, context: u64) -> Bucket {
    let rows = batch as usize;
    Bucket {
        rows,
        seqs: rows,
        out_rows: rows,
        context: context as usize,
        pages: (batch * context.div_ceil(PAGE_TOKENS)) as usize,
        slots: rows,
        decode: true,
    }
}

/// The step ledger of one batch, at the facts of uniform routing or of `routes`.
fn step(
    model: &Model,
    recipe: &Recipe,
    class: NumericClass,
    facts: &StepFacts,
    bucket: Bucket,
    last_cache: Bytes,
    draft: bool,
) -> Result<StepLedger> {
    let plan = match draft {
        true => model.draft_plan(&model.manifest_with_draft(recipe)?, class, bucket)?,
        false => model.plan(&model.manifest(recipe)?, class, bucket)?,
    };
    Ok(StepLedger::evaluate(&plan.lines(), plan.launches.len(), facts, last_cache))
}

/// The report of `d` at each of `batches`, priced by the steps of `routes` with that many rows.
pub fn report(
    d: &Described,
    class: NumericClass,
    device: DeviceProfile,
    batches: &[u64],
    context: u64,
    routes: Option<&Routes>,
) -> Result<Report> {
    report_of(d, class, device, batches, context, routes, false)
}

/// As [`report`], of a step with the draft head behind it where `draft` is set.
fn report_of(
    d: &Described,
    class: NumericClass,
    device: DeviceProfile,
    batches: &[u64],
    context: u64,
    routes: Option<&Routes>,
    draft: bool,
) -> Result<Report> {
    let summary = d.model.summary();
    let manifest =
        if draft { d.model.manifest_with_draft(&d.recipe)? } else { d.model.manifest(&d.recipe)? };
    let weights = Bytes(manifest.tensor_bytes());
    let mut ledgers = BTreeMap::new();
    for &batch in batches {
        let base = summary.expected_facts(batch, context);
        let recorded = routes.and_then(|r| r.of_rows(batch as usize));
        let facts = recorded.map_or(base.clone(), |r| r.mean_facts(&base));
        let bucket = decode_bucket(batch, context);
        let ledger = step(&d.model, &d.recipe, class, &facts, bucket, device.last_cache, draft)?;
        ledgers.insert(batch, ledger);
    }
    Ok(Report::new(d.name.clone(), d.recipe.name.clone(), device, weights, ledgers))
}

/// The figures that people compare, exact to the byte.
fn headline(report: &Report, context: u64) -> String {
    let mut out = format!("{:<14} {} B\n", "weights", grouped(report.weights.0));
    for s in report.summary() {
        let (label, bytes, gb) = ("active bytes", grouped(s.active.0), s.active.gb());
        out += &format!("{label:<14} {bytes} B ({gb:.4} GB) at B{}, context {context}\n", s.batch);
    }
    out
}

/// What was recorded, and the uniform expectation beside it.
fn beside(report: &Report, uniform: &Report, routes: &Routes) -> String {
    let mut out = String::new();
    for (s, u) in report.summary().iter().zip(uniform.summary()) {
        let Some(steps) = routes.of_rows(s.batch as usize) else { continue };
        let coverage = steps.coverage();
        let mean = |of: fn(&ledger::Coverage) -> f64| {
            coverage.iter().map(of).sum::<f64>() / coverage.len().max(1) as f64
        };
        let (measured, expected) = (mean(|c| c.measured), mean(|c| c.uniform));
        out += &format!(
            "{:<14} B{}: {} steps, {measured:.3} distinct experts a layer; uniform routing expects {expected:.3} \
             and {} B active\n",
            "routes",
            s.batch,
            steps.steps().count(),
            grouped(u.active.0)
        );
    }
    out
}
