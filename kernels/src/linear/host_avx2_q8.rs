//! AVX2 form of the integer tree: four outputs at a time, so that four horizontal sums cost three `hadd`.
//!
//! The four are one activation row by four weight rows (decode, memory bound), two by two, or four activation
//! rows by one weight row (the codes are unpacked once for four). Codes and activations meet in `maddubs`:
//! signed codes lend their sign to the activation. Every 16-bit step has room: 2 * 128 * 127 < 2^15.
#![allow(unsafe_code)]

use super::host::Shape;
use super::host_act::{ActKind, Q8_GROUP};
use crate::formats::Format;
use crate::formats::codes_avx2::{K2, K4, K5, K6, Super};
use std::arch::x86_64::*;

/// One Q8 row by its parts.
#[derive(Clone, Copy)]
struct Row {
    codes: *const u8,
    scales: *const f32,
    sums: *const i16,
}

/// Multiplies the tile; one dispatch by format.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile(shape: &Shape<'_>, x: &[u8], out: &mut [f32]) {
    // SAFETY: the caller checked shapes and features.
    unsafe {
        match shape.format {
            Format::Q8_0 => groups(shape, x, out, run_q8_0::<4, 1>, run_q8_0::<2, 2>, run_q8_0::<1, 4>),
            Format::Q4_K => k_tile::<K4>(shape, x, out),
            Format::Q5_K => k_tile::<K5>(shape, x, out),
            Format::Q6_K => k_tile::<K6>(shape, x, out),
            Format::Q2_K => k_tile::<K2>(shape, x, out),
            Format::F32 | Format::F16 | Format::Bf16 => unreachable!("refused when the shape was checked"),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn k_tile<F: Super>(shape: &Shape<'_>, x: &[u8], out: &mut [f32]) {
    // SAFETY: as the caller.
    unsafe { groups(shape, x, out, run_k::<F, 4, 1>, run_k::<F, 2, 2>, run_k::<F, 1, 4>) }
}

/// A kernel of W weight rows by X activation rows, W * X = 4: output w * X + x.
type Run<const W: usize, const X: usize> = unsafe fn([*const u8; W], [Row; X], usize) -> [f32; 4];

/// Cuts a tile into fours; a short edge repeats its last row and drops the copies.
#[inline(always)]
unsafe fn groups(
    shape: &Shape<'_>,
    x: &[u8],
    out: &mut [f32],
    four_one: Run<4, 1>,
    two_two: Run<2, 2>,
    one_four: Run<1, 4>,
) {
    let (k, nt, m_all) = (shape.k, shape.nt, shape.rows.len());
    let supers = k / Q8_GROUP;
    let stride = ActKind::Q8.row_bytes(k).unwrap_or(0);
    // SAFETY: indices are clamped to rows that exist; each row holds `supers` super-blocks.
    unsafe {
        let w = |n: usize| shape.w.as_ptr().add(n.min(nt - 1) * shape.row_bytes);
        let row = |m: usize| {
            let codes = x.as_ptr().add(shape.rows.get(m.min(m_all - 1)) * stride);
            Row { codes, scales: codes.add(k).cast(), sums: codes.add(k + k / 64).cast() }
        };
        let mut put = |n: usize, m: usize, across: usize, got: [f32; 4]| {
            for (i, v) in got.into_iter().enumerate() {
                let (n, m) = (n + i / across, m + i % across);
                if n < nt && m < m_all {
                    out[m * nt + n] = v;
                }
            }
        };
        match m_all {
            1 => {
                for n in (0..nt).step_by(4) {
                    put(n, 0, 1, four_one([w(n), w(n + 1), w(n + 2), w(n + 3)], [row(0)], supers));
                }
            }
            2 => {
                for n in (0..nt).step_by(2) {
                    put(n, 0, 2, two_two([w(n), w(n + 1)], [row(0), row(1)], supers));
                }
            }
            _ => {
                for n in 0..nt {
                    for m in (0..m_all).step_by(4) {
                        put(n, m, 4, one_four([w(n)], [row(m), row(m + 1), row(m + 2), row(m + 3)], supers));
                    }
                }
            }
        }
    }
}

/// Four sums of eight lanes each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum4(a: [__m256i; 4]) -> __m128i {
    let h = _mm256_hadd_epi32(_mm256_hadd_epi32(a[0], a[1]), _mm256_hadd_epi32(a[2], a[3]));
    _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256::<1>(h))
}

/// Pair sums of code times activation, 16 bits each.
#[inline(always)]
unsafe fn pairs(signed: bool, codes: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the level's features are there, the caller's contract.
    unsafe {
        if signed {
            _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
        } else {
            _mm256_maddubs_epi16(codes, x)
        }
    }
}

// Below, arrays are filled by plain loops: a closure handed to `array::from_fn` is compiled without this level's
// features when it is not inlined, and then passes each vector through memory.

/// Output i's f16 at byte `at` of its weight row's block, widened.
#[inline(always)]
unsafe fn halves<const W: usize, const X: usize>(w: &[*const u8; W], at: usize) -> __m128 {
    // SAFETY: the caller's blocks have two bytes at `at`; F16C is part of the level.
    unsafe {
        let mut h = 0u64;
        for i in 0..4 {
            h |= u64::from(w[i / X].add(at).cast::<u16>().read_unaligned()) << (16 * i);
        }
        _mm_cvtph_ps(_mm_cvtsi64_si128(h.cast_signed()))
    }
}

