//! Writes safetensors: the header of all declared tensors, then their bytes as they come.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::ContainerError;
use super::stream::{Declared, TensorStream};

/// The header's bytes, length prefix included, padded to 8 bytes with blanks.
pub fn header(
    tensors: &[Declared],
    notes: Option<&BTreeMap<String, String>>,
) -> Result<Vec<u8>, ContainerError> {
    let mut map = Map::new();
    if let Some(notes) = notes {
        map.insert("__metadata__".into(), json!(notes));
    }
    let (mut at, mut names) = (0u64, HashSet::new());
    for tensor in tensors {
        let dtype = tensor.dtype.safetensors_name().ok_or_else(|| {
            ContainerError::tensor("writer", &tensor.name, "dtype", tensor.dtype, "a safetensors dtype")
        })?;
        if !names.insert(&tensor.name) {
            let (file, name) = ("writer".to_owned(), tensor.name.clone());
            return Err(ContainerError::Duplicate { file, what: "tensor", name });
        }
        let end = at.checked_add(tensor.bytes()?).ok_or_else(|| {
            ContainerError::tensor("writer", &tensor.name, "end", "over 2^64", "64-bit sizes")
        })?;
        let entry = json!({ "dtype": dtype, "shape": tensor.shape, "data_offsets": [at, end] });
        map.insert(tensor.name.clone(), entry);
        at = end;
    }
    let mut text = Value::Object(map).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.append(&mut text);
    Ok(head)
}

/// Creates `path` and writes its header; the tensors' bytes follow through the stream.
pub fn create(
    path: &Path,
    tensors: &[Declared],
    notes: Option<&BTreeMap<String, String>>,
) -> Result<TensorStream, ContainerError> {
    TensorStream::create(path, &header(tensors, notes)?, tensors, 1)
}
