//! Weights on a device: the pack's payload at the same offsets, quantised matrices in the planar layout.
use super::driver::{Device, DeviceBuffer};
use super::error::CudaError;
use crate::buffer::BufId;
use crate::formats::Format;
use crate::formats::planar::to_planar;
use crate::launch::Op;
use crate::linear::{Epilogue, Matrix};
use crate::plan::Plan;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One or more equal matrices that follow each other in the payload (stacked experts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Format.
    pub format: Format,
    /// Rows of one matrix.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// Matrices.
    pub count: usize,
}

impl Stack {
    /// Bytes of one matrix.
    pub fn bytes(&self) -> u64 {
        (self.k / self.format.block_values() * self.format.block_bytes()) as u64 * self.n as u64
    }

    /// Whether the device holds it in another order than the pack.
    pub fn is_planar(&self) -> bool {
        !matches!(self.format, Format::F32 | Format::F16 | Format::Bf16)
    }
}

/// The weight matrices that an operation reads.
pub fn matrices(op: &Op) -> Vec<(BufId, Stack)> {
    let of = |w: &Matrix, count: usize| (w.buf, Stack { format: w.format, n: w.n, k: w.k, count });
    match op {
        Op::Embed(o) => vec![(o.table, Stack { format: o.format, n: o.vocab, k: o.hidden, count: 1 })],
        Op::Linear(o) => {
            let mut out = Vec::new();
            for part in &o.parts {
                out.push(of(&part.w, 1));
                if let Epilogue::SiluMul { up, .. } = &part.epilogue {
                    out.push(of(up, 1));
                }
            }
            out
        }
        Op::ExpertUp(o) => vec![of(&o.gate, o.groups.experts), of(&o.up, o.groups.experts)],
        Op::ExpertDown(o) => vec![of(&o.down, o.groups.experts)],
        _ => Vec::new(),
    }
}

/// All matrices of `plans` whose layout on the device differs, by offset in the weight arena.
pub fn planar_stacks<'p>(plans: impl IntoIterator<Item = &'p Plan>) -> BTreeMap<u64, Stack> {
    let mut out = BTreeMap::new();
    for plan in plans {
        for launch in &plan.launches {
            for (buf, stack) in matrices(&launch.op).into_iter().filter(|(_, s)| s.is_planar()) {
                out.insert(plan.buffer(buf).offset, stack);
            }
        }
    }
    out
}

/// Copies `payload` to a new device buffer, with the matrices of `stacks` turned into planes.
///
/// # Errors
/// [`CudaError::Memory`]; a matrix beyond the payload is [`CudaError::Kernel`].
pub fn upload(
    device: &Arc<Device>,
    payload: &[u8],
    stacks: &BTreeMap<u64, Stack>,
) -> Result<Arc<DeviceBuffer>, CudaError> {
    let buffer = DeviceBuffer::new(device, payload.len() as u64, "weights")?;
    write(&buffer, payload, stacks)?;
    Ok(Arc::new(buffer))
}

/// Copies `payload` over `buffer`, with the matrices of `stacks` turned into planes.
///
/// # Errors
/// As [`upload`].
pub fn write(buffer: &DeviceBuffer, payload: &[u8], stacks: &BTreeMap<u64, Stack>) -> Result<(), CudaError> {
    let mut at = 0;
    for (offset, stack) in stacks {
        let each = stack.bytes() as usize;
        let end = *offset as usize + each * stack.count;
        if end > payload.len() || (*offset as usize) < at {
            let what = format!("its matrix ends at byte {end} of {}", payload.len());
            return Err(CudaError::Kernel { kernel: "upload".into(), what });
        }
        buffer.write(at as u64, &payload[at..*offset as usize])?;
        for matrix in 0..stack.count {
            at = *offset as usize + matrix * each;
            let planes = to_planar(stack.format, stack.n, stack.k, &payload[at..at + each])
                .map_err(|e| CudaError::Kernel { kernel: "upload".into(), what: e.to_string() })?;
            buffer.write(at as u64, &planes)?;
        }
        at = end;
    }
    buffer.write(at as u64, &payload[at..])
}
