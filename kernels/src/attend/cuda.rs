//! CUDA binding of attention: a work list of runs or units for one row a sequence, tiles of rows otherwise.
//!
//! Both kernels sum in the same tree (attend.cuh), so a row's result does not depend on which of them ran it.
use super::Attend;
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::{COUNTERS, NULL, bf16_class, define, refused};
use crate::numeric::ActKind;

static DECODE: Source = Source { name: "decode.cu", text: include_str!("decode.cu") };
static PREFILL: Source = Source { name: "prefill.cu", text: include_str!("prefill.cu") };

/// Tokens of a unit, which is also a page, and of a run of units.
const UNIT: usize = 128;
const RUN_TOKENS: usize = 8 * UNIT;
/// Static shared memory of the kernels, rounded up.
const STATIC: usize = 512;
/// What the device takes of a multiprocessor's shared memory for each block.
const RESERVED: usize = 1024;

/// The shape of a block: `mt` tiles of 16 query rows, `stage` tokens a tile of the ring.
#[derive(Clone, Copy)]
struct Block {
    warps: usize,
    mt: usize,
    stage: usize,
}

impl Block {
    /// Blocks for one row, best first: eight warps merge partial results fastest.
    fn decode(head_dim: usize) -> &'static [Self] {
        match head_dim {
            32 => &[Self { warps: 2, mt: 1, stage: 64 }],
            64 => &[Self { warps: 4, mt: 1, stage: 64 }],
            128 | 256 => &[Self { warps: 8, mt: 1, stage: 64 }, Self { warps: 8, mt: 1, stage: 32 }],
            _ => &[Self { warps: 8, mt: 1, stage: 32 }],
        }
    }

    fn prefill(head_dim: usize) -> Self {
        let mt = if head_dim <= 128 { 4 } else { 2 };
        Self { warps: 8, mt, stage: 32 }
    }

    fn rows(&self) -> usize {
        16 * self.mt
    }

    /// Bytes of shared memory beside the ring (as `Room` in attend.cuh lays them out).
    fn beside(&self, head_dim: usize) -> usize {
        let rows = self.rows();
        2 * rows * (head_dim + 8) + 4 * rows * (UNIT + 8) + 4 * (self.warps / self.mt) * rows
    }

    /// As many ring buffers as fit `room` bytes, at most `most`; at least two or none.
    fn stages(&self, head_dim: usize, rest: usize, room: usize, most: usize) -> Option<usize> {
        let left = room.checked_sub(self.beside(head_dim) + rest)?;
        let n = (left / (2 * self.stage * head_dim)).min(most);
        (n >= 2).then_some(n)
    }
}

/// The decode kernel's launch shape.
struct Decode {
    block: Block,
    stages: usize,
    shared: usize,
    resident: usize,
    coarse_from: usize,
}

impl Attend {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Floats of a partial result: outputs, then maximum and sum of each head.
    fn part(&self) -> usize {
        (self.group() * (self.head_dim + 2)).next_multiple_of(4)
    }

    /// Whether rows are listed one by one: one row a sequence, or a head too wide for tiles of rows.
    fn listed(&self, plan: &PlanView) -> bool {
        plan.bucket.decode || self.head_dim > 256
    }

    fn decode(&self, plan: &PlanView, target: &Target) -> Result<Decode, BindError> {
        let rest = 4 * (plan.bucket.rows + 1);
        let per_sm = target.shared_per_sm as usize;
        let coarse_from = 3 * target.sms as usize / 4;
        let blocks = Block::decode(self.head_dim);
        // Two blocks a multiprocessor where it has room for two rings of a whole unit's tiles in flight, then
        // one block with such a ring, then whatever fits. A wide head's group of queries and outputs needs
        // 155 registers a thread: two blocks of 256 would spill.
        let most = if self.head_dim > 128 { 1 } else { 2 };
        for (resident, least) in [(2, 5), (1, 5), (1, 2)].into_iter().filter(|(r, _)| *r <= most) {
            let room = (per_sm / resident - RESERVED).min(target.shared_per_block as usize) - STATIC;
            for block in blocks {
                match block.stages(self.head_dim, rest, room, 6) {
                    Some(stages) if stages >= least => {
                        let ring = 2 * stages * block.stage * self.head_dim;
                        let shared = ring + block.beside(self.head_dim) + rest;
                        return Ok(Decode { block: *block, stages, shared, resident, coarse_from });
                    }
                    _ => {}
                }
            }
        }
        Err(refused("attend", "head_dim", self.head_dim, "what fits the device's shared memory"))
    }