/// Output i's activation scale.
#[inline(always)]
unsafe fn x_scales<const X: usize>(x: &[Row; X], s: usize) -> __m128 {
    // SAFETY: super-block `s` exists in every row.
    unsafe {
        let v = |i: usize| x[i % X].scales.add(s).read_unaligned();
        _mm_setr_ps(v(0), v(1), v(2), v(3))
    }
}

/// Output i's sum of minima times sums of 32 activation codes, of super-block `s`.
#[inline(always)]
unsafe fn mins_of_32<F: Super, const W: usize, const X: usize>(
    prep: &[F::Prep; W],
    x: &[Row; X],
    s: usize,
) -> __m128i {
    // SAFETY: super-block `s` exists in every row and has eight sums.
    unsafe {
        let m = |i: usize| {
            _mm_madd_epi16(F::min32(prep[i / X]), _mm_loadu_si128(x[i % X].sums.add(8 * s).cast()))
        };
        _mm_hadd_epi32(_mm_hadd_epi32(m(0), m(1)), _mm_hadd_epi32(m(2), m(3)))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_k<F: Super, const W: usize, const X: usize>(
    mut w: [*const u8; W],
    x: [Row; X],
    supers: usize,
) -> [f32; 4] {
    let mut total = _mm_setzero_ps();
    for s in 0..supers {
        // SAFETY: `w` points at super-block s of each row, the activation rows hold super-block s.
        unsafe {
            let mut prep = [F::prep(w[0]); W];
            for i in 1..W {
                prep[i] = F::prep(w[i]);
            }
            let mut xs = [x[0].codes.add(s * Q8_GROUP); X];
            for j in 1..X {
                xs[j] = x[j].codes.add(s * Q8_GROUP);
            }
            let zero = _mm256_setzero_si256();
            let (mut acc, mut low) = ([zero; 4], [zero; 4]);
            group::<F, W, X, 0>(&w, &prep, &xs, &mut acc, &mut low);
            group::<F, W, X, 1>(&w, &prep, &xs, &mut acc, &mut low);
            group::<F, W, X, 2>(&w, &prep, &xs, &mut acc, &mut low);
            group::<F, W, X, 3>(&w, &prep, &xs, &mut acc, &mut low);
            group::<F, W, X, 4>(&w, &prep, &xs, &mut acc, &mut low);
            group::<F, W, X, 5>(&w, &prep, &xs, &mut acc, &mut low);
            group::<F, W, X, 6>(&w, &prep, &xs, &mut acc, &mut low);
            group::<F, W, X, 7>(&w, &prep, &xs, &mut acc, &mut low);
            let mut v = _mm_mul_ps(halves::<W, X>(&w, F::D), _mm_cvtepi32_ps(sum4(acc)));
            if F::MIN {
                let mins = if F::MIN16 { sum4(low) } else { mins_of_32::<F, W, X>(&prep, &x, s) };
                v = _mm_fnmadd_ps(halves::<W, X>(&w, F::D + 2), _mm_cvtepi32_ps(mins), v);
            }
            total = _mm_fmadd_ps(x_scales(&x, s), v, total);
            for p in &mut w {
                *p = p.add(F::BYTES);
            }
        }
    }
    let mut out = [0f32; 4];
    // SAFETY: four f32 fit.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), total) };
    out
}

/// Group `J` of 32 codes of each weight row against each activation row.
#[inline(always)]
unsafe fn group<F: Super, const W: usize, const X: usize, const J: usize>(
    w: &[*const u8; W],
    prep: &[F::Prep; W],
    x: &[*const u8; X],
    acc: &mut [__m256i; 4],
    low: &mut [__m256i; 4],
) {
    // SAFETY: the caller's pointers are at a super-block; 32 codes of group J lie inside it.
    unsafe {
        for i in 0..W {
            let (codes, scale) = (F::codes::<J>(w[i]), F::scale::<J>(prep[i]));
            for j in 0..X {
                let xv = _mm256_loadu_si256(x[j].add(32 * J).cast());
                let p = pairs(F::SIGNED, codes, xv);
                acc[i * X + j] = _mm256_add_epi32(acc[i * X + j], _mm256_madd_epi16(p, scale));
                if F::MIN16 {
                    let sums = _mm256_maddubs_epi16(_mm256_set1_epi8(1), xv);
                    let m = _mm256_madd_epi16(sums, F::min16::<J>(prep[i]));
                    low[i * X + j] = _mm256_add_epi32(low[i * X + j], m);
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_q8_0<const W: usize, const X: usize>(
    mut w: [*const u8; W],
    x: [Row; X],
    supers: usize,
) -> [f32; 4] {
    let mut total = _mm_setzero_ps();
    let ones = _mm256_set1_epi16(1);
    for s in 0..supers {
        let mut v = _mm_setzero_ps();
        for b in 0..8 {
            // SAFETY: `w` points at block 8s + b of each row, the activation rows hold super-block s.
            unsafe {
                let mut dots = [ones; 4];
                for i in 0..W {
                    let codes = _mm256_loadu_si256(w[i].add(2).cast());
                    for j in 0..X {
                        let xv = _mm256_loadu_si256(x[j].codes.add(s * Q8_GROUP + 32 * b).cast());
                        dots[i * X + j] = _mm256_madd_epi16(pairs(true, codes, xv), ones);
                    }
                }
                v = _mm_fmadd_ps(halves::<W, X>(&w, 0), _mm_cvtepi32_ps(sum4(dots)), v);
                for p in &mut w {
                    *p = p.add(34);
                }
            }
        }
        // SAFETY: as above.
        unsafe { total = _mm_fmadd_ps(x_scales(&x, s), v, total) };
    }
    let mut out = [0f32; 4];
    // SAFETY: four f32 fit.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), total) };
    out
}
