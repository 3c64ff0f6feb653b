//! `sparkpipe qualify`: measures every asked batch of one model and context and appends a receipt for each.
use super::Exit;
use super::identity::{admission, cannot_run, now, topology};
use super::state::{self, StateDir};
use crate::routes::{DEFAULT_LIMIT_MIB, RouteLog};
use anyhow::{Context, Result, bail};
use clap::Args;
use harness::bench::needs;
use harness::engine::{Engine, EngineSize, Place, Plans};
use harness::instruments::canary::Canary;
use harness::instruments::curve::{Probe, probe};
use harness::instruments::machine::Machine;
use harness::oracle::OracleResult;
use harness::pack::Pack;
use harness::qualify::{Evidence, FillRule, RecordInput, Reference, Series, infeasible, measure, receipt};
use indicatif::{ProgressBar, ProgressStyle};
use kernels::host::HostDevice;
use kernels::host::simd::Simd;
use kernels::numeric::NumericClass;
use receipts::{Entry, Kind, OracleScope, Policy, Receipt, Record, Signer, Store, TupleKey, Verdict};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Arguments of `qualify`.
#[derive(Args, Debug)]
pub struct Qualify {
    /// Built-in model, pack, checkpoint folder or GGUF file.
    #[arg(default_value = harness::builtin::NAME)]
    pub model: String,
    /// Recipe, where the model is packed first.
    #[arg(long)]
    pub recipe: Option<String>,
    /// Numeric class; the recipe's own by default.
    #[arg(long)]
    pub class: Option<String>,
    /// Context bucket in tokens.
    #[arg(long, default_value_t = 2048)]
    pub context: u64,
    /// Batch buckets.
    #[arg(long, alias = "batches", value_delimiter = ',',
          default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])]
    pub batch: Vec<u32>,
    /// Topology file; the built-in single node by default.
    #[arg(long)]
    pub topology: Option<PathBuf>,
    /// Oracle folder for models without built-in answers.
    #[arg(long)]
    pub oracle: Option<PathBuf>,
    /// Threads.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Seed of the fill.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Append the actual expert routes of each cell's last step to this file (JSON lines, at most 256 MiB).
    #[arg(long)]
    pub record_routes: Option<PathBuf>,
    /// Print receipts as JSON lines instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Device: host or cuda.
    #[arg(long, default_value = "host")]
    pub device: String,
    /// Weights made from the seed in device memory, of a known geometry.
    #[arg(long)]
    pub synth: bool,
}

/// Samples of a round: 4 warm-ups, then 12 samples between 12 steps with launch timers.
pub(super) const SERIES: Series = Series { warmup: 4, samples: 12 };

/// Time that a cell of a run has on average: eleven have 198 s, which with the probe and the oracle is under the
/// four minutes that the built-in model is promised in.
const CELL_TIME: Duration = Duration::from_secs(18);
/// Least time of a cell whatever the others took.
const LEAST_CELL_TIME: Duration = Duration::from_secs(4);

/// What is left of a run's time, shared by the square root of the batch: between the same time for each cell, which
/// leaves a large batch few samples, and the same number of samples, which leaves a small one nothing.
struct Budget {
    end: Instant,
    batches: Vec<u32>,
}

impl Budget {
    fn new(now: Instant, tuples: &[TupleKey]) -> Self {
        let cells = u32::try_from(tuples.len()).unwrap_or(u32::MAX);
        Self { end: now + CELL_TIME * cells, batches: tuples.iter().map(|t| t.batch).collect() }
    }

    /// The share of the cell of that batch, which is then done with.
    fn take(&mut self, now: Instant, batch: u32) -> Duration {
        let weight = |b: u32| f64::from(b).sqrt();
        let sum: f64 = self.batches.iter().map(|b| weight(*b)).sum();
        if let Some(at) = self.batches.iter().position(|b| *b == batch) {
            self.batches.swap_remove(at);
        }
        let left = self.end.saturating_duration_since(now);
        left.mul_f64((weight(batch) / sum).min(1.0)).max(LEAST_CELL_TIME)
    }
}

/// The class of a run: asked for, else the recipe's.
pub fn class_of(asked: Option<&str>, pack: &Pack) -> Result<NumericClass> {
    match asked {
        None => Ok(pack.header.recipe.numeric_class),
        Some(name) => NumericClass::from_name(name)
            .with_context(|| format!("--class is '{name}', known: f32, bf16, int8act")),
    }
}

