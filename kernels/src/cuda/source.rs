//! The headers that CUDA sources include by name.

/// Name and text of every header, in the order NVRTC gets them. A new `.cuh` file gets a line here.
pub const HEADERS: &[(&str, &str)] = &[];
