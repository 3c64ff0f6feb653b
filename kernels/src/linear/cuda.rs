//! CUDA binding of linear: which of the three kernels of `linear.cu`, with which constants and grid.
//!
//! Up to [`GEMV_ROWS`] rows a block streams tiles of 16 weight rows with a warp a slice of K; more rows are
//! staged through shared memory; f32 rows take fused adds. The sum is the same tree in the first two
//! (`mma_tile.cuh`).
use super::contract::{Epilogue, Linear, LinearPart};
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::{COUNTERS, NULL, bf16_class, define, refused};
use crate::formats::Format;
use crate::numeric::ActKind;
use ledger::Feature;

/// The kernels.
pub static SOURCE: Source = Source { name: "linear.cu", text: include_str!("linear.cu") };

/// Rows that one column tile of an mma holds.
pub const GEMV_ROWS: usize = 8;
/// Parts of a call.
const PARTS: usize = 4;
const OP: &str = "linear";

type Defines = Vec<(&'static str, String)>;

/// Slices of K, as `slices_of` in `mma_tile.cuh`: at least 512 values each (256 below 2048), at most eight.
pub fn slices(k: usize) -> usize {
    (if k < 2048 { k / 256 } else { k / 512 }).clamp(1, 8)
}

/// The name of a format in `weights.cuh`.
pub fn format_name(format: Format) -> &'static str {
    match format {
        Format::F32 => "F32",
        Format::F16 => "F16",
        Format::Bf16 => "BF16",
        Format::Q8_0 => "Q8_0",
        Format::Q4_K => "Q4_K",
        Format::Q5_K => "Q5_K",
        Format::Q6_K => "Q6_K",
        Format::Q2_K => "Q2_K",
    }
}

/// Constants of the kernel for few rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemv {
    /// Tiles of 16 weight rows a block (gate and up count two).
    pub tiles: usize,
    /// Units of 32 values in flight a warp; half as many of the longer units of the 256-value blocks.
    pub depth: usize,
    /// Blocks of a multiprocessor that registers must leave room for.
    pub blocks: usize,
    /// Slices of K a warp computes, one after another; divides their number.
    pub slices: usize,
    /// Whether the last cache is asked for a whole tile first.
    pub fetch: bool,
}

/// What decides the constants of a launch for few rows.
#[derive(Clone, Copy, Debug)]
pub struct Few<'a> {
    /// Values of a row.
    pub k: usize,
    /// Tiles of 16 weight rows; gate and up count two.
    pub tiles: usize,
    /// Formats of all matrices.
    pub formats: &'a [Format],
    /// Whether a part is a pair of gate and up.
    pub silu: bool,
    /// Whether a single input row is promised.
    pub one: bool,
    /// The device.
    pub target: &'a Target,
}

impl Gemv {
    /// What stands: see LAB.md for the figures behind each line.
    pub fn standing(of: Few) -> Self {
        let least = if of.silu { 2 } else { 1 };
        let tiles = match slices(of.k) {
            3.. => least,
            2 => 4,
            _ => 8,
        };
        let threads = 32 * slices(of.k) * tiles;
        let stand = |depth, room: usize| Self {
            tiles,
            depth,
            blocks: (room / threads).max(1),
            slices: 1,
            fetch: false,
        };
        let all = |some: &[Format]| of.formats.iter().all(|f| some.contains(f));
        // Two units of BF16 take 43 registers: what is left holds blocks of the next launch, which already
        // load.
        if all(&[Format::Bf16]) {
            return stand(2, 1024);
        }
        if !all(&[Format::Q4_K, Format::Q6_K]) {
            return stand(depth_of(of.formats), 512);
        }
        // One wave of blocks: every weight in flight at once, 168 registers.
        if tiles == least && of.tiles.div_ceil(tiles) * threads <= 384 * of.target.sms as usize {
            return stand(8, 384);
        }
        let depth = if all(&[Format::Q6_K]) && of.target.sm == Target::SM_90A.sm {
            8
        } else if of.one {
            4
        } else {
            2
        };
        stand(depth, 512)
    }
}

