//! Eight f32 lanes as a value, so that a kernel written once is real vector code at every level.
//!
//! The one idea: holding an [`Isa`] is the proof that its instructions exist, so its methods are safe to
//! call. Kernels are generic over it and `lanes!` makes the two copies: [`Plain`] is arrays of eight and
//! *defines* the result, [`Avx2`] gives the same bits. Where `wide!` hopes that the compiler vectorises a
//! loop, this leaves nothing to hope: register blocks are what the source says they are. Inside a kernel no
//! [`Isa`] method may be called from a closure: only `#[inline(always)]` functions take on the instruction set.
#![allow(unsafe_code)]

use crate::values::{Bf16, exp, fold_lanes, sigmoid, silu};

/// Lanes of a vector.
pub const WIDTH: usize = 8;

/// Operations on eight lanes. Each rounds once, as its scalar does; `fma` is one rounding.
pub trait Isa: Copy {
    /// Eight lanes.
    type V: Copy;
    /// One value in all lanes.
    fn splat(self, x: f32) -> Self::V;
    /// Reads eight values.
    fn load(self, x: &[f32; WIDTH]) -> Self::V;
    /// Reads eight bfloat16 values (exact).
    fn load_bf16(self, x: &[Bf16; WIDTH]) -> Self::V;
    /// Writes eight values.
    fn store(self, x: Self::V, to: &mut [f32; WIDTH]);
    /// a * b + c.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// a + b.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// a - b.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// a * b.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// a / b.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// a where a > b, else b (which is also the answer to a NaN in either).
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// [`exp`] of each lane.
    fn exp(self, x: Self::V) -> Self::V;
    /// [`sigmoid`] of each lane.
    fn sigmoid(self, x: Self::V) -> Self::V;
    /// [`silu`] of each lane.
    fn silu(self, x: Self::V) -> Self::V;
    /// Asks for the cache lines of values that are read soon; changes no result.
    fn prefetch<T>(self, x: &[T]);
    /// Sum of the lanes, folded in halves.
    fn fold(self, x: Self::V) -> f32;
    /// [`Isa::fold`] of eight vectors at once.
    fn fold8(self, x: [Self::V; WIDTH]) -> Self::V;
}

/// Arrays of eight: the definition.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

type A8 = [f32; WIDTH];

#[inline(always)]
fn map2(a: A8, b: A8, f: impl Fn(f32, f32) -> f32) -> A8 {
    std::array::from_fn(|l| f(a[l], b[l]))
}

