//! Made-up weights in device memory: the values that a synthetic checkpoint would hold, without the checkpoint.
use super::call::{Arg, KernelCall, Source};
use super::driver::DeviceBuffer;
use super::error::CudaError;
use super::graph::LaunchShape;
use super::unit::Unit;
use super::weights::Stack;
use super::{Cuda, program};
use crate::buffer::BufId;
use crate::formats::Format;
use crate::formats::planar::block_map;

/// Its source.
pub static SOURCE: Source = Source { name: "synth.cu", text: include_str!("synth.cu") };

/// A bell-shaped stream: see `harness::synth::values`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Key of the tensor's values.
    pub key: u64,
    /// Centre.
    pub centre: f32,
    /// Standard deviation.
    pub deviation: f32,
    /// Factor that gives a sum of four uniforms unit deviation.
    pub unit: f32,
}

/// Buffers of [`call`]: where the tensor goes, and the table of moves.
pub const OUT: BufId = BufId(0);
/// The table of moves.
pub const MAP: BufId = BufId(1);

/// The kernel that makes `stack` from `stream`, on at most `blocks` blocks.
pub fn call(stack: &Stack, stream: &Stream, blocks: u32) -> KernelCall {
    let define: &'static str = match stack.format {
        Format::F32 => "FMT_F32",
        Format::F16 => "FMT_F16",
        Format::Bf16 => "FMT_BF16",
        Format::Q8_0 => "FMT_Q8_0",
        Format::Q4_K => "FMT_Q4_K",
        Format::Q5_K => "FMT_Q5_K",
        Format::Q6_K => "FMT_Q6_K",
        Format::Q2_K => "FMT_Q2_K",
    };
    let values = (stack.n * stack.k * stack.count) as u64;
    let per_row = stack.k / stack.format.block_values();
    let units = values / stack.format.block_values() as u64;
    let (entry, mut args, wanted) = match stack.is_planar() {
        false => ("synth_plain", vec![Arg::Buf(OUT), Arg::U64(values)], values.div_ceil(256)),
        true => {
            let (n, per_row) = (Arg::U32(stack.n as u32), Arg::U32(per_row as u32));
            let args = vec![Arg::Buf(OUT), Arg::Buf(MAP), n, per_row, Arg::U64(units)];
            ("synth_blocks", args, units.div_ceil(8))
        }
    };
    args.extend([Arg::U64(stream.key), Arg::F32(stream.centre), Arg::F32(stream.deviation)]);
    args.push(Arg::F32(stream.unit));
    let grid = [wanted.clamp(1, u64::from(blocks)) as u32, 1, 1];
    let defines = vec![(define, "1".into())];
    KernelCall { source: &SOURCE, entry, defines, grid, block: 256, shared: 0, args, pdl: false }
}

/// The bytes of the table of moves.
pub fn map_bytes(format: Format) -> Vec<u8> {
    let words = |m: &crate::formats::planar::Moved| [m.from, m.before, m.plane, m.first, m.piece, m.at];
    block_map(format).iter().flat_map(words).flat_map(u16::to_le_bytes).collect()
}

impl Cuda {
    /// Makes `stack` at byte `offset` of `buffer` from `stream`, matrices of blocks in planes; waits.
    ///
    /// # Errors
    /// [`CudaError`] of the compiler or the driver.
    pub fn synth(
        &self,
        buffer: &DeviceBuffer,
        offset: u64,
        stack: &Stack,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        assert!(offset + stack.bytes() * stack.count as u64 <= buffer.len(), "a tensor inside the buffer");
        let call = call(stack, stream, 16 * self.device.target().sms);
        let moves = map_bytes(stack.format);
        let map = DeviceBuffer::new(&self.device, moves.len() as u64, "a table of moves")?;
        map.write(0, &moves)?;
        // The host rounds after the product and after the sum; a fused kernel would make other weights.
        let unit = Unit { fused: false, ..Unit::of(&call) };
        let function = self.unit_function(&unit, call.entry)?;
        let shape = LaunchShape { grid: call.grid, block: call.block, shared: 0, pdl: false };
        let at = |id: BufId| if id == OUT { buffer.address(offset) } else { map.address(0) };
        let mut args: Vec<u64> = call.args.iter().map(|a| program::constant(*a, &at)).collect();
        function.launch(&shape, &mut args)?;
        self.device.sync()
    }
}