/// Units in flight that 128 registers hold without a spill.
fn depth_of(formats: &[Format]) -> usize {
    if formats.iter().any(|f| matches!(f, Format::Q5_K | Format::F32)) { 2 } else { 4 }
}

/// Weight tiles and column tiles of a warp (at most `want`) that 255 registers hold without a spill: two sums
/// of each output are alive. A pair of gate and up takes two weight tiles. What ptxas 13.0 was seen to keep.
pub(crate) fn tiles_of_a_warp(
    formats: &[Format],
    pair: bool,
    want: usize,
    target: &Target,
) -> (usize, usize) {
    let any = |of: &[Format]| formats.iter().any(|f| of.contains(f));
    let hopper = target.sm == Target::SM_90A.sm;
    let bf16 = formats.iter().all(|f| *f == Format::Bf16);
    let heavy = any(&[Format::F32, Format::F16, Format::Q5_K]);
    match (bf16, pair) {
        (true, _) => (2, want.min(if hopper { 8 } else { 4 })),
        (false, true) => (2, want.min(if heavy || !hopper { 2 } else { 4 })),
        (false, false) if want <= 2 => (2, want),
        (false, false) => (1, want.min(if heavy || !hopper { 4 } else { 8 })),
    }
}

/// Constants of the kernel for many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Warps of a block.
    pub warps: usize,
    /// Weight tiles of a warp.
    pub mt: usize,
    /// Column tiles of eight rows.
    pub nb: usize,
    /// Values of a staged chunk.
    pub chunk: usize,
    /// Staged chunks.
    pub stages: usize,
    /// Whether a block computes one slice only.
    pub split: bool,
}

impl Tile {
    /// What stands: see LAB.md. `tiles` is the number of weight tiles (pairs of them for gate and up).
    pub fn standing(
        k: usize,
        rows: usize,
        formats: &[Format],
        silu: bool,
        tiles: usize,
        target: &Target,
    ) -> Self {
        let want = rows.div_ceil(8).next_power_of_two().clamp(2, 8);
        let (mt, nb) = tiles_of_a_warp(formats, silu, want, target);
        let chunk = if formats.contains(&Format::Q2_K) { 256 } else { 128 };
        let each = if silu { 1 } else { mt };
        let columns = rows.div_ceil(8 * nb);
        let sms = target.sms as usize;
        // Warps so that the rows a multiprocessor gets in whole waves are fewest; the larger block on a tie.
        let cost = |w: usize| {
            let per_sm = (8 / w).max(1);
            (tiles.div_ceil(w * each) * columns).div_ceil(sms * per_sm) * w * per_sm
        };
        let warps = (4..=8).rev().min_by_key(|&w| cost(w)).unwrap_or(8);
        let split = tiles.div_ceil(8 * each) * columns < sms && slices(k) > 1 && !(silu && nb == 8);
        let warps = if split { 8 } else { warps };
        let mut tile = Self { warps, mt, nb, chunk, stages: 3, split };
        if tile.shared() > target.shared_per_block {
            tile.stages = 2;
        }
        tile
    }

    /// Bytes of the staged rows; the wider of the two paddings.
    pub fn shared(&self) -> u32 {
        (self.stages * 8 * self.nb * (2 * self.chunk + 64)) as u32
    }
}

/// The code of an epilogue in `mma_tile.cuh`.
fn epilogue(part: &LinearPart) -> Result<u32, BindError> {
    match part.epilogue {
        Epilogue::Store => Ok(0),
        Epilogue::Accumulate => Ok(1),
        Epilogue::SiluMul { kind: ActKind::F32, .. } => Ok(2),
        Epilogue::SiluMul { kind: ActKind::Bf16, .. } => Ok(3),
        Epilogue::SiluMul { kind, .. } => Err(refused(OP, "output kind", kind.name(), "f32 and bf16")),
    }
}

fn is_silu(part: &LinearPart) -> bool {
    matches!(part.epilogue, Epilogue::SiluMul { .. })
}

