//! Packs: a model's bytes in consumption order behind a manifest, in one file.
//!
//! Layout: 8 bytes of magic, the header's length (u64, little endian), the header (JSON), zeros up to a
//! multiple of 4096, the payload. The pack id is the BLAKE3 of the header, which holds the BLAKE3 of every
//! tensor and side file, so the id covers every byte.
use crate::containers::stream::room_for;
use crate::containers::{Checkpoint, ContainerError, SIDE_FILE_LIMIT};
use crate::families::config::GeometryError;
use crate::families::{Model, PlanError};
use crate::manifest::{Entry, Manifest, ManifestError, TensorSpec};
use crate::recipe::Recipe;
use kernels::formats::Format;
use kernels::sys::region::Region;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

const MAGIC: &[u8; 8] = b"SPKPACK1";
const PAGE: u64 = 4096;
/// Largest header accepted: far above any manifest (a 100-layer model has about 100 kB).
const MAX_HEADER: u64 = 64 << 20;
const VERSION: u32 = 1;

/// What goes wrong with a pack.
#[derive(Debug, Error)]
pub enum PackError {
    /// File system.
    #[error("pack {path}: {source}")]
    Io {
        /// Path.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Not a pack, or not whole.
    #[error("pack {path}: field '{field}': {what}")]
    Invalid {
        /// Path.
        path: PathBuf,
        /// Field.
        field: String,
        /// What is wrong.
        what: String,
    },
    /// A checkpoint tensor that does not fit the family.
    #[error("tensor '{name}': {what}")]
    Tensor {
        /// Tensor.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// Container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Geometry.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A side file (tokenizer, templates) inside a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SideFile {
    /// Name.
    pub name: String,
    /// Byte offset in the payload.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// BLAKE3.
    pub blake3: String,
}

/// A pack's header.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Format version.
    pub version: u32,
    /// Name of the model, for people and tuples.
    pub name: String,
    /// Whether the checkpoint says that its weights are made up: its receipts are synthetic and never admit.
    pub synthetic: bool,
    /// Family and geometry.
    pub model: Model,
    /// Recipe.
    pub recipe: Recipe,
    /// Tensors.
    pub manifest: Manifest,
    /// Side files.
    pub files: Vec<SideFile>,
}

/// Side files that a pack takes along where the checkpoint has them.
const SIDE_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];

/// Name of the side file that holds a GGUF file's metadata, tokenizer included, as a GGUF without tensors.
pub const GGUF_HEADER: &str = "gguf.header";

/// BLAKE3 in hex.
pub fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Reads the geometry of a checkpoint from its config or metadata.
pub fn model_of(checkpoint: &Checkpoint) -> Result<Model, PackError> {
    match checkpoint.metadata() {
        Some(metadata) => Ok(Model::from_gguf(metadata)?),
        None => match checkpoint.config_json()? {
            Some(config) => Ok(Model::from_config(&config)?),
            None => Err(GeometryError::Missing { field: "config.json".into() }.into()),
        },
    }
}

/// Key of config.json by which a synthetic safetensors checkpoint says what it is.
pub const SYNTHETIC_KEY: &str = "sparkpipe_synthetic";

/// Whether a checkpoint says of itself that its weights are made up.
fn is_synthetic(checkpoint: &Checkpoint) -> Result<bool, PackError> {
    Ok(match checkpoint.metadata() {
        Some(metadata) => metadata.str("general.name").is_ok_and(|name| name == "synthetic"),
        None => checkpoint.config_json()?.is_some_and(|c| c.get(SYNTHETIC_KEY).is_some()),
    })
}

/// What a pack of `checkpoint` holds: the model's tensors, and those of its draft head where the checkpoint has any
/// of them (published checkpoints often leave the head out; half of one is an error).
fn specs_in(model: &Model, checkpoint: &Checkpoint) -> Vec<TensorSpec> {
    let (mut specs, draft) = (model.tensors(), model.draft_tensors());
    let gguf = checkpoint.metadata().is_some();
    if draft.iter().any(|s| checkpoint.get(if gguf { &s.gguf } else { &s.hf }).is_some()) {
        specs.extend(draft);
    }
    specs
}

