//! The driver: one device, its context, one stream, and what is allocated, loaded and launched there.
//!
//! Every library and version is probed before the first call, because a missing symbol would panic inside the
//! binding. One thread drives a device at a time; entry points make the context current, so the owner may move.
#![allow(unsafe_code)]

use super::call::Target;
use super::error::{CudaError, EXIT_CONTEXT_LOST};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

/// Oldest driver accepted: CUDA 13.0, whose NVRTC the kernels are compiled with.
const DRIVER: c_int = 13_000;

/// Variable that makes every launch outside graphs wait, so that a fault names its kernel.
pub const SYNC_VARIABLE: &str = "SPARKPIPE_SYNC";

/// The launch that was waited for last, under [`SYNC_VARIABLE`].
static LAST: Mutex<String> = Mutex::new(String::new());

/// Turns a driver result into an error. After an error that poisons the context nothing on the device can be
/// trusted, and every later call would fail with the same code: the process says so and ends.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let code = result as u32;
    let name = error_name(result);
    // 700 .. 719: illegal address, launch timeout, hardware stack, illegal instruction, misaligned address,
    // invalid address space and program counter, launch failure. 702, 704, 705, 708, 709, 711 .. 713 and
    // 720 are not such errors, but of them only 702 (timeout) can come from a launch.
    if matches!(code, 700 | 702 | 710 | 714..=719) {
        let last = LAST.lock().map_or_else(|e| e.into_inner().clone(), |last| last.clone());
        let behind = if last.is_empty() { last } else { format!(" behind {last}") };
        eprintln!("error: {call}: {name} ({code}){behind}: the CUDA context is lost");
        std::process::exit(EXIT_CONTEXT_LOST);
    }
    Err(CudaError::Driver { call, name, code })
}

fn error_name(result: CUresult) -> String {
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: `name` is a valid place for a pointer to a static string.
    unsafe { sys::cuGetErrorName(result, &mut name) };
    if name.is_null() {
        return "unknown error".into();
    }
    // SAFETY: the driver returned a NUL-terminated static string.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// `call!(cuX(args))`: an unsafe driver call with its result checked and named.
macro_rules! call {
    ($f:ident ( $($a:expr),* $(,)? )) => {
        // SAFETY: the caller states why the arguments are valid.
        check(stringify!($f), unsafe { sys::$f($($a),*) })
    };
}
pub(super) use call;

/// Facts of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Name.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// PCI address, by which NVML finds the same device.
    pub pci: String,
    /// Driver's CUDA version, e.g. 13000.
    pub driver: u32,
    /// Bytes of device memory.
    pub memory: u64,
    /// What bindings may ask.
    pub target: Target,
}

/// A device with its context and stream.
pub struct Device {
    facts: Facts,
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(super) stream: sys::CUstream,
    waits: bool,
}

// SAFETY: contexts, streams, events, modules and functions may be used from any thread that made the context
// current, which every entry point does; the driver locks internally.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Whether there is a driver at all, and how many devices it has.
pub fn devices() -> Result<usize, CudaError> {
    // SAFETY: only opens the library by name.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Missing("libcuda.so.1 is not installed (the NVIDIA driver)".into()));
    }
    let mut version = 0;
    call!(cuDriverGetVersion(&mut version))?;
    if version < DRIVER {
        let have = format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(CudaError::Missing(format!("the driver supports CUDA {have}, 13.0 is needed")));
    }
    if let Err(error) = call!(cuInit(0)) {
        return Err(CudaError::Missing(format!("the driver does not start: {error}")));
    }
    let mut count = 0;
    call!(cuDeviceGetCount(&mut count))?;
    Ok(count as usize)
}

