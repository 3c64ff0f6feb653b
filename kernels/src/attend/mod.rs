//! Attention over a paged key/value cache, for decode and prefill.
//!
//! The one idea: a page of [`host::SPLIT`] tokens is computed from scratch (its own maximum, sum and
//! accumulator) and pages merge in index order, so a row's result depends on its own tokens only: not on
//! the bucket, the grid, the other rows of a tile or how pages were shared out.

pub mod host;
mod inner;
