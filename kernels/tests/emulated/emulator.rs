//! Kernel sources as shared objects of this process, and running their grids.
#![allow(unsafe_code)]
use kernels::cuda::call::{Arg, KernelCall};
use kernels::cuda::source::HEADERS;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

/// Where an argument's bytes are: the addresses that a call needs beside its own constants.
pub struct Addresses<'a> {
    /// Address of each buffer of the plan.
    pub buffers: &'a dyn Fn(kernels::buffer::BufId) -> u64,
    /// Address of the step's shape.
    pub shape: u64,
    /// Address of the workspace.
    pub work: u64,
}

type Run = unsafe extern "C" fn(
    *mut c_void,
    *const u32,
    u32,
    u32,
    *const u64,
    u32,
    *const f32,
    u32,
    u64,
    *mut c_char,
    u32,
) -> c_int;

/// A built source; never unloaded. The emulator's state is in it, so one grid runs at a time.
struct Library {
    handle: usize,
    turn: Mutex<()>,
}

impl Library {
    fn open(path: &Path) -> Self {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a NUL-terminated path of an object that this test built; it has no constructors of its own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlerror returns a NUL-terminated string after a failure.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            panic!("{}: {}", path.display(), why.to_string_lossy());
        }
        Self { handle: handle as usize, turn: Mutex::new(()) }
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let c = CString::new(name).unwrap();
        // SAFETY: the handle is open for the life of the process.
        let at = unsafe { libc::dlsym(self.handle as *mut c_void, c.as_ptr()) };
        assert!(!at.is_null(), "no entry {name}");
        at
    }
}

/// The compiler, if there is one, and what it has built.
pub struct Emulator {
    compiler: String,
    dir: PathBuf,
    built: Mutex<BTreeMap<u64, Arc<OnceLock<Library>>>>,
}

/// The emulator, or `None` with a note where g++ is missing.
pub fn emulator() -> Option<&'static Emulator> {
    static ONE: OnceLock<Option<Emulator>> = OnceLock::new();
    ONE.get_or_init(|| {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
        let found = Command::new(&compiler).arg("--version").output().is_ok_and(|o| o.status.success());
        if !found || !cfg!(target_arch = "x86_64") {
            println!("SKIP: no {compiler} on x86-64, CUDA kernels are not emulated");
            return None;
        }
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        std::fs::create_dir_all(&dir).unwrap();
        Some(Emulator { compiler, dir, built: Mutex::default() })
    })
    .as_ref()
}

fn emu_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emu")
}

impl Emulator {
    /// Everything that decides the object, so that a second run of the tests finds it built.
    fn key(call: &KernelCall) -> u64 {
        let mut h = DefaultHasher::new();
        call.source.text.hash(&mut h);
        let mut defines = call.defines.clone();
        defines.sort();
        defines.hash(&mut h);
        HEADERS.hash(&mut h);
        for file in ["emu.hpp", "builtin_types.hpp", "builtins.hpp", "warp_ops.hpp", "run.hpp"] {
            std::fs::read(emu_folder().join(file)).unwrap().hash(&mut h);
        }
        h.finish()
    }

    fn library(&self, call: &KernelCall) -> Arc<OnceLock<Library>> {
        let key = Self::key(call);
        let slot = self.built.lock().unwrap().entry(key).or_default().clone();
        slot.get_or_init(|| {
            let out = self.dir.join(format!("{}-{key:016x}.so", call.source.name));
            if !out.exists() {
                self.compile(call, key, &out);
            }
            Library::open(&out)
        });
        slot
    }

    fn compile(&self, call: &KernelCall, key: u64, out: &Path) {
        let folder = self.dir.join(format!("{key:016x}"));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in HEADERS {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let source = folder.join(call.source.name);
        std::fs::write(&source, call.source.text).unwrap();
        let made = folder.join("made.so");
        // A dot product in f32 must round where the source says so: no contraction.
        let mut c = Command::new(&self.compiler);
        c.args([
            "-std=c++20",
            "-O1",
            "-march=native",
            "-ffp-contract=off",
            "-fno-gnu-unique",
            "-fPIC",
            "-shared",
        ]);
        c.args(["-fvisibility=hidden", "-Wno-unknown-pragmas", "-x", "c++", "-include"]);
        c.arg(emu_folder().join("emu.hpp")).arg("-I").arg(&folder);
        c.args(call.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        let run = c.arg(&source).arg("-o").arg(&made).output().unwrap();
        assert!(run.status.success(), "{}: {}", call.source.name, String::from_utf8_lossy(&run.stderr));
        std::fs::rename(&made, out).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Runs a call's grid; `seed` 0 runs blocks and threads in order, any other shuffles them.
    pub fn run(&self, call: &KernelCall, at: &Addresses<'_>, seed: u64) {
        let library = self.library(call);
        let library = library.get().unwrap();
        let (mut ints, mut floats) = (Vec::new(), Vec::new());
        for arg in &call.args {
            match *arg {
                Arg::Buf(id) => ints.push((at.buffers)(id)),
                Arg::BufAt(id, offset) => ints.push((at.buffers)(id) + offset),
                Arg::U32(x) => ints.push(u64::from(x)),
                Arg::U64(x) => ints.push(x),
                Arg::F32(x) => floats.push(x),
                Arg::Shape => ints.push(at.shape),
                Arg::Work(offset) => ints.push(at.work + offset),
            }
        }
        let entry = library.symbol(call.entry);
        // SAFETY: `emu_run` has this signature (tests/emu/run.hpp).
        let run: Run = unsafe { std::mem::transmute(library.symbol("emu_run")) };
        let mut message = [0u8; 2048];
        let _turn = library.turn.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the entry is a kernel of this source, its pointers are to live buffers of the case (guarded
        // and compared afterwards), and the lock keeps a second grid out of the emulator's state.
        let bad = unsafe {
            run(
                entry,
                call.grid.as_ptr(),
                call.block,
                call.shared,
                ints.as_ptr(),
                ints.len() as u32,
                floats.as_ptr(),
                floats.len() as u32,
                seed,
                message.as_mut_ptr().cast(),
                message.len() as u32,
            )
        };
        let text = CStr::from_bytes_until_nul(&message).unwrap().to_string_lossy();
        assert_eq!(bad, 0, "{} of {}: {text}", call.entry, call.source.name);
    }
}