/// Whether kernels read a tensor of that class in that format: small weights are plain floats.
fn holds(spec: &TensorSpec, format: Format) -> bool {
    !matches!(spec.class, "norm" | "conv") || matches!(format, Format::F32 | Format::F16 | Format::Bf16)
}

/// The family's tensors with the format the checkpoint holds each in; shapes must agree exactly.
fn resolve<'c>(
    model: &Model,
    checkpoint: &'c Checkpoint,
) -> Result<Vec<(TensorSpec, Format, &'c [u8])>, PackError> {
    let gguf = checkpoint.metadata().is_some();
    let mut out = Vec::new();
    for spec in specs_in(model, checkpoint) {
        let name = if gguf { &spec.gguf } else { &spec.hf };
        let info = checkpoint.tensor(name)?;
        let bad = |what: String| PackError::Tensor { name: name.clone(), what };
        if info.shape != spec.shape {
            return Err(bad(format!("shape {:?}, the configuration needs {:?}", info.shape, spec.shape)));
        }
        let format = Format::from_name(&info.dtype.name().to_ascii_lowercase())
            .ok_or_else(|| bad(format!("dtype {} has no kernel", info.dtype.name())))?;
        if !holds(&spec, format) {
            return Err(bad(format!("dtype {}, small weights are F32, F16 or BF16", format.name())));
        }
        out.push((spec.clone(), format, checkpoint.bytes_of(info)));
    }
    Ok(out)
}

/// A pack on disk.
#[derive(Clone, Debug)]
pub struct Pack {
    /// Path.
    pub path: PathBuf,
    /// Header.
    pub header: Header,
    /// BLAKE3 of the header.
    pub id: String,
    payload_at: u64,
    payload: u64,
}

impl Pack {
    /// Whether its tensors are, byte for byte, those of `checkpoint`.
    pub fn is_made_of(&self, checkpoint: &Checkpoint) -> bool {
        let gguf = checkpoint.metadata().is_some();
        self.header.model.tensors().iter().all(|spec| {
            let info = checkpoint.get(if gguf { &spec.gguf } else { &spec.hf });
            let (Ok(entry), Some(info)) = (self.header.manifest.get(&spec.name), info) else { return false };
            let bytes = checkpoint.bytes_of(info);
            info.shape == spec.shape && bytes.len() as u64 == entry.bytes && hash(bytes) == entry.blake3
        })
    }

    /// Writes the pack of `checkpoint` to `path`, through a temporary file that is renamed when whole.
    pub fn write(
        checkpoint: &Checkpoint,
        name: &str,
        recipe: &Recipe,
        path: &Path,
    ) -> Result<Self, PackError> {
        replaceable(path)?;
        let model = model_of(checkpoint)?;
        let tensors = resolve(&model, checkpoint)?;
        let known: std::collections::BTreeSet<&str> = if checkpoint.metadata().is_some() {
            tensors.iter().map(|t| t.0.gguf.as_str()).collect()
        } else {
            tensors.iter().map(|t| t.0.hf.as_str()).collect()
        };
        let deferred = |n: &str| n.starts_with("model.visual.");
        checkpoint.refuse_unused(|n| known.contains(n) || deferred(n))?;
        let specs: Vec<_> = tensors.iter().map(|(s, f, _)| (s.clone(), *f)).collect();
        let mut manifest = Manifest::lay_out(&specs)?;
        let mut sections: Vec<(u64, Vec<u8>)> = Vec::new();
        for (entry, (_, _, bytes)) in manifest.entries.iter_mut().zip(&tensors) {
            entry.blake3 = blake3::hash(bytes).to_hex().to_string();
        }
        let mut files = Vec::new();
        let mut at = manifest.payload;
        for (name, bytes) in side_files(checkpoint)? {
            at = at.next_multiple_of(PAGE);
            let hash = blake3::hash(&bytes).to_hex().to_string();
            files.push(SideFile { name, offset: at, bytes: bytes.len() as u64, blake3: hash });
            at += bytes.len() as u64;
            sections.push((files[files.len() - 1].offset, bytes));
        }
        manifest.payload = at.next_multiple_of(PAGE);
        let recipe = recipe.clone();
        let synthetic = is_synthetic(checkpoint)?;
        let header =
            Header { version: VERSION, name: name.into(), synthetic, model, recipe, manifest, files };
        let io_error = |source| PackError::Io { path: path.into(), source };
        write_file(path, &header, &tensors, &sections).map_err(io_error)?;
        Self::open(path)
    }

