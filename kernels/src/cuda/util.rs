//! What the engine does beside a plan's kernels: moving ranges of the cache, looking for poison.
use super::call::Source;
use super::driver::DeviceBuffer;
use super::error::CudaError;
use super::graph::LaunchShape;
use super::unit::Unit;
use super::{Cuda, Function};

/// Their source.
pub static SOURCE: Source = Source { name: "util.cu", text: include_str!("util.cu") };

/// Threads a block of these kernels.
const BLOCK: u32 = 256;

impl Cuda {
    /// The entry point `entry` of a source without constants.
    ///
    /// # Errors
    /// [`CudaError`] of the compiler or the driver.
    pub fn function(&self, source: &'static Source, entry: &str) -> Result<Function, CudaError> {
        self.unit_function(&Unit::new(source, Vec::new()), entry)
    }

    /// The entry point `entry` of `unit`, compiled and loaded where it is not yet.
    pub(super) fn unit_function(&self, unit: &Unit, entry: &str) -> Result<Function, CudaError> {
        let mut modules = self.modules.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        modules.load(&self.device, &self.compiler, std::slice::from_ref(unit))?;
        modules.entry(unit, entry, 0)
    }

    /// Copies `(from, to, bytes)` inside `buffer`, all multiples of 16, in stream order of the call and waits.
    ///
    /// # Errors
    /// [`CudaError`] of the driver.
    pub fn copy_ranges(&self, buffer: &DeviceBuffer, moves: &[(u64, u64, u64)]) -> Result<(), CudaError> {
        if moves.is_empty() {
            return Ok(());
        }
        for (from, to, bytes) in moves {
            let end = (*from).max(*to) + bytes;
            assert!(
                end <= buffer.len() && [from, to, bytes].iter().all(|v| **v % 16 == 0),
                "a move of words"
            );
        }
        let words = moves.iter().flat_map(|(from, to, bytes)| [from / 16, to / 16, bytes / 16]);
        let list: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let device = DeviceBuffer::new(&self.device, list.len() as u64, "a list of moves")?;
        device.write(0, &list)?;
        let count = moves.len() as u32;
        let grid = [count.min(16 * self.device.target().sms), 1, 1];
        let shape = LaunchShape { grid, block: BLOCK, shared: 0, pdl: false };
        let mut args = [buffer.address(0), device.address(0), u64::from(count)];
        self.function(&SOURCE, "copy_ranges")?.launch(&shape, &mut args)?;
        // The list is freed when this returns; freeing waits for the stream.
        self.device.sync()
    }

    /// How many of the whole 4-byte words among `bytes` bytes from `at` on are not `pattern`.
    ///
    /// # Errors
    /// [`CudaError`] of the driver.
    pub fn count_other(
        &self,
        buffer: &DeviceBuffer,
        at: u64,
        bytes: u64,
        pattern: u32,
    ) -> Result<u32, CudaError> {
        assert!(at + bytes <= buffer.len() && at.is_multiple_of(4), "words inside the buffer");
        let found = DeviceBuffer::zeroed(&self.device, 4, "a count")?;
        let grid = [8 * self.device.target().sms, 1, 1];
        let shape = LaunchShape { grid, block: BLOCK, shared: 0, pdl: false };
        let mut args = [buffer.address(at), bytes / 4, u64::from(pattern), found.address(0)];
        self.function(&SOURCE, "count_other")?.launch(&shape, &mut args)?;
        let mut out = [0u8; 4];
        found.read(0, &mut out)?;
        Ok(u32::from_le_bytes(out))
    }
}
