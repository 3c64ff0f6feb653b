//! Streams a synthetic checkpoint to disk. One idea: values are made, packed and written a chunk at a time, so a file of
//! hundreds of gigabytes needs a few megabytes of memory.

use std::collections::BTreeMap;
use std::path::Path;

use thiserror::Error;

use super::blocks::{can_encode, encode};
use super::values::{Fill, fill};
use crate::containers::stream::{Declared, TensorStream};
use crate::containers::{ContainerError, Dtype, Metadata, gguf_write, safetensors_write};

/// Values made at a time: a multiple of every block length; 1 MiB of f32.
pub const CHUNK_VALUES: u64 = 1 << 18;

/// A tensor to make up.
#[derive(Clone, Debug, PartialEq)]
pub struct SynthTensor {
    /// Name, also the key of its values.
    pub name: String,
    /// Type in the file.
    pub dtype: Dtype,
    /// Row-major shape.
    pub shape: Vec<u64>,
    /// Its values; `None` is [`Fill::for_shape`].
    pub fill: Option<Fill>,
}

impl SynthTensor {
    /// A tensor with the usual values for its shape.
    #[must_use]
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: &[u64]) -> SynthTensor {
        SynthTensor { name: name.into(), dtype, shape: shape.to_vec(), fill: None }
    }

    /// With chosen values.
    #[must_use]
    pub fn with_fill(mut self, fill: Fill) -> SynthTensor {
        self.fill = Some(fill);
        self
    }
}

/// Why a synthetic file could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SynthError {
    /// The container refused.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// There is no encoder for a type.
    #[error("tensor `{tensor}`: no encoder for {dtype}")]
    NoEncoder {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
    },
}

fn declared(tensors: &[SynthTensor]) -> Result<Vec<Declared>, SynthError> {
    let mut out = Vec::with_capacity(tensors.len());
    for t in tensors {
        if !can_encode(t.dtype) {
            return Err(SynthError::NoEncoder { tensor: t.name.clone(), dtype: t.dtype });
        }
        out.push(Declared::new(t.name.as_str(), t.dtype, &t.shape));
    }
    Ok(out)
}

/// Writes a GGUF file. `progress` is told the bytes of tensor data written so far and in all.
pub fn write_gguf(
    path: &Path,
    tensors: &[SynthTensor],
    metadata: &Metadata,
    seed: u64,
    progress: impl FnMut(u64, u64),
) -> Result<(), SynthError> {
    let declared = declared(tensors)?;
    stream(gguf_write::create(path, &declared, metadata)?, tensors, &declared, seed, progress)
}

/// Writes a safetensors file; otherwise as [`write_gguf`].
pub fn write_safetensors(
    path: &Path,
    tensors: &[SynthTensor],
    notes: Option<&BTreeMap<String, String>>,
    seed: u64,
    progress: impl FnMut(u64, u64),
) -> Result<(), SynthError> {
    let declared = declared(tensors)?;
    stream(safetensors_write::create(path, &declared, notes)?, tensors, &declared, seed, progress)
}

fn stream(
    mut out: TensorStream,
    tensors: &[SynthTensor],
    declared: &[Declared],
    seed: u64,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), SynthError> {
    let total = declared
        .iter()
        .map(Declared::bytes)
        .try_fold(0u64, |sum, bytes| Ok::<_, ContainerError>(sum + bytes?))?;
    let (mut values, mut packed, mut done) = (Vec::new(), Vec::new(), 0);
    for tensor in tensors {
        let how = tensor.fill.unwrap_or_else(|| Fill::for_shape(&tensor.shape));
        let count: u64 = tensor.shape.iter().product(); // `bytes` has checked the product
        let mut start = 0;
        while start < count {
            let len = CHUNK_VALUES.min(count - start);
            values.resize(len as usize, 0.0);
            fill(how, seed, &tensor.name, start, &mut values);
            packed.clear();
            encode(tensor.dtype, &values, &mut packed)
                .ok_or_else(|| SynthError::NoEncoder { tensor: tensor.name.clone(), dtype: tensor.dtype })?;
            out.write(&packed)?;
            start += len;
            done += packed.len() as u64;
            progress(done, total);
        }
    }
    Ok(out.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers::{MetaValue, open};

    #[test]
    fn both_containers_come_back_the_same_and_repeat_exactly() {
        let dir = tempfile::tempdir().unwrap();
        let tensors = [
            SynthTensor::new("norm", Dtype::F32, &[64]),
            SynthTensor::new("w", Dtype::BF16, &[700, 512]),
            SynthTensor::new("c", Dtype::F16, &[3]).with_fill(Fill::Constant(0.5)),
        ];
        let (a, b) = (dir.path().join("a.gguf"), dir.path().join("b.safetensors"));
        let mut meta = Metadata::default();
        meta.insert("general.architecture", MetaValue::String("toy".into()));
        let mut last = (0, 0);
        write_gguf(&a, &tensors, &meta, 1, |done, total| last = (done, total)).unwrap();
        write_safetensors(&b, &tensors, None, 1, |_, _| {}).unwrap();
        let (gguf, safe) = (open(&a).unwrap(), open(&b).unwrap());
        assert_eq!(last, (gguf.total_bytes(), safe.total_bytes()));
        for tensor in &tensors {
            assert_eq!(gguf.tensor(&tensor.name).unwrap().shape, tensor.shape);
            assert_eq!(gguf.bytes(&tensor.name).unwrap(), safe.bytes(&tensor.name).unwrap());
        }
        assert_eq!(gguf.bytes("c").unwrap(), [0, 0x38, 0, 0x38, 0, 0x38]);
        let first = std::fs::read(&a).unwrap();
        write_gguf(&a, &tensors, &meta, 1, |_, _| {}).unwrap();
        assert_eq!(first, std::fs::read(&a).unwrap());
        write_gguf(&a, &tensors, &meta, 2, |_, _| {}).unwrap();
        assert_ne!(first, std::fs::read(&a).unwrap());
    }

    #[test]
    fn quantised_tensors_over_several_chunks_have_the_right_size() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q.gguf");
        let types = [Dtype::Q8_0, Dtype::Q4_K, Dtype::Q5_K, Dtype::Q6_K, Dtype::Q2_K];
        let tensors = types.map(|t| SynthTensor::new(format!("w.{t}"), t, &[2, 300, 512]));
        write_gguf(&path, &tensors, &Metadata::default(), 7, |_, _| {}).unwrap();
        let file = open(&path).unwrap();
        for tensor in &tensors {
            let bytes = file.bytes(&format!("w.{}", tensor.dtype)).unwrap();
            assert_eq!(Some(bytes.len() as u64), tensor.dtype.bytes_of(&tensor.shape));
            let mut values = vec![0.0; 512];
            fill(Fill::for_shape(&tensor.shape), 7, &tensor.name, 599 * 512, &mut values);
            let mut row = Vec::new();
            encode(tensor.dtype, &values, &mut row).unwrap();
            assert!(bytes.ends_with(&row), "the last row can be made alone");
        }
    }

    #[test]
    fn a_type_without_an_encoder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let tensors = [SynthTensor::new("x", Dtype::IQ2_XXS, &[256])];
        let path = dir.path().join("x.gguf");
        let error = write_gguf(&path, &tensors, &Metadata::default(), 1, |_, _| {}).unwrap_err();
        assert_eq!(error.to_string(), "tensor `x`: no encoder for IQ2_XXS");
        assert!(!path.exists());
    }
}
