//! Qualification: runs a tuple's decode step under the measuring rules and writes down everything a verdict
//! needs. It judges nothing itself: `receipts::verdict` does, from the receipt alone.
//!
//! A cell: fill the context bucket (one prefix, copied to every row, then a seeded suffix per row), poison the
//! outputs, run a series that ends exactly at the bucket, compare every row's tokens with the reference path.
mod cell;
pub mod cuda;
mod fill;
mod record;
mod reference;

pub use cell::{CellResult, measure};
pub use fill::{FillRule, Series};
pub use record::{Evidence, RecordInput, evidence, infeasible, receipt};
pub use reference::Reference;

use crate::engine::EngineError;
use thiserror::Error;

/// What goes wrong while a cell is measured. A failed verdict is not an error.
#[derive(Debug, Error)]
pub enum QualifyError {
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The CUDA device.
    #[error(transparent)]
    Cuda(#[from] kernels::cuda::CudaError),
    /// The probe.
    #[error("ceiling probe: {0}")]
    Probe(#[from] std::io::Error),
    /// A context too short for the series.
    #[error("context is {context}, the series needs {need} tokens")]
    Context {
        /// Context bucket.
        context: usize,
        /// Tokens needed.
        need: usize,
    },
}