impl Isa for Plain {
    type V = A8;
    #[inline(always)]
    fn splat(self, x: f32) -> A8 {
        [x; WIDTH]
    }
    #[inline(always)]
    fn load(self, x: &A8) -> A8 {
        *x
    }
    #[inline(always)]
    fn load_bf16(self, x: &[Bf16; WIDTH]) -> A8 {
        x.map(|x| crate::values::bf16_to_f32(x.0))
    }
    #[inline(always)]
    fn store(self, x: A8, to: &mut A8) {
        *to = x;
    }
    #[inline(always)]
    fn fma(self, a: A8, b: A8, c: A8) -> A8 {
        std::array::from_fn(|l| a[l].mul_add(b[l], c[l]))
    }
    #[inline(always)]
    fn add(self, a: A8, b: A8) -> A8 {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: A8, b: A8) -> A8 {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: A8, b: A8) -> A8 {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: A8, b: A8) -> A8 {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: A8, b: A8) -> A8 {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn exp(self, x: A8) -> A8 {
        x.map(exp)
    }
    #[inline(always)]
    fn sigmoid(self, x: A8) -> A8 {
        x.map(sigmoid)
    }
    #[inline(always)]
    fn silu(self, x: A8) -> A8 {
        x.map(silu)
    }
    #[inline(always)]
    fn prefetch<T>(self, _: &[T]) {}
    #[inline(always)]
    fn fold(self, x: A8) -> f32 {
        fold_lanes(x)
    }
    #[inline(always)]
    fn fold8(self, x: [A8; WIDTH]) -> A8 {
        x.map(fold_lanes)
    }
}

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Isa, WIDTH};
    use crate::host::simd::{Level, Simd};
    use crate::values::{Bf16, EXP_SHIFT, LN2_HI, LN2_LO};
    use std::arch::x86_64::*;
    use std::mem::transmute;

    /// AVX2 and FMA, made only from a [`Simd`] that detected them.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(());

    impl Avx2 {
        /// The proof, where this processor's level has it.
        #[inline(always)]
        pub fn of(simd: Simd) -> Option<Self> {
            (simd.level() >= Level::Avx2).then_some(Self(()))
        }
    }

    // Free functions, not closures: an intrinsic inside a closure stays a call.

    #[inline(always)]
    fn set(x: f32) -> __m256 {
        // SAFETY: called by `Avx2` methods only, whose token proves the instructions.
        unsafe { _mm256_set1_ps(x) }
    }

    /// Halves of two vectors added, side by side.
    #[inline(always)]
    fn two(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as `set`.
        unsafe { _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)) }
    }

    /// Halves of the halves of two such pairs.
    #[inline(always)]
    fn four(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as `set`.
        unsafe {
            let (a, b) = (_mm256_castps_pd(a), _mm256_castps_pd(b));
            let (low, high) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
            _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high))
        }
    }

    #[inline(always)]
    fn power_of_two(e: __m256i) -> __m256 {
        // SAFETY: as `set`.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23)) }
    }

    /// A method whose body is intrinsics.
    macro_rules! op {
        ($self:ident, $name:ident($($arg:ident : $ty:ty),*) -> $ret:ty $body:block) => {
            #[inline(always)]
            fn $name($self, $($arg: $ty),*) -> $ret {
                // SAFETY: the token proves AVX2 and FMA; arrays of eight have a vector's size and bits.
                unsafe { $body }
            }
        };
    }

    impl Isa for Avx2 {
        type V = __m256;
        op!(self, splat(x: f32) -> __m256 { _mm256_set1_ps(x) });
        op!(self, load(x: &[f32; WIDTH]) -> __m256 { transmute::<[f32; WIDTH], __m256>(*x) });
        op!(self, load_bf16(x: &[Bf16; WIDTH]) -> __m256 {
            let bits = transmute::<[Bf16; WIDTH], __m128i>(*x);
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))
        });
        op!(self, store(x: __m256, to: &mut [f32; WIDTH]) -> () { *to = transmute::<__m256, [f32; WIDTH]>(x) });
        op!(self, fma(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) });
        op!(self, add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) });
        op!(self, sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) });
        op!(self, mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) });
        op!(self, div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) });
        op!(self, max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) });
        op!(self, exp(x: __m256) -> __m256 {
            // Step by step the scalar `exp`; max and min keep their second operand where it is NaN.
            let x = _mm256_min_ps(set(89.0), _mm256_max_ps(set(-104.0), x));
            let shift = set(EXP_SHIFT);
            let shifted = _mm256_fmadd_ps(x, set(std::f32::consts::LOG2_E), shift);
            let n = _mm256_sub_ps(shifted, shift);
            let r = _mm256_fmadd_ps(n, set(-LN2_HI), x);
            let r = _mm256_fmadd_ps(n, set(-LN2_LO), r);
            let p = _mm256_fmadd_ps(r, set(1.0 / 5040.0), set(1.0 / 720.0));
            let p = _mm256_fmadd_ps(p, r, set(1.0 / 120.0));
            let p = _mm256_fmadd_ps(p, r, set(1.0 / 24.0));
            let p = _mm256_fmadd_ps(p, r, set(1.0 / 6.0));
            let p = _mm256_fmadd_ps(p, r, set(0.5));
            let p = _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r), set(1.0));
            let i = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(shift));
            let half = _mm256_srai_epi32(i, 1);
            let p = _mm256_mul_ps(p, power_of_two(half));
            _mm256_mul_ps(p, power_of_two(_mm256_sub_epi32(i, half)))
        });
        op!(self, sigmoid(x: __m256) -> __m256 {
            let e = self.exp(_mm256_or_ps(x, _mm256_set1_ps(-0.0)));
            let one = _mm256_set1_ps(1.0);
            let negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
            _mm256_div_ps(_mm256_blendv_ps(one, e, negative), _mm256_add_ps(one, e))
        });
        op!(self, silu(x: __m256) -> __m256 {
            let limit = _mm256_cmp_ps(x, _mm256_set1_ps(f32::NEG_INFINITY), _CMP_EQ_OQ);
            _mm256_andnot_ps(limit, _mm256_mul_ps(x, self.sigmoid(x)))
        });
        #[inline(always)]
        fn prefetch<T>(self, x: &[T]) {
            for line in (0..size_of_val(x)).step_by(64) {
                // SAFETY: the address lies inside `x`, and a prefetch reads nothing.
                unsafe { _mm_prefetch(x.as_ptr().cast::<i8>().add(line), _MM_HINT_T0) };
            }
        }
        op!(self, fold(x: __m256) -> f32 {
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)))
        });
        op!(self, fold8(x: [__m256; WIDTH]) -> __m256 {
            // Halves of two vectors side by side, then pairs of those, then all eight: 0 2 4 6 | 1 3 5 7.
            let a = four(two(x[0], x[1]), two(x[2], x[3]));
            let b = four(two(x[4], x[5]), two(x[6], x[7]));
            let even = _mm256_shuffle_ps(a, b, 0b10_00_10_00);
            let odd = _mm256_shuffle_ps(a, b, 0b11_01_11_01);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            _mm256_permutevar8x32_ps(_mm256_add_ps(even, odd), order)
        });
    }
}

