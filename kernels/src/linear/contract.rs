//! The contract of `linear`: several matrices that share their input rows, each with its own epilogue.
use crate::access::Part;
use crate::buffer::BufId;
use crate::formats::Format;
use crate::numeric::ActKind;
use ledger::{Amount, Feature};
use serde::Serialize;

/// A matrix `[n, k]` of the pack, row by row in blocks of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// Buffer.
    pub buf: BufId,
    /// Format.
    pub format: Format,
    /// Rows (outputs).
    pub n: usize,
    /// Columns (inputs).
    pub k: usize,
}

impl Matrix {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        (self.k / self.format.block_values() * self.format.block_bytes()) as u64
    }

    /// Bytes of the matrix.
    pub fn bytes(&self) -> u64 {
        self.row_bytes() * self.n as u64
    }
}

/// What happens to a product before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    /// `out[r, n] = y` in f32.
    Store,
    /// `out[r, n] += y` in f32: the residual add, saving a round trip of the row.
    Accumulate,
    /// `out[r, n] = silu(y) * y2` where `y2` is the product with the second matrix; stored in `kind`.
    SiluMul {
        /// The second matrix, same shape.
        up: Matrix,
        /// Kind of the output rows.
        kind: ActKind,
    },
}

/// One matrix of a linear launch.
#[derive(Clone, Debug, Serialize)]
pub struct LinearPart {
    /// Ledger name.
    pub name: &'static str,
    /// Matrix.
    pub w: Matrix,
    /// Epilogue.
    pub epilogue: Epilogue,
    /// Output rows.
    pub out: BufId,
}

/// `out_i = epilogue_i(x . w_i^T)` for every part; `x` is `[rows, k]` in `kind`.
#[derive(Clone, Debug, Serialize)]
pub struct Linear {
    /// Input rows.
    pub x: BufId,
    /// Kind of the input rows.
    pub kind: ActKind,
    /// `Rows`, or `OutRows` for the head.
    pub rows: Feature,
    /// Matrices that read the same rows.
    pub parts: Vec<LinearPart>,
}

impl Linear {
    /// Op name with numeric class and format of the first matrix.
    pub fn op_name(&self) -> String {
        format!("linear/{}x{}", self.kind.name(), self.parts[0].w.format.name())
    }

    /// The input rows are charged to the first part: they are touched once a launch.
    pub(crate) fn ledger_parts(&self) -> Vec<Part> {
        let mut out = Vec::with_capacity(self.parts.len());
        for (i, p) in self.parts.iter().enumerate() {
            let mut part = Part::new(p.name);
            if i == 0 {
                part = part.read(self.x, Amount::per(self.rows, self.kind.bytes(p.w.k as u64)));
            }
            part = part.read(p.w.buf, Amount::fixed(p.w.bytes()));
            let n = p.w.n as u64;
            part = match p.epilogue {
                Epilogue::Store => part.write(p.out, Amount::per(self.rows, 4 * n)),
                Epilogue::Accumulate => part.update(p.out, Amount::per(self.rows, 4 * n)),
                Epilogue::SiluMul { up, kind } => part
                    .read(up.buf, Amount::fixed(up.bytes()))
                    .write(p.out, Amount::per(self.rows, kind.bytes(n))),
            };
            out.push(part);
        }
        out
    }
}
