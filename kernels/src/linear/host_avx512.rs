//! AVX-512 forms of the two f32 trees: the 16 lanes of an output are one register.
//!
//! W weight rows by X activation rows share every load and every bf16 split; 16 outputs in flight leave half
//! the registers to the operands. `vdpbf16ps` computes the *pairs* tree in one instruction, but treats
//! subnormals as zero and was measured slower than two fused adds (LAB.md), so it is not used.
#![allow(unsafe_code)]

use super::host::{Act, Shape};
use super::{host_avx2, host_avx512_q8};
use crate::formats::{Format, decode_row_with};
use crate::host::simd::Simd;
use std::arch::x86_64::*;

/// Computes the tile.
///
/// # Safety
/// The level's features are there; the shape was checked, so weight rows hold `k` values, every selected
/// activation row lies inside its slice and the scratch holds what its class needs.
pub(super) unsafe fn tile(simd: Simd, shape: &Shape<'_>, x: &Act<'_>, scratch: &mut [f32], out: &mut [f32]) {
    let decodes = match x {
        Act::Q8(_) => false,
        Act::Bf16(_) => shape.format != Format::Bf16 && shape.format != Format::F32,
        Act::F32(_) => shape.format != Format::F32,
    };
    // SAFETY: the caller's contract; `w` points at `nt` rows of `k` f32, decoded or as they came.
    unsafe {
        if decodes && shape.rows.len() <= 2 {
            // So few rows are bound by decoding, which is fused there.
            return host_avx2::tile(simd, shape, x, scratch, out);
        }
        if decodes {
            for (n, row) in scratch.chunks_exact_mut(shape.k).take(shape.nt).enumerate() {
                decode_row_with(simd, shape.format, shape.weight_row(n), row).expect("the shape was checked");
            }
        }
        let raw = shape.w.as_ptr();
        let w: *const f32 = if decodes { scratch.as_ptr() } else { raw.cast() };
        match x {
            Act::Q8(x) => host_avx512_q8::tile(shape, x, scratch, out),
            Act::Bf16(x) if shape.format == Format::Bf16 => {
                blocks::<Pairs>(shape, raw.cast(), x.as_ptr(), out);
            }
            Act::Bf16(x) => blocks::<DecodedBf16>(shape, w, x.as_ptr(), out),
            Act::F32(x) => blocks::<Decoded>(shape, w, x.as_ptr(), out),
        }
    }
}

/// One of the trees: what a chunk of K is and how sixteen lanes take it in.
trait Tree {
    /// Element of a weight row.
    type W: Copy;
    /// Element of an activation row.
    type X: Copy;
    /// Values in a chunk.
    const CHUNK: usize;
    /// The lanes' operands of one chunk.
    type Lanes: Copy;

    /// The first `left` values of a chunk, zeros beyond; all of it where `left` is [`Tree::CHUNK`] or more.
    unsafe fn load_w(w: *const Self::W, left: usize) -> Self::Lanes;
    unsafe fn load_x(x: *const Self::X, left: usize) -> Self::Lanes;
    unsafe fn add(x: Self::Lanes, w: Self::Lanes, acc: __m512) -> __m512;
}

/// f32 activations, decoded weights.
struct Decoded;
/// bf16 activations, decoded weights.
struct DecodedBf16;
/// bf16 activations, bf16 weights.
struct Pairs;

/// Bits 0..left, at most all 32.
#[inline(always)]
const fn mask(left: usize) -> u32 {
    if left >= 32 { u32::MAX } else { (1 << left) - 1 }
}

#[inline(always)]
unsafe fn load_f32(p: *const f32, left: usize) -> __m512 {
    // SAFETY: the caller passes `left` readable values; masked lanes are not read.
    unsafe { if left >= 16 { _mm512_loadu_ps(p) } else { _mm512_maskz_loadu_ps(mask(left) as u16, p) } }
}

impl Tree for Decoded {
    type W = f32;
    type X = f32;
    const CHUNK: usize = 16;
    type Lanes = __m512;

