//! The planar layout: a matrix in tiles of [`TILE_ROWS`] rows, each field of the blocks in its own plane.
//!
//! Within a tile the planes follow each other (codes, high bits, scales with d and dmin); a plane is
//! `[block][piece][row][bytes]`, so that the pieces of 16 rows that a warp loads together are one run of memory.
//! Inside a piece the bytes stand in the order in which the four lanes of a row use them ([`Order`]). Field widths
//! are ordered so that every plane of every tile, the short last one too, starts on a multiple of 16 bytes from
//! the matrix: all but the last plane's fields are multiples of 16. Nothing is added, so the byte count is that
//! of [`Layout::GgmlBlocks`]; the move is a permutation of bytes. Formats without blocks stay row-major.

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

/// The order of the bytes of a field. Lane `t` of four takes a quarter of each piece, as little-endian words whose
/// two middle bytes are swapped: a mask of each 16-bit half then finds neighbours in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As in the block.
    Plain,
    /// Words of 8t.. and 8t + 4.. (of 32 bytes).
    Wide,
    /// As `Wide` in two runs of 32 bytes, one after the other in a lane's 16 bytes.
    WidePairs,
    /// Words of 4t.. and 16 + 4t.. (of 32 bytes).
    Split,
    /// As `Split` in two runs of 32 bytes, one after the other in a lane's 16 bytes.
    SplitPairs,
}

impl Order {
    /// Bytes of a piece of a field of `bytes`.
    const fn piece(self, bytes: usize) -> usize {
        match self {
            Self::Plain => bytes,
            Self::Wide | Self::Split => 32,
            Self::WidePairs | Self::SplitPairs => 64,
        }
    }

    /// The byte of the field that stands at byte `i` of its pieces laid end to end.
    const fn source(self, i: usize) -> usize {
        let byte = [0, 2, 1, 3][i % 4];
        let (run, lane, word) = match self {
            Self::Plain => return i,
            Self::Wide | Self::Split => (i / 32, i % 32 / 8, i % 8 / 4),
            Self::WidePairs | Self::SplitPairs => (i / 64 * 2 + i % 16 / 8, i % 64 / 16, i % 8 / 4),
        };
        match self {
            Self::Wide | Self::WidePairs => 32 * run + 8 * lane + 4 * word + byte,
            _ => 32 * run + 4 * lane + 16 * word + byte,
        }
    }
}

/// One plane: where its field lies in a block, how many bytes of a block it holds and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// First byte of the field in a block.
    pub at: usize,
    /// Bytes of the field.
    pub bytes: usize,
    /// Order of its bytes.
    pub order: Order,
}

const fn plane(at: usize, bytes: usize, order: Order) -> Plane {
    Plane { at, bytes, order }
}

/// The planes of a format, in the order in which they follow each other in a tile; none where it stays row-major.
#[must_use]
pub const fn planes(format: Format) -> &'static [Plane] {
    use Order::{Plain, Split, SplitPairs, Wide, WidePairs};
    const Q8_0: &[Plane] = &[plane(2, 32, Wide), plane(0, 2, Plain)];
    const Q4_K: &[Plane] = &[plane(16, 128, WidePairs), plane(0, 16, Plain)];
    const Q5_K: &[Plane] = &[plane(48, 128, WidePairs), plane(16, 32, Wide), plane(0, 16, Plain)];
    const Q6_K: &[Plane] =
        &[plane(0, 128, SplitPairs), plane(128, 64, Split), plane(192, 16, Plain), plane(208, 2, Plain)];
    const Q2_K: &[Plane] = &[plane(16, 64, SplitPairs), plane(0, 16, Plain), plane(80, 4, Plain)];
    match format {
        Format::F32 | Format::F16 | Format::Bf16 => &[],
        Format::Q8_0 => Q8_0,
        Format::Q4_K => Q4_K,
        Format::Q5_K => Q5_K,
        Format::Q6_K => Q6_K,
        Format::Q2_K => Q2_K,
    }
}

