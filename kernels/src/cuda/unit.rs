//! Compile units: a source with its constants, the hash that names it, and the cache of its cubins.
use super::call::{KernelCall, Source};
use super::error::CudaError;
use super::nvrtc::{Compiled, Nvrtc, parse_report};
use super::source::headers_of;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A source with its constants.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Source.
    pub source: &'static Source,
    /// Constants, sorted.
    pub defines: Vec<(&'static str, String)>,
    /// Whether a multiply and an add may be fused. Only sources that must repeat the host's bits say no.
    pub fused: bool,
}

/// Names a unit among others: file and constants.
pub type UnitKey = (&'static str, Vec<(&'static str, String)>);

impl Unit {
    /// The unit of a call.
    pub fn of(call: &KernelCall) -> Self {
        Self::new(call.source, call.defines.clone())
    }

    /// A unit of `source`.
    pub fn new(source: &'static Source, mut defines: Vec<(&'static str, String)>) -> Self {
        defines.sort();
        Self { source, defines, fused: true }
    }

    /// Its name among others.
    pub fn key(&self) -> UnitKey {
        (self.source.name, self.defines.clone())
    }

    /// `A=1 B=2`.
    pub fn defines_text(&self) -> String {
        self.defines.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    /// The compiler's options for `sm`.
    pub fn options(&self, sm: &str) -> Vec<String> {
        let mut options = vec![
            format!("--gpu-architecture={sm}"),
            "--std=c++17".into(),
            "--device-as-default-execution-space".into(),
            "--ptxas-options=-v".into(),
        ];
        if !self.fused {
            options.push("--fmad=false".into());
        }
        options.extend(self.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        options
    }

    /// Hash over everything that makes the cubin: source, included headers, options and compiler.
    pub fn hash(&self, sm: &str, compiler: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut put = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        put(compiler);
        self.options(sm).iter().for_each(|o| put(o));
        put(self.source.name);
        put(self.source.text);
        for (name, text) in headers_of(self.source.text) {
            put(name);
            put(text);
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }
}

/// The compiler behind a cache on disk.
pub struct Compiler {
    folder: Option<PathBuf>,
}

/// Name that stands in cache keys for the compiler the kernels are written for.
const COMPILER: &str = "NVRTC 13.0";

impl Compiler {
    /// A compiler that keeps cubins in `folder`, or nowhere.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// The unit's device code: from the cache, else compiled. A cubin in the cache needs no compiler.
    ///
    /// # Errors
    /// [`CudaError::Missing`] where it must be compiled and there is no compiler; [`CudaError::Compile`];
    /// [`CudaError::Kernel`] where an entry spills.
    pub fn cubin(&self, unit: &Unit, sm: &str) -> Result<Compiled, CudaError> {
        let path = |compiler: &str| {
            let folder = self.folder.as_ref()?;
            Some(folder.join(format!("{}.{sm}.cubin", unit.hash(sm, compiler))))
        };
        let compiler = Nvrtc::load().ok();
        let name = compiler.map_or_else(|| COMPILER.to_owned(), |c| c.name());
        let file = path(&name);
        if let Some(found) = file.as_deref().and_then(read) {
            return Ok(found);
        }
        let compiled = Nvrtc::load()?.compile(unit, sm)?;
        for entry in &compiled.report {
            if entry.spills > 0 {
                let kernel = format!("{}:{} [{}]", unit.source.name, entry.entry, unit.defines_text());
                return Err(CudaError::Kernel { kernel, what: format!("spills {} B on {sm}", entry.spills) });
            }
        }
        if let Some(file) = &file {
            // A cache that cannot be written costs time, nothing else.
            let _ = write(file, &compiled);
        }
        Ok(compiled)
    }

    /// The device code of all `units`, compiled on as many threads as there are processors.
    pub fn all(&self, units: &[Unit], sm: &str) -> Result<BTreeMap<UnitKey, Compiled>, CudaError> {
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(units.len());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let compiled = self.cubin(unit, sm).map(|c| (unit.key(), c));
                        if let Ok(mut done) = done.lock() {
                            done.push(compiled);
                        }
                    }
                });
            }
        });
        done.into_inner().unwrap_or_default().into_iter().collect()
    }
}

/// Distinct units of `calls`, in the order of first use.
pub fn units<'c>(calls: impl Iterator<Item = &'c KernelCall>) -> Vec<Unit> {
    let mut seen = std::collections::BTreeSet::new();
    calls.map(Unit::of).filter(|u| seen.insert(u.key())).collect()
}

fn read(path: &Path) -> Option<Compiled> {
    let cubin = std::fs::read(path).ok()?;
    let log = std::fs::read_to_string(path.with_extension("log")).ok()?;
    let whole = cubin.starts_with(b"\x7fELF") && !log.is_empty();
    whole.then(|| Compiled { cubin, ptx: Vec::new(), report: parse_report(&log), log })
}

/// Through temporary files that are renamed when whole: two processes may write the same cubin.
fn write(path: &Path, compiled: &Compiled) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let own = std::process::id();
    for (file, bytes) in
        [(path.with_extension("log"), compiled.log.as_bytes()), (path.into(), &compiled.cubin)]
    {
        let temporary = file.with_extension(format!("{own}.tmp"));
        std::fs::write(&temporary, bytes)?;
        std::fs::rename(&temporary, &file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    static SOURCE: Source = Source { name: "a.cu", text: "#include \"common.cuh\"\n" };

    #[test]
    fn the_hash_names_constants_target_and_compiler_whatever_their_order() {
        let unit = |defines: &[(&'static str, &str)]| {
            Unit::new(&SOURCE, defines.iter().map(|(n, v)| (*n, (*v).to_owned())).collect())
        };
        let (a, b) = (unit(&[("N", "1"), ("M", "2")]), unit(&[("M", "2"), ("N", "1")]));
        assert_eq!(a.hash("sm_90a", "x"), b.hash("sm_90a", "x"));
        assert_ne!(a.hash("sm_90a", "x"), a.hash("sm_120a", "x"));
        assert_ne!(a.hash("sm_90a", "x"), a.hash("sm_90a", "y"));
        assert_ne!(a.hash("sm_90a", "x"), unit(&[("N", "1")]).hash("sm_90a", "x"));
        let exact = Unit { fused: false, ..a.clone() };
        assert_ne!(a.hash("sm_90a", "x"), exact.hash("sm_90a", "x"));
    }

    #[test]
    fn a_cubin_in_the_cache_is_read_back_and_a_torn_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/x.sm_90a.cubin");
        let log = "Compiling entry function 'k' for\nUsed 7 registers".to_owned();
        let compiled =
            Compiled { cubin: b"\x7fELFcode".to_vec(), ptx: vec![1], report: parse_report(&log), log };
        write(&path, &compiled).unwrap();
        let found = read(&path).unwrap();
        assert_eq!((found.cubin, found.report), (compiled.cubin, compiled.report));
        std::fs::write(&path, b"").unwrap();
        assert!(read(&path).is_none());
    }
}
