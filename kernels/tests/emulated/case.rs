//! One launch with its data: run by the host device and by the emulated binding, then compared byte by byte.
use crate::emulator::{Addresses, Emulator};
use kernels::buffer::{Arena, BufId, Buffer};
use kernels::cuda::bind::{bind, workspace};
use kernels::cuda::call::{KernelCall, PlanView, Target};
use kernels::cuda::helpers::COUNTERS;
use kernels::formats::Format;
use kernels::host::HostDevice;
use kernels::host::simd::Simd;
use kernels::io::Io;
use kernels::launch::Op;
use kernels::memory::Memory;
use kernels::numeric::{NumericClass, StepShape};
use kernels::plan::{Bucket, Plan, PlanBuilder};
use kernels::sys::region::Region;
use kernels::values::{bf16_from_f32, bf16_to_f32};
use std::collections::BTreeMap;

/// How a buffer must agree; a difference of `abs + rel |host|` is allowed.
#[derive(Clone, Copy, Debug)]
pub enum Close {
    /// f32 values.
    F32 { abs: f32, rel: f32 },
    /// BF16 values.
    Bf16 { abs: f32, rel: f32 },
}

/// A byte that makes NaN of every float and an absurd index of every integer.
const POISON: u8 = 0xff;

/// A case in the making.
pub struct Case {
    builder: PlanBuilder,
    bucket: Bucket,
    bytes: BTreeMap<BufId, Vec<u8>>,
    close: BTreeMap<BufId, Close>,
    seed: u64,
    weights: u64,
}

/// Device memory after a run.
pub struct Ran {
    plan: Plan,
    memory: Memory,
}

impl Ran {
    /// Values of a buffer.
    pub fn bytes(&self, buf: BufId) -> &[u8] {
        self.memory.values::<u8>(self.plan.buffer(buf))
    }
}

/// A bucket of `rows` rows and `seqs` sequences.
pub fn bucket(rows: usize, seqs: usize, context: usize) -> Bucket {
    Bucket { rows, seqs, out_rows: rows, context, pages: 0, slots: 0, decode: rows == seqs }
}

impl Case {
    /// A case of class bf16 in `bucket`.
    pub fn new(bucket: Bucket, seed: u64) -> Self {
        let builder = PlanBuilder::new(NumericClass::Bf16, bucket);
        Self { builder, bucket, bytes: BTreeMap::new(), close: BTreeMap::new(), seed, weights: 0 }
    }

    fn word(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.seed >> 32
    }

    /// A value uniform in an interval of `width` around zero.
    pub fn value(&mut self, width: f32) -> f32 {
        (self.word() as f32 / 4_294_967_296.0 - 0.5) * width
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.word() as usize % limit
    }

    /// `n` random values.
    pub fn values(&mut self, n: usize, width: f32) -> Vec<f32> {
        (0..n).map(|_| self.value(width)).collect()
    }

    /// A buffer with these bytes, followed by a guard that must stay as it is.
    pub fn raw(&mut self, name: &str, bytes: Vec<u8>) -> BufId {
        let id = self.builder.io(name, bytes.len() as u64);
        self.bytes.insert(id, bytes);
        let guard = self.builder.io(&format!("{name}.guard"), 256);
        self.bytes.insert(guard, vec![POISON; 256]);
        id
    }

