//! CUDA bindings of the expert products: few pairs an expert stream its tiles, many are staged.
//!
//! The grid depends on the bucket alone: the largest number of work items the tables can name, or what fits
//! the device at once, whichever is less; blocks stride over the items that there are.
use super::{ExpertDown, ExpertUp, Groups};
use crate::buffer::BufId;
use crate::cuda::call::{Arg, BindError, KernelCall, PlanView, Source, Target};
use crate::cuda::helpers::{NULL, bf16_class, define, refused};
use crate::formats::Format;
use crate::linear::Matrix;
use crate::linear::cuda::{format_name, slices, tiles_of_a_warp};
use crate::numeric::ActKind;

/// The kernels.
pub static SOURCE: Source = Source { name: "experts.cu", text: include_str!("experts.cu") };

/// What both products bind.
struct Product<'a> {
    op: &'static str,
    x: BufId,
    kind: ActKind,
    groups: &'a Groups,
    w: Matrix,
    up: Option<Matrix>,
    out: BufId,
    epilogue: u32,
}

/// Constants of the kernel for few pairs an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemv {
    /// Tiles of 16 weight rows a block (gate and up count two).
    pub tiles: usize,
    /// As [`crate::linear::cuda::Gemv::depth`].
    pub depth: usize,
    /// Blocks of a multiprocessor that registers must leave room for.
    pub blocks: usize,
    /// Whether the last cache is asked for an item's weights while the one before is computed.
    pub fetch: bool,
}

/// Constants of the kernel for many pairs an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Warps of a block.
    pub warps: usize,
    /// Weight tiles of a warp.
    pub mt: usize,
    /// Column tiles of eight pairs.
    pub nb: usize,
    /// Values of a staged chunk.
    pub chunk: usize,
    /// Staged chunks.
    pub stages: usize,
}

impl Tile {
    fn shared(&self) -> u32 {
        (self.stages * 8 * self.nb * (2 * self.chunk + 64)) as u32
    }
}

/// Pairs an expert, on average over a bucket, up to which its tiles are streamed eight pairs at a time.
const STREAMED: usize = 4;

