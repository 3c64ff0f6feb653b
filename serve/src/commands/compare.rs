//! `sparkpipe compare`: our decode step beside another engine's, interleaved in one sitting on one file.
use super::qualify::class_of;
use super::state::{self, Named, StateDir};
use super::{Exit, print, print_json};
use anyhow::{Context, Result, bail};
use clap::Args;
use harness::compare::{Judged, MIN_PAIRS, Pair, Peer, PeerRun, StepRule, judge, own_series};
use harness::engine::{Engine, EngineSize};
use harness::instruments::machine::Machine;
use harness::instruments::series::median;
use harness::pack::Pack;
use kernels::numeric::NumericClass;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `compare`.
#[derive(Args, Debug)]
pub struct Compare {
    /// A checkpoint file that both engines open.
    pub model: PathBuf,
    /// The other engine.
    #[arg(long)]
    pub peer: String,
    /// What starts it: for `llama_cpp` a Python that has the package llama-cpp-python.
    #[arg(long)]
    pub peer_bin: PathBuf,
    /// Recipe of our pack of the file.
    #[arg(long)]
    pub recipe: Option<String>,
    /// Our numeric class; the recipe's own by default.
    #[arg(long)]
    pub class: Option<String>,
    /// Rows of a step.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 16])]
    pub batch: Vec<usize>,
    /// Pairs of runs for each batch.
    #[arg(long, default_value_t = MIN_PAIRS)]
    pub pairs: usize,
    /// Untimed steps of a run.
    #[arg(long, default_value_t = 8)]
    pub warmup: usize,
    /// Timed steps of a run.
    #[arg(long, default_value_t = 24)]
    pub steps: usize,
    /// Threads of both sides.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Speed every pair of every batch must reach, as a share of the peer's: exit 1 where one does not.
    #[arg(long)]
    pub at_least: Option<f64>,
    /// Longest run of the peer, in seconds.
    #[arg(long, default_value_t = 600)]
    pub time_limit: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Everything of one comparison: what `--json` prints.
#[derive(serde::Serialize)]
struct Report {
    machine: Machine,
    threads: usize,
    simd: &'static str,
    model: String,
    model_bytes: u64,
    pack: String,
    class: &'static str,
    peer: String,
    version: String,
    build: String,
    rows: Vec<Row>,
}

#[derive(serde::Serialize)]
struct Row {
    rule: StepRule,
    /// In the order they ran.
    pairs: Vec<Pair>,
    ours_ns: u64,
    theirs_ns: u64,
    judged: Judged,
    ours_series: Vec<Vec<u64>>,
    theirs_series: Vec<Vec<u64>>,
}

struct Session {
    pack: Pack,
    class: NumericClass,
    threads: usize,
    peer: Peer,
    limit: Duration,
}

/// Runs the command.
pub fn run(args: &Compare) -> Result<Exit> {
    check(args)?;
    let state = StateDir::from_env()?;
    let name = args.model.to_string_lossy();
    if !matches!(state::resolve(&name)?, Named::Checkpoint(_)) {
        bail!("{name}: a checkpoint file that both engines open is needed");
    }
    let pack = state::pack_of(&name, args.recipe.as_deref(), &state)?;
    let session = Session {
        class: class_of(args.class.as_deref(), &pack)?,
        pack,
        threads: state::threads(args.threads)?,
        peer: Peer::known(&args.peer, &args.peer_bin)?,
        limit: Duration::from_secs(args.time_limit),
    };
    let mut about: Option<PeerRun> = None;
    let mut rows = Vec::new();
    for batch in &args.batch {
        let rule = StepRule { batch: *batch, warmup: args.warmup, steps: args.steps };
        let (row, run) = measure(&session, &args.model, rule, args.pairs)?;
        if !args.json {
            if about.is_none() {
                head(&session, &args.model, &run)?;
            }
            line(&row)?;
        }
        about.get_or_insert(run);
        rows.push(row);
    }
    let bar = args.at_least.map(|share| (share * 1e6) as u64);
    let holds = rows.iter().all(|r| bar.is_none_or(|bar| r.judged.low_ppm >= bar));
    if args.json {
        print_json(&report(&session, args, rows, about)?)?;
    } else if let Some(bar) = args.at_least {
        let word = if holds { "holds" } else { "does not hold" };
        print(&format!("at least {bar} of the peer's speed in every pair: {word}\n"))?;
    }
    Ok(Exit::holds(holds))
}

fn check(args: &Compare) -> Result<()> {
    for (name, value, low, high) in [
        ("--pairs", args.pairs, MIN_PAIRS, 100),
        ("--steps", args.steps, 1, 200),
        ("--warmup", args.warmup, 1, 50),
    ] {
        if !(low..=high).contains(&value) {
            bail!("{name} is {value}, the limits are {low} and {high}");
        }
    }
    if let Some(batch) = args.batch.iter().find(|b| !(1..=1024).contains(*b)) {
        bail!("--batch is {batch}, the limits are 1 and 1024");
    }
    if let Some(share) = args.at_least.filter(|s| !(0.0..=1000.0).contains(s)) {
        bail!("--at-least is {share}, the limits are 0 and 1000");
    }
    Ok(())
}

/// Pairs in the order A B, B A, A B, ...
fn measure(s: &Session, model: &Path, rule: StepRule, pairs: usize) -> Result<(Row, PeerRun)> {
    let (mut ours_series, mut theirs_series, mut done) = (Vec::new(), Vec::new(), Vec::new());
    let mut about = None;
    for pair in 0..pairs {
        for ours in [pair % 2 == 0, pair % 2 == 1] {
            if ours {
                ours_series.push(our_run(s, &rule)?);
            } else {
                let run = s.peer.run(model, s.threads, &rule, s.limit)?;
                theirs_series.push(run.series_ns.clone());
                about.get_or_insert(run);
            }
        }
        done.push(Pair { ours_ns: middle(&ours_series[pair]), theirs_ns: middle(&theirs_series[pair]) });
    }
    let over = |side: fn(&Pair) -> u64| median(&mut done.iter().map(side).collect::<Vec<_>>());
    let (ours_ns, theirs_ns) = (over(|p| p.ours_ns), over(|p| p.theirs_ns));
    let judged = judge(&done).context("a run took no time")?;
    let row = Row { rule, pairs: done, ours_ns, theirs_ns, judged, ours_series, theirs_series };
    Ok((row, about.context("the peer ran in every pair")?))
}

fn middle(series: &[u64]) -> u64 {
    median(&mut series.to_vec())
}

/// One run in an engine of its own, as the peer has a process of its own.
fn our_run(s: &Session, rule: &StepRule) -> Result<Vec<u64>> {
    let size = EngineSize { batch: rule.batch, context: rule.context(), threads: s.threads };
    let h = &s.pack.header;
    let weights = s.pack.weights()?;
    let mut engine = Engine::new(&h.model, &h.manifest, s.class, size, weights, state::simd())?;
    Ok(own_series(&mut engine, rule)?)
}

fn report(s: &Session, args: &Compare, rows: Vec<Row>, about: Option<PeerRun>) -> Result<Report> {
    let about = about.context("at least one batch ran")?;
    Ok(Report {
        machine: Machine::read(),
        threads: s.threads,
        simd: state::simd().name(),
        model: args.model.display().to_string(),
        model_bytes: std::fs::metadata(&args.model)?.len(),
        pack: s.pack.id.clone(),
        class: s.class.name(),
        peer: s.peer.name().to_owned(),
        version: about.version,
        build: about.build,
        rows,
    })
}

fn head(s: &Session, model: &Path, about: &PeerRun) -> Result<()> {
    let bytes = std::fs::metadata(model)?.len() as f64 / 1e6;
    let machine = Machine::read();
    print(&format!(
        "{} ({bytes:.1} MB), class {}, {} threads of {}, {}\npeer {} ({}): {}\n{:>6} {:>12} {:>12} {:>10} {:>10} \
         {:>8} {:>8} {:>8}  verdict\n",
        model.display(),
        s.class,
        s.threads,
        machine.cpu,
        state::simd().name(),
        about.engine,
        about.version,
        about.build,
        "batch",
        "ours ms",
        "peer ms",
        "ours tok/s",
        "peer tok/s",
        "speed x",
        "low",
        "high"
    ))
}

fn line(row: &Row) -> Result<()> {
    let rate = |ns: u64| row.rule.batch as f64 * 1e9 / ns as f64;
    let times = |ppm: u64| ppm as f64 / 1e6;
    let j = &row.judged;
    print(&format!(
        "{:>6} {:>12.3} {:>12.3} {:>10.1} {:>10.1} {:>8.3} {:>8.3} {:>8.3}  {}\n",
        row.rule.batch,
        row.ours_ns as f64 / 1e6,
        row.theirs_ns as f64 / 1e6,
        rate(row.ours_ns),
        rate(row.theirs_ns),
        times(j.median_ppm),
        times(j.low_ppm),
        times(j.high_ppm),
        j.outcome
    ))
}
