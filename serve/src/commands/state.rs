//! The state folder, the switches and the meaning of a MODEL argument: what commands share.
//!
//! One idea: a model is named once (built-in, pack, checkpoint or known geometry) and every command resolves the
//! name in the same way.
use anyhow::{Context, Result, anyhow, bail};
use harness::builtin;
use harness::families::Model;
use harness::pack::{Pack, PackError, model_of};
use harness::recipe::Recipe;
use kernels::cuda::Overlap;
use kernels::host::simd::{Simd, Switches};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Variable that moves the state folder.
pub const HOME_VARIABLE: &str = "SPARKPIPE_HOME";

/// The folder that holds packs, receipts and the signing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// `SPARKPIPE_HOME`, else `.sparkpipe` in the home folder.
    pub fn from_env() -> Result<Self> {
        Self::pick(std::env::var_os(HOME_VARIABLE), std::env::var_os("HOME"))
    }

    fn pick(set: Option<OsString>, home: Option<OsString>) -> Result<Self> {
        let given = |v: Option<OsString>| v.filter(|v| !v.is_empty()).map(PathBuf::from);
        match (given(set), given(home)) {
            (Some(dir), _) => Ok(Self(dir)),
            (None, Some(home)) => Ok(Self(home.join(".sparkpipe"))),
            (None, None) => bail!("no state folder: set HOME or {HOME_VARIABLE}"),
        }
    }

    /// A state folder at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Packs.
    pub fn packs(&self) -> PathBuf {
        self.0.join("packs")
    }

    /// The receipt store.
    pub fn receipts(&self) -> PathBuf {
        self.0.join("receipts")
    }

    /// The signing key.
    pub fn keys(&self) -> PathBuf {
        self.0.join("keys")
    }
}

/// The switches this build knows: variable and what it sets.
const SWITCHES: [(&str, fn(&mut Switches)); 2] = [
    ("SPARKPIPE_DISABLE_AVX2", |s| s.disable_avx2 = true),
    ("SPARKPIPE_DISABLE_AVX512", |s| s.disable_avx512 = true),
];

/// The switch of programmatic launch on a CUDA device: all of it, or that of the operations it names.
const PDL_SWITCH: &str = "SPARKPIPE_DISABLE_PDL";

/// What the environment leaves of programmatic launch.
pub fn overlap() -> Overlap {
    Overlap::without(&value_of(PDL_SWITCH))
}

fn value_of(name: &str) -> String {
    std::env::var_os(name).unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether a switch's value turns it on: set, and neither empty nor `0`.
fn is_on(value: Option<OsString>) -> bool {
    value.is_some_and(|v| !v.is_empty() && v != "0")
}

/// The switches of the environment, for the device and, by name, for identity and banner.
pub fn switches() -> (Switches, BTreeMap<String, String>) {
    let mut switches = Switches::default();
    let mut states = BTreeMap::new();
    for (name, set) in SWITCHES {
        let on = is_on(std::env::var_os(name));
        if on {
            set(&mut switches);
        }
        states.insert(name.to_owned(), if on { "1" } else { "0" }.to_owned());
    }
    // A list of operations is part of the identity as it is written.
    let pdl = Some(value_of(PDL_SWITCH)).filter(|v| !v.is_empty()).unwrap_or_else(|| "0".into());
    states.insert(PDL_SWITCH.to_owned(), pdl);
    (switches, states)
}

/// The vector level the environment's switches leave.
pub fn simd() -> Simd {
    Simd::detect(&switches().0)
}

/// Threads to use: what was asked for, else all that this process may run on.
pub fn threads(asked: Option<usize>) -> Result<usize> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    match asked {
        None => Ok(all),
        Some(n @ 1..=1024) => Ok(n),
        Some(n) => bail!("--threads is {n}, the limit is 1 to 1024"),
    }
}

/// What a MODEL argument stands for.
#[derive(Debug)]
pub enum Named {
    /// The built-in model.
    Builtin,
    /// A pack file.
    Pack(PathBuf),
    /// A checkpoint: a folder, a safetensors file or a GGUF file.
    Checkpoint(PathBuf),
    /// A known full-size geometry; no weights.
    Known(KnownModel),
}

/// A known full-size geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// Name.
    pub name: &'static str,
    /// Text of its config.json.
    pub config: &'static str,
    /// Recipe it is known in.
    pub recipe: &'static str,
}

