//! `--device`: where a command's work runs.
//!
//! One idea: without the device that was asked for a command says in one line what is missing and ends with 2.
use super::state::{self, StateDir};
use anyhow::{Result, bail};
use harness::engine::Place;
use kernels::cuda::Cuda;
use kernels::numeric::NumericClass;
use std::sync::Arc;

/// The class that CUDA devices have kernels of: what runs there where none is asked for, whatever a recipe's own
/// class on the host is.
pub const CUDA_CLASS: NumericClass = NumericClass::Bf16;

/// The place called `device`, with `threads` of the host where it is the host.
pub fn place(device: &str, threads: Option<usize>) -> Result<Place> {
    match device {
        "host" => Ok(Place::Host { threads: state::threads(threads)?, simd: state::simd() }),
        "cuda" => Ok(Place::Cuda(cuda()?)),
        other => bail!("--device is '{other}', known: host, cuda"),
    }
}

/// The first CUDA device, with its cubins kept in the state folder.
pub fn cuda() -> Result<Arc<Cuda>> {
    let cubins = StateDir::from_env().ok().map(|state| state.path().join("cubins"));
    Ok(Cuda::open(0, cubins, state::overlap())?)
}
