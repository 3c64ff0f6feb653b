//! Folding routed experts' outputs back into the residual stream.
//!
//! The one idea: each expert runs once for all its rows, and the sum of a row is taken afterwards in slot
//! order, so a row's result does not depend on which experts its neighbours woke.

pub mod host;
