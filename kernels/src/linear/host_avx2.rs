//! AVX2 forms of the two f32 trees: 16 lanes are two registers an output.
//!
//! The lanes are independent, so a block of outputs runs its lower eight lanes, then its upper eight, over one
//! stretch of K that fits the first cache: 8 accumulators in flight hide the FMA latency and leave registers
//! for the operands. W weight rows by X activation rows share every load and every bf16 split.
#![allow(unsafe_code)]

use super::host::{Act, Shape};
use super::{host_avx2_fused, host_avx2_q8};
use crate::formats::{Format, decode_row_with};
use crate::host::simd::Simd;
use std::arch::x86_64::*;

/// Values of K between two switches of the lane half.
const STRETCH: usize = 512;

/// # Safety
/// AVX2, FMA and F16C are there; the shape was checked, so weight rows hold `k` values and every selected
/// activation row lies inside its slice.
pub(super) unsafe fn tile(simd: Simd, shape: &Shape<'_>, x: &Act<'_>, scratch: &mut [f32], out: &mut [f32]) {
    let decodes = match x {
        Act::Q8(_) => false,
        Act::Bf16(_) => shape.format != Format::Bf16 && shape.format != Format::F32,
        Act::F32(_) => shape.format != Format::F32,
    };
    // SAFETY: the caller's contract.
    if decodes && unsafe { host_avx2_fused::tile(shape, x, scratch, out) } {
        return;
    }
    if decodes {
        for (n, row) in scratch.chunks_exact_mut(shape.k).take(shape.nt).enumerate() {
            decode_row_with(simd, shape.format, shape.weight_row(n), row).expect("the shape was checked");
        }
    }
    let raw = shape.w.as_ptr();
    let w: *const f32 = if decodes { scratch.as_ptr() } else { raw.cast() };
    // SAFETY: the caller's contract; `w` points at `nt` rows of `k` f32, decoded or as they came.
    unsafe {
        match x {
            Act::Q8(x) => host_avx2_q8::tile(shape, x, out),
            Act::Bf16(x) if shape.format == Format::Bf16 => {
                blocks::<Pairs>(shape, raw.cast(), x.as_ptr(), out);
            }
            Act::Bf16(x) => blocks::<DecodedBf16>(shape, w, x.as_ptr(), out),
            Act::F32(x) => blocks::<Decoded>(shape, w, x.as_ptr(), out),
        }
    }
}

/// One of the trees: what a chunk of K is and how eight lanes take it in.
trait Tree {
    /// Element of a weight row.
    type W: Copy + Default;
    /// Element of an activation row.
    type X: Copy + Default;
    /// Values in a chunk: each of 16 lanes takes `CHUNK / 16` of them.
    const CHUNK: usize;
    /// The lanes' operands of one half chunk.
    type Lanes: Copy;

    unsafe fn load_w(w: *const Self::W) -> Self::Lanes;
    unsafe fn load_x(x: *const Self::X) -> Self::Lanes;
    unsafe fn add(x: Self::Lanes, w: Self::Lanes, acc: __m256) -> __m256;
}

/// f32 activations, decoded weights.
struct Decoded;
/// bf16 activations, decoded weights.
struct DecodedBf16;
/// bf16 activations, bf16 weights.
struct Pairs;

impl Tree for Decoded {
    type W = f32;
    type X = f32;
    const CHUNK: usize = 16;
    type Lanes = __m256;

    #[inline(always)]
    unsafe fn load_w(w: *const f32) -> __m256 {
        // SAFETY: the caller passes eight readable values.
        unsafe { _mm256_loadu_ps(w) }
    }
    #[inline(always)]
    unsafe fn load_x(x: *const f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(x) }
    }
    #[inline(always)]
    unsafe fn add(x: __m256, w: __m256, acc: __m256) -> __m256 {
        // SAFETY: AVX2 and FMA are there, the caller's contract.
        unsafe { _mm256_fmadd_ps(x, w, acc) }
    }
}

impl Tree for DecodedBf16 {
    type W = f32;
    type X = u16;
    const CHUNK: usize = 16;
    type Lanes = __m256;

    #[inline(always)]
    unsafe fn load_w(w: *const f32) -> __m256 {
        // SAFETY: the caller passes eight readable values.
        unsafe { _mm256_loadu_ps(w) }
    }
    #[inline(always)]
    unsafe fn load_x(x: *const u16) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn add(x: __m256, w: __m256, acc: __m256) -> __m256 {
        // SAFETY: AVX2 and FMA are there, the caller's contract.
        unsafe { _mm256_fmadd_ps(x, w, acc) }
    }
}

/// The odd elements, then the even ones, of 16 bf16 values, each widened to f32.
#[inline(always)]
unsafe fn split(p: *const u16) -> (__m256, __m256) {
    // SAFETY: the caller passes 16 readable values.
    unsafe {
        let both = _mm256_loadu_si256(p.cast());
        let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
        (_mm256_castsi256_ps(odd), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)))
    }
}

impl Tree for Pairs {
    type W = u16;
    type X = u16;
    const CHUNK: usize = 32;
    type Lanes = (__m256, __m256);