    fn check(&self, plan: &PlanView) -> Result<(), BindError> {
        bf16_class("attend", plan)?;
        if self.kv_bytes != 2 {
            return Err(refused("attend", "kv_bytes", self.kv_bytes, "2"));
        }
        if ![32, 64, 128, 256, 512].contains(&self.head_dim) {
            return Err(refused("attend", "head_dim", self.head_dim, "32, 64, 128, 256 and 512"));
        }
        if self.group() == 0 || self.group() > 16 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(refused("attend", "heads", self.heads, "1 to 16 times kv_heads"));
        }
        if self.out_kind == ActKind::Q8 {
            return Err(refused("attend", "output kind", "q8", "f32 and bf16"));
        }
        Ok(())
    }

    fn defines(&self, block: Block, stages: usize) -> Vec<(&'static str, String)> {
        vec![
            define("HEAD_DIM", self.head_dim),
            define("GROUP", self.group()),
            define("KV_HEADS", self.kv_heads),
            define("WARPS", block.warps),
            define("MT", block.mt),
            define("STAGE", block.stage),
            define("STAGES", stages),
            define("GATED", u32::from(self.gate.is_some())),
            define("OUT_BF16", u32::from(self.out_kind == ActKind::Bf16)),
        ]
    }

    fn inputs(&self) -> Vec<Arg> {
        vec![
            Arg::Buf(self.q),
            self.gate.map_or(NULL, Arg::Buf),
            Arg::Buf(self.k_cache),
            Arg::Buf(self.v_cache),
            Arg::Buf(self.pos),
            Arg::Buf(self.seg),
            Arg::Buf(self.table),
            Arg::Buf(self.out),
        ]
    }

    /// The scale of scores whose exponential is a power of two.
    fn scale(&self) -> Arg {
        Arg::F32((f64::from(self.scale) * std::f64::consts::LOG2_E) as f32)
    }

    /// The kernel calls of this attention.
    ///
    /// # Errors
    /// [`BindError`] for another class than bf16 or a shape outside what `Block` knows.
    pub fn bind(&self, plan: &PlanView, target: &Target) -> Result<Vec<KernelCall>, BindError> {
        self.check(plan)?;
        Ok(vec![if self.listed(plan) {
            self.listed_call(plan, target)?
        } else {
            self.tiled_call(plan, target)?
        }])
    }

    fn listed_call(&self, plan: &PlanView, target: &Target) -> Result<KernelCall, BindError> {
        let d = self.decode(plan, target)?;
        let rows = plan.bucket.rows;
        let items = rows * self.kv_heads * plan.bucket.context.div_ceil(UNIT);
        let row_counters = 4 * (rows * self.kv_heads) as u64;
        let unit_bytes = 4 * (8 * d.coarse_from * self.part()) as u64;
        if row_counters + 32 * d.coarse_from as u64 > COUNTERS {
            return Err(refused("attend", "rows", rows, "what the counters' megabyte holds"));
        }
        let mut args = self.inputs();
        args.extend([
            Arg::Work(COUNTERS),
            Arg::Work(COUNTERS + unit_bytes),
            Arg::Work(0),
            Arg::Work(row_counters),
            Arg::Shape,
            self.scale(),
            Arg::U32(self.max_pages as u32),
            Arg::U32(plan.bucket.context.div_ceil(RUN_TOKENS) as u32),
            Arg::U32(d.coarse_from as u32),
        ]);
        let mut defines = self.defines(d.block, d.stages);
        defines.push(define("EARLY", u32::from(plan.bucket.decode)));
        defines.push(define("RESIDENT", d.resident));
        Ok(KernelCall {
            source: &DECODE,
            entry: "attend_decode",
            defines,
            grid: [items.clamp(1, d.resident * target.sms as usize) as u32, 1, 1],
            block: 32 * d.block.warps as u32,
            shared: d.shared as u32,
            args,
            pdl: true,
        })
    }

    fn tiled_call(&self, plan: &PlanView, target: &Target) -> Result<KernelCall, BindError> {
        let block = Block::prefill(self.head_dim);
        let room = target.shared_per_block as usize - STATIC;
        let Some(stages) = block.stages(self.head_dim, 0, room, 5) else {
            return Err(refused("attend", "head_dim", self.head_dim, "what fits the device's shared memory"));
        };
        let mut args = self.inputs();
        args.extend([Arg::Shape, self.scale(), Arg::U32(self.max_pages as u32)]);
        let tiles = plan.bucket.rows.div_ceil(block.rows() / self.group());
        Ok(KernelCall {
            source: &PREFILL,
            entry: "attend_prefill",
            defines: self.defines(block, stages),
            grid: [(tiles * self.kv_heads) as u32, 1, 1],
            block: 32 * block.warps as u32,
            shared: (2 * stages * block.stage * self.head_dim + block.beside(self.head_dim)) as u32,
            args,
            pdl: true,
        })
    }

    /// Counters, then partial results of units and of runs.
    pub fn workspace(&self, plan: &PlanView, target: &Target) -> u64 {
        if self.check(plan).is_err() || !self.listed(plan) {
            return 0;
        }
        let runs = plan.bucket.rows * self.kv_heads * plan.bucket.context.div_ceil(RUN_TOKENS);
        let units = 8 * (3 * target.sms as usize / 4);
        COUNTERS + 4 * ((runs + units) * self.part()) as u64
    }
}