    /// A buffer of f32 values.
    pub fn f32s(&mut self, name: &str, values: &[f32]) -> BufId {
        self.raw(name, values.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// `n` random f32 values in a buffer.
    pub fn random(&mut self, name: &str, n: usize, width: f32) -> BufId {
        let values = self.values(n, width);
        self.f32s(name, &values)
    }

    /// A buffer of BF16 values.
    pub fn bf16s(&mut self, name: &str, values: &[f32]) -> BufId {
        self.raw(name, values.iter().flat_map(|x| bf16_from_f32(*x).to_le_bytes()).collect())
    }

    /// A buffer of u32 values.
    pub fn u32s(&mut self, name: &str, values: &[u32]) -> BufId {
        self.raw(name, values.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// A poisoned output buffer that must come out exactly as the host's.
    pub fn exact(&mut self, name: &str, bytes: usize) -> BufId {
        self.raw(name, vec![POISON; bytes])
    }

    /// A poisoned output buffer that may differ from the host's as `close` says.
    pub fn out(&mut self, name: &str, bytes: usize, close: Close) -> BufId {
        let id = self.exact(name, bytes);
        self.close.insert(id, close);
        id
    }

    /// Lets an input that is updated in place differ as `close` says.
    pub fn updated(&mut self, buf: BufId, close: Close) {
        self.close.insert(buf, close);
    }

    /// A weight with these bytes, as a pack holds it.
    pub fn weight(&mut self, name: &str, bytes: Vec<u8>) -> BufId {
        let id = self.builder.weight(name, self.weights, bytes.len() as u64);
        self.weights = (self.weights + bytes.len() as u64).next_multiple_of(4096);
        self.bytes.insert(id, bytes);
        id
    }

    /// Rows of random weights as a checkpoint holds them: any codes, scales within 2^-8 of zero.
    pub fn matrix(&mut self, format: Format, n: usize, k: usize) -> Vec<u8> {
        let scales: &[usize] = match format {
            Format::F32 => return self.values(n * k, 2.0).iter().flat_map(|x| x.to_le_bytes()).collect(),
            Format::Bf16 => {
                let values = self.values(n * k, 2.0);
                return values.iter().flat_map(|x| bf16_from_f32(*x).to_le_bytes()).collect();
            }
            // Any finite half: an exponent field of 0 to 15.
            Format::F16 => {
                return (0..n * k).flat_map(|_| (self.word() as u16 & 0xbfff).to_le_bytes()).collect();
            }
            Format::Q8_0 => &[0],
            Format::Q4_K | Format::Q5_K => &[0, 2],
            Format::Q6_K => &[208],
            Format::Q2_K => &[80, 82],
            other => panic!("no random rows of {}", other.name()),
        };
        let mut bytes: Vec<u8> = (0..format.matrix_bytes(n, k).unwrap()).map(|_| self.word() as u8).collect();
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            for at in scales {
                // Exponent field 6: a magnitude of 2^-9 to 2^-8.
                block[at + 1] = block[at + 1] & 0x83 | 6 << 2;
            }
        }
        bytes
    }

    /// Runs `op` on both devices and compares every buffer. `swap` changes bytes for the device only (a
    /// layout).
    pub fn run(self, emulator: &Emulator, op: Op, rows: usize, swap: &[(BufId, Vec<u8>)]) -> Ran {
        let shape = StepShape { rows, out_rows: self.bucket.out_rows.min(rows), seqs: self.seqs(rows) };
        self.run_shape(emulator, op, shape, swap)
    }

    fn seqs(&self, rows: usize) -> usize {
        if self.bucket.decode { rows } else { self.bucket.seqs }
    }

    /// As [`Self::run`] with a whole shape.
    pub fn run_shape(
        mut self,
        emulator: &Emulator,
        op: Op,
        shape: StepShape,
        swap: &[(BufId, Vec<u8>)],
    ) -> Ran {
        self.builder.launch(op.clone());
        let plan = self.builder.finish(no_io());
        let mut host = memory(&plan, &self.bytes);
        let simd = Simd::detect(&Default::default());
        HostDevice::new(1, simd, plan.thread_scratch).run(&plan, &host, shape).unwrap();
        let mut fill = self.bytes.clone();
        fill.extend(swap.iter().cloned());
        let mut ran: Option<Memory> = None;
        // Neither the order of blocks and threads nor the device (its grid) may show, and counters must be
        // left zero for the next launch.
        for (target, seeds) in
            [(Target::SM_90A, &[0, 1 + self.seed][..]), (Target::SM_121A, &[2 + self.seed][..])]
        {
            let view = PlanView::new(&plan);
            let calls = bind(&op, &view, &target).unwrap();
            let mut work = vec![0u64; (workspace(&op, &view, &target) as usize).div_ceil(8) + 16];
            for seed in seeds {
                let mut device = memory(&plan, &fill);
                emulate(emulator, &plan, &mut device, &calls, &mut work, shape, *seed);
                let counters = COUNTERS.min(8 * work.len() as u64) as usize / 8;
                assert!(work[..counters].iter().all(|c| *c == 0), "a counter is not left zero");
                // What partial results leave behind must never be read.
                work[counters..].fill(u64::MAX);
                if let Some(first) = &ran {
                    for b in &plan.buffers {
                        same(b, first.values(b), device.values(b), &format!("{} seed {seed}", target.sm));
                    }
                }
                ran.get_or_insert(device);
            }
        }
        let device = ran.expect("there are targets");
        for (buf, bytes) in swap {
            assert_eq!(device.values::<u8>(plan.buffer(*buf)), &bytes[..], "a weight was written");
            host.values_mut::<u8>(plan.buffer(*buf)).copy_from_slice(bytes);
        }
        for (i, b) in plan.buffers.iter().enumerate() {
            compare(b, host.values(b), device.values(b), self.close.get(&BufId(i as u32)));
        }
        Ran { plan, memory: device }
    }
}

fn no_io() -> Io {
    let none = BufId(0);
    Io {
        tokens: none,
        pos: none,
        seg: none,
        kv_slot: none,
        seg_start: none,
        slot: none,
        table: none,
        out_index: none,
        logits: none,
        chosen: none,
        expert_counts: Vec::new(),
        expert_ids: Vec::new(),
        max_pages: 0,
        draft: None,
    }
}

fn memory(plan: &Plan, bytes: &BTreeMap<BufId, Vec<u8>>) -> Memory {
    let mut memory = Memory::new(plan.arena_bytes.map(|n| Region::zeroed(n).unwrap()));
    for (id, bytes) in bytes {
        memory.values_mut::<u8>(plan.buffer(*id)).copy_from_slice(bytes);
    }
    memory
}

fn emulate(
    emulator: &Emulator,
    plan: &Plan,
    memory: &mut Memory,
    calls: &[KernelCall],
    work: &mut [u64],
    shape: StepShape,
    seed: u64,
) {
    let arenas = Arena::ALL.map(|a| memory.arena_mut(a).as_mut_ptr() as u64);
    let at = |id: BufId| {
        let b = plan.buffer(id);
        arenas[b.arena as usize] + b.offset
    };
    let step = [shape.rows as u32, shape.out_rows as u32, shape.seqs as u32, 0];
    let work = work.as_mut_ptr() as u64;
    let at = Addresses { buffers: &at, shape: step.as_ptr() as u64, work };
    for call in calls {
        emulator.run(call, &at, seed);
    }
}

fn same(b: &Buffer, first: &[u8], second: &[u8], what: &str) {
    if let Some(i) = first.iter().zip(second).position(|(x, y)| x != y) {
        panic!("{}: byte {i} depends on the order of execution or on the device ({what})", b.name);
    }
}

fn compare(b: &Buffer, host: &[u8], device: &[u8], close: Option<&Close>) {
    let (size, abs, rel) = match close {
        None => (1, 0.0, 0.0),
        Some(Close::F32 { abs, rel }) => (4, *abs, *rel),
        Some(Close::Bf16 { abs, rel }) => (2, *abs, *rel),
    };
    let value = |x: &[u8]| match size {
        1 => f32::from(x[0]),
        2 => bf16_to_f32(u16::from_le_bytes([x[0], x[1]])),
        _ => f32::from_le_bytes([x[0], x[1], x[2], x[3]]),
    };
    let mut worst = (0.0f32, 0);
    for (i, (h, d)) in host.chunks_exact(size).zip(device.chunks_exact(size)).enumerate() {
        if h == d {
            continue;
        }
        let (h, d) = (value(h), value(d));
        let excess = (h - d).abs() / (abs + rel * h.abs()).max(f32::MIN_POSITIVE);
        if excess.is_nan() || excess > worst.0 {
            worst = (if excess.is_nan() { f32::INFINITY } else { excess }, i);
        }
    }
    let at = worst.1 * size..(worst.1 + 1) * size;
    assert!(
        worst.0 <= 1.0,
        "{}[{}]: host {}, device {}: {} times the tolerance abs {abs} rel {rel}",
        b.name,
        worst.1,
        value(&host[at.clone()]),
        value(&device[at]),
        worst.0
    );
    if worst.0 > 0.0 {
        println!("{}: worst difference is {:.3} of the tolerance", b.name, worst.0);
    }
}
