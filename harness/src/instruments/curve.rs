//! Ceilings of this machine as a curve over the working set, probed with the threads that run the steps.
use super::machine::Machine;
use kernels::host::HostDevice;
use kernels::host::probe::{PointSeries, Rates, ceilings, launches};
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
    /// Best rates.
    pub rates: Vec<Rates>,
    /// The passes that the rates come from.
    pub points: Vec<PointSeries>,
    /// Cost of a launch without work that every thread takes part in: the fastest sample.
    pub launch: Duration,
    /// The samples it comes from, in nanoseconds a launch.
    pub launches: Vec<u64>,
    /// The curve.
    pub curve: CeilingCurve,
}

/// Time of a probe: each kind over each working set, and the launches.
pub const PROBE_TIME: Duration = Duration::from_millis(25);

/// Probes the machine with `device`'s threads.
pub fn probe(device: &mut HostDevice, machine: &Machine) -> io::Result<Probe> {
    probe_for(device, machine, PROBE_TIME)
}

/// As [`probe`], with `time` for each kind and working set.
pub fn probe_for(device: &mut HostDevice, machine: &Machine, time: Duration) -> io::Result<Probe> {
    let simd = device.simd();
    let sizes = sizes(machine.last_cache.unwrap_or(32 << 20));
    let points = ceilings(device.pool(), simd, &sizes, time);
    let rates: Vec<Rates> = points.iter().map(PointSeries::best).collect();
    let launches = launches(device.pool(), time);
    let launch = Duration::from_nanos(launches.iter().copied().min().unwrap_or(1));
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
    Ok(Probe { rates, points, launch, launches, curve })
}
