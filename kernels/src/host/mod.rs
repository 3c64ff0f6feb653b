//! The host device.

pub mod simd;
