//! Instruments of a CUDA device: its facts as a machine, its ceilings as a curve, a canary of its own.
use super::curve::Probe;
use super::machine::Machine;
use kernels::cuda::driver::{DeviceBuffer, Event};
use kernels::cuda::graph::LaunchShape;
use kernels::cuda::probe::{CudaProbe, SOURCE, probe, sizes};
use kernels::cuda::{Cuda, CudaError, Function};
use kernels::host::probe::{PointSeries, Rates};
use ledger::roofline::{CacheLevel, CeilingCurve, CeilingPoint, Residency};
use ledger::{Bytes, BytesPerSecond};
use std::sync::Arc;
use std::time::Duration;

/// The device class that a receipt is made on: the key into the policy.
pub fn device_class(cuda: &Cuda) -> String {
    let facts = cuda.device.facts();
    let known = [("H200", "h200"), ("GB10", "gb10"), ("RTX 5090", "rtx5090")];
    let class = known.iter().find(|(text, _)| facts.name.contains(text)).map(|(_, class)| *class);
    class.unwrap_or(facts.target.sm).to_owned()
}

/// Nominal bandwidth in bytes a second, where a datasheet is known.
pub fn datasheet(cuda: &Cuda) -> Option<u64> {
    ledger::DeviceProfile::named(&device_class(cuda))?.nominal.map(|r| r.0 as u64)
}

/// The device as a machine: its own memory and last cache.
pub fn machine(cuda: &Cuda) -> Result<Machine, CudaError> {
    let facts = cuda.device.facts();
    Ok(Machine {
        cpu: facts.name.clone(),
        threads: 1,
        memory: facts.memory,
        available: cuda.device.free()?,
        l2: Some(facts.target.l2),
        last_cache: Some(facts.target.l2),
    })
}

/// Probes the device. The second value holds what the curve does not: grids, the matrix-vector product, both chains.
pub fn probe_device(cuda: &Cuda) -> Result<(Probe, CudaProbe), CudaError> {
    let l2 = cuda.device.target().l2;
    let found = probe(cuda, &sizes(l2, cuda.device.free()?))?;
    let points: Vec<PointSeries> = found.points.iter().map(|(p, _)| p.clone()).collect();
    let rates: Vec<Rates> = points.iter().map(PointSeries::best).collect();
    let point = |r: &Rates| CeilingPoint {
        working_set: Bytes(r.working_set),
        read: BytesPerSecond(r.read as f64),
        copy: BytesPerSecond(r.copy as f64),
        modify: BytesPerSecond(r.update as f64),
    };
    let caches = vec![CacheLevel { name: Residency::L2, size: Bytes(l2) }];
    let curve = CeilingCurve::new(rates.iter().map(point).collect(), caches)
        .map_err(|e| CudaError::Kernel { kernel: "probe".into(), what: e.to_string() })?;
    let launches = found.chain.clone();
    let launch = Duration::from_nanos(launches.iter().copied().min().unwrap_or(1));
    Ok((Probe { rates, points, launch, launches, curve }, found))
}

/// Bytes the canary reads: more than twice the largest last cache there is.
const CANARY_BYTES: u64 = 256 << 20;
const CANARY_PASSES: usize = 9;

/// A fixed matrix-vector product before and after every block. If it moved, the device was not in one state.
pub struct CudaCanary {
    cuda: Arc<Cuda>,
    data: DeviceBuffer,
    kernel: Function,
    events: (Event, Event),
    limit_ppm: u64,
}

impl CudaCanary {
    /// A canary that has moved when its time changed by more than `limit_ppm`.
    pub fn new(cuda: &Arc<Cuda>, limit_ppm: u64) -> Result<Self, CudaError> {
        Ok(Self {
            cuda: Arc::clone(cuda),
            data: DeviceBuffer::zeroed(&cuda.device, CANARY_BYTES + 16, "the canary")?,
            kernel: cuda.function(&SOURCE, "probe_gemv")?,
            events: (cuda.device.event()?, cuda.device.event()?),
            limit_ppm,
        })
    }

    /// Whether the time moved from `before` to `after` beyond the limit.
    pub fn moved(&self, before: u64, after: u64) -> bool {
        receipts::Canary::new(before, after).is_none_or(|c| c.moved_ppm > self.limit_ppm)
    }

    /// Time of the fastest pass in nanoseconds.
    pub fn run(&self) -> Result<u64, CudaError> {
        let grid = [4 * self.cuda.device.target().sms, 1, 1];
        let shape = LaunchShape { grid, block: 256, shared: 0, pdl: false };
        let mut best = u64::MAX;
        for _ in 0..CANARY_PASSES {
            let (data, sink) = (self.data.address(0), self.data.address(CANARY_BYTES));
            self.events.0.record()?;
            self.kernel.launch(&shape, &mut [data, CANARY_BYTES / 16, 1, sink])?;
            self.events.1.record()?;
            best = best.min(self.events.1.since(&self.events.0)?);
        }
        Ok(best)
    }
}