    #[inline(always)]
    unsafe fn load_w(w: *const f32, left: usize) -> __m512 {
        // SAFETY: the caller's contract, here and below.
        unsafe { load_f32(w, left) }
    }
    #[inline(always)]
    unsafe fn load_x(x: *const f32, left: usize) -> __m512 {
        // SAFETY: as above.
        unsafe { load_f32(x, left) }
    }
    #[inline(always)]
    unsafe fn add(x: __m512, w: __m512, acc: __m512) -> __m512 {
        // SAFETY: the level's features are there.
        unsafe { _mm512_fmadd_ps(x, w, acc) }
    }
}

impl Tree for DecodedBf16 {
    type W = f32;
    type X = u16;
    const CHUNK: usize = 16;
    type Lanes = __m512;

    #[inline(always)]
    unsafe fn load_w(w: *const f32, left: usize) -> __m512 {
        // SAFETY: the caller's contract, here and below.
        unsafe { load_f32(w, left) }
    }
    #[inline(always)]
    unsafe fn load_x(x: *const u16, left: usize) -> __m512 {
        // SAFETY: masked lanes are not read.
        unsafe {
            let half = if left >= 16 {
                _mm256_loadu_si256(x.cast())
            } else {
                _mm256_maskz_loadu_epi16(mask(left) as u16, x.cast())
            };
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
        }
    }
    #[inline(always)]
    unsafe fn add(x: __m512, w: __m512, acc: __m512) -> __m512 {
        // SAFETY: the level's features are there.
        unsafe { _mm512_fmadd_ps(x, w, acc) }
    }
}

/// The odd elements, then the even ones, of 32 bf16 values, each widened to f32.
#[inline(always)]
unsafe fn split(p: *const u16, left: usize) -> (__m512, __m512) {
    // SAFETY: masked lanes are not read.
    unsafe {
        let both = if left >= 32 {
            _mm512_loadu_si512(p.cast())
        } else {
            _mm512_maskz_loadu_epi16(mask(left), p.cast())
        };
        let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
        (_mm512_castsi512_ps(odd), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)))
    }
}

impl Tree for Pairs {
    type W = u16;
    type X = u16;
    const CHUNK: usize = 32;
    type Lanes = (__m512, __m512);

    #[inline(always)]
    unsafe fn load_w(w: *const u16, left: usize) -> Self::Lanes {
        // SAFETY: the caller's contract, here and below.
        unsafe { split(w, left) }
    }
    #[inline(always)]
    unsafe fn load_x(x: *const u16, left: usize) -> Self::Lanes {
        // SAFETY: as above.
        unsafe { split(x, left) }
    }
    #[inline(always)]
    unsafe fn add(x: Self::Lanes, w: Self::Lanes, acc: __m512) -> __m512 {
        // SAFETY: the level's features are there.
        unsafe { _mm512_fmadd_ps(x.1, w.1, _mm512_fmadd_ps(x.0, w.0, acc)) }
    }
}

/// All outputs of a tile: four weight rows (one at the edge) by up to four activation rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn blocks<T: Tree>(shape: &Shape<'_>, w: *const T::W, x: *const T::X, out: &mut [f32]) {
    let (m_all, nt) = (shape.rows.len(), shape.nt);
    // SAFETY: n stays under `nt` and m under the number of selected rows.
    unsafe {
        // Weight rows outermost: four stay in the first cache while the activations pass.
        let mut n = 0;
        while n < nt {
            let step = if nt - n >= 4 { 4 } else { 1 };
            let mut m = 0;
            while m < m_all {
                let left = m_all - m;
                match (step, left) {
                    (4, 4..) => block::<T, 4, 4>(shape, w, x, n, m, out),
                    (4, 3) => block::<T, 4, 3>(shape, w, x, n, m, out),
                    (4, 2) => block::<T, 4, 2>(shape, w, x, n, m, out),
                    (4, _) => block::<T, 4, 1>(shape, w, x, n, m, out),
                    (_, 4..) => block::<T, 1, 4>(shape, w, x, n, m, out),
                    (_, 3) => block::<T, 1, 3>(shape, w, x, n, m, out),
                    (_, 2) => block::<T, 1, 2>(shape, w, x, n, m, out),
                    _ => block::<T, 1, 1>(shape, w, x, n, m, out),
                }
                m += left.min(4);
            }
            n += step;
        }
    }
}

