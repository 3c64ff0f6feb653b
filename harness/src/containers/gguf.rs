//! GGUF, versions 2 and 3, one file or split into shards.
//!
//! One idea: no count in the file is believed before the bytes that it promises are known to be there, so memory stays
//! within a small multiple of the header's real length. All arithmetic on the file's numbers is checked.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{Checkpoint, ContainerError, Dtype, MetaArray, MetaValue, Metadata, Shard, TensorInfo};

/// The first four bytes.
pub const MAGIC: &[u8] = b"GGUF";
/// Key of the data section's alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";
/// Alignment where the file names none.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Allowed alignments: powers of two from 8 bytes to 1 MiB.
pub const ALIGNMENT_LIMITS: (u64, u64) = (8, 1 << 20);
/// Longest header, metadata and tensor table together: 256 MiB. The largest known vocabularies take 20. A file with holes
/// promises bytes for nothing, so their being there is no bound.
pub const HEADER_LIMIT: usize = 256 << 20;
/// Longest string: 64 MiB (a chat template or a joined vocabulary is far below).
pub const STRING_LIMIT: u64 = 64 << 20;
/// Longest key and tensor name.
pub const NAME_LIMIT: u64 = 1024;
/// Deepest nesting of arrays.
pub const NESTING_LIMIT: u32 = 4;
/// Most dimensions.
pub const RANK_LIMIT: u32 = 4;
/// Most shards of a split file.
pub const SPLIT_LIMIT: u64 = 4096;

/// A reader over the header that knows where it is.
struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Bytes of the whole file; `bytes` are the first [`HEADER_LIMIT`] of them.
    total: u64,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, count: u64, field: &str) -> Result<&'a [u8], ContainerError> {
        if count > self.left() {
            let limit = format!("{} bytes left of the header at byte {}", self.left(), self.at);
            return Err(ContainerError::header(self.file, field, format!("{count} bytes long"), limit));
        }
        let slice = &self.bytes[self.at..self.at + count as usize];
        self.at += count as usize;
        Ok(slice)
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], ContainerError> {
        let slice = self.take(N as u64, field)?;
        Ok(slice.try_into().expect("take returns what was asked for"))
    }

    fn u32(&mut self, field: &str) -> Result<u32, ContainerError> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &str) -> Result<u64, ContainerError> {
        self.array(field).map(u64::from_le_bytes)
    }

    fn string(&mut self, limit: u64, field: &str) -> Result<String, ContainerError> {
        let len = self.u64(field)?;
        if len > limit {
            return Err(ContainerError::header(self.file, format!("length of {field}"), len, limit));
        }
        let bytes = self.take(len, field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => {
                let value = format!("not UTF-8 from byte {}", e.valid_up_to());
                Err(ContainerError::header(self.file, field, value, "UTF-8"))
            }
        }
    }

    /// A count that must fit into the rest of the file at `least` bytes each.
    fn count(&mut self, least: u64, field: &str) -> Result<u64, ContainerError> {
        let count = self.u64(field)?;
        let most = self.left() / least;
        if count > most {
            let limit = format!("{most}, what the rest of the header could hold");
            return Err(ContainerError::header(self.file, field, count, limit));
        }
        Ok(count)
    }

    fn numbers<const N: usize, T>(
        &mut self,
        count: u64,
        key: &str,
        read: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, ContainerError> {
        let bytes = self.take(count.saturating_mul(N as u64), key)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk)).collect())
    }

    fn boolean(&mut self, key: &str) -> Result<bool, ContainerError> {
        match self.array::<1>(key)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(ContainerError::header(self.file, key, other, "0 or 1 for a bool")),
        }
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<MetaValue, ContainerError> {
        Ok(match kind {
            0 => MetaValue::U8(self.array::<1>(key)?[0]),
            1 => MetaValue::I8(i8::from_le_bytes(self.array(key)?)),
            2 => MetaValue::U16(u16::from_le_bytes(self.array(key)?)),
            3 => MetaValue::I16(i16::from_le_bytes(self.array(key)?)),
            4 => MetaValue::U32(self.u32(key)?),
            5 => MetaValue::I32(i32::from_le_bytes(self.array(key)?)),
            6 => MetaValue::F32(f32::from_le_bytes(self.array(key)?)),
            7 => MetaValue::Bool(self.boolean(key)?),
            8 => MetaValue::String(self.string(STRING_LIMIT, key)?),
            9 => MetaValue::Array(self.nested(key, 1)?),
            10 => MetaValue::U64(self.u64(key)?),
            11 => MetaValue::I64(i64::from_le_bytes(self.array(key)?)),
            12 => MetaValue::F64(f64::from_le_bytes(self.array(key)?)),
            _ => return Err(self.unknown(key, kind)),
        })
    }

    fn unknown(&self, key: &str, kind: u32) -> ContainerError {
        ContainerError::UnknownType {
            file: self.file.to_owned(),
            subject: format!("metadata key `{key}`"),
            value: kind.to_string(),
        }
    }

    fn nested(&mut self, key: &str, depth: u32) -> Result<MetaArray, ContainerError> {
        if depth > NESTING_LIMIT {
            return Err(ContainerError::header(self.file, format!("nesting of {key}"), depth, NESTING_LIMIT));
        }
        let kind = self.u32(key)?;
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            _ => return Err(self.unknown(key, kind)),
        };
        let n = self.count(least, &format!("array length of {key}"))?;
        Ok(match kind {
            0 => MetaArray::U8(self.take(n, key)?.to_vec()),
            1 => MetaArray::I8(self.numbers(n, key, i8::from_le_bytes)?),
            2 => MetaArray::U16(self.numbers(n, key, u16::from_le_bytes)?),
            3 => MetaArray::I16(self.numbers(n, key, i16::from_le_bytes)?),
            4 => MetaArray::U32(self.numbers(n, key, u32::from_le_bytes)?),
            5 => MetaArray::I32(self.numbers(n, key, i32::from_le_bytes)?),
            6 => MetaArray::F32(self.numbers(n, key, f32::from_le_bytes)?),
            7 => MetaArray::Bool((0..n).map(|_| self.boolean(key)).collect::<Result<_, _>>()?),
            8 => MetaArray::String((0..n).map(|_| self.string(STRING_LIMIT, key)).collect::<Result<_, _>>()?),
            9 => MetaArray::Array((0..n).map(|_| self.nested(key, depth + 1)).collect::<Result<_, _>>()?),
            10 => MetaArray::U64(self.numbers(n, key, u64::from_le_bytes)?),
            11 => MetaArray::I64(self.numbers(n, key, i64::from_le_bytes)?),
            _ => MetaArray::F64(self.numbers(n, key, f64::from_le_bytes)?),
        })
    }
}

