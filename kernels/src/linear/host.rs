//! Host matrix products, one tile of weight rows at a time: `out[m][n] = sum_k x[m][k] * w[n][k]`.
//!
//! [`tile`] is the only entry: a dense layer calls it over ranges of weight rows, a group of expert rows with a
//! list of token indices. It allocates nothing.
//!
//! **The reduction tree is a property of (K, format, class) alone.** `m`, the tile, the position in it, threads
//! and vector width never change a bit. Three classes:
//!
//! * *pairs* (bf16 weights, bf16 activations): 16 f32 lanes; in chunk c of 32 values lane i adds first the
//!   product of element 32c+2i+1, then that of 32c+2i, each fused. (The order of `vdpbf16ps`.)
//! * *decoded* (every other f32 or bf16 case): the weight row decoded to f32, 16 lanes, lane i adds the products
//!   of elements 16c+i with c rising, each fused.
//! * *integer* (Q8 activations, block-quantised weights): in each super-block of 256 an exact i32 sum with the
//!   sub-block scales applied as integers, then `acc = fma(scale_x, v, acc)` in super-block order, where
//!   v = fma(-dmin, sum_min, d * sum), or d * sum without minima; for `Q8_0` v is
//!   `v = fma(d_b, sum_b, v)` over its eight blocks in order, from 0.
//!
//! The short last chunk is padded with zeros; 16 lanes fold as `l[i] + l[i+8]`, then 4, 2, 1. A NaN or infinity
//! follows IEEE rules through f32 and bf16; through Q8 both become NaN (see [`quantize_q8_row`]).
//!
//! [`quantize_q8_row`]: super::host_act::quantize_q8_row
#![allow(unsafe_code)]

pub use super::host_act::{Act, ActKind, quantize_q8_row};
use super::host_scalar;
use crate::formats::{Format, FormatError};
use crate::host::simd::{Level, Simd};

/// Which rows of the activations a call multiplies; the outputs follow in this order.
#[derive(Clone, Copy, Debug)]
pub enum RowSel<'a> {
    /// Rows `start..end`.
    Range {
        /// First row.
        start: usize,
        /// One past the last row.
        end: usize,
    },
    /// The rows with these indices, in this order, repeats allowed.
    List(&'a [u32]),
}

impl RowSel<'_> {
    /// Number of rows selected.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Range { start, end } => end.saturating_sub(*start),
            Self::List(rows) => rows.len(),
        }
    }

    /// Whether no row is selected.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    pub(super) fn get(&self, i: usize) -> usize {
        match self {
            Self::Range { start, .. } => start + i,
            Self::List(rows) => rows[i] as usize,
        }
    }
}

/// Why a tile cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TileError {
    /// The weight rows do not fit K or their buffer.
    #[error(transparent)]
    Weights(#[from] FormatError),
    /// No kernel for this pair.
    #[error("no host kernel for {format:?} weights with {act:?} activations")]
    Unsupported {
        /// Weight format.
        format: Format,
        /// Activation class.
        act: ActKind,
    },
    /// A Q8 row needs K to be a multiple of 256.
    #[error("k = {k} does not fit the activation class {act:?}")]
    ActWidth {
        /// Activation class.
        act: ActKind,
        /// Values in a row.
        k: usize,
    },
    /// A selected row lies outside the activations.
    #[error("row {row} selected, the activations hold {rows}")]
    Row {
        /// First row out of range.
        row: usize,
        /// Rows held.
        rows: usize,
    },
    /// A work or output buffer is too short.
    #[error("{buffer} holds {got} f32, the tile needs {want}")]
    Buffer {
        /// Which buffer.
        buffer: &'static str,
        /// Its length.
        got: usize,
        /// The length needed.
        want: usize,
    },
}

/// Whether [`tile`] has a kernel for this pair: Q8 activations need block-quantised weights.
#[must_use]
pub const fn supports(format: Format, act: ActKind) -> bool {
    !matches!((format, act), (Format::F32 | Format::F16 | Format::Bf16, ActKind::Q8))
}

/// f32 values of scratch that are enough for a tile of `nt` rows of `k` values, whatever its format and class.
#[must_use]
pub const fn scratch_len(k: usize, nt: usize) -> usize {
    k.saturating_mul(if nt < 4 { 4 } else { nt })
}

