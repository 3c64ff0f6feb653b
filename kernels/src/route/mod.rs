//! Choice of experts, and the grouping of a step's rows by expert.
//!
//! The one idea: the choice is a property of the row (softmax over all experts, then the top k, ties to the
//! lower index) and the order of work is a property of the choice (a stable counting sort), so neither
//! depends on threads.

pub mod host;
