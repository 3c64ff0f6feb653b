//! Writes GGUF version 3: key/values and tensor table, then the tensors' bytes as they come.

use std::path::Path;

use super::gguf::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC};
use super::stream::{Declared, TensorStream};
use super::{ContainerError, MetaArray, MetaValue, Metadata};

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_array(out: &mut Vec<u8>, array: &MetaArray) {
    macro_rules! numbers {
        ($kind:expr, $values:expr) => {{
            out.extend(u32::to_le_bytes($kind));
            out.extend(($values.len() as u64).to_le_bytes());
            out.extend($values.iter().flat_map(|v| v.to_le_bytes()));
        }};
    }
    match array {
        MetaArray::U8(v) => numbers!(0, v),
        MetaArray::I8(v) => numbers!(1, v),
        MetaArray::U16(v) => numbers!(2, v),
        MetaArray::I16(v) => numbers!(3, v),
        MetaArray::U32(v) => numbers!(4, v),
        MetaArray::I32(v) => numbers!(5, v),
        MetaArray::F32(v) => numbers!(6, v),
        MetaArray::U64(v) => numbers!(10, v),
        MetaArray::I64(v) => numbers!(11, v),
        MetaArray::F64(v) => numbers!(12, v),
        MetaArray::Bool(v) => {
            out.extend(7u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            out.extend(v.iter().map(|&b| u8::from(b)));
        }
        MetaArray::String(v) => {
            out.extend(8u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|text| put_string(out, text));
        }
        MetaArray::Array(v) => {
            out.extend(9u32.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|inner| put_array(out, inner));
        }
    }
}

fn put_value(out: &mut Vec<u8>, value: &MetaValue) {
    macro_rules! number {
        ($kind:expr, $v:expr) => {{
            out.extend(u32::to_le_bytes($kind));
            out.extend($v.to_le_bytes());
        }};
    }
    match value {
        MetaValue::U8(v) => number!(0, v),
        MetaValue::I8(v) => number!(1, v),
        MetaValue::U16(v) => number!(2, v),
        MetaValue::I16(v) => number!(3, v),
        MetaValue::U32(v) => number!(4, v),
        MetaValue::I32(v) => number!(5, v),
        MetaValue::F32(v) => number!(6, v),
        MetaValue::Bool(v) => number!(7, u8::from(*v)),
        MetaValue::U64(v) => number!(10, v),
        MetaValue::I64(v) => number!(11, v),
        MetaValue::F64(v) => number!(12, v),
        MetaValue::String(v) => {
            out.extend(8u32.to_le_bytes());
            put_string(out, v);
        }
        MetaValue::Array(v) => {
            out.extend(9u32.to_le_bytes());
            put_array(out, v);
        }
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, ContainerError> {
    if metadata.has(ALIGNMENT_KEY) { metadata.u64(ALIGNMENT_KEY) } else { Ok(DEFAULT_ALIGNMENT) }
}

/// Everything before the data section, padded to the alignment.
pub fn header(tensors: &[Declared], metadata: &Metadata) -> Result<Vec<u8>, ContainerError> {
    let alignment = alignment(metadata)?;
    if !alignment.is_power_of_two() {
        return Err(ContainerError::header("writer", ALIGNMENT_KEY, alignment, "a power of two"));
    }
    let mut out = MAGIC.to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.iter().count() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        put_string(&mut out, key);
        put_value(&mut out, value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        let id = tensor.dtype.ggml_id().ok_or_else(|| {
            ContainerError::tensor("writer", &tensor.name, "dtype", tensor.dtype, "a GGML type")
        })?;
        put_string(&mut out, &tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(id.to_le_bytes());
        out.extend(offset.to_le_bytes());
        let padded = tensor.bytes()?.checked_next_multiple_of(alignment);
        offset = padded.and_then(|bytes| offset.checked_add(bytes)).ok_or_else(|| {
            ContainerError::tensor("writer", &tensor.name, "end", "over 2^64", "64-bit sizes")
        })?;
    }
    out.resize(out.len().next_multiple_of(alignment as usize), 0);
    Ok(out)
}

/// Creates `path` and writes its header; the tensors' bytes follow through the stream.
pub fn create(
    path: &Path,
    tensors: &[Declared],
    metadata: &Metadata,
) -> Result<TensorStream, ContainerError> {
    TensorStream::create(path, &header(tensors, metadata)?, tensors, alignment(metadata)?)
}
