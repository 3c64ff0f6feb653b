//! The kernels room.

pub mod argmax;
pub mod conv;
pub mod embed;
pub mod fold;
pub mod formats;
pub mod host;
pub mod linear;

pub mod sys;
pub mod norm;
pub mod rope;
pub mod route;
pub mod values;