impl Product<'_> {
    fn check(&self, plan: &PlanView) -> Result<(), BindError> {
        bf16_class(self.op, plan)?;
        if self.kind != ActKind::Bf16 {
            return Err(refused(self.op, "input kind", self.kind.name(), "bf16"));
        }
        if !self.w.k.is_multiple_of(8) {
            return Err(refused(self.op, "k", self.w.k, "multiples of 8"));
        }
        if let Some(up) = self.up
            && (up.n, up.k) != (self.w.n, self.w.k)
        {
            return Err(refused(self.op, "up matrix", up.n, "the gate's shape"));
        }
        for w in [Some(self.w), self.up].into_iter().flatten() {
            let whole = w.format.block_values() == 1 || w.bytes().is_multiple_of(16);
            if !whole || w.bytes() > u64::from(u32::MAX) || self.groups.experts > 1024 {
                let value = format!("{} bytes, {} experts", w.bytes(), self.groups.experts);
                return Err(refused(
                    self.op,
                    "an expert's matrix",
                    value,
                    "multiples of 16 bytes, 1024 experts",
                ));
            }
        }
        Ok(())
    }

    /// The formats of its matrices.
    fn formats(&self) -> Vec<Format> {
        [Some(self.w), self.up].into_iter().flatten().map(|w| w.format).collect()
    }

    /// Whether gate and up differ: their kernels hold the code of both.
    fn mixed(&self) -> bool {
        self.up.is_some_and(|u| u.format != self.w.format)
    }

    fn bind(&self, plan: &PlanView, target: &Target) -> Result<Vec<KernelCall>, BindError> {
        self.check(plan)?;
        let pairs = plan.bucket.rows * self.groups.top_k;
        Ok(vec![if pairs <= STREAMED * self.groups.experts || pairs <= 8 {
            self.gemv(self.gemv_standing(plan, target), plan, target)
        } else {
            self.tile(self.tile_standing(pairs, target), plan, target)
        }])
    }

    /// What stands: see LAB.md for the figures behind each line.
    fn gemv_standing(&self, plan: &PlanView, target: &Target) -> Gemv {
        let (paired, one) = (self.up.is_some(), plan.bucket.rows == 1);
        // 80 registers hold a unit of these without a spill: six eights of the threads instead of four.
        let light = target.sm == Target::SM_90A.sm
            && !self.mixed()
            && match self.w.format {
                Format::Q6_K => true,
                Format::Q4_K => paired == one && slices(self.w.k) > 1,
                _ => false,
            };
        let tiles = match (slices(self.w.k), paired) {
            (3.., true) => 2,
            (5.., false) => 1,
            (3 | 4, false) => {
                if light {
                    4
                } else {
                    2
                }
            }
            (2, _) => 4,
            _ => 8,
        };
        let threads = 32 * slices(self.w.k) * tiles;
        let room = if light { 768 } else { 512 };
        Gemv { tiles, depth: 2, blocks: (room / threads).max(1), fetch: false }
    }

    fn tile_standing(&self, pairs: usize, target: &Target) -> Tile {
        let want = (pairs / self.groups.experts.max(1)).div_ceil(16).next_power_of_two().clamp(1, 4) * 2;
        let (mt, nb) = tiles_of_a_warp(&self.formats(), self.up.is_some(), want, target);
        let chunk = if self.formats().contains(&Format::Q2_K) { 256 } else { 128 };
        let each = if self.up.is_some() { 1 } else { mt };
        let warps = self.w.n.div_ceil(16).div_ceil(each).min(8);
        let mut tile = Tile { warps, mt, nb, chunk, stages: 3 };
        if tile.shared() + 8192 > target.shared_per_block {
            tile.stages = 2;
        }
        tile
    }

    fn defines(&self) -> Vec<(&'static str, String)> {
        let mut defines = vec![
            define("K_DIM", self.w.k),
            define("N_DIM", self.w.n),
            define("FMT", format_name(self.w.format)),
            define("EXPERTS", self.groups.experts),
            define("TOP_K", self.groups.top_k),
            define("PAIR", u32::from(self.up.is_some())),
            define("BY_PAIR", u32::from(self.up.is_none())),
            define("EPI", self.epilogue),
        ];
        if let Some(up) = self.up.filter(|_| self.mixed()) {
            defines.push(define("UP_FMT", format_name(up.format)));
        }
        defines
    }

    fn args(&self) -> Vec<Arg> {
        vec![
            Arg::Buf(self.x),
            Arg::Buf(self.w.buf),
            self.up.map_or(NULL, |u| Arg::Buf(u.buf)),
            Arg::U32(self.w.bytes() as u32),
            Arg::U32(self.up.map_or(0, |u| u.bytes() as u32)),
            Arg::Buf(self.groups.offsets),
            Arg::Buf(self.groups.list),
            Arg::Buf(self.out),
        ]
    }

    fn gemv(&self, c: Gemv, plan: &PlanView, target: &Target) -> KernelCall {
        let mut defines = self.defines();
        defines.extend([define("GEMV", 1), define("CFG_R", c.tiles), define("CFG_U", c.depth)]);
        // One row of the step: every expert has one pair at most.
        let one = u32::from(plan.bucket.rows == 1);
        defines.extend([define("CFG_MIN_BLOCKS", c.blocks), define("CFG_ONE", one)]);
        if c.fetch {
            defines.push(define("CFG_PRE", 1));
        }
        let each = if self.up.is_some() { c.tiles / 2 } else { c.tiles };
        let active = self.groups.experts.min(plan.bucket.rows * self.groups.top_k);
        let items = active * self.w.n.div_ceil(16).div_ceil(each);
        let resident = target.sms as usize * c.blocks;
        // Blocks stride over items where there are many, else each gets one and the scheduler packs them.
        let blocks = if items > 4 * resident { resident } else { items };
        KernelCall {
            source: &SOURCE,
            entry: "experts_gemv",
            defines,
            grid: [blocks as u32, 1, 1],
            block: 32 * (slices(self.w.k) * c.tiles) as u32,
            shared: 0,
            args: self.args(),
            pdl: true,
        }
    }

    fn tile(&self, c: Tile, plan: &PlanView, target: &Target) -> KernelCall {
        let mut defines = self.defines();
        defines.extend([define("TILE", 1), define("CFG_WARPS", c.warps), define("CFG_MT", c.mt)]);
        defines.extend([define("CFG_NB", c.nb), define("CFG_KC", c.chunk), define("CFG_STAGES", c.stages)]);
        defines.push(define("CFG_MIN_BLOCKS", 1));
        let pairs = plan.bucket.rows * self.groups.top_k;
        let columns = pairs.min(self.groups.experts + pairs / (8 * c.nb));
        let each = c.warps * if self.up.is_some() { 1 } else { c.mt };
        let items = columns * self.w.n.div_ceil(16).div_ceil(each);
        KernelCall {
            source: &SOURCE,
            entry: "experts_tile",
            defines,
            grid: [items.min(target.sms as usize * (8 / c.warps).max(1)) as u32, 1, 1],
            block: 32 * c.warps as u32,
            shared: c.shared(),
            args: self.args(),
            pdl: true,
        }
    }
}

