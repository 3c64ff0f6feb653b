//! `probe --device cuda`: the ceilings of a CUDA device, with grids and raw series.
use super::{Exit, print, print_json};
use anyhow::Result;
use harness::instruments::cuda::{datasheet, device_class, probe_device};
use harness::instruments::curve::Probe;
use harness::instruments::series::median;
use kernels::cuda::Cuda;
use kernels::cuda::nvml::{DeviceState, Monitor};
use kernels::cuda::probe::{CHAIN, CudaProbe, GRIDS};
use kernels::host::probe::Passes;
use ledger::Bytes;
use ledger::roofline::Mix;
use serde_json::{Value, json};

/// Rates of an H200 below which its fractions mean nothing: something else was slow, not the kernels.
const H200_READ: u64 = 4_450_000_000_000;
const H200_COPY: u64 = 3_900_000_000_000;

/// Runs the command.
pub fn run(as_json: bool) -> Result<Exit> {
    let cuda = super::device::cuda()?;
    let monitor = Monitor::new(&cuda.device.facts().pci);
    let (probe, found) = probe_device(&cuda)?;
    let state = monitor.state();
    let invalid = invalid(&cuda, &probe);
    if as_json {
        print_json(&value(&cuda, &probe, &found, &state, invalid.as_deref()))?;
    } else {
        print(&table(&cuda, &probe, &found, &state, invalid.as_deref()))?;
    }
    Ok(Exit::holds(invalid.is_none()))
}

/// Why fractions of these ceilings are invalid.
fn invalid(cuda: &Cuda, probe: &Probe) -> Option<String> {
    let last = probe.rates.last()?;
    if device_class(cuda) != "h200" {
        return None;
    }
    for (what, have, least) in [("read", last.read, H200_READ), ("copy", last.copy, H200_COPY)] {
        if have < least {
            return Some(format!("{what} {:.0} GB/s is below {:.0}", have as f64 / 1e9, least as f64 / 1e9));
        }
    }
    None
}

fn value(cuda: &Cuda, probe: &Probe, found: &CudaProbe, state: &DeviceState, invalid: Option<&str>) -> Value {
    let passes = |kind: &Passes, grid: (u32, u32)| {
        json!({
            "bytes_per_sample": kind.bytes,
            "blocks_per_sm": grid.0,
            "threads": grid.1,
            "best_bytes_per_second": kind.best(),
            "median_bytes_per_second": kind.median(),
            "series_ns": kind.nanos,
        })
    };
    let points: Vec<Value> = found
        .points
        .iter()
        .map(|(p, grids)| {
            let at = probe.curve.ceiling_for(Bytes(p.working_set), Mix::READ).residency;
            json!({
                "working_set_bytes": p.working_set,
                "residency": at,
                "read": passes(&p.read, grids[0]),
                "copy": passes(&p.copy, grids[1]),
                "update": passes(&p.update, grids[2]),
            })
        })
        .collect();
    let facts = cuda.device.facts();
    json!({
        "device": {
            "class": device_class(cuda), "name": facts.name, "multiprocessors": facts.target.sms,
            "l2_bytes": facts.target.l2, "memory_bytes": facts.memory, "driver": facts.driver,
            "datasheet_bytes_per_second": datasheet(cuda),
        },
        "state": {
            "clock_mhz": state.clock_mhz, "memory_clock_mhz": state.memory_clock_mhz,
            "temperature_celsius": state.temperature, "power_milliwatts": state.power,
            "throttle_bits": state.throttle,
        },
        "grids_tried": GRIDS,
        "points": points,
        "gemv": passes(&found.gemv.passes, (found.gemv.blocks, found.gemv.threads)),
        "launch_chain": {
            "kernels": CHAIN, "node_ns": found.chain, "node_overlapped_ns": found.chain_pdl,
        },
        "invalid": invalid,
    })
}

fn table(
    cuda: &Cuda,
    probe: &Probe,
    found: &CudaProbe,
    state: &DeviceState,
    invalid: Option<&str>,
) -> String {
    let facts = cuda.device.facts();
    let mut out = format!(
        "device {}: {}, {} multiprocessors, L2 {}, memory {}\n",
        device_class(cuda),
        facts.name,
        facts.target.sms,
        Bytes(facts.target.l2),
        Bytes(facts.memory)
    );
    let or = |value: Option<u32>, unit: &str| value.map_or("not known".into(), |v| format!("{v} {unit}"));
    out += &format!(
        "clocks {} and {}, {}, {}, throttle bits {}\n",
        or(state.clock_mhz, "MHz"),
        or(state.memory_clock_mhz, "MHz"),
        or(state.temperature, "degrees"),
        or(state.power, "mW"),
        state.throttle.map_or("not known".into(), |b| format!("{b:#x}"))
    );
    out +=
        &format!("GB/s, copy and update count reads and writes; blocks x threads of {} grids\n", GRIDS.len());
    out +=
        &format!("{:>12} {:>5}  {:^24}  {:^24}  {:^24}\n", "working set", "where", "read", "copy", "update");
    for (p, grids) in &found.points {
        let at = probe.curve.ceiling_for(Bytes(p.working_set), Mix::READ).residency;
        out += &format!("{:>12} {:>5}", Bytes(p.working_set).to_string(), at.to_string());
        for (kind, grid) in [&p.read, &p.copy, &p.update].into_iter().zip(grids) {
            let (best, middle) = (kind.best() as f64 / 1e9, kind.median() as f64 / 1e9);
            out += &format!("  {best:>8.1} {middle:>8.1} {:>6}", format!("{}x{}", grid.0, grid.1));
        }
        out += "\n";
    }
    let gemv = &found.gemv;
    out += &format!(
        "matrix-vector: best {:.1}, median {:.1} GB/s with {}x{}\n",
        gemv.passes.best() as f64 / 1e9,
        gemv.passes.median() as f64 / 1e9,
        gemv.blocks,
        gemv.threads
    );
    out += &format!(
        "node of a graph of {CHAIN} empty kernels: {} ns, with programmatic launch {} ns\n",
        median(&mut found.chain.clone()),
        median(&mut found.chain_pdl.clone())
    );
    if let (Some(sheet), Some(last)) = (datasheet(cuda), probe.rates.last()) {
        let part = 100.0 * last.read as f64 / sheet as f64;
        out += &format!("datasheet {:.0} GB/s, read {part:.1} % of it\n", sheet as f64 / 1e9);
    }
    if let Some(why) = invalid {
        out += &format!("INVALID: {why}; fractions of these ceilings mean nothing\n");
    }
    out
}
