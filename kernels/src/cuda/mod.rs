//! The CUDA device: bindings, compiler, driver, executor.
//!
//! [`call`] is what a binding writes and [`bind`] who is asked.
pub mod bind;
pub mod call;
pub mod source;