/// Refuses shapes the kernels cannot read 16 bytes at a time.
fn check(part: &LinearPart, k: usize) -> Result<(), BindError> {
    if part.w.k != k || !k.is_multiple_of(8) {
        return Err(refused(OP, "k", part.w.k, "one multiple of 8 for all parts"));
    }
    if let Epilogue::SiluMul { up, .. } = part.epilogue
        && (up.n, up.k) != (part.w.n, part.w.k)
    {
        return Err(refused(OP, "up matrix", up.n, "the gate's shape"));
    }
    Ok(())
}

/// Defines and arguments of up to [`PARTS`] parts.
fn parts(all: &[LinearPart], out_rows: bool) -> Result<(Defines, Vec<Arg>), BindError> {
    const NAMES: [[&str; 4]; PARTS] = [
        ["P0_FMT", "P0_N", "P0_EPI", "P0_UP"],
        ["P1_FMT", "P1_N", "P1_EPI", "P1_UP"],
        ["P2_FMT", "P2_N", "P2_EPI", "P2_UP"],
        ["P3_FMT", "P3_N", "P3_EPI", "P3_UP"],
    ];
    let mut defines = vec![define("K_DIM", all[0].w.k), define("OUT_ROWS", u32::from(out_rows))];
    let mut args = Vec::new();
    for (i, [format, n, epi, up_format]) in NAMES.into_iter().enumerate() {
        let Some(part) = all.get(i) else {
            args.extend([NULL; 3]);
            continue;
        };
        defines.push(define(format, format_name(part.w.format)));
        defines.push(define(n, part.w.n));
        defines.push(define(epi, epilogue(part)?));
        let up = match part.epilogue {
            Epilogue::SiluMul { up, .. } => {
                if up.format != part.w.format {
                    defines.push(define(up_format, format_name(up.format)));
                }
                Arg::Buf(up.buf)
            }
            _ => NULL,
        };
        args.extend([Arg::Buf(part.w.buf), up, Arg::Buf(part.out)]);
    }
    Ok((defines, args))
}

/// Whether a part ends in a short tile: its kernel carries row counts in registers, and twice the code.
fn ragged(parts: &[LinearPart]) -> bool {
    parts.iter().any(|p| !p.w.n.is_multiple_of(16))
}

/// The format of the up matrix, where the part has one.
fn up_format(part: &LinearPart) -> Option<Format> {
    match part.epilogue {
        Epilogue::SiluMul { up, .. } => Some(up.format),
        _ => None,
    }
}

fn formats(parts: &[LinearPart]) -> Vec<Format> {
    parts.iter().flat_map(|p| [Some(p.w.format), up_format(p)]).flatten().collect()
}

/// Weights of a launch above which the next one is let in late. Let in when all blocks have begun, its blocks hold the
/// free places, ask for weights that the running stream then evicts, and end up unevenly spread: one step of the
/// 27B model (launches of 60 to 360 MB) took 22.9 ms so, 14.6 when let in behind the weights, 14.7 without overlap; one
/// of the 30B expert model (up to 7 MB a launch but the head) 2.04, 2.26 and 2.38 ms (H200, 2026-11-30).
const LATE_FROM: u64 = 16 << 20;

fn weight_bytes(group: &[LinearPart]) -> u64 {
    let up = |p: &LinearPart| match p.epilogue {
        Epilogue::SiluMul { up, .. } => up.bytes(),
        Epilogue::Store | Epilogue::Accumulate => 0,
    };
    group.iter().map(|p| p.w.bytes() + up(p)).sum()
}

impl Linear {
    fn bucket_rows(&self, plan: &PlanView) -> usize {
        if self.rows == Feature::OutRows { plan.bucket.out_rows } else { plan.bucket.rows }
    }

    fn out_rows(&self) -> bool {
        self.rows == Feature::OutRows
    }

