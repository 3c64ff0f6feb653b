//! Linear layers: `y[m, n] = sum_k x[m, k] * w[n, k]`.

mod contract;
pub mod cuda;
pub mod host;
pub mod host_act;
#[cfg(target_arch = "x86_64")]
mod host_avx2;
#[cfg(target_arch = "x86_64")]
mod host_avx2_fused;
#[cfg(target_arch = "x86_64")]
mod host_avx2_q8;
#[cfg(target_arch = "x86_64")]
mod host_avx512;
#[cfg(target_arch = "x86_64")]
mod host_avx512_q8;
#[cfg(target_arch = "x86_64")]
mod host_avx512_q8_0;
mod host_scalar;
#[cfg(test)]
mod host_tests;
pub mod run;

pub use contract::{Epilogue, Linear, LinearPart, Matrix};
pub use host::supports;
