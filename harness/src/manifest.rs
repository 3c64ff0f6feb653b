//! Manifests: where every tensor lies in a pack's payload, in the order a step consumes them.
use kernels::formats::{Format, FormatError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// Alignment of every tensor in the payload.
pub const TENSOR_ALIGN: u64 = 128;

/// A tensor a family needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The family's own name, independent of the container.
    pub name: String,
    /// Name in a safetensors checkpoint.
    pub hf: String,
    /// Name in a GGUF file; empty where the family has no GGUF form.
    pub gguf: String,
    /// Shape, outermost first; matrices are `[out, in]`, stacked experts `[experts, out, in]`.
    pub shape: Vec<u64>,
    /// Class, for recipes and reports.
    pub class: &'static str,
    /// Layer.
    pub layer: Option<u16>,
}

impl TensorSpec {
    /// Length of a row.
    pub fn row(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows.
    pub fn rows(&self) -> u64 {
        self.shape.iter().rev().skip(1).product()
    }
}

/// A tensor in a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Shape.
    pub shape: Vec<u64>,
    /// Format.
    pub format: String,
    /// Class.
    pub class: String,
    /// Layer.
    pub layer: Option<u16>,
    /// Byte offset in the payload.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// BLAKE3 of the bytes; empty in a manifest made without weights.
    pub blake3: String,
}

/// The tensors of a pack by position, and an index by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Manifest {
    /// Entries in consumption order.
    pub entries: Vec<Entry>,
    /// Bytes of the payload.
    pub payload: u64,
    #[serde(skip)]
    index: BTreeMap<String, usize>,
}

/// A manifest that cannot be made or does not hold what a plan needs.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The format does not fit the tensor's shape.
    #[error("tensor '{name}' {shape:?} as {format}: {source}")]
    Format {
        /// Tensor.
        name: String,
        /// Shape.
        shape: Vec<u64>,
        /// Format.
        format: &'static str,
        /// Cause.
        source: FormatError,
    },
    /// A tensor that the plan needs is absent.
    #[error("the pack holds no tensor '{0}'")]
    Missing(String),
    /// A size overflows.
    #[error("tensor '{0}' is too large to address")]
    TooLarge(String),
    /// An unknown format name.
    #[error("tensor '{name}' has the unknown format '{format}'")]
    UnknownFormat {
        /// Tensor.
        name: String,
        /// Format.
        format: String,
    },
}

impl Manifest {
    /// Lays out `tensors`, each in its format, in the given order.
    pub fn lay_out(tensors: &[(TensorSpec, Format)]) -> Result<Self, ManifestError> {
        let mut manifest = Self::default();
        for (spec, format) in tensors {
            let too_large = || ManifestError::TooLarge(spec.name.clone());
            let k = usize::try_from(spec.row()).map_err(|_| too_large())?;
            let row = format.row_bytes(k).map_err(|source| ManifestError::Format {
                name: spec.name.clone(),
                shape: spec.shape.clone(),
                format: format.name(),
                source,
            })?;
            let bytes = row.checked_mul(spec.rows()).ok_or_else(too_large)?;
            let offset = manifest.payload.next_multiple_of(TENSOR_ALIGN);
            manifest.payload = offset.checked_add(bytes).ok_or_else(too_large)?;
            manifest.entries.push(Entry {
                name: spec.name.clone(),
                shape: spec.shape.clone(),
                format: format.name().into(),
                class: spec.class.into(),
                layer: spec.layer,
                offset,
                bytes,
                blake3: String::new(),
            });
        }
        manifest.reindex();
        Ok(manifest)
    }

    /// Rebuilds the index, after reading a manifest from a file.
    pub fn reindex(&mut self) {
        self.index = self.entries.iter().enumerate().map(|(i, e)| (e.name.clone(), i)).collect();
    }

    /// The entry called `name`.
    pub fn get(&self, name: &str) -> Result<&Entry, ManifestError> {
        let index = self.index.get(name).ok_or_else(|| ManifestError::Missing(name.into()))?;
        Ok(&self.entries[*index])
    }

    /// Sum of the tensors' bytes, without padding.
    pub fn tensor_bytes(&self) -> u64 {
        self.entries.iter().map(|e| e.bytes).sum()
    }
}

impl Entry {
    /// The parsed format.
    pub fn parsed_format(&self) -> Result<Format, ManifestError> {
        Format::from_name(&self.format).ok_or_else(|| ManifestError::UnknownFormat {
            name: self.name.clone(),
            format: self.format.clone(),
        })
    }
}
