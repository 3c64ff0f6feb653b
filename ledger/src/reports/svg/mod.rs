//! Figures as SVG text: bytes by layer kind and class, step time against batch, the closure's waterfall.
//!
//! Labels stay text elements, so that no font library takes part; positions come from `canvas` alone.
mod bytes;
mod canvas;
mod time;
mod waterfall;

pub use bytes::bytes;
pub use time::time;
pub use waterfall::closure;
