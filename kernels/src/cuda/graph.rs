//! Modules, functions, launches and graphs.
#![allow(unsafe_code)]

use super::driver::{Device, call, check};
use super::error::CudaError;
use cudarc::driver::sys;
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// A loaded cubin.
pub struct Module {
    module: sys::CUmodule,
    device: Arc<Device>,
}

// SAFETY: module handles may be used from any thread with the context current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a cubin.
    pub fn load(device: &Arc<Device>, cubin: &[u8]) -> Result<Arc<Self>, CudaError> {
        device.current()?;
        let mut module = std::ptr::null_mut();
        call!(cuModuleLoadData(&mut module, cubin.as_ptr().cast::<c_void>()))?;
        Ok(Arc::new(Self { module, device: Arc::clone(device) }))
    }

    /// The entry point `name`, ready for `shared` bytes of dynamic shared memory.
    pub fn function(self: &Arc<Self>, name: &str, shared: u32) -> Result<Function, CudaError> {
        self.device.current()?;
        let entry = CString::new(name).map_err(|_| CudaError::Kernel {
            kernel: name.into(),
            what: "the name holds a zero byte".into(),
        })?;
        let mut function = std::ptr::null_mut();
        call!(cuModuleGetFunction(&mut function, self.module, entry.as_ptr()))?;
        let function = Function { function, module: Arc::clone(self) };
        function.admit(name, shared)?;
        Ok(function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.current().is_ok() {
            // SAFETY: own handle; functions keep their module alive, so none is left.
            unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// What a kernel occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Registers a thread.
    pub registers: u32,
    /// Local memory a thread in bytes: stack and spills.
    pub local: u32,
    /// Static shared memory a block in bytes.
    pub shared: u32,
}

/// An entry point.
#[derive(Clone)]
pub struct Function {
    function: sys::CUfunction,
    module: Arc<Module>,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    fn attribute(&self, which: sys::CUfunction_attribute) -> Result<u32, CudaError> {
        let mut value = 0;
        call!(cuFuncGetAttribute(&mut value, which, self.function))?;
        Ok(value as u32)
    }

    /// What it occupies.
    pub fn attributes(&self) -> Result<Attributes, CudaError> {
        use sys::CUfunction_attribute_enum as A;
        self.module.device.current()?;
        Ok(Attributes {
            registers: self.attribute(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local: self.attribute(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            shared: self.attribute(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        })
    }

    /// Refuses a kernel that spills or needs more shared memory than a block may have; allows what it needs.
    fn admit(&self, name: &str, shared: u32) -> Result<(), CudaError> {
        let have = self.attributes()?;
        let refuse = |what: String| Err(CudaError::Kernel { kernel: name.into(), what });
        if have.local > 0 {
            return refuse(format!("{} B of local memory a thread: it spills", have.local));
        }
        let limit = self.module.device.target().shared_per_block;
        let need = u64::from(shared) + u64::from(have.shared);
        if need > u64::from(limit) {
            return refuse(format!("{need} B of shared memory a block, this device has {limit}"));
        }
        if shared > 0 {
            let which = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            call!(cuFuncSetAttribute(self.function, which, shared as i32))?;
        }
        Ok(())
    }

    /// Enqueues a launch. `args` holds eight bytes for each parameter, the value in the first of them.
    pub fn launch(&self, shape: &LaunchShape, args: &mut [u64]) -> Result<(), CudaError> {
        let device = &self.module.device;
        let mut params: Vec<*mut c_void> = args.iter_mut().map(|a| std::ptr::from_mut(a).cast()).collect();
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: shape.grid[2],
            blockDimX: shape.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared,
            hStream: device.stream,
            attrs: &mut attribute,
            numAttrs: u32::from(shape.pdl),
        };
        // The parameters point at live 8-byte values; a binding passes exactly what its kernel declares.
        call!(cuLaunchKernelEx(&config, self.function, params.as_mut_ptr(), std::ptr::null_mut()))
    }
}

/// Grid, block and shared memory of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: u32,
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Whether it may start before its predecessor has ended.
    pub pdl: bool,
}

/// A captured graph, ready to replay.
pub struct Graph {
    exec: sys::CUgraphExec,
    nodes: u64,
    device: Arc<Device>,
}

// SAFETY: moved between threads, never used by two at a time (replaying takes `&mut`).
unsafe impl Send for Graph {}

impl Graph {
    /// Captures what `enqueue` launches on the device's stream.
    pub fn capture(
        device: &Arc<Device>,
        enqueue: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        device.sync()?;
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        call!(cuStreamBeginCapture_v2(device.stream, mode))?;
        let done = enqueue();
        let mut graph = std::ptr::null_mut();
        // The capture is ended whatever happened inside, or the stream could not be used again.
        let ended = call!(cuStreamEndCapture(device.stream, &mut graph));
        done?;
        ended?;
        let made = Self::instantiate(device, graph);
        // SAFETY: own graph; the executable copy does not need it.
        unsafe { sys::cuGraphDestroy(graph) };
        made
    }

    fn instantiate(device: &Arc<Device>, graph: sys::CUgraph) -> Result<Self, CudaError> {
        let mut nodes = 0;
        call!(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes))?;
        let mut exec = std::ptr::null_mut();
        call!(cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
        let made = Self { exec, nodes: nodes as u64, device: Arc::clone(device) };
        call!(cuGraphUpload(made.exec, device.stream))?;
        Ok(made)
    }

    /// Nodes.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Enqueues a replay.
    pub fn replay(&mut self) -> Result<(), CudaError> {
        self.device.current()?;
        call!(cuGraphLaunch(self.exec, self.device.stream))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.current().is_ok() {
            // SAFETY: own handle; replays in flight are finished first.
            unsafe {
                sys::cuStreamSynchronize(self.device.stream);
                sys::cuGraphExecDestroy(self.exec);
            }
        }
    }
}
