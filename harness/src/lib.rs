//! The harness room.

pub mod containers;