    /// A pack without a file: the layout of `model` in `recipe`, for weights made from `seed` where they are used.
    pub fn synthetic(name: &str, model: &Model, recipe: &Recipe, seed: u64) -> Result<Self, PackError> {
        let (manifest, recipe, files) = (model.manifest(recipe)?, recipe.clone(), Vec::new());
        let payload = manifest.payload;
        let (version, synthetic, model) = (VERSION, true, model.clone());
        let header = Header { version, name: name.into(), synthetic, model, recipe, manifest, files };
        let json = serde_json::to_vec(&header).unwrap_or_default();
        let id = blake3::hash(&[&json[..], &seed.to_le_bytes()].concat()).to_hex().to_string();
        Ok(Self { path: PathBuf::from(format!("synthetic:{seed}")), header, id, payload_at: 0, payload })
    }

    /// Opens a pack and checks its header against itself and the file's length.
    pub fn open(path: &Path) -> Result<Self, PackError> {
        let io_error = |source| PackError::Io { path: path.into(), source };
        let invalid =
            |field: &str, what: String| PackError::Invalid { path: path.into(), field: field.into(), what };
        let mut file = File::open(path).map_err(io_error)?;
        let size = file.metadata().map_err(io_error)?.len();
        let mut start = [0u8; 16];
        file.read_exact(&mut start)
            .map_err(|_| invalid("magic", "the file is shorter than 16 bytes".into()))?;
        if &start[..8] != MAGIC {
            return Err(invalid("magic", "this is not a pack".into()));
        }
        let length = u64::from_le_bytes(start[8..].try_into().expect("8 of 16 bytes"));
        if length > MAX_HEADER || 16 + length > size {
            return Err(invalid("header length", format!("{length} bytes, the file holds {size}")));
        }
        let mut json = vec![0; length as usize];
        file.read_exact(&mut json).map_err(io_error)?;
        let id = blake3::hash(&json).to_hex().to_string();
        let mut header: Header =
            serde_json::from_slice(&json).map_err(|e| invalid("header", e.to_string()))?;
        header.manifest.reindex();
        let payload_at = (16 + length).next_multiple_of(PAGE);
        let mut gap = Vec::new();
        file.take(payload_at - 16 - length).read_to_end(&mut gap).map_err(io_error)?;
        if let Some(at) = gap.iter().position(|b| *b != 0) {
            return Err(invalid("padding", format!("byte {} is not zero", 16 + length + at as u64)));
        }
        let payload = header.manifest.payload;
        let pack = Self { path: path.into(), header, id, payload_at, payload };
        pack.check(size)?;
        Ok(pack)
    }

