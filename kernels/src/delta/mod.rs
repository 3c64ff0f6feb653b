//! Gated DeltaNet: a recurrent state per value head, read and written once a token.
//!
//! The one idea: decode is bound by the bytes of the state, so the step walks it in column strips that stay
//! in the first cache between its read pass and its write pass; prefill trades those passes for small
//! matrix products over chunks of [`host::CHUNK`] tokens.

pub mod host;
mod host_chunk;