impl Device {
    /// Opens device `ordinal`.
    ///
    /// # Errors
    /// [`CudaError::Missing`] naming what is missing; [`CudaError::Driver`].
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        let count = devices()?;
        if ordinal >= count {
            return Err(CudaError::Missing(format!(
                "the driver shows {count} devices, number {ordinal} is none"
            )));
        }
        let mut device = 0;
        call!(cuDeviceGet(&mut device, ordinal as c_int))?;
        let facts = facts(device)?;
        let mut context = std::ptr::null_mut();
        call!(cuDevicePrimaryCtxRetain(&mut context, device))?;
        call!(cuCtxSetCurrent(context))?;
        let mut stream = std::ptr::null_mut();
        call!(cuStreamCreate(&mut stream, sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32))?;
        let waits = std::env::var(SYNC_VARIABLE).is_ok_and(|v| v == "1");
        Ok(Arc::new(Self { facts, device, context, stream, waits }))
    }

    /// Facts.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What bindings may ask.
    pub fn target(&self) -> &Target {
        &self.facts.target
    }

    /// Makes the context current on this thread.
    pub(super) fn current(&self) -> Result<(), CudaError> {
        call!(cuCtxSetCurrent(self.context))
    }

    /// Bytes that are free now.
    pub fn free(&self) -> Result<u64, CudaError> {
        self.current()?;
        let (mut free, mut total) = (0, 0);
        call!(cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok(free as u64)
    }

    /// Waits for a launch under [`SYNC_VARIABLE`], and remembers which it was.
    pub(super) fn launched(&self, kernel: &str, launch: usize) -> Result<(), CudaError> {
        if !self.waits {
            return Ok(());
        }
        if let Ok(mut last) = LAST.lock() {
            *last = format!("kernel {kernel} of launch {launch}");
        }
        call!(cuStreamSynchronize(self.stream))
    }

    /// Waits until the stream has done everything.
    pub fn sync(&self) -> Result<(), CudaError> {
        self.current()?;
        call!(cuStreamSynchronize(self.stream))
    }

    /// Marks the begin (or the end) of what a profiler counts. Without one it does nothing.
    pub fn profile(&self, on: bool) -> Result<(), CudaError> {
        self.sync()?;
        if on { call!(cuProfilerStart()) } else { call!(cuProfilerStop()) }
    }

    /// A timing event.
    pub fn event(self: &Arc<Self>) -> Result<Event, CudaError> {
        self.current()?;
        let mut event = std::ptr::null_mut();
        call!(cuEventCreate(&mut event, sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32))?;
        Ok(Event { event, device: Arc::clone(self) })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.current().is_ok() {
            // SAFETY: own handles; whatever still ran on the stream is finished first.
            unsafe {
                sys::cuStreamSynchronize(self.stream);
                sys::cuStreamDestroy_v2(self.stream);
                sys::cuDevicePrimaryCtxRelease_v2(self.device);
            }
        }
    }
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32, CudaError> {
    let mut value = 0;
    call!(cuDeviceGetAttribute(&mut value, which, device))?;
    Ok(value as u32)
}

fn facts(device: sys::CUdevice) -> Result<Facts, CudaError> {
    use sys::CUdevice_attribute_enum as A;
    let text = |bytes: &[c_char]| {
        let bytes: Vec<u8> = bytes.iter().take_while(|b| **b != 0).map(|b| *b as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let mut name = [0 as c_char; 128];
    call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
    let mut pci = [0 as c_char; 32];
    call!(cuDeviceGetPCIBusId(pci.as_mut_ptr(), pci.len() as c_int, device))?;
    let mut memory = 0;
    call!(cuDeviceTotalMem_v2(&mut memory, device))?;
    let mut driver = 0;
    call!(cuDriverGetVersion(&mut driver))?;
    let capability = (
        attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let sm = match capability {
        (9, 0) => "sm_90a",
        (12, 0) => "sm_120a",
        (12, 1) => "sm_121a",
        (major, minor) => {
            let what = format!("compute capability {major}.{minor}; kernels exist for 9.0, 12.0 and 12.1");
            return Err(CudaError::Missing(what));
        }
    };
    let target = Target {
        sm,
        sms: attribute(device, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_per_block: attribute(device, A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_sm: attribute(device, A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        l2: u64::from(attribute(device, A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
    };
    let (name, pci) = (text(&name), text(&pci));
    Ok(Facts { name, capability, pci, driver: driver as u32, memory: memory as u64, target })
}

/// A point in the stream's time.
pub struct Event {
    event: sys::CUevent,
    device: Arc<Device>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Event {}

impl Event {
    /// Marks the stream's present end.
    pub fn record(&self) -> Result<(), CudaError> {
        self.device.current()?;
        call!(cuEventRecord(self.event, self.device.stream))
    }

    /// Nanoseconds from `earlier` to this event; waits for both.
    pub fn since(&self, earlier: &Self) -> Result<u64, CudaError> {
        self.device.current()?;
        call!(cuEventSynchronize(self.event))?;
        let mut ms = 0f32;
        call!(cuEventElapsedTime_v2(&mut ms, earlier.event, self.event))?;
        Ok((f64::from(ms) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.current().is_ok() {
            // SAFETY: own handle.
            unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}

/// Device memory, freed when dropped.
pub struct DeviceBuffer {
    ptr: sys::CUdeviceptr,
    len: u64,
    device: Arc<Device>,
}

impl DeviceBuffer {
    /// `len` bytes (at least one) for `what`, not cleared.
    pub fn new(device: &Arc<Device>, len: u64, what: &str) -> Result<Self, CudaError> {
        device.current()?;
        let len = len.max(1);
        let mut ptr = 0;
        match call!(cuMemAlloc_v2(&mut ptr, len as usize)) {
            Ok(()) => Ok(Self { ptr, len, device: Arc::clone(device) }),
            Err(CudaError::Driver { code: 2, .. }) => {
                Err(CudaError::Memory { what: what.into(), need: len, free: device.free()? })
            }
            Err(other) => Err(other),
        }
    }

    /// As [`Self::new`], cleared.
    pub fn zeroed(device: &Arc<Device>, len: u64, what: &str) -> Result<Self, CudaError> {
        let buffer = Self::new(device, len, what)?;
        buffer.fill(0, buffer.len, 0)?;
        Ok(buffer)
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds nothing; never, it has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Device address of byte `offset`.
    pub fn address(&self, offset: u64) -> u64 {
        self.ptr + offset
    }

    fn span(&self, at: u64, len: u64) -> u64 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "{len} B at {at} of {} B", self.len);
        self.ptr + at
    }

    /// Sets `len` bytes from `at` on to `value`, in stream order.
    pub fn fill(&self, at: u64, len: u64, value: u8) -> Result<(), CudaError> {
        self.device.current()?;
        call!(cuMemsetD8Async(self.span(at, len), value, len as usize, self.device.stream))
    }

    /// Copies `bytes` to `at` and waits.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.write_async(at, bytes)?;
        self.device.sync()
    }

    /// Copies `bytes` to `at` in stream order. Pageable memory is staged before the call returns, page-locked
    /// memory is read later: it must stay until the stream is synchronised (see [`Pinned`]).
    fn write_async(&self, at: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.device.current()?;
        let (to, from) = (self.span(at, bytes.len() as u64), bytes.as_ptr().cast::<c_void>());
        call!(cuMemcpyHtoDAsync_v2(to, from, bytes.len(), self.device.stream))
    }

    /// Copies `len` bytes from `from` to `to`, in stream order. The two do not overlap.
    pub fn copy_within(&self, from: u64, to: u64, len: u64) -> Result<(), CudaError> {
        assert!(from + len <= to || to + len <= from, "copies inside a buffer do not overlap");
        self.device.current()?;
        let (from, to) = (self.span(from, len), self.span(to, len));
        call!(cuMemcpyDtoDAsync_v2(to, from, len as usize, self.device.stream))
    }

    /// Copies bytes from `at` and waits.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.device.current()?;
        let (from, to) = (self.span(at, bytes.len() as u64), bytes.as_mut_ptr().cast::<c_void>());
        call!(cuMemcpyDtoHAsync_v2(to, from, bytes.len(), self.device.stream))?;
        self.device.sync()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.device.current().is_ok() {
            // SAFETY: own allocation; the stream is drained first, so no kernel still reads it.
            unsafe {
                sys::cuStreamSynchronize(self.device.stream);
                sys::cuMemFree_v2(self.ptr);
            }
        }
    }
}

/// Page-locked host memory for one stream of copies.
pub struct Pinned {
    ptr: *mut u8,
    len: usize,
    device: Arc<Device>,
}

// SAFETY: plain memory owned by this value.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `len` cleared bytes.
    pub fn new(device: &Arc<Device>, len: usize) -> Result<Self, CudaError> {
        device.current()?;
        let mut ptr: *mut c_void = std::ptr::null_mut();
        call!(cuMemHostAlloc(&mut ptr, len.max(1), 0))?;
        // SAFETY: the allocation holds `len` bytes.
        unsafe { std::ptr::write_bytes(ptr.cast::<u8>(), 0, len.max(1)) };
        Ok(Self { ptr: ptr.cast(), len, device: Arc::clone(device) })
    }

    /// The bytes. The owner waits for the stream before it changes what a copy still reads.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: own memory, initialised, exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }

    /// Copies the first `len` bytes to `buffer` at `at`, in stream order.
    pub fn send(&mut self, len: usize, buffer: &DeviceBuffer, at: u64) -> Result<(), CudaError> {
        let bytes = &self.bytes()[..len];
        buffer.write_async(at, bytes)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.current().is_ok() {
            // SAFETY: own memory; the stream is drained first, so no copy still reads it.
            unsafe {
                sys::cuStreamSynchronize(self.device.stream);
                sys::cuMemFreeHost(self.ptr.cast());
            }
        }
    }
}