    /// The kernel calls.
    ///
    /// # Errors
    /// [`BindError`] for a class, kind, format or shape without kernels.
    pub fn bind(&self, plan: &PlanView, target: &Target) -> Result<Vec<KernelCall>, BindError> {
        bf16_class(OP, plan)?;
        let k = self.parts[0].w.k;
        for part in &self.parts {
            check(part, k)?;
        }
        if self.kind == ActKind::F32 {
            return self.parts.iter().map(|p| self.exact(p, plan, target)).collect();
        }
        if self.kind != ActKind::Bf16 {
            return Err(refused(OP, "input kind", self.kind.name(), "f32 and bf16"));
        }
        let groups = self.parts.chunks(PARTS);
        if self.bucket_rows(plan) <= GEMV_ROWS {
            let one = self.bucket_rows(plan) == 1;
            groups.map(|g| self.gemv(g, self.gemv_standing(g, one, target), one)).collect()
        } else {
            groups.map(|g| self.tile(g, self.tile_standing(g, plan, target), plan)).collect()
        }
    }

    fn gemv_standing(&self, group: &[LinearPart], one: bool, target: &Target) -> Gemv {
        let each = |p: &LinearPart| p.w.n.div_ceil(16) * if is_silu(p) { 2 } else { 1 };
        let mut c = Gemv::standing(Few {
            k: group[0].w.k,
            tiles: group.iter().map(each).sum(),
            formats: &formats(group),
            silu: group.iter().any(is_silu),
            one,
            target,
        });
        if ragged(group) {
            c.blocks = c.blocks.div_ceil(2);
        }
        c
    }

    fn tile_standing(&self, group: &[LinearPart], plan: &PlanView, target: &Target) -> Tile {
        let tiles = group.iter().map(|p| p.w.n.div_ceil(16)).sum();
        let silu = group.iter().any(is_silu);
        let k = group[0].w.k;
        let mut c = Tile::standing(k, self.bucket_rows(plan), &formats(group), silu, tiles, target);
        if ragged(group) {
            (c.mt, c.nb) = (2, 2);
        }
        c
    }

    /// Up to eight rows with these constants; `one` promises a single row.
    ///
    /// # Errors
    /// [`BindError`] for an output kind without a kernel.
    pub fn gemv(&self, group: &[LinearPart], c: Gemv, one: bool) -> Result<KernelCall, BindError> {
        let (mut defines, tail) = parts(group, self.out_rows())?;
        defines.extend([define("GEMV", 1), define("CFG_R", c.tiles), define("CFG_U", c.depth)]);
        defines.extend([define("CFG_MIN_BLOCKS", c.blocks), define("CFG_ONE", u32::from(one))]);
        if c.slices != 1 {
            defines.push(define("CFG_S", c.slices));
        }
        if c.fetch {
            defines.push(define("CFG_PRE", 1));
        }
        if weight_bytes(group) > LATE_FROM {
            defines.push(define("CFG_LATE", 1));
        }
        let blocks = |p: &LinearPart| {
            let each = if is_silu(p) { c.tiles / 2 } else { c.tiles };
            p.w.n.div_ceil(16).div_ceil(each) as u32
        };
        Ok(KernelCall {
            source: &SOURCE,
            entry: "linear_gemv",
            defines,
            grid: [group.iter().map(blocks).sum(), 1, 1],
            block: 32 * (slices(group[0].w.k) / c.slices * c.tiles) as u32,
            shared: 0,
            args: [Arg::Shape, Arg::Buf(self.x)].into_iter().chain(tail).collect(),
            pdl: true,
        })
    }