impl ExpertUp {
    fn product(&self) -> Result<Product<'_>, BindError> {
        let epilogue = match self.out_kind {
            ActKind::F32 => 2,
            ActKind::Bf16 => 3,
            kind => return Err(refused("expert_up", "output kind", kind.name(), "f32 and bf16")),
        };
        Ok(Product {
            op: "expert_up",
            x: self.x,
            kind: self.kind,
            groups: &self.groups,
            w: self.gate,
            up: Some(self.up),
            out: self.out,
            epilogue,
        })
    }

    /// The kernel call.
    ///
    /// # Errors
    /// [`BindError`] for a class, kind, format or shape without kernels.
    pub fn bind(&self, plan: &PlanView, target: &Target) -> Result<Vec<KernelCall>, BindError> {
        self.product()?.bind(plan, target)
    }

    /// The streaming kernel with other constants, for measurements.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_gemv(&self, c: Gemv, plan: &PlanView, target: &Target) -> Result<KernelCall, BindError> {
        Ok(self.product()?.gemv(c, plan, target))
    }

    /// Bytes of workspace: none.
    pub fn workspace(&self, _: &PlanView, _: &Target) -> u64 {
        0
    }
}

impl ExpertDown {
    fn product(&self) -> Product<'_> {
        Product {
            op: "expert_down",
            x: self.h,
            kind: self.kind,
            groups: &self.groups,
            w: self.down,
            up: None,
            out: self.out,
            epilogue: 0,
        }
    }

    /// The kernel call.
    ///
    /// # Errors
    /// [`BindError`] for a class, kind, format or shape without kernels.
    pub fn bind(&self, plan: &PlanView, target: &Target) -> Result<Vec<KernelCall>, BindError> {
        self.product().bind(plan, target)
    }

    /// The streaming kernel with other constants, for measurements.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_gemv(&self, c: Gemv, plan: &PlanView, target: &Target) -> Result<KernelCall, BindError> {
        Ok(self.product().gemv(c, plan, target))
    }

    /// Bytes of workspace: none.
    pub fn workspace(&self, _: &PlanView, _: &Target) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::NumericClass;
    use crate::plan::Bucket;

    fn ops(format: Format) -> (ExpertUp, ExpertDown) {
        let groups = Groups { offsets: BufId(1), list: BufId(2), experts: 128, top_k: 8, moe_layer: 0 };
        let gate = Matrix { buf: BufId(3), format, n: 768, k: 2048 };
        let down = Matrix { buf: BufId(3), format, n: 2048, k: 768 };
        let (x, out, kind) = (BufId(0), BufId(5), ActKind::Bf16);
        let up = Matrix { buf: BufId(4), ..gate };
        (
            ExpertUp { x, kind, groups, gate, up, out, out_kind: kind },
            ExpertDown { h: x, kind, groups, down, out },
        )
    }

    #[test]
    fn grids_reach_every_item_and_fit_the_target() {
        for target in Target::ALL {
            for rows in [1, 2, 8, 64, 65, 128, 512, 1024] {
                for format in [Format::Q4_K, Format::Q6_K, Format::Bf16, Format::Q8_0, Format::Q5_K] {
                    let bucket = Bucket {
                        rows,
                        seqs: rows,
                        out_rows: rows,
                        context: 2048,
                        pages: 0,
                        slots: 0,
                        decode: true,
                    };
                    let view = PlanView { bucket: &bucket, class: NumericClass::Bf16, buffers: &[] };
                    let (up, down) = ops(format);
                    for call in [up.bind(&view, &target).unwrap(), down.bind(&view, &target).unwrap()] {
                        let c = &call[0];
                        assert!(
                            c.grid[0] > 0 && c.block <= 1024 && c.shared + 8192 <= target.shared_per_block
                        );
                        assert_eq!(c.entry == "experts_gemv", rows <= 64);
                        assert!(c.pdl && c.args.len() == 8);
                    }
                }
            }
        }
    }

    #[test]
    fn one_row_of_eight_experts_is_one_item_a_block() {
        let bucket =
            Bucket { rows: 1, seqs: 1, out_rows: 1, context: 2048, pages: 0, slots: 0, decode: true };
        let view = PlanView { bucket: &bucket, class: NumericClass::Bf16, buffers: &[] };
        let (up, down) = ops(Format::Q4_K);
        // 8 experts of 48 pairs of tiles; 8 of 128 tiles, two a block.
        assert_eq!(up.bind(&view, &Target::SM_90A).unwrap()[0].grid, [384, 1, 1]);
        assert_eq!(down.bind(&view, &Target::SM_90A).unwrap()[0].grid, [512, 1, 1]);
    }
}