/// What a tile of this class really needs: decoded rows, or (integer class) arranged activations, whose size
/// does not depend on `nt`.
const fn scratch_need(act: ActKind, k: usize, nt: usize) -> usize {
    match act {
        ActKind::Q8 => k.saturating_mul(4),
        ActKind::F32 | ActKind::Bf16 => k.saturating_mul(nt),
    }
}

/// The number of weight rows to give one call of [`tile`]: about 64 KiB once decoded, so that the tile stays in
/// the second cache while the activation rows pass over it; always a multiple of 4 between 4 and 16.
#[must_use]
pub const fn tile_rows(_format: Format, k: usize) -> usize {
    let rows = match k {
        0 => 16,
        k => 16384 / k / 4 * 4,
    };
    if rows < 4 {
        4
    } else if rows > 16 {
        16
    } else {
        rows
    }
}

/// The checked arguments of a tile.
#[derive(Clone, Copy)]
pub(super) struct Shape<'a> {
    pub(super) format: Format,
    pub(super) w: &'a [u8],
    /// Bytes of a weight row.
    pub(super) row_bytes: usize,
    pub(super) nt: usize,
    pub(super) k: usize,
    pub(super) rows: RowSel<'a>,
}

impl<'a> Shape<'a> {
    #[inline(always)]
    pub(super) fn weight_row(&self, n: usize) -> &'a [u8] {
        &self.w[n * self.row_bytes..(n + 1) * self.row_bytes]
    }
}

/// Multiplies the selected rows of `x` with `nt` contiguous weight rows of `k` values: `out[m][n]`, row stride
/// `nt`, m in the order of `rows`.
///
/// `w` is row-major ([`crate::formats::Layout::GgmlBlocks`]); `scratch` at least [`scratch_len`] long, its
/// content is meaningless before and after.
///
/// # Errors
/// [`TileError`] where a shape, a buffer or the pair of classes does not fit; nothing is written then.
pub fn tile(
    simd: Simd,
    format: Format,
    w: &[u8],
    nt: usize,
    k: usize,
    x: &Act<'_>,
    rows: RowSel<'_>,
    scratch: &mut [f32],
    out: &mut [f32],
) -> Result<(), TileError> {
    let shape = check(format, w, nt, k, x, rows, scratch, out)?;
    let out = &mut out[..rows.len() * nt];
    if k == 0 {
        out.fill(0.0);
        return Ok(());
    }
    match simd.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Simd` of this level exists only where AVX2, FMA and F16C were detected; `check` passed.
        Level::Avx2 => unsafe { super::host_avx2::tile(simd, &shape, x, scratch, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Simd` of this level exists only where its instructions were detected; `check` passed.
        Level::Avx512 => unsafe { super::host_avx512::tile(simd, &shape, x, scratch, out) },
        _ => host_scalar::tile(&shape, x, scratch, out),
    }
    Ok(())
}

fn check<'a>(
    format: Format,
    w: &'a [u8],
    nt: usize,
    k: usize,
    x: &Act<'_>,
    rows: RowSel<'a>,
    scratch: &[f32],
    out: &[f32],
) -> Result<Shape<'a>, TileError> {
    let act = x.kind();
    if !supports(format, act) {
        return Err(TileError::Unsupported { format, act });
    }
    if act.row_bytes(k).is_none() {
        return Err(TileError::ActWidth { act, k });
    }
    let want = format.matrix_bytes(nt, k)?;
    if w.len() as u64 != want {
        return Err(FormatError::Length { format, got: w.len(), want }.into());
    }
    let held = if k == 0 { usize::MAX } else { x.rows(k) };
    let last = match rows {
        RowSel::Range { start, end } if start < end => Some(end - 1),
        RowSel::Range { .. } => None,
        RowSel::List(list) => list.iter().max().map(|&r| r as usize),
    };
    if let Some(row) = last.filter(|&row| row >= held) {
        return Err(TileError::Row { row, rows: held });
    }
    for (buffer, got, want) in [
        ("scratch", scratch.len(), scratch_need(act, k, nt)),
        ("out", out.len(), rows.len().saturating_mul(nt)),
    ] {
        if got < want {
            return Err(TileError::Buffer { buffer, got, want });
        }
    }
    Ok(Shape { format, w, row_bytes: w.len().checked_div(nt).unwrap_or(0), nt, k, rows })
}
