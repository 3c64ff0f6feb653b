//! Instruments: one small file each. A problem with a measurement is part of its result, never hidden.
pub mod canary;
pub mod cuda;
pub mod curve;
pub mod machine;
pub mod ncu;
pub mod run_queue;
pub mod series;
