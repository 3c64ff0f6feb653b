//! Checkpoints: safetensors and GGUF behind one list of tensors.
//!
//! One idea: a checkpoint is names, types, row-major shapes and *borrowed* bytes. Everything is validated before the
//! first byte is lent, so whoever asks for [`Checkpoint::bytes`] gets exactly `dtype x shape` bytes. Read
//! [`safetensors`], [`gguf`] and [`ggml`] next.

mod error;
pub mod ggml;
pub mod gguf;
pub mod gguf_write;
pub mod meta;
pub mod safetensors;
pub mod safetensors_write;
pub mod stream;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kernels::sys::mmap::Mapped;

pub use error::ContainerError;
pub use ggml::{Block, Dtype};
pub use meta::{MetaArray, MetaValue, Metadata};

/// Largest side file (`config.json`, `tokenizer.json`, ...) that is read into memory: 256 MiB.
pub const SIDE_FILE_LIMIT: u64 = 256 << 20;

/// One stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Type of its values.
    pub dtype: Dtype,
    /// Row-major shape, `[out, in]` for a matrix (GGUF's `ne` reversed).
    pub shape: Vec<u64>,
    /// Bytes, equal to `dtype x shape`.
    pub bytes: u64,
    pub(crate) shard: usize,
    pub(crate) start: usize,
}

/// Where a shard's bytes live.
#[derive(Debug)]
pub(crate) enum Shard {
    Mapped(Mapped),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Shard {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Shard::Mapped(map) => map.as_slice(),
            Shard::Static(bytes) => bytes,
            Shard::Owned(bytes) => bytes,
        }
    }

    pub(crate) fn map(path: &Path) -> Result<Shard, ContainerError> {
        Mapped::open(path).map(Shard::Mapped).map_err(|e| ContainerError::io(path, e))
    }
}

/// A validated checkpoint. Tensors keep the order of the files.
#[derive(Debug)]
pub struct Checkpoint {
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    shards: Vec<Shard>,
    metadata: Option<Metadata>,
    dir: Option<PathBuf>,
    embedded: HashMap<String, &'static [u8]>,
}

impl Checkpoint {
    pub(crate) fn assemble(
        tensors: Vec<TensorInfo>,
        shards: Vec<Shard>,
        metadata: Option<Metadata>,
        dir: Option<PathBuf>,
    ) -> Result<Checkpoint, ContainerError> {
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (at, tensor) in tensors.iter().enumerate() {
            if by_name.insert(tensor.name.clone(), at).is_some() {
                let file = dir.as_deref().unwrap_or(Path::new("checkpoint")).display().to_string();
                return Err(ContainerError::Duplicate { file, what: "tensor", name: tensor.name.clone() });
            }
        }
        Ok(Checkpoint { tensors, by_name, shards, metadata, dir, embedded: HashMap::new() })
    }

    /// A safetensors checkpoint that is part of the executable: `(file name, bytes)` for each shard, and the text of
    /// `model.safetensors.index.json` where there is more than one.
    pub fn from_embedded(
        shards: &[(&str, &'static [u8])],
        index: Option<&str>,
    ) -> Result<Checkpoint, ContainerError> {
        safetensors::from_parts(
            shards.iter().map(|&(name, bytes)| (name.to_owned(), Shard::Static(bytes))).collect(),
            index.map(|text| ("model.safetensors.index.json", text.as_bytes())),
            None,
        )
    }

    /// One file's bytes, of either container (told apart by the magic).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Checkpoint, ContainerError> {
        if bytes.starts_with(gguf::MAGIC) {
            gguf::from_shard("(bytes)", Shard::Owned(bytes))
        } else {
            safetensors::from_parts(vec![("(bytes)".to_owned(), Shard::Owned(bytes))], None, None)
        }
    }

    /// Adds a side file (`config.json`, `tokenizer.json`) to an embedded checkpoint.
    #[must_use]
    pub fn with_side_file(mut self, name: &str, bytes: &'static [u8]) -> Checkpoint {
        self.embedded.insert(name.to_owned(), bytes);
        self
    }

    /// All tensors, in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// One tensor's description, if it is there.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&at| &self.tensors[at])
    }

