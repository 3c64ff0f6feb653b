//! Linear layers: `y[m, n] = sum_k x[m, k] * w[n, k]`.

pub mod host;
pub mod host_act;
mod host_scalar;
#[cfg(test)]
mod host_tests;