    fn check(&self, size: u64) -> Result<(), PackError> {
        let invalid = |field: &str, what: String| PackError::Invalid {
            path: self.path.clone(),
            field: field.into(),
            what,
        };
        if self.header.version != VERSION {
            return Err(invalid("version", format!("{}, this build reads {VERSION}", self.header.version)));
        }
        if self.payload_at.checked_add(self.payload) != Some(size) {
            return Err(invalid(
                "payload",
                format!("{} bytes announced, the file holds {size}", self.payload),
            ));
        }
        self.header.model.validate()?;
        self.header
            .recipe
            .validate(&self.header.recipe.name)
            .map_err(|e| invalid("recipe", e.to_string()))?;
        let mut names = std::collections::BTreeSet::new();
        for f in &self.header.files {
            let known = f.name == GGUF_HEADER || SIDE_FILES.contains(&f.name.as_str());
            if !known || !names.insert(&f.name) {
                return Err(invalid("files", format!("'{}' is no side file, or stands there twice", f.name)));
            }
            if f.bytes > SIDE_FILE_LIMIT {
                return Err(invalid(&f.name, format!("{} bytes, the limit is {SIDE_FILE_LIMIT}", f.bytes)));
            }
        }
        let spans = self.header.manifest.entries.iter().map(|e| (&e.name, e.offset, e.bytes));
        let files = self.header.files.iter().map(|f| (&f.name, f.offset, f.bytes));
        for (name, offset, bytes) in spans.chain(files) {
            if offset.checked_add(bytes).is_none_or(|end| end > self.payload) {
                return Err(invalid(
                    name,
                    format!("bytes {offset}+{bytes} leave the payload of {}", self.payload),
                ));
            }
        }
        let (mut specs, draft) = (self.header.model.tensors(), self.header.model.draft_tensors());
        if self.has_draft() {
            specs.extend(draft);
        }
        let mut layout = Vec::with_capacity(specs.len());
        for spec in specs {
            let format = self.header.manifest.get(&spec.name)?.parsed_format()?;
            if !holds(&spec, format) {
                return Err(invalid(&spec.name, format!("held in {}, which no kernel reads", format.name())));
            }
            layout.push((spec, format));
        }
        let want = Manifest::lay_out(&layout)?;
        let (have, need) = (self.header.manifest.entries.len(), want.entries.len());
        if have != need {
            return Err(invalid("manifest", format!("{have} tensors, the geometry has {need}")));
        }
        for (have, want) in self.header.manifest.entries.iter().zip(&want.entries) {
            // The hashes are checked by `verify`; everything else follows from geometry and formats.
            if *have != (Entry { blake3: have.blake3.clone(), ..want.clone() }) {
                let what = "shape, class, layer, offset or size differ from the geometry's layout";
                return Err(invalid(&have.name, what.into()));
            }
        }
        Ok(())
    }

    /// Whether it holds the tensors of the model's draft head.
    pub fn has_draft(&self) -> bool {
        let manifest = &self.header.manifest;
        self.header.model.draft_tensors().iter().any(|s| manifest.get(&s.name).is_ok())
    }

    /// The payload, mapped read only.
    pub fn weights(&self) -> Result<Region, PackError> {
        Region::file(&self.path, self.payload_at, self.payload)
            .map_err(|source| PackError::Io { path: self.path.clone(), source })
    }

    /// Re-hashes every tensor and side file; the first that differs is named. What lies between them is zero.
    pub fn verify(&self) -> Result<(), PackError> {
        let region = self.weights()?;
        let bytes = region.as_slice();
        let tensors = self.header.manifest.entries.iter().map(|e| (&e.name, e.offset, e.bytes, &e.blake3));
        let files = self.header.files.iter().map(|f| (&f.name, f.offset, f.bytes, &f.blake3));
        for (name, offset, len, want) in tensors.chain(files) {
            let have = blake3::hash(&bytes[offset as usize..(offset + len) as usize]).to_hex();
            if have.as_str() != want {
                let what = format!("BLAKE3 is {have}, the manifest says {want}");
                return Err(PackError::Invalid { path: self.path.clone(), field: name.clone(), what });
            }
        }
        self.verify_padding(bytes)
    }

    /// No byte of the file is outside a hash and free to change: padding is zero.
    fn verify_padding(&self, bytes: &[u8]) -> Result<(), PackError> {
        let tensors = self.header.manifest.entries.iter().map(|e| (e.offset, e.bytes));
        let files = self.header.files.iter().map(|f| (f.offset, f.bytes));
        let mut spans: Vec<(u64, u64)> = tensors.chain(files).chain([(self.payload, 0)]).collect();
        spans.sort_unstable();
        let mut at = 0;
        for (offset, len) in spans {
            // Only a hostile header overlaps spans; then there is no gap between them.
            let gap = &bytes[at as usize..offset.max(at) as usize];
            if let Some(i) = gap.iter().position(|b| *b != 0) {
                let what = format!("byte {} is not zero", self.payload_at + at + i as u64);
                let (path, field) = (self.path.clone(), "padding".to_owned());
                return Err(PackError::Invalid { path, field, what });
            }
            at = at.max(offset + len);
        }
        Ok(())
    }

