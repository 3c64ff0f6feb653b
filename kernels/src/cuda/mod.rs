//! The CUDA device: bindings, compiler, driver, executor.
//!
//! A plan is bound once ([`bound`]): every launch becomes kernel calls ([`call`]). The calls are compiled
//! ([`mod@unit`], [`nvrtc`]), loaded and captured as one graph ([`program`]). Nothing above [`driver`] and
//! [`graph`] touches a raw handle, and nothing here is needed to build or test without a GPU.
pub mod bind;
pub mod bound;
pub mod call;
pub mod driver;
pub mod error;
pub mod graph;
pub mod helpers;
pub mod nvml;
pub mod nvrtc;
pub mod overlap;
pub mod probe;
pub mod program;
pub mod source;
pub mod synth;
pub mod unit;
pub mod util;
pub mod weights;

pub use error::CudaError;
pub use graph::Function;
pub use overlap::Overlap;

use driver::Device;
use program::Modules;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use unit::Compiler;

/// A device with its compiler and what is loaded on it: what engines on one device share.
pub struct Cuda {
    /// Device.
    pub device: Arc<Device>,
    /// Compiler.
    pub compiler: Compiler,
    overlap: Overlap,
    modules: Mutex<Modules>,
}

impl Cuda {
    /// Opens device `ordinal`; cubins are kept in `cache`. Graphs use programmatic launch where `overlap`
    /// allows it.
    ///
    /// # Errors
    /// [`CudaError::Missing`] in one line naming what is missing.
    pub fn open(ordinal: usize, cache: Option<PathBuf>, overlap: Overlap) -> Result<Arc<Self>, CudaError> {
        let device = Device::open(ordinal)?;
        Ok(Arc::new(Self { device, compiler: Compiler::new(cache), overlap, modules: Mutex::default() }))
    }

    /// Hash over all device code loaded so far.
    pub fn cubins(&self) -> String {
        self.modules.lock().unwrap_or_else(std::sync::PoisonError::into_inner).hash()
    }

    /// Loads the kernels of a bound plan and resolves it against `arenas`.
    ///
    /// # Errors
    /// [`CudaError`] of the compiler or the driver.
    pub fn program(
        &self,
        plan: &crate::plan::Plan,
        bound: &bound::Bound,
        arenas: &program::Arenas,
    ) -> Result<program::Program, CudaError> {
        let mut modules = self.modules.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        modules.add(&self.device, &self.compiler, bound)?;
        program::Program::new(&self.device, plan, bound, arenas, &modules, &self.overlap)
    }
}
