//! Comparison of outputs with f64: which outputs are looked at, and how an error is scaled.
use kernels::buffer::BufId;
use kernels::formats::decode_row;
use kernels::linear::Matrix;
use kernels::memory::Memory;
use kernels::numeric::{ActKind, SmallWeight};
use kernels::plan::Plan;
use kernels::values::{Vector, bf16_to_f32};
use std::collections::BTreeMap;

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Check {
    /// Largest difference over the largest magnitude of its output row; infinite for NaN or a wrong index.
    pub error: f64,
    /// Outputs compared.
    pub values: usize,
}

impl Check {
    /// Compares one output row.
    pub fn row(&mut self, got: &[f64], want: &[f64]) {
        let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs())).max(f64::MIN_POSITIVE);
        for (g, w) in got.iter().zip(want) {
            let d = (g - w).abs() / scale;
            self.error = if d.is_nan() { f64::INFINITY } else { self.error.max(d) };
        }
        self.values += got.len();
        if got.len() != want.len() || got.is_empty() {
            self.error = f64::INFINITY;
        }
    }

    /// Counts one exact fact.
    pub fn fact(&mut self, holds: bool) {
        self.values += 1;
        if !holds {
            self.error = f64::INFINITY;
        }
    }
}

/// At most `most` of `0..n`, spread evenly, the first and last among them.
pub fn spread(n: usize, most: usize) -> Vec<usize> {
    match n {
        0 => Vec::new(),
        n if n <= most => (0..n).collect(),
        n => (0..most).map(|i| i * (n - 1) / (most - 1).max(1)).collect(),
    }
}

/// A launch's buffers as f64 values, after it ran, with the bytes of the updated ones from before.
pub struct Buffers<'a> {
    /// The case's plan.
    pub plan: &'a Plan,
    /// Memory after the launch.
    pub memory: &'a Memory,
    /// Bytes before the launch of every buffer that it updates.
    pub before: &'a BTreeMap<BufId, Vec<u8>>,
}

impl Buffers<'_> {
    /// Values `at .. at + n` of an f32 buffer.
    pub fn f32s(&self, buf: BufId, at: usize, n: usize) -> Vec<f64> {
        let values = self.memory.values::<f32>(self.plan.buffer(buf));
        values[at..at + n].iter().map(|v| f64::from(*v)).collect()
    }

    /// As [`Self::f32s`], from before the launch.
    pub fn old(&self, buf: BufId, at: usize, n: usize) -> Vec<f64> {
        let bytes = self.before.get(&buf).map_or(&[][..], Vec::as_slice);
        bytes[4 * at..4 * (at + n)]
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f64::from(f32::from_le_bytes(*b)))
            .collect()
    }

    /// An integer buffer.
    pub fn u32s(&self, buf: BufId) -> &[u32] {
        self.memory.values::<u32>(self.plan.buffer(buf))
    }

    /// The bytes of a buffer.
    pub fn bytes(&self, buf: BufId) -> &[u8] {
        self.memory.values::<u8>(self.plan.buffer(buf))
    }

    /// Row `row` of `width` values held in `kind`.
    pub fn act(&self, buf: BufId, kind: ActKind, row: usize, width: usize) -> Vec<f64> {
        match kind {
            ActKind::F32 => self.f32s(buf, row * width, width),
            ActKind::Bf16 => self.kv(buf, 2, row * width, width),
            ActKind::Q8 => {
                let bytes = width / 256 * 276;
                let row = &self.bytes(buf)[row * bytes..(row + 1) * bytes];
                let scales = row[width..width + width / 64].as_chunks::<4>().0;
                let scale = |i: usize| f64::from(f32::from_le_bytes(scales[i / 256]));
                (0..width).map(|i| f64::from(row[i].cast_signed()) * scale(i)).collect()
            }
        }
    }

    /// Values `at .. at + n` of a cache of `bytes`-byte values.
    pub fn kv(&self, buf: BufId, bytes: u64, at: usize, n: usize) -> Vec<f64> {
        if bytes == 4 {
            return self.f32s(buf, at, n);
        }
        let values = self.memory.values::<u16>(self.plan.buffer(buf));
        values[at..at + n].iter().map(|v| f64::from(bf16_to_f32(*v))).collect()
    }

    /// Row `n` of matrix `index` of the stack that `w` is one of, decoded.
    pub fn weights(&self, w: &Matrix, index: usize, n: usize) -> Vec<f64> {
        let row = w.row_bytes() as usize;
        let at = index * w.bytes() as usize + n * row;
        let mut out = vec![0.0f32; w.k];
        decode_row(w.format, &self.bytes(w.buf)[at..at + row], &mut out).expect("the plan checked the row");
        out.into_iter().map(f64::from).collect()
    }

    /// A small weight.
    pub fn small(&self, w: &SmallWeight) -> Vec<f64> {
        use kernels::formats::Format;
        let buffer = self.plan.buffer(w.buf);
        let vector = match w.format {
            Format::F32 => Vector::F32(self.memory.values(buffer)),
            Format::F16 => Vector::F16(self.memory.values(buffer)),
            _ => Vector::Bf16(self.memory.values(buffer)),
        };
        (0..w.len as usize).map(|i| f64::from(vector.get(i))).collect()
    }
}

/// Inner product.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// 1 / (1 + e^-x).
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x sigmoid(x).
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `x * rsqrt(mean(x^2) + eps) * (w [+ 1])`.
pub fn rms(x: &[f64], w: &[f64], eps: f32, plus_one: bool) -> Vec<f64> {
    let inverse = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt();
    let offset = if plus_one { 1.0 } else { 0.0 };
    x.iter().zip(w).map(|(x, w)| x * inverse * (w + offset)).collect()
}
