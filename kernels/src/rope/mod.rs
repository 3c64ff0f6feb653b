//! Per-head norm, rotary position and the write of key and value, as one item a row.
//!
//! The one idea: what happens to a row's q, k and v between the projection and attention touches each value
//! once; nothing is stored between the norm, the rotation and the cache slot.

pub mod host;
