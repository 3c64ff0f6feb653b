//! The kernels room.

pub mod argmax;
pub mod conv;
pub mod embed;
pub mod fold;
pub mod formats;
pub mod host;
pub mod linear;

pub mod attend;
pub mod delta;
pub mod norm;
pub mod rope;
pub mod route;
pub mod sys;
pub mod values;
