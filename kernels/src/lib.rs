//! The kernels room.

pub mod formats;
pub mod host;
pub mod linear;

pub mod sys;
