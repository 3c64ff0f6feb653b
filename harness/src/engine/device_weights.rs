//! A pack's weights in device memory: uploaded from its file, or made where they are used.
use super::{EngineError, EngineSize, Plans};
use crate::manifest::ManifestError;
use crate::pack::{Pack, PackError};
use crate::synth::payload::{container, parts};
use kernels::cuda::driver::DeviceBuffer;
use kernels::cuda::weights::{planar_stacks, upload};
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

/// Brings the payload of `pack` to the device. A pack without a file is made from `seed`, part by part, on all
/// processors: no disk and no whole copy in memory is needed.
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
    parts(&h.model, container, &h.manifest, seed, true, |at, bytes| -> Result<(), WeightsError> {
        Ok(buffer.write(at, bytes)?)
    })?;
    Ok(Arc::new(buffer))
}