/// W by X outputs from weight row `n` and selected activation `m` on.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn block<T: Tree, const W: usize, const X: usize>(
    shape: &Shape<'_>,
    w: *const T::W,
    x: *const T::X,
    n: usize,
    m: usize,
    out: &mut [f32],
) {
    let k = shape.k;
    let whole = k / T::CHUNK * T::CHUNK;
    let mut wp = [w; W];
    let mut xp = [x; X];
    let mut acc = [[_mm512_setzero_ps(); X]; W];
    // SAFETY: rows n..n+W and selected rows m..m+X exist, each holds k values; a short last chunk is masked.
    unsafe {
        for (i, p) in wp.iter_mut().enumerate() {
            *p = w.add((n + i) * k);
        }
        for (j, p) in xp.iter_mut().enumerate() {
            *p = x.add(shape.rows.get(m + j) * k);
        }
        let mut at = 0;
        while at < whole {
            chunk::<T, W, X>(&wp, &xp, at, T::CHUNK, &mut acc);
            at += T::CHUNK;
        }
        if whole < k {
            chunk::<T, W, X>(&wp, &xp, whole, k - whole, &mut acc);
        }
    }
    if W == 4 {
        let mut all = [[_mm512_setzero_ps(); 4]; 4];
        for i in 0..W {
            for j in 0..X {
                all[i][j] = acc[i][j];
            }
        }
        let folded = fold_all(&all);
        for j in 0..X {
            let at = (m + j) * shape.nt + n;
            out[at..at + 4].copy_from_slice(&folded[j]);
        }
        return;
    }
    for i in 0..W {
        for j in 0..X {
            out[(m + j) * shape.nt + n + i] = fold(acc[i][j]);
        }
    }
}

/// One chunk of W by X outputs, `left` of its values.
#[inline(always)]
unsafe fn chunk<T: Tree, const W: usize, const X: usize>(
    w: &[*const T::W; W],
    x: &[*const T::X; X],
    at: usize,
    left: usize,
    acc: &mut [[__m512; X]; W],
) {
    // SAFETY: the caller's rows hold `left` values from `at` on.
    unsafe {
        let mut wv = [T::load_w(w[0].add(at), left); W];
        for i in 1..W {
            wv[i] = T::load_w(w[i].add(at), left);
        }
        for j in 0..X {
            let xv = T::load_x(x[j].add(at), left);
            for i in 0..W {
                acc[i][j] = T::add(xv, wv[i], acc[i][j]);
            }
        }
    }
}

/// Sixteen lanes to one: i + (i+8), then 4, 2, 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn fold(v: __m512) -> f32 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// [`fold`] of sixteen vectors at once: output [j][i] of vector [i][j].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn fold_all(v: &[[__m512; 4]; 4]) -> [[f32; 4]; 4] {
    // i + (i+8), then i + (i+4): lane j of `rows[i]` is what is left of vector [i][j].
    let mut rows = [_mm512_setzero_ps(); 4];
    for i in 0..4 {
        rows[i] = quarters(halves(v[i][0], v[i][1]), halves(v[i][2], v[i][3]));
    }
    let (a, b) = (twos(rows[0], rows[1]), twos(rows[2], rows[3]));
    let ones = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
    let mut out = [[0f32; 4]; 4];
    // SAFETY: sixteen f32.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr().cast(), ones) };
    out
}

/// Lower plus upper half of two vectors, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn halves(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
}

/// Even plus odd lanes of two vectors, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn quarters(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
}

/// Elements 0 + 2 and 1 + 3 of each lane: those of the first vector, then those of the second.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn twos(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b))
}