struct Session {
    pack: Pack,
    class: NumericClass,
    machine: Machine,
    threads: usize,
    simd: Simd,
    rule: FillRule,
    probe: Probe,
    oracle: Option<OracleResult>,
    canary: Canary,
    policy: Policy,
    /// Every receipt before this run: where the kernel receipts that a step rests on are looked up.
    earlier: Vec<Record>,
}

/// Runs the command.
pub fn run(args: &Qualify) -> Result<Exit> {
    match args.device.as_str() {
        "host" if args.synth => {
            bail!("--synth needs --device cuda; `sparkpipe synth` writes a file for the host")
        }
        "host" => {}
        "cuda" => return super::qualify_cuda::run(args),
        other => bail!("--device is '{other}', known: host, cuda"),
    }
    let state = StateDir::from_env()?;
    let topology = topology(args.topology.as_ref())?;
    if let Some(refusal) = cannot_run(&topology) {
        bail!("{refusal}");
    }
    let pack = state::pack_of(&args.model, args.recipe.as_deref(), &state)?;
    state::context_fits(&pack, args.context)?;
    let class = class_of(args.class.as_deref(), &pack)?;
    let mut tuples = Vec::new();
    for batch in &args.batch {
        let tuple =
            TupleKey::local(&pack.header.name, &pack.header.recipe.name, class.name(), args.context, *batch);
        tuple.validate()?;
        tuples.push(tuple);
    }
    let mut session = session(args, pack, class)?;
    let identity = admission(&session.pack, &topology, &session.policy, &session.machine, session.threads)?;
    let mut routes = args.record_routes.as_deref().map(|path| routes_log(path, &session.pack)).transpose()?;
    let signer = Signer::open_or_create(&state.keys())?;
    let mut store = Store::open(&state.receipts());
    session.earlier = store.list()?;
    banner(&session, args);
    let mut reference = None;
    let mut all_pass = true;
    let mut done = Vec::new();
    let progress = Progress::new(tuples.len());
    let mut budget = Budget::new(Instant::now(), &tuples);
    for tuple in order(tuples, args.seed) {
        let evidence = Evidence {
            admission: identity.clone(),
            machine: &session.machine,
            threads: session.threads,
            probe: &session.probe,
            oracle: session.oracle.as_ref(),
            kind: if session.pack.header.synthetic { Kind::Synthetic } else { Kind::Measured },
            created: now(),
        };
        let receipt = cell(&session, &evidence, tuple, &mut reference, &mut budget, routes.as_mut())?;
        let receipt = receipt.judged(&session.policy);
        all_pass &= matches!(receipt.verdict, Some(Verdict::Pass));
        let record = store.append(Entry::Step(receipt.clone()), &signer)?;
        if args.json {
            println!("{}", serde_json::to_string(&receipt)?);
        }
        progress.cell(&receipt);
        done.push((receipt, record.short_id().to_owned()));
    }
    drop(progress);
    // Cells run in a shuffled order; the table is read by batch.
    done.sort_by_key(|(receipt, _)| receipt.tuple.batch);
    if !args.json {
        done.iter().for_each(|(receipt, id)| print_row(receipt, id));
    }
    Ok(Exit::holds(all_pass))
}

/// The routes file of a run or a server; a model without routed experts has none.
pub fn routes_log(path: &Path, pack: &Pack) -> Result<RouteLog> {
    if pack.header.model.summary().moe.is_none() {
        bail!("--record-routes: the model has no routed experts");
    }
    Ok(RouteLog::open(path, DEFAULT_LIMIT_MIB << 20)?)
}