    /// One tensor's description, or an error that names it.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, ContainerError> {
        self.get(name).ok_or_else(|| ContainerError::MissingTensor { name: name.to_owned() })
    }

    /// A tensor's bytes without a copy. The slice has no alignment beyond the file's.
    pub fn bytes(&self, name: &str) -> Result<&[u8], ContainerError> {
        Ok(self.bytes_of(self.tensor(name)?))
    }

    /// The bytes of a tensor of this checkpoint.
    ///
    /// # Panics
    /// If `tensor` came from another checkpoint and lies outside this one.
    #[must_use]
    pub fn bytes_of(&self, tensor: &TensorInfo) -> &[u8] {
        let len =
            usize::try_from(tensor.bytes).expect("checked against the mapped length when it was opened");
        &self.shards[tensor.shard].as_slice()[tensor.start..tensor.start + len]
    }

    /// GGUF key/values; `None` for safetensors.
    #[must_use]
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// The folder the checkpoint lies in; `None` for embedded ones.
    #[must_use]
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// A side file's bytes, at most [`SIDE_FILE_LIMIT`]; `None` where there is none.
    pub fn side_file(&self, name: &str) -> Result<Option<Vec<u8>>, ContainerError> {
        if let Some(bytes) = self.embedded.get(name) {
            return Ok(Some(bytes.to_vec()));
        }
        match &self.dir {
            Some(dir) => read_bounded(&dir.join(name)),
            None => Ok(None),
        }
    }

    /// `config.json` beside the weights, parsed; `None` where there is none.
    pub fn config_json(&self) -> Result<Option<serde_json::Value>, ContainerError> {
        let Some(bytes) = self.side_file("config.json")? else { return Ok(None) };
        let value = serde_json::from_slice(&bytes)
            .map_err(|e| ContainerError::Json { file: "config.json".into(), why: e.to_string() })?;
        Ok(Some(value))
    }

    /// Refuses a checkpoint with tensors that `used` does not know, and lists them.
    pub fn refuse_unused(&self, used: impl Fn(&str) -> bool) -> Result<(), ContainerError> {
        let unused: Vec<&str> =
            self.tensors.iter().map(|t| t.name.as_str()).filter(|name| !used(name)).collect();
        if unused.is_empty() {
            return Ok(());
        }
        let names = unused.iter().take(16).copied().collect::<Vec<_>>().join(", ");
        Err(ContainerError::Unused { count: unused.len(), names })
    }

    /// Sum of all tensors' bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes).sum()
    }
}

/// Opens a folder (safetensors with or without an index, or GGUF), a `.safetensors` file or a `.gguf` file. Any shard of
/// a split GGUF opens the whole.
pub fn open(path: &Path) -> Result<Checkpoint, ContainerError> {
    let about = std::fs::metadata(path).map_err(|e| ContainerError::io(path, e))?;
    if about.is_dir() {
        return open_dir(path);
    }
    let shard = Shard::map(path)?;
    if shard.as_slice().starts_with(gguf::MAGIC) {
        return gguf::open_shard(path, shard);
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("safetensors") => safetensors::open_file(path, shard),
        Some("gguf") => gguf::open_shard(path, shard), // its magic is wrong: the reader says so
        Some("json") if path.to_string_lossy().ends_with(".safetensors.index.json") => {
            safetensors::open_index(path)
        }
        _ => Err(ContainerError::NotACheckpoint {
            path: path.to_owned(),
            why: "neither a GGUF magic nor a .safetensors name".into(),
        }),
    }
}

fn open_dir(dir: &Path) -> Result<Checkpoint, ContainerError> {
    let index = dir.join("model.safetensors.index.json");
    if index.exists() {
        return safetensors::open_index(&index);
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .map_err(|e| ContainerError::io(dir, e))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|p| matches!(p.extension().and_then(|e| e.to_str()), Some("safetensors" | "gguf")))
        .collect();
    found.sort();
    // A usual name wins over other weight files beside it (recorded answers, adapters).
    for name in ["model.safetensors", "model.gguf"] {
        let single = dir.join(name);
        if found.contains(&single) {
            return open(&single);
        }
    }
    match found.as_slice() {
        [] => Err(ContainerError::NotACheckpoint {
            path: dir.to_owned(),
            why: "no model.safetensors.index.json, *.safetensors or *.gguf".into(),
        }),
        [only] => open(only),
        many if gguf::is_one_split(many) => open(&many[0]),
        many => Err(ContainerError::NotACheckpoint {
            path: dir.to_owned(),
            why: format!("{} weight files and no index; name one of them", many.len()),
        }),
    }
}

/// Reads a file of at most [`SIDE_FILE_LIMIT`] bytes; `None` where it does not exist.
pub(crate) fn read_bounded(path: &Path) -> Result<Option<Vec<u8>>, ContainerError> {
    use std::io::Read;
    use std::io::{Error, ErrorKind};
    // Asked before it is opened: a pipe would wait for its writer.
    match std::fs::metadata(path) {
        Ok(about) if about.is_file() => {}
        Ok(_) => {
            return Err(ContainerError::io(path, Error::new(ErrorKind::InvalidInput, "not a plain file")));
        }
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(ContainerError::io(path, e)),
    }
    let file = std::fs::File::open(path).map_err(|e| ContainerError::io(path, e))?;
    let mut bytes = Vec::new();
    let read = file.take(SIDE_FILE_LIMIT + 1).read_to_end(&mut bytes);
    read.map_err(|e| ContainerError::io(path, e))?;
    if bytes.len() as u64 > SIDE_FILE_LIMIT {
        let file = path.display().to_string();
        return Err(ContainerError::header(&file, "length", "more", format!("{SIDE_FILE_LIMIT} bytes")));
    }
    Ok(Some(bytes))
}