/// Known full-size geometries.
pub fn known_models() -> Vec<KnownModel> {
    Model::known().into_iter().map(|(name, config, recipe)| KnownModel { name, config, recipe }).collect()
}

/// Reads a MODEL argument. Names win over files of the same name in the working folder.
pub fn resolve(model: &str) -> Result<Named> {
    if model == builtin::NAME {
        return Ok(Named::Builtin);
    }
    if let Some(known) = known_models().into_iter().find(|k| k.name == model) {
        return Ok(Named::Known(known));
    }
    let path = PathBuf::from(model);
    if !path.exists() {
        let known: Vec<&str> = known_models().iter().map(|k| k.name).collect();
        bail!(
            "no model is called '{model}' and no such file exists; names: {}, {}",
            builtin::NAME,
            known.join(", ")
        );
    }
    // A file named as a pack whose first bytes are damaged is still meant as one, and refused as one.
    let named = path.extension().is_some_and(|e| e == "pack");
    let pack = path.is_file() && (named || is_pack(&path)?);
    Ok(if pack { Named::Pack(path) } else { Named::Checkpoint(path) })
}

/// Whether a file begins like a pack.
fn is_pack(path: &Path) -> Result<bool> {
    use std::io::Read;
    let mut start = Vec::with_capacity(8);
    let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    file.take(8).read_to_end(&mut start).with_context(|| path.display().to_string())?;
    Ok(start.starts_with(b"SPKPACK"))
}

/// A recipe by built-in name or by TOML file.
pub fn recipe(name: &str) -> Result<Recipe> {
    if Path::new(name).extension().is_some_and(|e| e == "toml") {
        let text = read_text(Path::new(name), 64 << 10)?;
        return Ok(Recipe::parse(name, &text)?);
    }
    Ok(Recipe::builtin(name)?)
}

/// Reads a text file of at most `limit` bytes.
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    file.take(limit + 1).read_to_string(&mut text).with_context(|| path.display().to_string())?;
    if text.len() as u64 > limit {
        bail!("{}: more than {limit} bytes", path.display());
    }
    Ok(text)
}

/// Geometry and recipe of a MODEL argument, without reading weights.
pub struct Described {
    /// Name for people and tuples.
    pub name: String,
    /// Geometry.
    pub model: Model,
    /// Recipe.
    pub recipe: Recipe,
}

/// The geometry of `model` in `with` (its own recipe where that is `None`).
pub fn describe(model: &str, with: Option<&str>) -> Result<Described> {
    let of_config = |name: &str, config: &str, own: &str| -> Result<Described> {
        let config: serde_json::Value = serde_json::from_str(config)?;
        let model = Model::from_config(&config)?;
        Ok(Described { name: name.to_owned(), model, recipe: recipe(with.unwrap_or(own))? })
    };
    match resolve(model)? {
        Named::Builtin => of_config(builtin::NAME, builtin::CONFIG, builtin::RECIPE),
        Named::Known(k) => of_config(k.name, k.config, k.recipe),
        Named::Pack(path) => {
            let header = Pack::open(&path)?.header;
            let own = header.recipe;
            let recipe = with.map_or(Ok(own), recipe)?;
            Ok(Described { name: header.name, model: header.model, recipe })
        }
        Named::Checkpoint(path) => {
            let checkpoint = harness::containers::open(&path)?;
            let own = own_recipe(&checkpoint);
            let model = model_of(&checkpoint)?;
            Ok(Described { name: checkpoint_name(&path), model, recipe: recipe(with.unwrap_or(own))? })
        }
    }
}

/// The recipe a checkpoint is taken to be in unless told otherwise.
pub fn own_recipe(checkpoint: &harness::containers::Checkpoint) -> &'static str {
    if checkpoint.metadata().is_some() { "q4_k_m" } else { "bf16" }
}

