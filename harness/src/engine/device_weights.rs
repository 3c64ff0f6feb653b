//! A pack's weights in device memory: uploaded from its file, or made where they are used.
use super::{EngineError, EngineSize, Plans};
use crate::manifest::{Entry, ManifestError};
use crate::pack::{Pack, PackError};
use crate::synth::payload::{container, named};
use crate::synth::values::{Fill, UNIT, stream_key};
use kernels::cuda::driver::DeviceBuffer;
use kernels::cuda::synth::Stream;
use kernels::cuda::weights::{Stack, planar_stacks, upload};
use kernels::cuda::{Cuda, CudaError};
use kernels::numeric::NumericClass;
use std::sync::Arc;
use thiserror::Error;

/// Why weights are not on the device.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The pack.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The plans that say how its matrices lie.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Brings the payload of `pack` to the device. A pack without a file is made from `seed` by the device itself: no
/// disk is needed, and the values are those that `sparkpipe synth` would write.
///
/// # Errors
/// [`WeightsError`].
pub fn device_weights(
    cuda: &Arc<Cuda>,
    pack: &Pack,
    class: NumericClass,
    made_from: Option<u64>,
) -> Result<Arc<DeviceBuffer>, WeightsError> {
    let h = &pack.header;
    let Some(seed) = made_from else {
        let size = EngineSize { batch: 1, context: 1024, threads: 1 };
        let plans = match pack.has_draft() {
            true => Plans::drafting(&h.model, &h.manifest, class, size),
            false => Plans::build(&h.model, &h.manifest, class, size),
        }
        .map_err(EngineError::from)?;
        let stacks = planar_stacks([&plans.decode, &plans.prefill]);
        return Ok(upload(&cuda.device, pack.weights()?.as_slice(), &stacks)?);
    };
    let buffer = DeviceBuffer::new(&cuda.device, h.manifest.payload, "weights")?;
    let container = container(&h.recipe, &h.manifest);
    for (entry, name) in named(&h.model, container, &h.manifest)? {
        let (stack, stream) = (stack(entry)?, stream(entry, seed, &name));
        cuda.synth(&buffer, entry.offset, &stack, &stream)?;
    }
    Ok(Arc::new(buffer))
}

/// The tensor as equal matrices; a vector is one row.
fn stack(entry: &Entry) -> Result<Stack, ManifestError> {
    let from_end = |i: usize| entry.shape.iter().rev().nth(i).map_or(1, |v| *v as usize);
    let count = entry.shape.iter().rev().skip(2).product::<u64>() as usize;
    Ok(Stack { format: entry.parsed_format()?, n: from_end(1), k: from_end(0), count })
}

/// The values of a tensor as the device makes them.
fn stream(entry: &Entry, seed: u64, name: &str) -> Stream {
    let (centre, deviation) = match Fill::for_shape(&entry.shape) {
        Fill::Normal(deviation) => (0.0, deviation),
        Fill::Around { centre, deviation } => (centre, deviation),
        Fill::Constant(value) => (value, 0.0),
    };
    Stream { key: stream_key(seed, name), centre, deviation, unit: UNIT }
}
