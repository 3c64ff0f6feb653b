//! `sparkpipe probe`: the ceilings of this machine, with the parameters and raw series they come from.
use super::state;
use super::{Exit, print, print_json};
use anyhow::{Result, bail};
use clap::Args;
use harness::instruments::curve::{PROBE_TIME, Probe, probe_for};
use harness::instruments::machine::Machine;
use harness::instruments::series::median;
use kernels::host::HostDevice;
use kernels::host::probe::{LAUNCHES_PER_SAMPLE, Passes};
use kernels::host::simd::Simd;
use ledger::Bytes;
use ledger::roofline::{Mix, Residency};
use serde_json::{Value, json};
use std::time::Duration;

/// Measures what this machine reads, copies and updates a second, and what a launch costs.
#[derive(Args, Debug)]
pub struct ProbeArgs {
    /// Threads; all that this process may use by default.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Milliseconds for each kind and working set.
    #[arg(long, default_value_t = PROBE_TIME.as_millis() as u64)]
    pub time_ms: u64,
    /// Device: host or cuda.
    #[arg(long, default_value = "host")]
    pub device: String,
    /// Prints JSON with every pass.
    #[arg(long)]
    pub json: bool,
}

/// Longest time for each kind and working set.
const MOST_MS: u64 = 10_000;

struct Probed {
    machine: Machine,
    threads: usize,
    simd: Simd,
    time: Duration,
    probe: Probe,
}

/// Runs the command.
pub fn run(args: &ProbeArgs) -> Result<Exit> {
    match args.device.as_str() {
        "host" => {}
        "cuda" => return super::probe_cuda::run(args.json),
        other => bail!("--device is '{other}', known: host, cuda"),
    }
    if !(1..=MOST_MS).contains(&args.time_ms) {
        bail!("--time-ms is {}, the limit is 1 to {MOST_MS}", args.time_ms);
    }
    let (threads, simd) = (state::threads(args.threads)?, state::simd());
    let (machine, time) = (Machine::read(), Duration::from_millis(args.time_ms));
    let probe = probe_for(&mut HostDevice::new(threads, simd, 0), &machine, time)?;
    let probed = Probed { machine, threads, simd, time, probe };
    if args.json {
        print_json(&value(&probed))?;
    } else {
        print(&table(&probed))?;
    }
    Ok(Exit::Done)
}

fn residency(p: &Probed, working_set: u64) -> Residency {
    p.probe.curve.ceiling_for(Bytes(working_set), Mix::READ).residency
}

fn median_launch(p: &Probed) -> u64 {
    median(&mut p.probe.launches.clone())
}

fn value(p: &Probed) -> Value {
    let passes = |kind: &Passes| {
        json!({
            "bytes_per_pass": kind.bytes,
            "best_bytes_per_second": kind.best(),
            "median_bytes_per_second": kind.median(),
            "series_ns": kind.nanos,
        })
    };
    let points: Vec<Value> = p
        .probe
        .points
        .iter()
        .map(|point| {
            json!({
                "working_set_bytes": point.working_set,
                "residency": residency(p, point.working_set),
                "read": passes(&point.read),
                "copy": passes(&point.copy),
                "update": passes(&point.update),
            })
        })
        .collect();
    json!({
        "device": {"class": "host", "machine": p.machine, "threads": p.threads, "simd": p.simd.name()},
        "switches": state::switches().1,
        "parameters": {
            "time_ms": p.time.as_millis() as u64,
            "launches_per_sample": LAUNCHES_PER_SAMPLE,
        },
        "points": points,
        "launch": {
            "best_ns": p.probe.launch.as_nanos() as u64,
            "median_ns": median_launch(p),
            "series_ns": p.probe.launches,
        },
    })
}

fn table(p: &Probed) -> String {
    let size = |bytes: Option<u64>| bytes.map_or("not known".into(), |b| Bytes(b).to_string());
    let mut out = format!("device host: {}, {} threads, {}\n", p.machine.cpu, p.threads, p.simd.name());
    out += &format!("caches: L2 {}, last {}\n", size(p.machine.l2), size(p.machine.last_cache));
    let ms = p.time.as_millis();
    out += &format!("{ms} ms for each kind and working set; GB/s, copy and update count reads and writes\n");
    let (best, middle) = ("best pass", "median pass");
    out += &format!("{:>12} {:>5}  {best:^23}  {middle:^23}  {:>6}\n", "", "", "");
    out += &format!("{:>12} {:>5}", "working set", "where");
    for _ in 0..2 {
        out += &format!("  {:>7} {:>7} {:>7}", "read", "copy", "update");
    }
    out += &format!("  {:>6}\n", "passes");
    for point in &p.probe.points {
        let kinds = [&point.read, &point.copy, &point.update];
        let at = Bytes(point.working_set).to_string();
        out += &format!("{at:>12} {:>5}", residency(p, point.working_set).to_string());
        for rate in [Passes::best, Passes::median] {
            let [read, copy, update] = kinds.map(|k| rate(k) as f64 / 1e9);
            out += &format!("  {read:>7.2} {copy:>7.2} {update:>7.2}");
        }
        out += &format!("  {:>6}\n", kinds.map(|k| k.nanos.len()).iter().sum::<usize>());
    }
    out += &format!(
        "launch in which all {} threads take part: best {} ns, median {} ns of {} samples of {} launches\n",
        p.threads,
        p.probe.launch.as_nanos(),
        median_launch(p),
        p.probe.launches.len(),
        LAUNCHES_PER_SAMPLE
    );
    out
}
