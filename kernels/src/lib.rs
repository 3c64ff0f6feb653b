//! Operations and the devices that run them.
//!
//! This crate promises that a launch is one value: the arguments a device runs with, the bytes the ledger
//! prints and the accesses the plan checker proves things about. It refuses to run what is not accounted, and
//! its results never depend on a row's neighbours, the batch, the grid or the thread count.
//!
//! Read first: [`launch`] (what an operation is), [`plan`] (a step), [`host::device`] (running it).
pub mod access;
pub mod argmax;
pub mod attend;
pub mod buffer;
pub mod check;
pub mod conv;
pub mod counter;
pub mod cuda;
pub mod delta;
pub mod embed;
pub mod experts;
pub mod fold;
pub mod formats;
pub mod host;
pub mod io;
pub(crate) mod lanes;
pub mod launch;
pub mod linear;
pub mod memory;
pub mod norm;
pub mod numeric;
pub mod plan;
pub mod rope;
pub mod route;
pub mod rows;
pub mod sys;
#[cfg(test)]
mod testing;
pub mod values;
