//! `--device`: where a command's work runs.
//!
//! One idea: without the device that was asked for a command says in one line what is missing and ends with 2.
use super::state::{self, StateDir};
use anyhow::{Result, bail};
use harness::engine::Place;
use kernels::cuda::Cuda;
use std::sync::Arc;

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
    Ok(Cuda::open(0, cubins)?)
}
