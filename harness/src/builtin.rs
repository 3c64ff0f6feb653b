//! The built-in model: a small real checkpoint inside the executable, so that every command has something to
//! run on a machine that has nothing else.
//!
//! One idea: it is an ordinary checkpoint. It goes through the same loader, packer and engine as a file would.
use crate::containers::{Checkpoint, ContainerError};
use crate::pack::{Pack, PackError};
use crate::recipe::Recipe;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Its name on the command line and in tuples.
pub const NAME: &str = "whatis-9m";

/// The recipe it is packed in.
pub const RECIPE: &str = "bf16";

const SHARDS: [(&str, Planes); 2] = [
    (
        "model-00001-of-00002.safetensors",
        Planes {
            packed: include_bytes!(concat!(env!("OUT_DIR"), "/model-00001-of-00002.safetensors.planes")),
            planes: 2,
        },
    ),
    (
        "model-00002-of-00002.safetensors",
        Planes {
            packed: include_bytes!(concat!(env!("OUT_DIR"), "/model-00002-of-00002.safetensors.planes")),
            planes: 2,
        },
    ),
];

const EXPECTED: Planes =
    Planes { packed: include_bytes!(concat!(env!("OUT_DIR"), "/expected.safetensors.planes")), planes: 4 };

/// A file in byte planes, packed by the build script.
struct Planes {
    packed: &'static [u8],
    planes: usize,
}

/// Largest plane that is unpacked: well above the 4.5 MB of the largest there is.
const PLANE_LIMIT: u64 = 64 << 20;

impl Planes {
    /// The file's bytes.
    fn unpack(&self) -> std::io::Result<Vec<u8>> {
        let cut = || std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "an embedded plane is cut short");
        let (mut rest, mut planes) = (self.packed, Vec::new());
        for _ in 0..self.planes {
            let (length, tail) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
            let length = u32::from_le_bytes(*length) as usize;
            let stream = tail.get(..length).ok_or_else(cut)?;
            let mut plane = Vec::new();
            flate2::read::ZlibDecoder::new(stream).take(PLANE_LIMIT).read_to_end(&mut plane)?;
            planes.push(plane);
            rest = &tail[length..];
        }
        let total = planes.iter().map(Vec::len).sum();
        // Plane p holds bytes p, p + planes, p + 2 planes, ...
        let byte = |at: usize| planes[at % self.planes].get(at / self.planes).copied().ok_or_else(cut);
        (0..total).map(byte).collect()
    }
}

fn unpacked(file: &Planes) -> Result<Vec<u8>, ContainerError> {
    file.unpack().map_err(|source| ContainerError::Io { path: PathBuf::from("(built in)"), source })
}

/// The unpacked shards, made once in a process: about 0.1 s.
fn shards() -> Result<&'static [Vec<u8>; 2], ContainerError> {
    static SHARD_BYTES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    if let Some(made) = SHARD_BYTES.get() {
        return Ok(made);
    }
    let made = [unpacked(&SHARDS[0].1)?, unpacked(&SHARDS[1].1)?];
    Ok(SHARD_BYTES.get_or_init(|| made))
}

const INDEX: &str = include_str!("../builtin/model.safetensors.index.json");

/// Its configuration.
pub const CONFIG: &str = include_str!("../builtin/config.json");

const SIDE_FILES: [(&str, &[u8]); 4] = [
    ("config.json", CONFIG.as_bytes()),
    ("tokenizer.json", include_bytes!("../builtin/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../builtin/tokenizer_config.json")),
    ("generation_config.json", include_bytes!("../builtin/generation_config.json")),
];

/// The checkpoint, borrowed from the executable.
pub fn checkpoint() -> Result<Checkpoint, ContainerError> {
    let [first, second] = shards()?;
    let shards = [(SHARDS[0].0, first.as_slice()), (SHARDS[1].0, second.as_slice())];
    let checkpoint = Checkpoint::from_embedded(&shards, Some(INDEX))?;
    Ok(SIDE_FILES.iter().fold(checkpoint, |c, (name, bytes)| c.with_side_file(name, bytes)))
}

/// Logits and greedy ids of an independent implementation, for the oracle clause of its receipts.
pub fn expected() -> Result<Checkpoint, ContainerError> {
    Checkpoint::from_bytes(unpacked(&EXPECTED)?)
}

/// Whether `pack` holds exactly this model.
pub fn is_builtin(pack: &Pack) -> bool {
    pack.header.name == NAME && checkpoint().is_ok_and(|c| same_tensors(pack, &c))
}

/// Where its pack lies under a state folder.
pub fn pack_path(state: &Path) -> PathBuf {
    state.join("packs").join(format!("{NAME}.{RECIPE}.pack"))
}

/// Its pack under `state`: written on first use, opened later. A pack of another build's model is replaced; a
/// damaged one is an error.
pub fn ensure_pack(state: &Path) -> Result<Pack, PackError> {
    let path = pack_path(state);
    let checkpoint = checkpoint()?;
    if path.exists() {
        let pack = Pack::open(&path)?;
        if same_tensors(&pack, &checkpoint) {
            return Ok(pack);
        }
    }
    let recipe = Recipe::builtin(RECIPE).map_err(|e| PackError::Invalid {
        path: path.clone(),
        field: "recipe".into(),
        what: e.to_string(),
    })?;
    Pack::write(&checkpoint, NAME, &recipe, &path)
}

/// Whether the pack's header names exactly the bytes that this executable holds.
fn same_tensors(pack: &Pack, checkpoint: &Checkpoint) -> bool {
    if !pack.is_made_of(checkpoint) {
        return false;
    }
    for file in &pack.header.files {
        let mine = SIDE_FILES.iter().find(|(name, _)| *name == file.name);
        if mine.is_none_or(|(_, bytes)| blake3::hash(bytes).to_hex().as_str() != file.blake3) {
            return false;
        }
    }
    pack.header.model.tensors().len() == checkpoint.tensors().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_files_are_those_of_the_repository() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("builtin");
        let [first, second] = shards().unwrap();
        let expected = EXPECTED.unpack().unwrap();
        for (name, bytes) in
            [(SHARDS[0].0, first), (SHARDS[1].0, second), ("expected.safetensors", &expected)]
        {
            assert!(*bytes == std::fs::read(folder.join(name)).unwrap(), "{name}");
        }
        let cut = Planes { packed: &SHARDS[0].1.packed[..100], planes: 2 };
        assert!(cut.unpack().is_err());
    }

    #[test]
    fn the_pack_is_written_once_and_reopened_as_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let first = ensure_pack(dir.path()).unwrap();
        first.verify().unwrap();
        let written = std::fs::metadata(&first.path).unwrap().modified().unwrap();
        let again = ensure_pack(dir.path()).unwrap();
        assert_eq!(first.id, again.id);
        assert_eq!(std::fs::metadata(&again.path).unwrap().modified().unwrap(), written);
        assert!(again.file("tokenizer.json").unwrap().is_some());
        assert_eq!(again.header.manifest.tensor_bytes(), 17_909_312);
    }

    #[test]
    fn a_damaged_pack_is_an_error_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = ensure_pack(dir.path()).unwrap().path;
        std::fs::write(&path, b"SPKPACK1 cut short").unwrap();
        let error = ensure_pack(dir.path()).unwrap_err().to_string();
        assert!(error.contains("header length"), "{error}");
    }
}
