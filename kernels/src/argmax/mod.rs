//! Greedy choice of a token.
//!
//! The one idea: the answer is a property of the logits alone. The highest value wins, the lowest index wins
//! a tie, and logits that are not numbers are refused instead of chosen from.

pub mod host;
