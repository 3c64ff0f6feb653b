//! `doctor`: what this machine has, and by name each predicate that fails.
use super::host::{self, Driver, MemoryFacts};
use super::state::{self, StateDir};
use super::{Exit, print, print_json};
use anyhow::Result;
use clap::Args;
use kernels::cuda::CudaError;
use kernels::cuda::driver::devices;
use kernels::cuda::nvrtc::Nvrtc;
use ledger::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

/// Port that `serve` listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = 8080;
/// Memory the built-in model is run and qualified in.
const LEAST_MEMORY: u64 = 1 << 30;
/// Disk that packs and receipts of the built-in model need, with room to spare.
const LEAST_DISK: u64 = 256 << 20;

/// Prints what this machine has and names each predicate that fails.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// A condition and whether it holds here.
#[derive(Debug, Serialize)]
struct Predicate {
    name: &'static str,
    /// Whether nothing runs without it.
    required: bool,
    holds: bool,
    found: String,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    cpu: Option<String>,
    simd: &'static str,
    threads: usize,
    switches: BTreeMap<String, String>,
    last_cache: Option<u64>,
    memory: Option<MemoryFacts>,
    state: String,
    disk_free: Option<u64>,
    driver: Option<Driver>,
    predicates: Vec<Predicate>,
}

fn diagnose() -> Result<Diagnosis> {
    let state = StateDir::from_env()?;
    let (memory, disk_free, driver) = (host::memory(), host::disk_free(state.path()), host::driver());
    let amount = |bytes: Option<u64>| bytes.map_or("not known".into(), |b| Bytes(b).to_string());
    let available = memory.map(|m| m.available);
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, DEFAULT_PORT));
    let writable = writable(state.path());
    let predicates = vec![
        Predicate {
            name: "memory_available",
            required: true,
            holds: available.is_some_and(|b| b >= LEAST_MEMORY),
            found: format!("{}, at least {} needed", amount(available), Bytes(LEAST_MEMORY)),
        },
        Predicate {
            name: "disk_free",
            required: true,
            holds: disk_free.is_some_and(|b| b >= LEAST_DISK),
            found: format!("{}, at least {} needed", amount(disk_free), Bytes(LEAST_DISK)),
        },
        Predicate {
            name: "state_folder_writable",
            required: true,
            holds: writable.is_ok(),
            found: writable.map_or_else(|e| e.to_string(), |()| "yes".into()),
        },
        Predicate {
            name: "default_port_free",
            required: false,
            holds: port.is_ok(),
            found: port.map_or_else(
                |e| format!("127.0.0.1:{DEFAULT_PORT}: {e}"),
                |_| format!("127.0.0.1:{DEFAULT_PORT}"),
            ),
        },
        Predicate {
            name: "accelerator_driver",
            required: false,
            holds: driver.is_some(),
            found: driver.as_ref().map_or_else(|| "absent".into(), |d| d.version.clone()),
        },
        outcome("cuda_device", devices().map(|n| format!("{n} devices")), devices().is_ok_and(|n| n > 0)),
        outcome("cuda_compiler", Nvrtc::load().map(|n| n.name()), true),
    ];
    Ok(Diagnosis {
        cpu: host::cpu_model(),
        simd: state::simd().name(),
        threads: state::threads(None)?,
        switches: state::switches().1,
        last_cache: host::last_cache(),
        memory,
        state: state.path().display().to_string(),
        disk_free,
        driver,
        predicates,
    })
}

/// What `--device cuda` needs: held where it was found and `enough`, else what is missing.
fn outcome(name: &'static str, found: Result<String, CudaError>, enough: bool) -> Predicate {
    let holds = found.is_ok() && enough;
    Predicate { name, required: false, holds, found: found.unwrap_or_else(|e| e.to_string()) }
}

/// Makes the folder and a file in it.
fn writable(state: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(state)?;
    let probe = state.join(format!(".probe.{}", std::process::id()));
    std::fs::write(&probe, b"x")?;
    std::fs::remove_file(&probe)
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<Exit> {
    let d = diagnose()?;
    if args.json {
        print_json(&d)?;
    } else {
        print(&text(&d))?;
    }
    Ok(Exit::holds(d.predicates.iter().all(|p| p.holds || !p.required)))
}

fn text(d: &Diagnosis) -> String {
    let bytes = |b: Option<u64>| b.map_or("not known".into(), |b| Bytes(b).to_string());
    let mut out = String::new();
    let mut row = |name: &str, value: String| out += &format!("{name:<12} {value}\n");
    row("cpu", d.cpu.clone().unwrap_or_else(|| "not known".into()));
    row("simd", d.simd.into());
    row("threads", d.threads.to_string());
    row("last cache", bytes(d.last_cache));
    row(
        "memory",
        format!("{}, available {}", bytes(d.memory.map(|m| m.total)), bytes(d.memory.map(|m| m.available))),
    );
    row("state", format!("{}, free {}", d.state, bytes(d.disk_free)));
    match &d.driver {
        None => row("driver", "absent".into()),
        Some(driver) => {
            row("driver", driver.version.clone());
            for a in &driver.devices {
                row("device", format!("{}, {}", a.name, bytes(a.memory)));
            }
        }
    }
    for (name, state) in &d.switches {
        row("switch", format!("{name}={state}"));
    }
    for p in &d.predicates {
        let word = match (p.holds, p.required) {
            (true, _) => "ok",
            (false, true) => "FAILED",
            (false, false) => "no",
        };
        row(word, format!("{} ({})", p.name, p.found));
    }
    out
}
