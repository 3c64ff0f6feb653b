//! Depthwise causal convolution with SiLU.
//!
//! The one idea: the state is the last `taps - 1` raw inputs and nothing else, so a segment of any length
//! continues where the one before stopped, bit for bit.

pub mod host;
