//! The compiler: NVRTC, with its log, PTX, CUBIN and resource report. It needs no GPU and no driver.
#![allow(unsafe_code)]

use super::error::CudaError;
use super::source::HEADERS;
use super::unit::Unit;
use cudarc::nvrtc::sys::{self, nvrtcResult};
use std::ffi::{CString, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Variable that names the folder of libnvrtc, where it is not on the loader's path.
pub const FOLDER_VARIABLE: &str = "SPARKPIPE_NVRTC";

/// Where toolkits put libnvrtc.
const FOLDERS: [&str; 2] = ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"];

/// What one entry point occupies, from the assembler's report.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryReport {
    /// Entry point.
    pub entry: String,
    /// Registers a thread.
    pub registers: u32,
    /// Static shared memory a block in bytes.
    pub shared: u32,
    /// Stack frame a thread in bytes.
    pub stack: u32,
    /// Bytes spilled a thread, stores and loads.
    pub spills: u32,
}

/// What a compilation yields.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Device code for the target.
    pub cubin: Vec<u8>,
    /// Intermediate code.
    pub ptx: Vec<u8>,
    /// Everything the compiler and the assembler said.
    pub log: String,
    /// Resources by entry point, sorted.
    pub report: Vec<EntryReport>,
}

/// The loaded compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvrtc {
    /// Major and minor version.
    pub version: (u32, u32),
}

impl Nvrtc {
    /// Loads the compiler, once a process.
    ///
    /// # Errors
    /// [`CudaError::Missing`] where libnvrtc is nowhere to be found.
    pub fn load() -> Result<Self, CudaError> {
        static LOADED: OnceLock<Option<Nvrtc>> = OnceLock::new();
        let missing = || {
            CudaError::Missing(format!(
                "libnvrtc.so.13 is not installed (CUDA 13.0 toolkit, or the wheel nvidia-cuda-nvrtc with \
                 {FOLDER_VARIABLE} naming its lib folder)"
            ))
        };
        LOADED.get_or_init(Self::probe).ok_or_else(missing)
    }

    fn probe() -> Option<Self> {
        let named = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from);
        let folders = named.into_iter().chain(FOLDERS.iter().map(PathBuf::from));
        for folder in folders.filter(|f| f.is_dir()) {
            preload(&folder);
        }
        // SAFETY: only opens the library by name.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: two valid places for integers.
        let done = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
        (done == nvrtcResult::NVRTC_SUCCESS).then_some(Self { version: (major as u32, minor as u32) })
    }

    /// Name and version for identities and cache keys.
    pub fn name(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// Compiles a unit for `sm`.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with the first error of the log.
    pub fn compile(&self, unit: &Unit, sm: &str) -> Result<Compiled, CudaError> {
        let fail = |log: String| CudaError::Compile {
            source_name: unit.source.name.into(),
            defines: unit.defines_text(),
            target: sm.into(),
            log,
        };
        let c = |text: &str| CString::new(text).map_err(|_| fail("a zero byte in the source".into()));
        let (text, name) = (c(unit.source.text)?, c(unit.source.name)?);
        let headers: Vec<CString> = HEADERS.iter().map(|h| c(h.1)).collect::<Result<_, _>>()?;
        let names: Vec<CString> = HEADERS.iter().map(|h| c(h.0)).collect::<Result<_, _>>()?;
        let options: Vec<CString> = unit.options(sm).iter().map(|o| c(o)).collect::<Result<_, _>>()?;
        let pointers = |all: &[CString]| all.iter().map(|s| s.as_ptr()).collect::<Vec<*const c_char>>();
        let (header_at, name_at, option_at) = (pointers(&headers), pointers(&names), pointers(&options));
        let mut program = std::ptr::null_mut();
        // SAFETY: all strings are NUL-terminated and outlive the program; counts are those of the arrays.
        let created = unsafe {
            sys::nvrtcCreateProgram(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                header_at.as_ptr(),
                name_at.as_ptr(),
            )
        };
        if created != nvrtcResult::NVRTC_SUCCESS {
            return Err(fail(format!("{created:?}")));
        }
        let program = Program(program);
        // SAFETY: the program is alive and the options are NUL-terminated.
        let done = unsafe { sys::nvrtcCompileProgram(program.0, options.len() as c_int, option_at.as_ptr()) };
        let log = program.fetch(sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog);
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        if done != nvrtcResult::NVRTC_SUCCESS {
            return Err(fail(first_error(&log).unwrap_or_else(|| format!("{done:?}"))));
        }
        let cubin = program.fetch(sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN);
        let ptx = program.fetch(sys::nvrtcGetPTXSize, sys::nvrtcGetPTX);
        let report = parse_report(&log);
        Ok(Compiled { cubin, ptx, log, report })
    }
}