/// One parsed file: its metadata and its tensors, `start` relative to the whole file.
pub struct Parsed {
    /// Key/values.
    pub metadata: Metadata,
    /// Tensors in file order.
    pub tensors: Vec<TensorInfo>,
}

/// Parses and validates one file's bytes. `shard` is written into the tensors.
pub fn parse(file: &str, bytes: &[u8], shard: usize) -> Result<Parsed, ContainerError> {
    let (total, head) = (bytes.len() as u64, &bytes[..bytes.len().min(HEADER_LIMIT)]);
    let mut cursor = Cursor { file, bytes: head, at: 0, total };
    let magic = cursor.array::<4>("magic")?;
    if magic != MAGIC {
        return Err(ContainerError::header(file, "magic", format!("{magic:02x?}"), "`GGUF`"));
    }
    let version = cursor.u32("version")?;
    if !(2..=3).contains(&version) {
        return Err(ContainerError::header(file, "version", version, "2 or 3, little endian"));
    }
    // A tensor takes at least 8 + 4 + 8 + 4 + 8 bytes here, a key/value at least 8 + 4 + 1.
    let tensor_count = cursor.count(32, "tensor count")?;
    let pair_count = cursor.count(13, "key/value count")?;
    let mut metadata = Metadata::default();
    for _ in 0..pair_count {
        let key = cursor.string(NAME_LIMIT, "metadata key")?;
        let kind = cursor.u32(&key)?;
        let value = cursor.value(kind, &key)?;
        if metadata.insert(key.as_str(), value).is_some() {
            return Err(ContainerError::Duplicate { file: file.to_owned(), what: "metadata key", name: key });
        }
    }
    let alignment = alignment(file, &metadata)?;
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..tensor_count {
        let tensor = read_tensor(&mut cursor, alignment, shard)?;
        if !names.insert(tensor.name.clone()) {
            let name = tensor.name;
            return Err(ContainerError::Duplicate { file: file.to_owned(), what: "tensor", name });
        }
        tensors.push(tensor);
    }
    let data_at = (cursor.at as u64).next_multiple_of(alignment);
    place(file, &mut tensors, data_at, alignment, bytes)?;
    Ok(Parsed { metadata, tensors })
}