    /// Any number of rows with these constants.
    ///
    /// # Errors
    /// [`BindError`] for an output kind without a kernel or more groups than there are counters.
    pub fn tile(&self, group: &[LinearPart], c: Tile, plan: &PlanView) -> Result<KernelCall, BindError> {
        let (mut defines, tail) = parts(group, self.out_rows())?;
        defines.extend([define("TILE", 1), define("CFG_WARPS", c.warps), define("CFG_MT", c.mt)]);
        defines.extend([define("CFG_NB", c.nb), define("CFG_KC", c.chunk), define("CFG_STAGES", c.stages)]);
        defines.extend([define("CFG_AHEAD", 1), define("CFG_SPLIT_K", u32::from(c.split))]);
        let columns = self.bucket_rows(plan).div_ceil(8 * c.nb) as u32;
        let blocks = tile_blocks(group, &c) as u32 * columns;
        if c.split && u64::from(blocks) * c.warps as u64 * 4 > COUNTERS {
            return Err(refused(OP, "groups", u64::from(blocks) * c.warps as u64, "2^18 counters"));
        }
        let k = group[0].w.k;
        let args = [
            Arg::Shape,
            Arg::Buf(self.x),
            Arg::U32(columns),
            if c.split { Arg::Work(COUNTERS) } else { NULL },
            if c.split { Arg::Work(0) } else { NULL },
        ];
        Ok(KernelCall {
            source: &SOURCE,
            entry: "linear_tile",
            defines,
            grid: [blocks, if c.split { slices(k) as u32 } else { 1 }, 1],
            block: 32 * c.warps as u32,
            shared: c.shared(),
            args: args.into_iter().chain(tail).collect(),
            pdl: true,
        })
    }

    /// f32 rows times a plain matrix.
    fn exact(&self, part: &LinearPart, plan: &PlanView, target: &Target) -> Result<KernelCall, BindError> {
        if !matches!(part.w.format, Format::F32 | Format::F16 | Format::Bf16) || is_silu(part) {
            return Err(refused(
                OP,
                "f32 rows with",
                part.w.format.name(),
                "F32, F16, BF16, stored or added",
            ));
        }
        let rows = self.bucket_rows(plan);
        // Few rows: a weight row a warp, so that all multiprocessors read; many: reuse four ways.
        let (xn, xm) = if rows >= 32 { (4, 4) } else { (1, rows.next_power_of_two().min(4)) };
        let warps = if part.w.n.div_ceil(xn) >= 16 * target.sms as usize { 4 } else { 1 };
        let (mut defines, _) = parts(std::slice::from_ref(part), self.out_rows())?;
        defines.extend([define("EXACT", 1), define("CFG_WARPS", warps)]);
        defines.extend([define("CFG_XN", xn), define("CFG_XM", xm)]);
        Ok(KernelCall {
            source: &SOURCE,
            entry: "linear_exact",
            defines,
            grid: [part.w.n.div_ceil(xn * warps) as u32, rows.div_ceil(xm) as u32, 1],
            block: 32 * warps as u32,
            shared: 0,
            args: vec![Arg::Shape, Arg::Buf(self.x), Arg::Buf(part.w.buf), Arg::Buf(part.out)],
            pdl: true,
        })
    }

    /// Bytes of workspace: the partial sums of launches that are cut along K.
    pub fn workspace(&self, plan: &PlanView, target: &Target) -> u64 {
        if self.kind != ActKind::Bf16 || self.bucket_rows(plan) <= GEMV_ROWS {
            return 0;
        }
        let bytes = |g: &[LinearPart]| {
            let c = self.tile_standing(g, plan, target);
            tile_workspace(g, &c, self.bucket_rows(plan))
        };
        self.parts.chunks(PARTS).map(bytes).max().unwrap_or(0)
    }
}

/// Blocks of a launch along its weight rows.
fn tile_blocks(group: &[LinearPart], c: &Tile) -> usize {
    let each = |p: &LinearPart| c.warps * if is_silu(p) { 1 } else { c.mt };
    group.iter().map(|p| p.w.n.div_ceil(16).div_ceil(each(p))).sum()
}

/// Bytes of counters and partial sums of such a launch: a fragment is 512 bytes a warp.
pub fn tile_workspace(group: &[LinearPart], c: &Tile, rows: usize) -> u64 {
    if !c.split {
        return 0;
    }
    let groups = tile_blocks(group, c) * rows.div_ceil(8 * c.nb) * c.warps;
    COUNTERS + (groups * slices(group[0].w.k) * c.mt * c.nb * 512) as u64
}

#[cfg(test)]
#[path = "cuda_tests.rs"]
mod tests;
