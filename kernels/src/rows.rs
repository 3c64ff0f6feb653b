//! Row plumbing that host launches share: partitioning rows over the pool, reading small weights, and
//! storing an f32 row in the kind its consumer reads.
use crate::buffer::BufId;
use crate::host::device::Ctx;
use crate::host::simd::Simd;
use crate::linear::host::{Act, quantize_q8_row};
use crate::memory::{Rd, Views, Wr};
use crate::norm::host::round_row_bf16;
use crate::numeric::{ActKind, SmallWeight};
use crate::values::Vector;

/// Work below this many values is not worth waking the pool for: about the 3 us two threads need to meet.
const SERIAL_VALUES: usize = 16 << 10;

impl<'a> Ctx<'a> {
    /// Runs `job(row, scratch)` for every row; `values` is what a row reads or writes, to choose the grain.
    pub fn rows(&mut self, rows: usize, values: usize, job: impl Fn(usize, &mut [f32]) + Sync) {
        let threads = self.pool.threads();
        let items = if rows * values <= SERIAL_VALUES { 1 } else { rows.min(threads * 8) };
        self.pool.run(items, &|item, scratch| {
            for row in rows * item / items..rows * (item + 1) / items {
                job(row, scratch);
            }
        });
    }

    /// A small weight, read once a launch.
    pub fn small(&self, w: &SmallWeight) -> Vector<'a> {
        use crate::formats::Format;
        let len = w.len as usize;
        match w.format {
            Format::F32 => Vector::F32(self.views.rd(w.buf).slice(0..len)),
            Format::F16 => Vector::F16(self.views.rd(w.buf).slice(0..len)),
            _ => Vector::Bf16(self.views.rd(w.buf).slice(0..len)),
        }
    }
}

/// Activation rows of a product, whole.
pub fn act<'a>(views: Views<'a>, buf: BufId, kind: ActKind, rows: usize, k: usize) -> Act<'a> {
    match kind {
        ActKind::F32 => Act::F32(views.rd(buf).slice(0..rows * k)),
        ActKind::Bf16 => Act::Bf16(views.rd(buf).slice(0..rows * k)),
        ActKind::Q8 => Act::Q8(views.rd(buf).slice(0..rows * k / 256 * 276)),
    }
}

/// Where rows of a kind are stored.
pub enum Sink<'a> {
    /// f32 rows.
    F32(Wr<'a, f32>),
    /// BF16 rows.
    Bf16(Wr<'a, u16>),
    /// Q8 rows.
    Q8(Wr<'a, u8>),
}

impl<'a> Sink<'a> {
    /// A sink for `kind` rows in `buf`.
    pub fn new(views: Views<'a>, buf: BufId, kind: ActKind) -> Self {
        match kind {
            ActKind::F32 => Self::F32(views.wr(buf)),
            ActKind::Bf16 => Self::Bf16(views.wr(buf)),
            ActKind::Q8 => Self::Q8(views.wr(buf)),
        }
    }

    /// Stores `values` at `column` of row `row`; rows are `width` values. Q8 takes whole groups of 256.
    pub fn put(&self, simd: Simd, row: usize, width: usize, column: usize, values: &[f32]) {
        let at = row * width + column;
        match self {
            Self::F32(w) => w.slice(at..at + values.len()).copy_from_slice(values),
            Self::Bf16(w) => {
                let out = w.slice(at..at + values.len());
                round_row_bf16(simd, values, out);
            }
            Self::Q8(w) => {
                assert!(
                    column.is_multiple_of(256) && values.len().is_multiple_of(256),
                    "Q8 rows are stored in groups of 256"
                );
                let start = row * (width / 256 * 276);
                for (i, group) in values.chunks_exact(256).enumerate() {
                    let g = column / 256 + i;
                    let mut block = [0u8; 276];
                    quantize_q8_row(simd, group, &mut block);
                    let codes = start + 256 * g;
                    w.slice(codes..codes + 256).copy_from_slice(&block[..256]);
                    let scale = start + width + 4 * g;
                    w.slice(scale..scale + 4).copy_from_slice(&block[256..260]);
                    let sums = start + width + width / 64 + 16 * g;
                    w.slice(sums..sums + 16).copy_from_slice(&block[260..276]);
                }
            }
        }
    }
}

/// One row of an f32 view.
pub fn row<'a>(view: &Rd<'a, f32>, index: usize, width: usize) -> &'a [f32] {
    view.slice(index * width..(index + 1) * width)
}
