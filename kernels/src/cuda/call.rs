//! Kernel calls: what an operation becomes on a CUDA device, fixed when a plan is bound.
//!
//! A binding (`kernels/src/<op>/cuda.rs`) turns one [`crate::launch::Op`] into one or more [`KernelCall`]s from
//! the plan, the bucket and the [`Target`] alone, so that the same calls can be compiled, counted and printed
//! on a machine without a GPU. Nothing here touches a driver.
use crate::buffer::{BufId, Buffer};
use crate::numeric::NumericClass;
use crate::plan::{Bucket, Plan};
use thiserror::Error;

/// A CUDA source file. Headers are included by name: see [`super::source::HEADERS`].
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// File name, e.g. `norm.cu`.
    pub name: &'static str,
    /// Text, from `include_str!`.
    pub text: &'static str,
}

/// One argument of a kernel, in the order of its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// Device address of a buffer of the plan.
    Buf(BufId),
    /// Device address of a buffer plus a byte offset.
    BufAt(BufId, u64),
    /// `unsigned`.
    U32(u32),
    /// `float`.
    F32(f32),
    /// `unsigned long long`.
    U64(u64),
    /// Device address of the step's `struct Shape { unsigned rows, out_rows, seqs, pad; }`.
    Shape,
    /// Device address of a byte offset in the workspace that all launches share.
    Work(u64),
}

/// One kernel launch: source, entry point, compile-time constants, grid and arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCall {
    /// Source.
    pub source: &'static Source,
    /// Entry point, `extern "C"`.
    pub entry: &'static str,
    /// Compile-time constants, `-DNAME=VALUE`; the order does not matter.
    pub defines: Vec<(&'static str, String)>,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: u32,
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Arguments.
    pub args: Vec<Arg>,
    /// Whether the kernel may start before its predecessor has ended (it waits by `griddepcontrol.wait`
    /// before it touches what the predecessor wrote).
    pub pdl: bool,
}

/// What a binding may ask the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Architecture, e.g. `sm_90a`.
    pub sm: &'static str,
    /// Multiprocessors.
    pub sms: u32,
    /// Shared memory a block may opt in to, in bytes.
    pub shared_per_block: u32,
    /// Shared memory of a multiprocessor in bytes.
    pub shared_per_sm: u32,
    /// Bytes of the last cache.
    pub l2: u64,
}

impl Target {
    /// H200 (and H100): 132 multiprocessors.
    pub const SM_90A: Self =
        Self { sm: "sm_90a", sms: 132, shared_per_block: 232_448, shared_per_sm: 233_472, l2: 50 << 20 };
    /// RTX 5090: 170 multiprocessors.
    pub const SM_120A: Self =
        Self { sm: "sm_120a", sms: 170, shared_per_block: 101_376, shared_per_sm: 102_400, l2: 96 << 20 };
    /// GB10 (DGX Spark): 48 multiprocessors.
    pub const SM_121A: Self =
        Self { sm: "sm_121a", sms: 48, shared_per_block: 101_376, shared_per_sm: 102_400, l2: 24 << 20 };
    /// The targets every kernel is compiled for.
    pub const ALL: [Self; 3] = [Self::SM_90A, Self::SM_120A, Self::SM_121A];
}

/// What a binding sees of its plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanView<'a> {
    /// Largest sizes of a step.
    pub bucket: &'a Bucket,
    /// Numeric class.
    pub class: NumericClass,
    /// Buffers, indexed by [`BufId`].
    pub buffers: &'a [Buffer],
}

impl<'a> PlanView<'a> {
    /// The view of `plan`.
    pub fn new(plan: &'a Plan) -> Self {
        Self { bucket: &plan.bucket, class: plan.class, buffers: &plan.buffers }
    }

    /// A buffer.
    pub fn buffer(&self, id: BufId) -> &'a Buffer {
        &self.buffers[id.0 as usize]
    }
}

/// Why an operation has no kernel on this device.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BindError {
    /// The class has no device kernels.
    #[error("{op}: numeric class {class} has no CUDA kernels (bf16 has)")]
    Class {
        /// Operation.
        op: &'static str,
        /// Class.
        class: NumericClass,
    },
    /// A shape or format outside what the kernels are written for.
    #[error("{op}: {field} is {value}, the CUDA kernels take {limit}")]
    Shape {
        /// Operation.
        op: &'static str,
        /// Field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        limit: &'static str,
    },
}