    /// A side file's bytes.
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, PackError> {
        let io_error = |source| PackError::Io { path: self.path.clone(), source };
        let Some(f) = self.header.files.iter().find(|f| f.name == name) else { return Ok(None) };
        let mut file = File::open(&self.path).map_err(io_error)?;
        file.seek(SeekFrom::Start(self.payload_at + f.offset)).map_err(io_error)?;
        let mut bytes = vec![0; f.bytes as usize];
        file.read_exact(&mut bytes).map_err(io_error)?;
        Ok(Some(bytes))
    }
}

fn side_files(checkpoint: &Checkpoint) -> Result<Vec<(String, Vec<u8>)>, PackError> {
    let mut out = Vec::new();
    if let Some(metadata) = checkpoint.metadata() {
        out.push((GGUF_HEADER.to_owned(), crate::containers::gguf_write::header(&[], metadata)?));
    }
    for name in SIDE_FILES {
        if let Some(bytes) = checkpoint.side_file(name)? {
            out.push((name.to_owned(), bytes));
        }
    }
    Ok(out)
}

/// Refuses to put a pack in the place of anything that is none: a checkpoint, a folder, a device.
fn replaceable(path: &Path) -> Result<(), PackError> {
    let Ok(about) = std::fs::metadata(path) else { return Ok(()) };
    let mut start = Vec::new();
    if about.is_file() {
        let io_error = |source| PackError::Io { path: path.into(), source };
        let file = File::open(path).map_err(io_error)?;
        file.take(MAGIC.len() as u64).read_to_end(&mut start).map_err(io_error)?;
    }
    if start == MAGIC {
        return Ok(());
    }
    let what = "something that is not a pack lies there, and is not replaced".into();
    Err(PackError::Invalid { path: path.into(), field: "output".into(), what })
}

fn write_file(
    path: &Path,
    header: &Header,
    tensors: &[(TensorSpec, Format, &[u8])],
    sections: &[(u64, Vec<u8>)],
) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
        room_for(dir, header.manifest.payload)?;
    }
    let part = path.with_extension(format!("part.{}", std::process::id()));
    let written = write_part(&part, header, tensors, sections).and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        // What could not be finished is of no use; the first error is the one to report.
        let _ = std::fs::remove_file(&part);
    }
    written
}

fn write_part(
    part: &Path,
    header: &Header,
    tensors: &[(TensorSpec, Format, &[u8])],
    sections: &[(u64, Vec<u8>)],
) -> io::Result<()> {
    let mut file = io::BufWriter::with_capacity(1 << 20, File::create(part)?);
    let json = serde_json::to_vec(header)?;
    file.write_all(MAGIC)?;
    file.write_all(&(json.len() as u64).to_le_bytes())?;
    file.write_all(&json)?;
    let start = (16 + json.len() as u64).next_multiple_of(PAGE);
    let mut at = 16 + json.len() as u64;
    let entries = header.manifest.entries.iter().zip(tensors).map(|(e, t)| (e.offset, t.2));
    for (offset, bytes) in entries.chain(sections.iter().map(|(o, b)| (*o, b.as_slice()))) {
        at = pad(&mut file, at, start + offset)?;
        file.write_all(bytes)?;
        at += bytes.len() as u64;
    }
    pad(&mut file, at, start + header.manifest.payload)?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()
}

fn pad(file: &mut impl Write, at: u64, to: u64) -> io::Result<u64> {
    io::copy(&mut io::repeat(0).take(to - at), file)?;
    Ok(to)
}