/// A program, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Program {
    fn fetch(
        &self,
        size: unsafe fn(sys::nvrtcProgram, *mut usize) -> nvrtcResult,
        get: unsafe fn(sys::nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Vec<u8> {
        let mut len = 0usize;
        // SAFETY: the program is alive and `len` a valid place.
        if unsafe { size(self.0, &mut len) } != nvrtcResult::NVRTC_SUCCESS {
            return Vec::new();
        }
        let mut out = vec![0u8; len];
        // SAFETY: the buffer has the size that was just asked for.
        let done = unsafe { get(self.0, out.as_mut_ptr().cast::<c_char>()) };
        if done == nvrtcResult::NVRTC_SUCCESS { out } else { Vec::new() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: own program, destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Opens libnvrtc and its builtins by absolute path, so that later look-ups by name find them: the wheels of
/// 13.0 have no run path of their own.
fn preload(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut names: Vec<OsString> = entries.flatten().map(|e| e.file_name()).collect();
    // The builtins sort before the compiler that needs them.
    names.sort();
    for name in names {
        let text = name.to_string_lossy();
        if !text.starts_with("libnvrtc") || !text.contains(".so.13") || text.contains(".alt.") {
            continue;
        }
        let path = folder.join(&name);
        if let Ok(path) = CString::new(path.as_os_str().as_bytes()) {
            // SAFETY: opening a shared library runs its constructors; the handle is kept for the process's life.
            unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        }
    }
}

fn first_error(log: &str) -> Option<String> {
    let line = log.lines().find(|l| l.contains("error") || l.contains("fatal"))?;
    Some(line.trim().to_owned())
}

/// The number before `unit` in `line`.
fn number_before(line: &str, unit: &str) -> Option<u32> {
    let at = line.find(unit)?;
    line[..at].split_whitespace().next_back()?.parse().ok()
}

/// Reads the assembler's report of every entry point.
pub fn parse_report(log: &str) -> Vec<EntryReport> {
    let mut out: Vec<EntryReport> = Vec::new();
    for line in log.lines() {
        let named = ["Compiling entry function '", "Function properties for "];
        if let Some(rest) = named.iter().find_map(|n| line.split_once(n).map(|(_, rest)| rest)) {
            let entry: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if out.iter().all(|r| r.entry != entry) {
                out.push(EntryReport { entry, ..EntryReport::default() });
            }
        }
        let Some(last) = out.last_mut() else { continue };
        if let Some(stack) = number_before(line, " bytes stack frame") {
            last.stack = stack;
            let stores = number_before(line, " bytes spill stores").unwrap_or(0);
            last.spills = stores + number_before(line, " bytes spill loads").unwrap_or(0);
        }
        if let Some(registers) = number_before(line, " registers") {
            last.registers = registers;
            last.shared = number_before(line, " bytes smem").unwrap_or(0);
        }
    }
    out.sort();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Function properties for two
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 31 registers, used 0 barriers
ptxas info    : Compiling entry function 'add' for 'sm_90a'
ptxas info    : Function properties for add
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 1024 bytes smem
";

    #[test]
    fn the_report_has_registers_shared_memory_stack_and_spills() {
        let entry = |entry: &str, registers, shared, stack, spills| EntryReport {
            entry: entry.into(),
            registers,
            shared,
            stack,
            spills,
        };
        assert_eq!(parse_report(LOG), [entry("add", 10, 1024, 0, 0), entry("two", 31, 0, 16, 20)]);
        assert!(parse_report("").is_empty());
    }
}