/// A tile: its rows, the blocks of a row and where it starts.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    per_row: usize,
    start: usize,
}

impl Tile {
    /// Calls `f(byte of the block, byte of the planar matrix)` for every byte of block `b` of the tile's row `row`.
    fn each_byte(&self, format: Format, row: usize, b: usize, mut f: impl FnMut(usize, usize)) {
        let mut base = self.start;
        for p in planes(format) {
            let piece = p.order.piece(p.bytes);
            for first in (0..p.bytes).step_by(piece) {
                let to = base + ((b * (p.bytes / piece) + first / piece) * self.rows + row) * piece;
                for i in 0..piece {
                    f(p.at + p.order.source(first + i), to + i);
                }
            }
            base += self.rows * self.per_row * p.bytes;
        }
    }
}

/// Where one byte of a block goes. Of block `b` in row `r` of a tile of `rows` rows of `per_row` blocks it is byte
/// `rows * (per_row * before + b * plane + first) + r * piece + at` of the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Byte of the block.
    pub from: u16,
    /// Bytes of the planes before its own, of one block.
    pub before: u16,
    /// Bytes of its plane, of one block.
    pub plane: u16,
    /// First byte of its piece in the plane.
    pub first: u16,
    /// Bytes of the piece.
    pub piece: u16,
    /// Byte in the piece.
    pub at: u16,
}

/// The move of every byte of a block, for kernels that write planes; empty where the format stays row-major.
#[must_use]
pub fn block_map(format: Format) -> Vec<Moved> {
    let (mut out, mut before) = (Vec::new(), 0);
    for p in planes(format) {
        let piece = p.order.piece(p.bytes);
        for i in 0..p.bytes {
            let (first, at) = (i / piece * piece, i % piece);
            let from = p.at + p.order.source(i);
            let [from, before, plane, first, piece, at] =
                [from, before, p.bytes, first, piece, at].map(|v| v as u16);
            out.push(Moved { from, before, plane, first, piece, at });
        }
        before += p.bytes;
    }
    out
}

/// Calls `f(block offset, planar offset)` for every byte of the matrix.
fn each_byte(format: Format, n: usize, k: usize, mut f: impl FnMut(usize, usize)) {
    let block = format.block_bytes();
    let per_row = k / format.block_values();
    for first in (0..n).step_by(TILE_ROWS) {
        let tile = Tile { rows: TILE_ROWS.min(n - first), per_row, start: first * per_row * block };
        for row in 0..tile.rows {
            for b in 0..per_row {
                let from = ((first + row) * per_row + b) * block;
                tile.each_byte(format, row, b, |at, to| f(from + at, to));
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
    if planes(format).is_empty() {
        return Ok(blocks.to_vec());
    }
    let mut out = vec![0; blocks.len()];
    each_byte(format, n, k, |from, to| out[to] = blocks[from]);
    Ok(out)
}

/// The inverse of [`to_planar`].
///
/// # Errors
/// [`FormatError`] where `k` or the buffer does not fit the format.
pub fn from_planar(format: Format, n: usize, k: usize, planar: &[u8]) -> Result<Vec<u8>, FormatError> {
    check(format, n, k, planar.len())?;
    if planes(format).is_empty() {
        return Ok(planar.to_vec());
    }
    let mut out = vec![0; planar.len()];
    each_byte(format, n, k, |to, from| out[to] = planar[from]);
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
    if planes(format).is_empty() {
        decode(format, &planar[row * per_row * block..(row + 1) * per_row * block], out);
        return Ok(());
    }
    let first = row / TILE_ROWS * TILE_ROWS;
    let tile = Tile { rows: TILE_ROWS.min(n - first), per_row, start: first * per_row * block };
    for (b, o) in out.chunks_exact_mut(values).enumerate() {
        let mut bytes = [0u8; MAX_BLOCK];
        tile.each_byte(format, row - first, b, |at, from| bytes[at] = planar[from]);
        decode(format, &bytes[..block], o);
    }
    Ok(())
}
