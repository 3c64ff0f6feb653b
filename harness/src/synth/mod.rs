//! Synthetic checkpoints of any size. One idea: a value is a function of (seed, tensor name, index), so any slice of any
//! tensor can be made alone, in parallel, and again; a file is written with a bounded buffer.
//!
//! [`values`] makes f32, [`blocks`] packs them into GGUF blocks, [`mod@write`] streams whole files; [`scale`] shrinks a
//! configuration, [`vocab`] makes a vocabulary, [`model`] puts them together.

pub mod blocks;
pub mod model;
pub mod payload;
pub mod scale;
pub mod values;
pub mod vocab;
pub mod write;

pub use values::{Fill, fill_f32};
pub use write::{SynthError, SynthTensor, write_gguf, write_safetensors};
