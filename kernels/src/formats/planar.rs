//! The planar layout: a matrix in tiles of [`TILE_ROWS`] rows, each field of the blocks in its own plane.
//!
//! Within a tile the planes follow each other (codes, high bits, scales with d and dmin) and a plane holds its
//! field for `[row][block]`. Field widths are ordered so that every plane of every tile, the short last one
//! too, starts on a multiple of 16 bytes from the matrix: all but the last plane's fields are multiples of 16.
//! Nothing is added, so the byte count is that of [`Layout::GgmlBlocks`]; the move is a permutation of bytes.

use super::{Format, FormatError, decode};

/// Rows in a tile (the last tile of a matrix may be shorter).
pub const TILE_ROWS: usize = 16;

/// How the blocks of a matrix lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row-major blocks, as a checkpoint file has them.
    GgmlBlocks,
    /// Planes of equal fields by tile of rows.
    Planar,
}

/// One plane: where its field lies in a block and how many bytes of a block it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// First byte of the field in a block.
    pub at: usize,
    /// Bytes of the field.
    pub bytes: usize,
}

const fn plane(at: usize, bytes: usize) -> Plane {
    Plane { at, bytes }
}

/// The planes of a format, in the order in which they follow each other in a tile.
#[must_use]
pub const fn planes(format: Format) -> &'static [Plane] {
    const WHOLE4: &[Plane] = &[plane(0, 4)];
    const WHOLE2: &[Plane] = &[plane(0, 2)];
    const Q8_0: &[Plane] = &[plane(2, 32), plane(0, 2)];
    const Q4_K: &[Plane] = &[plane(16, 128), plane(0, 16)];
    const Q5_K: &[Plane] = &[plane(48, 128), plane(16, 32), plane(0, 16)];
    const Q6_K: &[Plane] = &[plane(0, 128), plane(128, 64), plane(192, 16), plane(208, 2)];
    const Q2_K: &[Plane] = &[plane(16, 64), plane(0, 16), plane(80, 4)];
    match format {
        Format::F32 => WHOLE4,
        Format::F16 | Format::Bf16 => WHOLE2,
        Format::Q8_0 => Q8_0,
        Format::Q4_K => Q4_K,
        Format::Q5_K => Q5_K,
        Format::Q6_K => Q6_K,
        Format::Q2_K => Q2_K,
    }
}

/// Calls `f(block offset, planar offset, bytes)` for every field of the matrix.
fn each_field(format: Format, n: usize, k: usize, mut f: impl FnMut(usize, usize, usize)) {
    let block = format.block_bytes();
    let per_row = k / format.block_values();
    let row_bytes = per_row * block;
    for first in (0..n).step_by(TILE_ROWS) {
        let rows = TILE_ROWS.min(n - first);
        let mut to = first * row_bytes;
        for p in planes(format) {
            for row in first..first + rows {
                for b in 0..per_row {
                    f(row * row_bytes + b * block + p.at, to, p.bytes);
                    to += p.bytes;
                }
            }
        }
    }
}

fn check(format: Format, n: usize, k: usize, got: usize) -> Result<(), FormatError> {
    let want = format.matrix_bytes(n, k)?;
    if got as u64 == want { Ok(()) } else { Err(FormatError::Length { format, got, want }) }
}

/// Moves `n` row-major rows of `k` values into the planar layout.
///
/// # Errors
/// [`FormatError`] where `k` or the buffer does not fit the format.
pub fn to_planar(format: Format, n: usize, k: usize, blocks: &[u8]) -> Result<Vec<u8>, FormatError> {
    check(format, n, k, blocks.len())?;
    let mut out = vec![0; blocks.len()];
    each_field(format, n, k, |from, to, len| out[to..to + len].copy_from_slice(&blocks[from..from + len]));
    Ok(out)
}

/// The inverse of [`to_planar`].
///
/// # Errors
/// [`FormatError`] where `k` or the buffer does not fit the format.
pub fn from_planar(format: Format, n: usize, k: usize, planar: &[u8]) -> Result<Vec<u8>, FormatError> {
    check(format, n, k, planar.len())?;
    let mut out = vec![0; planar.len()];
    each_field(format, n, k, |to, from, len| out[to..to + len].copy_from_slice(&planar[from..from + len]));
    Ok(out)
}

/// Decodes row `row` of an `n`-row planar matrix of `out.len()` columns.
///
/// # Errors
/// [`FormatError`] where sizes do not fit; a `row` at or beyond `n` is a [`FormatError::Length`].
pub fn decode_planar_row(
    format: Format,
    n: usize,
    planar: &[u8],
    row: usize,
    out: &mut [f32],
) -> Result<(), FormatError> {
    /// The largest block of any format.
    const MAX_BLOCK: usize = 256;
    check(format, n, out.len(), planar.len())?;
    if row >= n {
        let want = format.matrix_bytes(row.saturating_add(1), out.len())?;
        return Err(FormatError::Length { format, got: planar.len(), want });
    }
    let (values, block) = (format.block_values(), format.block_bytes());
    let per_row = out.len() / values;
    let first = row / TILE_ROWS * TILE_ROWS;
    let rows = TILE_ROWS.min(n - first);
    for (b, o) in out.chunks_exact_mut(values).enumerate() {
        let mut bytes = [0u8; MAX_BLOCK];
        let mut base = first * per_row * block;
        for p in planes(format) {
            let from = base + ((row - first) * per_row + b) * p.bytes;
            bytes[p.at..p.at + p.bytes].copy_from_slice(&planar[from..from + p.bytes]);
            base += rows * per_row * p.bytes;
        }
        decode(format, &bytes[..block], o);
    }
    Ok(())
}
