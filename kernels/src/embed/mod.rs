//! Embedding: a token id becomes a residual row.
//!
//! The one idea: the table stays in its stored format and one row of it is decoded per token, nothing else.

pub mod host;
