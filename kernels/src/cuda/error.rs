//! What goes wrong on a CUDA device, each in one line.
use super::call::BindError;
use thiserror::Error;

/// Exit code of a process whose context was lost: nothing it holds on the device can be trusted or freed.
pub const EXIT_CONTEXT_LOST: i32 = 4;

/// A failed device operation.
#[derive(Debug, Error)]
pub enum CudaError {
    /// Something the device path needs is not on this machine.
    #[error("no CUDA device: {0}")]
    Missing(String),
    /// A driver call.
    #[error("{call}: {name} ({code})")]
    Driver {
        /// Function.
        call: &'static str,
        /// Name of the error.
        name: String,
        /// Number of the error.
        code: u32,
    },
    /// The compiler refused a source.
    #[error("{source_name} [{defines}] for {target}: {log}")]
    Compile {
        /// File.
        source_name: String,
        /// Compile-time constants.
        defines: String,
        /// Architecture.
        target: String,
        /// What the compiler said.
        log: String,
    },
    /// A kernel that must not run.
    #[error("kernel {kernel}: {what}")]
    Kernel {
        /// Entry point with its constants.
        kernel: String,
        /// What is wrong with it.
        what: String,
    },
    /// An operation without kernels.
    #[error("launch {launch}: {source}")]
    Bind {
        /// Launch.
        launch: usize,
        /// Cause.
        source: BindError,
    },
    /// Not enough device memory.
    #[error("{what}: {need} bytes of device memory needed, {free} free")]
    Memory {
        /// What for.
        what: String,
        /// Needed.
        need: u64,
        /// Free.
        free: u64,
    },
    /// The captured graph is not the plan.
    #[error("the captured graph has {captured} nodes, the plan {planned}")]
    Nodes {
        /// Planned.
        planned: u64,
        /// Captured.
        captured: u64,
    },
    /// More than the plan's bucket holds.
    #[error("{field} is {value}, the plan's bucket holds {limit}")]
    Bucket {
        /// Field.
        field: &'static str,
        /// Value.
        value: u64,
        /// Limit.
        limit: u64,
    },
}