/// Cells done, on standard error: as a bar on a terminal, as lines elsewhere.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(cells: usize) -> Self {
        let style = ProgressStyle::with_template("cells {pos}/{len} {elapsed}, about {eta} left: {msg}");
        Self(ProgressBar::new(cells as u64).with_style(style.unwrap_or(ProgressStyle::default_bar())))
    }

    pub(super) fn cell(&self, receipt: &Receipt) {
        let word = receipt.verdict.as_ref().map_or("none", Verdict::word);
        self.0.set_message(format!("B{} {word}", receipt.tuple.batch));
        self.0.inc(1);
        if self.0.is_hidden() {
            let (at, all) = (self.0.position(), self.0.length().unwrap_or(0));
            crate::complain(&format!("cell {at} of {all}: B{} {word}", receipt.tuple.batch));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The cells in the order of a hash over seed and batch: a drift of the machine does not follow the batch.
pub(super) fn order(mut tuples: Vec<TupleKey>, seed: u64) -> Vec<TupleKey> {
    tuples.sort_by_cached_key(|t| harness::pack::hash(format!("{seed} {}", t.batch).as_bytes()));
    tuples
}

/// The oracle that was named, else the answers of the built-in model where it is the one.
pub(super) fn oracle_of(
    args: &Qualify,
    pack: &Pack,
    class: NumericClass,
    place: &Place,
) -> Result<Option<OracleResult>> {
    Ok(match (&args.oracle, harness::builtin::is_builtin(pack)) {
        (Some(dir), _) => Some(harness::oracle::run_for(pack, dir, class, place)?),
        (None, true) => {
            let expected = harness::builtin::expected()?;
            let name = format!("{} expected logits", pack.header.name);
            Some(harness::oracle::run_pack_at(pack, &expected, &name, class, place)?)
        }
        (None, false) => None,
    })
}

/// What a banner says of the oracle: whose weights it ran, and how far off they were.
pub(super) fn oracle_line(o: &OracleResult) -> String {
    let whose = match o.scope {
        OracleScope::Model => "on this model's weights",
        OracleScope::Family => "on other weights of its family",
    };
    format!("oracle {} {whose}: max abs {:.6} (tolerance {})\n", o.name, o.max_abs(), o.tolerance)
}

fn session(args: &Qualify, pack: Pack, class: NumericClass) -> Result<Session> {
    let machine = Machine::read();
    let threads = state::threads(args.threads)?;
    let simd = state::simd();
    let vocab = pack.header.model.summary().vocab;
    let rule = FillRule::new(args.seed, args.context as usize, &SERIES, vocab)?;
    let oracle = oracle_of(args, &pack, class, &Place::Host { threads, simd })?;
    let mut device = HostDevice::new(threads, simd, 0);
    let probe = probe(&mut device, &machine)?;
    let policy = Policy::embedded();
    let limit = policy.device("host").map_or(0, |d| d.canary_ppm);
    let canary = Canary::new(limit);
    let earlier = Vec::new();
    Ok(Session { pack, class, machine, threads, simd, rule, probe, oracle, canary, policy, earlier })
}

fn engine(s: &Session, size: EngineSize, simd: Simd) -> Result<Engine> {
    let h = &s.pack.header;
    Ok(Engine::new(&h.model, &h.manifest, s.class, size, s.pack.weights()?, simd)?)
}

fn cell(
    s: &Session,
    evidence: &Evidence<'_>,
    tuple: TupleKey,
    reference: &mut Option<Reference>,
    budget: &mut Budget,
    routes: Option<&mut RouteLog>,
) -> Result<Receipt> {
    let (batch, context) = (tuple.batch as usize, tuple.context as usize);
    let size = EngineSize { batch, context, threads: s.threads };
    let h = &s.pack.header;
    let plans = Plans::build(&h.model, &h.manifest, s.class, size)?;
    let memory = plans.memory(h.manifest.payload);
    // The two one-row reference engines and their prefix live beside the cell.
    let available = Machine::read().available;
    if memory.total().0 > available {
        return Ok(infeasible(evidence, tuple, memory, available));
    }
    drop(plans);
    let progress = ProgressBar::new(batch as u64).with_message(format!("B{batch} reference"));
    progress.set_style(
        ProgressStyle::with_template("{msg} {pos}/{len} rows {elapsed}")
            .unwrap_or(ProgressStyle::default_bar()),
    );
    if reference.is_none() {
        let one = EngineSize { batch: 1, ..size };
        *reference =
            Some(Reference::new(engine(s, one, s.simd)?, engine(s, one, Simd::SCALAR)?, s.rule, &SERIES));
    }
    let reference = reference.as_mut().context("the reference was made above")?;
    let tokens = reference.tokens(batch, |row| progress.set_position(row as u64))?.to_vec();
    progress.set_message(format!("B{batch} measuring"));
    let mut engine = engine(s, size, s.simd)?;
    let time = budget.take(Instant::now(), batch as u32);
    let result = measure(&mut engine, batch, &s.rule, &SERIES, &tokens, &s.canary, time)?;
    progress.finish_and_clear();
    let facts = engine.facts();
    if let Some(log) = routes {
        log.append(&engine.routes())?;
    }
    let input = RecordInput {
        tuple,
        plans: &engine.plans,
        memory,
        summary: engine.summary(),
        class: s.class,
        size,
        rule: s.rule,
        cell: &result,
        facts,
        scalar_equal: reference.scalar_equal(),
    };
    let mut receipt = receipt(evidence, &input).context("the series is empty")?;
    receipt.rest_on(&s.earlier, &needs(&engine.plans.decode, context));
    Ok(receipt)
}

fn banner(s: &Session, args: &Qualify) {
    if args.json {
        return;
    }
    let h = &s.pack.header;
    println!(
        "model {} ({}), recipe {}, class {}, pack {}",
        h.name,
        h.model.family(),
        h.recipe.name,
        s.class,
        &s.pack.id[..16]
    );
    println!("device host: {}, {} threads, {}", s.machine.cpu, s.threads, s.simd.name());
    for (name, value) in state::switches().1 {
        println!("  {name}={value}");
    }
    let best = |f: fn(&kernels::host::probe::Rates) -> u64| {
        s.probe.rates.iter().map(f).max().unwrap_or(0) as f64 / 1e9
    };
    println!(
        "ceilings: read {:.1}, copy {:.1}, update {:.1} GB/s at best; launch {} ns",
        best(|r| r.read),
        best(|r| r.copy),
        best(|r| r.update),
        s.probe.launch.as_nanos()
    );
    if let Some(o) = &s.oracle {
        print!("{}", oracle_line(o));
    }
    print!("{}", table_head(&s.rule));
}

/// The fill and the heads of the table's columns.
pub(super) fn table_head(rule: &FillRule) -> String {
    format!(
        "fill: prefix {} + suffix {} + {} steps = context {}\n\
         {:>5} {:>10} {:>10} {:>9} {:>7} {:>6} {:>5} {:>8} {:>7}  verdict\n",
        rule.prefix,
        rule.suffix,
        SERIES.steps(),
        rule.context,
        "batch",
        "tok/s",
        "ms/step",
        "MB/step",
        "GB/s",
        "% ceil",
        "where",
        "launches",
        "unexpl%"
    )
}

pub(super) fn print_row(r: &Receipt, id: &str) {
    let verdict = r.verdict.as_ref().map_or_else(|| "none".into(), ToString::to_string);
    let (Some(m), Some(c)) = (&r.measured, &r.closure) else {
        println!("{:>5} {verdict} [{id}]", r.tuple.batch);
        return;
    };
    let unexplained = c.unexplained_ns as f64 / c.step_ns as f64 * 100.0;
    println!(
        "{:>5} {:>10.1} {:>10.3} {:>9.2} {:>7.2} {:>6.1} {:>5} {:>8} {:>7.1}  {verdict} [{id}]",
        r.tuple.batch,
        m.tokens_per_second_milli as f64 / 1e3,
        m.step_ns as f64 / 1e6,
        m.bytes_per_step as f64 / 1e6,
        m.achieved_bytes_per_second as f64 / 1e9,
        m.fraction_ppm as f64 / 1e4,
        format!("{:?}", m.residency),
        m.launches,
        unexplained,
    );
    for warning in &r.warnings {
        println!("      warning: {warning}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_shares_its_time_and_what_a_cell_leaves_goes_to_the_others() {
        let tuples = [1, 4, 1024].map(|b| TupleKey::local("m", "r", "bf16", 2048, b));
        let begin = Instant::now();
        let mut budget = Budget::new(begin, &tuples);
        // 3 x 18 s over the weights 1 + 2 + 32.
        let near = |a: Duration, b: f64| assert!((a.as_secs_f64() - b).abs() < 1e-6, "{a:?} {b}");
        near(budget.take(begin, 4), 4.0);
        near(budget.take(begin + Duration::from_secs(1), 1024), 53.0 * 32.0 / 33.0);
        near(budget.take(begin + Duration::from_secs(14), 1), 40.0);
        near(Budget::new(begin, &tuples).take(begin + Duration::from_secs(90), 1024), 4.0);
    }

    #[test]
    fn cells_are_shuffled_by_the_seed_and_none_is_lost() {
        let tuples = || {
            [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].map(|b| TupleKey::local("m", "r", "bf16", 2048, b))
        };
        let batches = |seed| order(tuples().to_vec(), seed).iter().map(|t| t.batch).collect::<Vec<_>>();
        let (one, two) = (batches(1), batches(2));
        assert_ne!(one, two);
        assert_eq!(one, batches(1));
        let mut sorted = one.clone();
        sorted.sort_unstable();
        assert_ne!(one, sorted);
        assert_eq!(sorted, tuples().map(|t| t.batch));
    }
}