/// A checkpoint's name: its file stem, or its folder's name.
pub fn checkpoint_name(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let inner = |p: &Path| p.file_stem().map(|s| s.to_string_lossy().into_owned());
    let name = match full.is_dir() {
        true => full.file_name().map(|s| s.to_string_lossy().into_owned()),
        false => match inner(&full).as_deref() {
            Some("model") => {
                full.parent().and_then(Path::file_name).map(|s| s.to_string_lossy().into_owned())
            }
            _ => inner(&full),
        },
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    name.filter(|n| !n.is_empty()).unwrap_or_else(|| "model".into()).chars().map(plain).collect()
}

/// The pack of a MODEL argument; checkpoints are packed into the state folder, once for each set of files.
pub fn pack_of(model: &str, with: Option<&str>, state: &StateDir) -> Result<Pack> {
    match resolve(model)? {
        Named::Builtin => match with {
            None | Some(builtin::RECIPE) => match builtin::ensure_pack(state.path()) {
                Err(fault @ PackError::Invalid { .. }) => Err(fault)
                    .context("the built-in model's pack is damaged; delete the file, it is written again"),
                made => Ok(made?),
            },
            Some(other) => bail!("the built-in model is held in {}, not in {other}", builtin::RECIPE),
        },
        Named::Pack(path) => Ok(Pack::open(&path)?),
        Named::Known(k) => Err(anyhow!(
            "{} is a geometry without weights: name a checkpoint, or write one with `sparkpipe synth {}`",
            k.name,
            k.name
        )),
        Named::Checkpoint(path) => pack_checkpoint(&path, with, state),
    }
}

/// Refuses a context beyond what the model was made for.
pub fn context_fits(pack: &Pack, context: u64) -> Result<()> {
    let longest = pack.header.model.summary().max_context as u64;
    if context > longest {
        bail!("--context is {context}, {} takes at most {longest} tokens", pack.header.name);
    }
    Ok(())
}

fn pack_checkpoint(path: &Path, with: Option<&str>, state: &StateDir) -> Result<Pack> {
    let checkpoint = harness::containers::open(path)?;
    let recipe = recipe(with.unwrap_or(own_recipe(&checkpoint)))?;
    let name = checkpoint_name(path);
    let key = fingerprint(path)?;
    let file = state.packs().join(format!("{name}.{}.{key}.pack", recipe.name));
    if file.exists() {
        return Ok(Pack::open(&file)?);
    }
    Ok(Pack::write(&checkpoint, &name, &recipe, &file)?)
}

/// Names the exact files: path, length and modification time of each, so that a changed checkpoint is packed anew.
fn fingerprint(path: &Path) -> Result<String> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let full = path.canonicalize().with_context(|| path.display().to_string())?;
    let folder = if full.is_dir() { full.as_path() } else { full.parent().unwrap_or(&full) };
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|p| matches!(p.extension().and_then(|e| e.to_str()), Some("safetensors" | "gguf" | "json")))
        .collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    full.hash(&mut hasher);
    for file in files {
        let about = std::fs::metadata(&file).with_context(|| file.display().to_string())?;
        (file, about.len(), about.modified().ok()).hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_folder_comes_from_the_variable_or_the_home_folder() {
        let os = |s: &str| Some(OsString::from(s));
        assert_eq!(StateDir::pick(os("/a"), os("/b")).unwrap().path(), Path::new("/a"));
        assert_eq!(StateDir::pick(os(""), os("/b")).unwrap().receipts(), Path::new("/b/.sparkpipe/receipts"));
        assert!(StateDir::pick(None, None).unwrap_err().to_string().contains(HOME_VARIABLE));
    }

    #[test]
    fn a_switch_is_on_when_set_to_anything_but_zero() {
        let os = |s: &str| Some(OsString::from(s));
        assert!(is_on(os("1")) && is_on(os("yes")));
        assert!(!is_on(os("0")) && !is_on(os("")) && !is_on(None));
        assert!(switches().1.contains_key("SPARKPIPE_DISABLE_AVX2"));
    }

    #[test]
    fn names_packs_and_checkpoints_resolve_to_what_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path());
        let pack = pack_of(builtin::NAME, None, &state).unwrap();
        let path = pack.path.to_string_lossy().into_owned();
        assert!(matches!(resolve(&path).unwrap(), Named::Pack(_)));
        assert_eq!(describe(&path, None).unwrap().model, describe(builtin::NAME, None).unwrap().model);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../harness/builtin");
        let from_files = pack_of(folder, None, &state).unwrap();
        assert_eq!(from_files.header.name, "builtin");
        assert_eq!(pack_of(folder, None, &state).unwrap().id, from_files.id);
        assert!(resolve("no-such-model").unwrap_err().to_string().contains(builtin::NAME));
        for known in known_models() {
            assert!(pack_of(known.name, None, &state).unwrap_err().to_string().contains("without weights"));
        }
    }
}