/// Elements `i .. i + 8` of a slice.
#[inline(always)]
pub fn eight<T>(x: &[T], i: usize) -> &[T; WIDTH] {
    x[i..].first_chunk().expect("the caller stays eight below the end")
}

/// Elements `i .. i + 8` of a slice, to write.
#[inline(always)]
pub fn eight_mut<T>(x: &mut [T], i: usize) -> &mut [T; WIDTH] {
    x[i..].first_chunk_mut().expect("the caller stays eight below the end")
}

/// Defines a public function whose body is generic over [`Isa`]; as `wide!`, its first argument is the
/// [`Simd`](crate::host::simd::Simd) that chooses. The body names its instruction set first: `(isa; ...)`.
macro_rules! lanes {
    ($(#[$meta:meta])* pub fn $name:ident [$($g:ident : $bound:path),*]
     ($isa:ident; $($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(unsafe_code)]
        pub fn $name<$($g: $bound),*>(simd: $crate::host::simd::Simd, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<I: $crate::lanes::Isa, $($g: $bound),*>($isa: I, $($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2<$($g: $bound),*>(isa: $crate::lanes::Avx2, $($arg: $ty),*) $(-> $ret)? {
                    body(isa, $($arg),*)
                }
                if let Some(isa) = $crate::lanes::Avx2::of(simd) {
                    // SAFETY: the token exists only where AVX2 and FMA were detected.
                    return unsafe { avx2(isa, $($arg),*) };
                }
            }
            let _ = simd;
            body($crate::lanes::Plain, $($arg),*)
        }
    };
}
pub(crate) use lanes;

/// [`dot`](crate::values::dot): the same 16-lane tree, in two vectors.
#[inline(always)]
pub fn dot<I: Isa>(isa: I, a: &[f32], b: &[f32]) -> f32 {
    let (ac, at) = a.as_chunks::<16>();
    let (bc, bt) = b[..a.len()].as_chunks::<16>();
    let (mut low, mut high) = (isa.splat(0.0), isa.splat(0.0));
    for (x, y) in ac.iter().zip(bc) {
        low = isa.fma(isa.load(eight(x, 0)), isa.load(eight(y, 0)), low);
        high = isa.fma(isa.load(eight(x, 8)), isa.load(eight(y, 8)), high);
    }
    if !at.is_empty() {
        let mut lanes = [0.0; 16];
        isa.store(low, eight_mut(&mut lanes, 0));
        isa.store(high, eight_mut(&mut lanes, 8));
        for (l, (x, y)) in at.iter().zip(bt).enumerate() {
            lanes[l] = x.mul_add(*y, lanes[l]);
        }
        return fold_lanes(lanes);
    }
    isa.fold(isa.add(low, high))
}

lanes! {
    /// `gate_i = silu(gate_i) * up_i`.
    pub fn silu_mul_row [](isa; gate: &mut [f32], up: &[f32]) {
        let n = gate.len();
        let whole = n - n % WIDTH;
        for i in (0..whole).step_by(WIDTH) {
            let g = isa.silu(isa.load(eight(gate, i)));
            isa.store(isa.mul(g, isa.load(eight(up, i))), eight_mut(gate, i));
        }
        for i in whole..n {
            gate[i] = silu(gate[i]) * up[i];
        }
    }
}

lanes! {
    /// `to_i += x_i`.
    pub fn add_row [](isa; to: &mut [f32], x: &[f32]) {
        let n = to.len();
        let whole = n - n % WIDTH;
        for i in (0..whole).step_by(WIDTH) {
            isa.store(isa.add(isa.load(eight(to, i)), isa.load(eight(x, i))), eight_mut(to, i));
        }
        for i in whole..n {
            to[i] += x[i];
        }
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