fn alignment(file: &str, metadata: &Metadata) -> Result<u64, ContainerError> {
    if !metadata.has(ALIGNMENT_KEY) {
        return Ok(DEFAULT_ALIGNMENT);
    }
    let value = metadata.u64(ALIGNMENT_KEY)?;
    let (least, most) = ALIGNMENT_LIMITS;
    if !value.is_power_of_two() || value < least || value > most {
        let limit = format!("a power of two in {least}..={most}");
        return Err(ContainerError::header(file, ALIGNMENT_KEY, value, limit));
    }
    Ok(value)
}

/// Reads a tensor's description; `start` is still relative to the data section.
fn read_tensor(cursor: &mut Cursor<'_>, alignment: u64, shard: usize) -> Result<TensorInfo, ContainerError> {
    let file = cursor.file;
    let name = cursor.string(NAME_LIMIT, "tensor name")?;
    let field = |what: &str| format!("{what} of tensor `{name}`");
    let bad =
        |what, value: String, limit: String| Err(ContainerError::tensor(file, &name, what, value, limit));
    let rank = cursor.u32(&field("n_dims"))?;
    if rank == 0 || rank > RANK_LIMIT {
        return bad("n_dims", rank.to_string(), format!("1..={RANK_LIMIT}"));
    }
    let mut shape = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        shape.push(cursor.u64(&field("dims"))?);
    }
    shape.reverse();
    let id = cursor.u32(&field("type"))?;
    let offset = cursor.u64(&field("offset"))?;
    let dtype = Dtype::from_ggml(id).ok_or_else(|| ContainerError::UnknownType {
        file: file.to_owned(),
        subject: format!("tensor `{name}`"),
        value: id.to_string(),
    })?;
    if shape.contains(&0) {
        return bad("dims", format!("{shape:?}"), "at least 1 each".into());
    }
    let Some(bytes) = dtype.bytes_of(&shape) else {
        let limit = format!("rows of whole {}-value {dtype} blocks and 64-bit sizes", dtype.block().values);
        return bad("dims", format!("{shape:?}"), limit);
    };
    if offset % alignment != 0 {
        return bad("offset", offset.to_string(), format!("a multiple of {alignment}"));
    }
    let total = cursor.total;
    if offset.checked_add(bytes).is_none_or(|end| end > total) {
        let limit = format!("the file's {total} bytes");
        return bad("offset + bytes", format!("{offset} + {bytes}"), limit);
    }
    Ok(TensorInfo { name, dtype, shape, bytes, shard, start: offset as usize })
}

/// Turns offsets into file positions; checks bounds, overlap and what stands behind the last tensor.
fn place(
    file: &str,
    tensors: &mut [TensorInfo],
    data_at: u64,
    alignment: u64,
    bytes: &[u8],
) -> Result<(), ContainerError> {
    let total = bytes.len() as u64;
    for tensor in tensors.iter_mut() {
        let end = tensor.start as u64 + data_at + tensor.bytes;
        if end > total {
            let limit = format!("the file's {total} bytes");
            return Err(ContainerError::tensor(file, &tensor.name, "end of data", end, limit));
        }
        tensor.start += data_at as usize;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.start);
    for pair in order.windows(2) {
        if pair[0].start as u64 + pair[0].bytes > pair[1].start as u64 {
            return Err(ContainerError::Overlap {
                file: file.to_owned(),
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
                at: pair[1].start as u64 - data_at,
            });
        }
    }
    let end = order.last().map_or(data_at.min(total), |t| t.start as u64 + t.bytes);
    let padded = end.next_multiple_of(alignment).min(total);
    for at in [end, padded] {
        if bytes[at as usize..].starts_with(MAGIC) {
            return Err(ContainerError::SecondHeader { file: file.to_owned(), at });
        }
    }
    if bytes[padded as usize..].iter().any(|&b| b != 0) {
        let (file, tensor) = (file.to_owned(), "(end of file)".to_owned());
        return Err(ContainerError::Gap { file, tensor, bytes: total - padded });
    }
    Ok(())
}

