//! Ceiling probes of a CUDA device: read, copy, in-place update, a plain matrix-vector product, a chain of launches.
//!
//! Each kind is swept over grids at each working set and keeps its best; every sample is kept. A probe that stands
//! still for one bad grid would make every kernel look good.
use super::call::Source;
use super::driver::{DeviceBuffer, Event};
use super::error::CudaError;
use super::graph::{Graph, LaunchShape};
use super::{Cuda, Function, util};
use crate::host::probe::{Passes, PointSeries};

/// Their source.
pub static SOURCE: Source = Source { name: "probe.cu", text: include_str!("probe.cu") };

/// Blocks a multiprocessor and threads a block that are tried.
pub const GRIDS: [(u32, u32); 10] =
    [(1, 512), (2, 512), (3, 512), (4, 512), (1, 256), (2, 256), (3, 256), (4, 256), (6, 256), (8, 256)];

/// Bytes that a sample moves at least: about half a millisecond of the fastest memory there is.
const SAMPLE_BYTES: u64 = 2 << 30;
const SWEEP_SAMPLES: usize = 3;
const SAMPLES: usize = 10;
/// Kernels of the launch chain.
pub const CHAIN: usize = 500;

/// The best grid of a kind at a working set, and its samples.
#[derive(Clone, Debug)]
pub struct Best {
    /// Blocks a multiprocessor.
    pub blocks: u32,
    /// Threads a block.
    pub threads: u32,
    /// Samples.
    pub passes: Passes,
}

/// Everything probed.
#[derive(Clone, Debug)]
pub struct CudaProbe {
    /// Read, copy and update over each working set, with the grid of each.
    pub points: Vec<(PointSeries, [(u32, u32); 3])>,
    /// The matrix-vector product over the largest set.
    pub gemv: Best,
    /// Nanoseconds a node of a graph of empty kernels, one after the other.
    pub chain: Vec<u64>,
    /// The same with programmatic launch.
    pub chain_pdl: Vec<u64>,
}

/// Working sets: 1 MB to beyond eight times the last cache, and a large one where it fits.
pub fn sizes(l2: u64, free: u64) -> Vec<u64> {
    let mut out = Vec::new();
    let mut size = 1 << 20;
    while size <= (10 * l2).next_power_of_two() {
        out.push(size);
        if size >= 16 << 20 && size < 4 * l2 {
            out.push(size * 3 / 2);
        }
        size *= 2;
    }
    out.push(4 << 30);
    out.retain(|s| *s <= free / 2);
    out
}

struct Rig<'a> {
    cuda: &'a Cuda,
    buffer: DeviceBuffer,
    sink: DeviceBuffer,
    events: (Event, Event),
}

impl Rig<'_> {
    fn sample(&self, f: &Function, grid: (u32, u32), bytes: u64, passes: u32) -> Result<u64, CudaError> {
        let blocks = grid.0 * self.cuda.device.target().sms;
        let shape = LaunchShape { grid: [blocks, 1, 1], block: grid.1, shared: 0, pdl: false };
        let mut args = [self.buffer.address(0), bytes / 16, u64::from(passes), self.sink.address(0)];
        self.events.0.record()?;
        f.launch(&shape, &mut args)?;
        self.events.1.record()?;
        self.events.1.since(&self.events.0)
    }

    /// The best grid for `entry` over `bytes`; a pass moves `moved` bytes.
    fn best(&self, entry: &str, bytes: u64, moved: u64) -> Result<Best, CudaError> {
        let f = self.cuda.function(&SOURCE, entry)?;
        let passes = SAMPLE_BYTES.div_ceil(bytes) as u32;
        let mut best = (u64::MAX, GRIDS[0]);
        for grid in GRIDS {
            for _ in 0..SWEEP_SAMPLES {
                best = best.min((self.sample(&f, grid, bytes, passes)?, grid));
            }
        }
        let nanos = (0..SAMPLES).map(|_| self.sample(&f, best.1, bytes, passes)).collect::<Result<_, _>>()?;
        let passes = Passes { bytes: moved * u64::from(passes), nanos };
        Ok(Best { blocks: best.1.0, threads: best.1.1, passes })
    }
}

/// Probes the device over `sizes`.
///
/// # Errors
/// [`CudaError`] of the driver.
pub fn probe(cuda: &Cuda, sizes: &[u64]) -> Result<CudaProbe, CudaError> {
    let largest = sizes.iter().copied().max().unwrap_or(1 << 20);
    let rig = Rig {
        cuda,
        buffer: DeviceBuffer::zeroed(&cuda.device, largest, "the probe")?,
        sink: DeviceBuffer::zeroed(&cuda.device, 16, "the probe's sink")?,
        events: (cuda.device.event()?, cuda.device.event()?),
    };
    let mut points = Vec::with_capacity(sizes.len());
    for size in sizes {
        let read = rig.best("probe_read", *size, *size)?;
        let copy = rig.best("probe_copy", *size, *size)?;
        let update = rig.best("probe_update", *size, 2 * *size)?;
        let grids = [&read, &copy, &update].map(|b| (b.blocks, b.threads));
        let (read, copy, update) = (read.passes, copy.passes, update.passes);
        points.push((PointSeries { working_set: *size, read, copy, update }, grids));
    }
    let rows = largest / (640 * 16);
    let gemv = rig.best("probe_gemv", largest, rows * 640 * 16)?;
    let (chain, chain_pdl) = (chain(cuda, false)?, chain(cuda, true)?);
    Ok(CudaProbe { points, gemv, chain, chain_pdl })
}

/// Nanoseconds a node of graphs of empty kernels.
fn chain(cuda: &Cuda, pdl: bool) -> Result<Vec<u64>, CudaError> {
    let empty = cuda.function(&util::SOURCE, "empty")?;
    let shape = LaunchShape { grid: [1, 1, 1], block: 32, shared: 0, pdl };
    let mut graph =
        Graph::capture(&cuda.device, || (0..CHAIN).try_for_each(|_| empty.launch(&shape, &mut [])))?;
    let events = (cuda.device.event()?, cuda.device.event()?);
    let mut out = Vec::with_capacity(SAMPLES);
    for i in 0..SAMPLES + SWEEP_SAMPLES {
        events.0.record()?;
        graph.replay()?;
        events.1.record()?;
        let nanos = events.1.since(&events.0)?;
        if i >= SWEEP_SAMPLES {
            out.push(nanos / CHAIN as u64);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_sets_go_beyond_eight_caches_and_never_beyond_what_is_free() {
        let sizes = sizes(50 << 20, 140 << 30);
        assert!(sizes.windows(2).all(|w| w[0] < w[1]), "{sizes:?}");
        assert!(sizes.iter().any(|s| *s >= 400 << 20) && sizes.contains(&(4 << 30)));
        assert!(super::sizes(50 << 20, 1 << 30).iter().all(|s| *s <= 512 << 20));
    }
}
