//! Numeric classes and the kinds of activation rows they use.
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a plan rounds. Parity of results is claimed only inside one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumericClass {
    /// The oracle class: inputs of matrix products, KV and accumulation in f32.
    F32,
    /// Inputs of matrix products rounded once to BF16, accumulation f32, KV BF16.
    Bf16,
    /// As `bf16`, but quantised weights meet activations quantised to 8 bits.
    Int8Act,
}

impl NumericClass {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8Act];

    /// The name used in recipes, receipts and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8Act => "int8act",
        }
    }

    /// The class of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.name() == name)
    }

    /// Bytes of one cached key or value.
    pub fn kv_bytes(self) -> u64 {
        if self == Self::F32 { 4 } else { 2 }
    }
}

impl fmt::Display for NumericClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub use crate::linear::host_act::ActKind;

impl ActKind {
    /// Bytes of a row of `k` values, as accounts count them. A plan gives Q8 rows only whole groups.
    pub fn bytes(self, k: u64) -> u64 {
        match self {
            Self::F32 => 4 * k,
            Self::Bf16 => 2 * k,
            Self::Q8 => 276 * (k / 256),
        }
    }

    /// The name used in kernel names.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
        }
    }
}

/// Values of a step that kernels take as launch parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Rows that pass through the layers.
    pub rows: usize,
    /// Rows whose logits are wanted.
    pub out_rows: usize,
    /// Sequences.
    pub seqs: usize,
}

/// A small weight (norm, bias, convolution): where it is and how its values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SmallWeight {
    /// Buffer.
    pub buf: crate::buffer::BufId,
    /// F32, F16 or BF16.
    pub format: crate::formats::Format,
    /// Values.
    pub len: u64,
}

impl SmallWeight {
    /// Bytes it occupies.
    pub fn bytes(&self) -> u64 {
        self.len * self.format.block_bytes() as u64
    }
}
