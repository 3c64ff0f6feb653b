//! Safetensors: one file, or shards with an index.
//!
//! One idea: the header is hostile until proven tidy. We check every entry ourselves (known dtype, `begin <= end`,
//! `end - begin = dtype x shape`, no overlap, no gap, nothing behind the last tensor) and then let the `safetensors`
//! crate read the same header as a second opinion.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::{Checkpoint, ContainerError, Dtype, Shard, TensorInfo, read_bounded};

/// Longest header that is read: the limit of the reference implementation.
pub const HEADER_LIMIT: u64 = 100_000_000;
/// Most dimensions of a tensor.
pub const RANK_LIMIT: usize = 8;

/// A JSON object that refuses a repeated key and keeps the order.
struct Strict<V>(Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Strict<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Walk<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Walk<V> {
            type Value = Strict<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict<V>, A::Error> {
                let (mut seen, mut entries) = (HashSet::new(), Vec::new());
                while let Some(key) = map.next_key::<String>()? {
                    if !seen.insert(key.clone()) {
                        return Err(de::Error::custom(format!("key `{key}` occurs twice")));
                    }
                    entries.push((key, map.next_value()?));
                }
                Ok(Strict(entries))
            }
        }
        deserializer.deserialize_map(Walk(PhantomData))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Tensor(Described),
    Notes(#[allow(dead_code)] BTreeMap<String, String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

#[derive(Deserialize)]
struct Index {
    weight_map: Strict<String>,
}

/// Validates one file's header; the tensors' `start` is relative to the whole file.
pub(crate) fn read_header(file: &str, bytes: &[u8], shard: usize) -> Result<Vec<TensorInfo>, ContainerError> {
    let total = bytes.len() as u64;
    let Some(prefix) = bytes.first_chunk::<8>() else {
        return Err(ContainerError::header(file, "length", total, "at least 8 bytes"));
    };
    let header = u64::from_le_bytes(*prefix);
    if header > HEADER_LIMIT || header > total - 8 {
        let limit = format!("{HEADER_LIMIT} and the file's {} bytes", total - 8);
        return Err(ContainerError::header(file, "header length", header, limit));
    }
    let data_at = 8 + header as usize;
    let text = &bytes[8..data_at];
    if text.first() != Some(&b'{') {
        return Err(ContainerError::header(file, "header's first byte", text.len().min(1), "`{`"));
    }
    let json =
        |e: &dyn fmt::Display| ContainerError::Json { file: file.to_owned(), why: format!("header: {e}") };
    let entries: Strict<Entry> = serde_json::from_slice(text).map_err(|e| json(&e))?;
    let data_len = total - data_at as u64;
    let mut tensors = Vec::with_capacity(entries.0.len());
    for (name, entry) in entries.0 {
        match entry {
            Entry::Notes(_) if name == "__metadata__" => {}
            Entry::Tensor(tensor) if name != "__metadata__" => {
                tensors.push(check_entry(file, name, &tensor, data_len, data_at, shard)?);
            }
            _ => return Err(json(&format!("entry `{name}` is not a tensor"))),
        }
    }
    tensors.sort_by_key(|t| (t.start, t.bytes));
    check_layout(file, &tensors, data_at as u64, total)?;
    ::safetensors::SafeTensors::read_metadata(bytes).map_err(|e| json(&e))?;
    Ok(tensors)
}

fn check_entry(
    file: &str,
    name: String,
    entry: &Described,
    data_len: u64,
    data_at: usize,
    shard: usize,
) -> Result<TensorInfo, ContainerError> {
    let dtype = Dtype::from_safetensors(&entry.dtype).ok_or_else(|| ContainerError::UnknownType {
        file: file.to_owned(),
        subject: format!("tensor `{name}`"),
        value: format!("{:?}", entry.dtype),
    })?;
    let bad =
        |field, value: String, limit: String| Err(ContainerError::tensor(file, &name, field, value, limit));
    if entry.shape.len() > RANK_LIMIT {
        return bad("number of dimensions", entry.shape.len().to_string(), RANK_LIMIT.to_string());
    }
    let [begin, end] = entry.data_offsets;
    if begin > end {
        return bad("data_offsets", format!("[{begin}, {end}]"), "begin <= end".into());
    }
    if end > data_len {
        return bad(
            "data_offsets end",
            end.to_string(),
            format!("{data_len}, the bytes of data in the file"),
        );
    }
    let Some(bytes) = dtype.bytes_of(&entry.shape) else {
        return bad("shape", format!("{:?}", entry.shape), format!("whole {dtype} blocks and 64-bit sizes"));
    };
    if bytes != end - begin {
        let limit = format!("{bytes} bytes for {dtype} {:?}", entry.shape);
        return bad("data_offsets length", (end - begin).to_string(), limit);
    }
    let start = data_at + begin as usize;
    Ok(TensorInfo { name, dtype, shape: entry.shape.clone(), bytes, shard, start })
}

fn check_layout(file: &str, sorted: &[TensorInfo], data_at: u64, total: u64) -> Result<(), ContainerError> {
    let mut end = data_at;
    let mut last = "(start of data)";
    for tensor in sorted {
        let start = tensor.start as u64;
        if start < end {
            return Err(ContainerError::Overlap {
                file: file.to_owned(),
                first: last.to_owned(),
                second: tensor.name.clone(),
                at: start - data_at,
            });
        }
        if start > end {
            let (file, tensor) = (file.to_owned(), tensor.name.clone());
            return Err(ContainerError::Gap { file, tensor, bytes: start - end });
        }
        end = start + tensor.bytes;
        last = &tensor.name;
    }
    if end != total {
        let (file, tensor) = (file.to_owned(), "(end of file)".to_owned());
        return Err(ContainerError::Gap { file, tensor, bytes: total - end });
    }
    Ok(())
}

/// Builds a checkpoint of `(file name, bytes)` parts and checks them against an index where one is given.
pub(crate) fn from_parts(
    parts: Vec<(String, Shard)>,
    index: Option<(&str, &[u8])>,
    dir: Option<PathBuf>,
) -> Result<Checkpoint, ContainerError> {
    let mut tensors = Vec::new();
    for (at, (name, shard)) in parts.iter().enumerate() {
        tensors.extend(read_header(name, shard.as_slice(), at)?);
    }
    if let Some((file, text)) = index {
        let map = read_index(file, text)?;
        let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
        check_index(file, &map, &tensors, &names)?;
    }
    Checkpoint::assemble(tensors, parts.into_iter().map(|(_, shard)| shard).collect(), None, dir)
}

/// The index's `weight_map`; a file name with a folder in it is refused.
pub(crate) fn read_index(file: &str, text: &[u8]) -> Result<HashMap<String, String>, ContainerError> {
    let index: Index = serde_json::from_slice(text)
        .map_err(|e| ContainerError::Json { file: file.to_owned(), why: e.to_string() })?;
    for (tensor, shard) in &index.weight_map.0 {
        let plain = Path::new(shard).file_name().and_then(|n| n.to_str()) == Some(shard.as_str());
        if !plain || !shard.ends_with(".safetensors") || shard.contains(['\\', '\0']) {
            let limit = "a plain .safetensors file name";
            return Err(ContainerError::tensor(file, tensor, "shard", format!("{shard:?}"), limit));
        }
    }
    Ok(index.weight_map.0.into_iter().collect())
}

fn check_index(
    file: &str,
    map: &HashMap<String, String>,
    tensors: &[TensorInfo],
    shards: &[&str],
) -> Result<(), ContainerError> {
    let mut present = HashSet::with_capacity(tensors.len());
    for tensor in tensors {
        let holder = shards[tensor.shard];
        match map.get(&tensor.name) {
            Some(shard) if shard == holder => present.insert(tensor.name.as_str()),
            Some(shard) => {
                return Err(ContainerError::tensor(file, &tensor.name, "shard", holder, shard));
            }
            None => {
                let limit = "an entry in weight_map for every stored tensor";
                return Err(ContainerError::tensor(file, &tensor.name, "index entry", "missing", limit));
            }
        };
    }
    let mut lost: Vec<&String> = map.keys().filter(|name| !present.contains(name.as_str())).collect();
    lost.sort();
    match lost.first() {
        Some(name) => Err(ContainerError::tensor(
            file,
            name,
            "shard",
            "without this tensor",
            format!("in {}", map[*name]),
        )),
        None => Ok(()),
    }
}

/// One `.safetensors` file.
pub(crate) fn open_file(path: &Path, shard: Shard) -> Result<Checkpoint, ContainerError> {
    let dir = path.parent().map(Path::to_owned);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    from_parts(vec![(name, shard)], None, dir)
}

/// A `model.safetensors.index.json` and the shards beside it.
pub(crate) fn open_index(path: &Path) -> Result<Checkpoint, ContainerError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let name = path.display().to_string();
    let text = read_bounded(path)?.ok_or_else(|| ContainerError::NotACheckpoint {
        path: path.to_owned(),
        why: "the index vanished".into(),
    })?;
    let map = read_index(&name, &text)?;
    let mut files: Vec<&String> = map.values().collect::<HashSet<_>>().into_iter().collect();
    files.sort();
    let count = files.len() as u64;
    let mut parts = Vec::with_capacity(files.len());
    for (at, file) in files.into_iter().enumerate() {
        let shard_path = dir.join(file);
        if !shard_path.exists() {
            let number = at as u64 + 1;
            return Err(ContainerError::MissingShard { path: shard_path, number, count, needed_by: name });
        }
        parts.push((file.clone(), Shard::map(&shard_path)?));
    }
    from_parts(parts, Some((&name, &text)), Some(dir.to_owned()))
}
