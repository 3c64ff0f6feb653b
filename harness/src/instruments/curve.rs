//! Ceilings of this machine as a curve over the working set, probed with the threads that run the steps.
use super::machine::Machine;
use kernels::host::HostDevice;
use kernels::host::probe::{Rates, ceilings, launch_cost};
use ledger::roofline::{CacheLevel, CeilingCurve, CeilingPoint, Residency};
use ledger::{Bytes, BytesPerSecond};
use std::io;
use std::time::Duration;

/// Working sets probed, in bytes: 1 MiB to 8 times a 32 MiB last cache.
pub fn sizes(last_cache: u64) -> Vec<u64> {
    let top = (8 * last_cache).clamp(64 << 20, 512 << 20);
    let mut out = Vec::new();
    let mut size = 1 << 20;
    while size <= top {
        out.push(size);
        if size * 3 / 2 < top && size >= 8 << 20 {
            out.push(size * 3 / 2);
        }
        size *= 2;
    }
    out
}

/// What the probe found.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Raw rates.
    pub rates: Vec<Rates>,
    /// Cost of an empty launch.
    pub launch: Duration,
    /// The curve.
    pub curve: CeilingCurve,
}

/// Probes the machine with `device`'s threads.
pub fn probe(device: &mut HostDevice, machine: &Machine) -> io::Result<Probe> {
    let simd = device.simd();
    let sizes = sizes(machine.last_cache.unwrap_or(32 << 20));
    let rates = ceilings(device.pool(), simd, &sizes, Duration::from_millis(25));
    let launch = launch_cost(device.pool());
    let point = |r: &Rates| CeilingPoint {
        working_set: Bytes(r.working_set),
        read: BytesPerSecond(r.read as f64),
        copy: BytesPerSecond(r.copy as f64),
        modify: BytesPerSecond(r.update as f64),
    };
    let mut caches = Vec::new();
    if let Some(l2) = machine.l2 {
        caches.push(CacheLevel { name: Residency::L2, size: Bytes(l2) });
    }
    if let Some(l3) = machine.last_cache {
        caches.push(CacheLevel { name: Residency::L3, size: Bytes(l3) });
    }
    let curve = CeilingCurve::new(rates.iter().map(point).collect(), caches).map_err(io::Error::other)?;
    Ok(Probe { rates, launch, curve })
}
