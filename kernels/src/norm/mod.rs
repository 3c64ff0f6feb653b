//! Root-mean-square norm of a row.
//!
//! The one idea: the sum of squares is one fixed 16-lane f32 tree over the row, so a row's norm does not
//! know how many rows stand beside it; the scaled row leaves as f32 or, once rounded, as BF16.

pub mod host;
