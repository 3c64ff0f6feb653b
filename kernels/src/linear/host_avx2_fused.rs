//! One or two activation rows by a super-block format in the *decoded* class: decode in registers, no scratch pass.
//!
//! Decoding a tile to scratch pays once several rows read it. Below that the store and reload of four bytes a
//! weight costs more than the products, so the decoder hands each eight values straight to the accumulators, in
//! the same order and with the same rounding.
#![allow(unsafe_code)]

use super::host::{Act, Shape};
use super::host_avx2::fold;
use crate::formats::Format;
use crate::formats::codes_avx2::{K2, K4, K5, K6, Super, factors_of, group_eights};
use crate::formats::elements::bf16_to_f32;
use std::arch::x86_64::*;

/// Values of a super-block.
const VALUES: usize = 256;

/// Computes the tile if this is its case; `false` means that nothing was written.
///
/// # Safety
/// As [`super::host_avx2::tile`]; `scratch` holds `nt` times `k` values.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile(shape: &Shape<'_>, x: &Act<'_>, scratch: &mut [f32], out: &mut [f32]) -> bool {
    let m = shape.rows.len();
    if !(m == 1 || m == 2 && shape.nt >= 2) {
        return false;
    }
    let k = shape.k;
    // The rows widened once for the whole tile; the scratch has room for `nt` of them.
    for (i, to) in scratch.chunks_exact_mut(k).take(m).enumerate() {
        let at = shape.rows.get(i) * k;
        match x {
            Act::F32(x) => to.copy_from_slice(&x[at..at + k]),
            Act::Bf16(x) => {
                for (t, &v) in to.iter_mut().zip(&x[at..at + k]) {
                    *t = bf16_to_f32(v);
                }
            }
            Act::Q8(_) => return false,
        }
    }
    // SAFETY: the caller's contract; `scratch` holds the m rows.
    unsafe {
        match shape.format {
            Format::Q4_K => rows::<K4>(shape, scratch, out),
            Format::Q5_K => rows::<K5>(shape, scratch, out),
            Format::Q6_K => rows::<K6>(shape, scratch, out),
            Format::Q2_K => rows::<K2>(shape, scratch, out),
            _ => return false,
        }
    }
    true
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<F: Super>(shape: &Shape<'_>, x: &[f32], out: &mut [f32]) {
    let mut n = 0;
    while n < shape.nt {
        let left = shape.nt - n;
        // SAFETY: rows n.. of this many exist.
        unsafe {
            n += match (shape.rows.len(), left) {
                (1, 2..) => block::<F, 2, 1>(shape, x, n, out),
                (1, _) => block::<F, 1, 1>(shape, x, n, out),
                (_, 2..) => block::<F, 2, 2>(shape, x, n, out),
                _ => block::<F, 1, 2>(shape, x, n, out),
            };
        }
    }
}

/// Weight rows n..n+W by the X rows of `x`; returns W.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block<F: Super, const W: usize, const X: usize>(
    shape: &Shape<'_>,
    x: &[f32],
    n: usize,
    out: &mut [f32],
) -> usize {
    let mut acc = [[[_mm256_setzero_ps(); 2]; X]; W];
    for s in 0..shape.k / VALUES {
        // SAFETY: super-block s of rows n..n+W and of the X rows exists.
        unsafe {
            let mut w = [shape.w.as_ptr().add(n * shape.row_bytes + s * F::BYTES); W];
            let mut xs = [x.as_ptr().add(s * VALUES); X];
            let mut factors = [factors_of::<F>(w[0]); W];
            for i in 1..W {
                w[i] = w[0].add(i * shape.row_bytes);
                factors[i] = factors_of::<F>(w[i]);
            }
            for j in 1..X {
                xs[j] = xs[0].add(j * shape.k);
            }
            step::<F, W, X, 0>(&w, &factors, &xs, &mut acc);
            step::<F, W, X, 1>(&w, &factors, &xs, &mut acc);
            step::<F, W, X, 2>(&w, &factors, &xs, &mut acc);
            step::<F, W, X, 3>(&w, &factors, &xs, &mut acc);
            step::<F, W, X, 4>(&w, &factors, &xs, &mut acc);
            step::<F, W, X, 5>(&w, &factors, &xs, &mut acc);
            step::<F, W, X, 6>(&w, &factors, &xs, &mut acc);
            step::<F, W, X, 7>(&w, &factors, &xs, &mut acc);
        }
    }
    for i in 0..W {
        for j in 0..X {
            out[j * shape.nt + n + i] = fold(acc[i][j][0], acc[i][j][1]);
        }
    }
    W
}

/// Group `J` of each weight row: its four eights go to lanes 0..8 and 8..16 in turn.
#[inline(always)]
unsafe fn step<F: Super, const W: usize, const X: usize, const J: usize>(
    w: &[*const u8; W],
    factors: &[[[f32; 16]; 2]; W],
    x: &[*const f32; X],
    acc: &mut [[[__m256; 2]; X]; W],
) {
    for i in 0..W {
        // SAFETY: the caller's pointers are at a super-block of weights and of activations.
        unsafe {
            let eights = group_eights::<F, J>(w[i], &factors[i]);
            for (e, v) in eights.into_iter().enumerate() {
                for j in 0..X {
                    let xv = _mm256_loadu_ps(x[j].add(32 * J + 8 * e));
                    acc[i][j][e % 2] = _mm256_fmadd_ps(xv, v, acc[i][j][e % 2]);
                }
            }
        }
    }
}
