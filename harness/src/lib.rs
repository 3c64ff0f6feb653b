//! Model families, packs, the engine and the instruments that qualify it.
//!
//! This crate promises that a model is read exactly as its checkpoint declares it or not at all, that a plan's
//! bytes come from geometry and recipe, and that what was timed is what was checked.
//!
//! Read first: [`families`] (the seam), [`engine`] (running a model), [`oracle`] (proving it).
pub mod bench;
pub mod builtin;
pub mod checked;
pub mod compare;
pub mod containers;
pub mod engine;
pub mod eval;
pub mod families;
pub mod instruments;
pub mod manifest;
pub mod oracle;
pub mod pack;
pub mod qualify;
pub mod recipe;
pub mod replay;
pub mod sampler;
pub mod synth;
pub mod text;