    #[inline(always)]
    unsafe fn load_w(w: *const u16) -> Self::Lanes {
        // SAFETY: the caller passes 16 readable values.
        unsafe { split(w) }
    }
    #[inline(always)]
    unsafe fn load_x(x: *const u16) -> Self::Lanes {
        // SAFETY: as above.
        unsafe { split(x) }
    }
    #[inline(always)]
    unsafe fn add(x: Self::Lanes, w: Self::Lanes, acc: __m256) -> __m256 {
        // SAFETY: AVX2 and FMA are there, the caller's contract.
        unsafe { _mm256_fmadd_ps(x.1, w.1, _mm256_fmadd_ps(x.0, w.0, acc)) }
    }
}

/// All outputs of a tile: activation rows by fours, then what is left; weight rows in pairs or fours.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn blocks<T: Tree>(shape: &Shape<'_>, w: *const T::W, x: *const T::X, out: &mut [f32]) {
    let (m_all, nt) = (shape.rows.len(), shape.nt);
    // SAFETY: n stays under `nt` and m under the number of selected rows.
    unsafe {
        // Weight rows outermost: a pair stays in the first cache while the activations pass.
        let mut n = 0;
        while n < nt {
            let step = if nt - n >= 4 { 4 } else { 1 };
            let mut m = 0;
            while m < m_all {
                let left = m_all - m;
                match (step, left) {
                    (4, 4..) => {
                        block::<T, 2, 4>(shape, w, x, n, m, out);
                        block::<T, 2, 4>(shape, w, x, n + 2, m, out);
                    }
                    (4, 3) => {
                        block::<T, 2, 3>(shape, w, x, n, m, out);
                        block::<T, 2, 3>(shape, w, x, n + 2, m, out);
                    }
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
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
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
    // SAFETY: rows n..n+W and selected rows m..m+X exist, each holds k values; `lanes` reads within
    // whole chunks, the tail is copied value by value into a padded buffer.
    unsafe {
        let wp: [*const T::W; W] = std::array::from_fn(|i| w.add((n + i) * k));
        let xp: [*const T::X; X] = std::array::from_fn(|i| x.add(shape.rows.get(m + i) * k));
        let mut acc = [[[_mm256_setzero_ps(); X]; W]; 2];
        let mut at = 0;
        while at < whole {
            let to = (at + STRETCH).min(whole);
            lanes::<T, W, X>(&wp, &xp, at, to, 0, &mut acc[0]);
            lanes::<T, W, X>(&wp, &xp, at, to, T::CHUNK / 2, &mut acc[1]);
            at = to;
        }
        if whole < k {
            let mut wt = [[T::W::default(); 32]; W];
            let mut xt = [[T::X::default(); 32]; X];
            for (t, p) in wt.iter_mut().zip(wp) {
                tail(p.add(whole), t, k - whole);
            }
            for (t, p) in xt.iter_mut().zip(xp) {
                tail(p.add(whole), t, k - whole);
            }
            let wp = wt.each_ref().map(|t| t.as_ptr());
            let xp = xt.each_ref().map(|t| t.as_ptr());
            lanes::<T, W, X>(&wp, &xp, 0, T::CHUNK, 0, &mut acc[0]);
            lanes::<T, W, X>(&wp, &xp, 0, T::CHUNK, T::CHUNK / 2, &mut acc[1]);
        }
        for i in 0..W {
            for j in 0..X {
                out[(m + j) * shape.nt + n + i] = fold(acc[0][i][j], acc[1][i][j]);
            }
        }
    }
}

/// The last values of a row, byte by byte: a row of file bytes need not be aligned.
#[inline]
unsafe fn tail<V>(from: *const V, to: &mut [V; 32], values: usize) {
    // SAFETY: the caller passes fewer than 32 readable values.
    unsafe {
        let bytes = values * size_of::<V>();
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.as_mut_ptr().cast::<u8>(), bytes);
    }
}

/// Eight lanes of a W by X block over `from..to`, whole chunks, `half` values into each. Never inlined: with both
/// halves' accumulators in sight the compiler keeps one half on the stack inside the loop.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn lanes<T: Tree, const W: usize, const X: usize>(
    w: &[*const T::W; W],
    x: &[*const T::X; X],
    from: usize,
    to: usize,
    half: usize,
    acc: &mut [[__m256; X]; W],
) {
    let mut a = *acc;
    let mut at = from + half;
    while at < to {
        // SAFETY: `at` is half a chunk or more before the end of whole chunks in every row.
        unsafe {
            let mut wv = [T::load_w(w[0].add(at)); W];
            for i in 1..W {
                wv[i] = T::load_w(w[i].add(at));
            }
            for j in 0..X {
                let xv = T::load_x(x[j].add(at));
                for i in 0..W {
                    a[i][j] = T::add(xv, wv[i], a[i][j]);
                }
            }
        }
        at += T::CHUNK;
    }
    *acc = a;
}

/// Sixteen lanes to one: i + (i+8), then 4, 2, 1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn fold(low: __m256, high: __m256) -> f32 {
    let eight = _mm256_add_ps(low, high);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}