/// A checkpoint of one file's bytes; a part of a split file is refused, because its other parts cannot be found.
pub(crate) fn from_shard(file: &str, shard: Shard) -> Result<Checkpoint, ContainerError> {
    let parsed = parse(file, shard.as_slice(), 0)?;
    if split_count(&parsed.metadata)? > 1 {
        return Err(ContainerError::header(
            file,
            "split.count",
            split_count(&parsed.metadata)?,
            "1 in memory",
        ));
    }
    Checkpoint::assemble(parsed.tensors, vec![shard], Some(parsed.metadata), None)
}

fn split_count(metadata: &Metadata) -> Result<u64, ContainerError> {
    if metadata.has("split.count") { metadata.u64("split.count") } else { Ok(1) }
}

/// `name-00002-of-00003.gguf` taken apart: (`name`, 2, 3).
#[must_use]
pub fn split_name(path: &Path) -> Option<(String, u64, u64)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let digits = |s: &str| if s.len() == 5 { s.parse::<u64>().ok() } else { None };
    Some((name.to_owned(), digits(number)?, digits(count)?))
}

/// Whether the files are the parts of one split checkpoint (some may be missing).
#[must_use]
pub fn is_one_split(paths: &[PathBuf]) -> bool {
    let mut keys = paths.iter().map(|p| split_name(p).map(|(name, _, count)| (name, count)));
    let first = keys.next().flatten();
    first.is_some() && keys.all(|key| key == first)
}

/// Opens a file that may be any shard of a split.
pub(crate) fn open_shard(path: &Path, shard: Shard) -> Result<Checkpoint, ContainerError> {
    let file = path.display().to_string();
    let dir = path.parent().map(Path::to_owned);
    let parsed = parse(&file, shard.as_slice(), 0)?;
    let count = split_count(&parsed.metadata)?;
    if count <= 1 {
        return Checkpoint::assemble(parsed.tensors, vec![shard], Some(parsed.metadata), dir);
    }
    if count > SPLIT_LIMIT {
        return Err(ContainerError::header(&file, "split.count", count, SPLIT_LIMIT));
    }
    let number = parsed.metadata.u64("split.no")?;
    let Some((name, named, of)) = split_name(path) else {
        let limit = "NAME-00001-of-0000N.gguf, so that the other shards can be found";
        return Err(ContainerError::header(&file, "file name of a split", path.display(), limit));
    };
    let part = |n: u64| path.with_file_name(format!("{name}-{n:05}-of-{of:05}.gguf"));
    let wrong = |file: &str, field, value, expected| {
        let (file, first) = (file.to_owned(), part(1).display().to_string());
        Err(ContainerError::WrongShard { file, field, value, expected, first })
    };
    if of != count {
        return wrong(&file, "split.count", count, of);
    }
    if number.checked_add(1) != Some(named) {
        return wrong(&file, "split.no", number, named.saturating_sub(1)); // 0-based inside, 1-based in the name
    }
    drop((parsed, shard));
    let (mut tensors, mut shards, mut metadata) = (Vec::new(), Vec::new(), None);
    for n in 1..=count {
        let shard_path = part(n);
        if !shard_path.exists() {
            return Err(ContainerError::MissingShard { path: shard_path, number: n, count, needed_by: file });
        }
        let shard = Shard::map(&shard_path)?;
        let label = shard_path.display().to_string();
        let parsed = parse(&label, shard.as_slice(), shards.len())?;
        for (field, expected) in [("split.count", count), ("split.no", n - 1)] {
            let value = parsed.metadata.u64(field)?;
            if value != expected {
                return wrong(&label, field, value, expected);
            }
        }
        tensors.extend(parsed.tensors);
        shards.push(shard);
        metadata.get_or_insert(parsed.metadata);
    }
    if let Some(meta) = metadata.as_ref().filter(|m| m.has("split.tensors.count")) {
        let total = meta.u64("split.tensors.count")?;
        if total != tensors.len() as u64 {
            return wrong(&file, "split.tensors.count", total, tensors.len() as u64);
        }
    }
    Checkpoint::assemble(tensors, shards, metadata, dir)
}
