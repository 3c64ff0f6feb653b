//! Small typed values that every host operation shares.
//!
//! The one idea: a tensor's stored type is a value, not a copy. Small weights stay as the checkpoint stores
//! them ([`Vector`]), key/value elements convert at the slot ([`KvElem`]), and the scalar functions that many
//! operations need (exponential, logistic, softplus) have one definition each, so that two operations can
//! never disagree about them.
//!
//! Reductions use fixed lanes: element `i` of a sum goes to lane `i mod LANES`, and lanes fold in halves.
//! That tree depends on the length only, never on batch, grid or thread count.
//!
//! Functions made by `wide!` have one body compiled twice on x86-64, plain and with AVX2 + FMA, and take the
//! [`Simd`](crate::host::simd::Simd) that says which to run. The body writes `mul_add` wherever one rounding
//! is meant and the compiler never contracts `a * b + c`, hence both give the same bits.

use crate::lanes::Isa;
use half::f16;

/// Lanes of a fixed-tree sum over a row.
pub const LANES: usize = 16;

/// A small weight vector in the type its checkpoint stores.
#[derive(Clone, Copy, Debug)]
pub enum Vector<'a> {
    /// Stored as f32.
    F32(&'a [f32]),
    /// Stored as bfloat16 bits.
    Bf16(&'a [u16]),
    /// Stored as IEEE half bits.
    F16(&'a [u16]),
}

impl Vector<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::Bf16(v) | Self::F16(v) => v.len(),
        }
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i` as f32 (exact: all three types embed in f32). The index is within `len`.
    #[inline(always)]
    pub fn get(&self, i: usize) -> f32 {
        match self {
            Self::F32(v) => v[i],
            Self::Bf16(v) => bf16_to_f32(v[i]),
            Self::F16(v) => f16::from_bits(v[i]).to_f32(),
        }
    }

    /// Elements `start .. start + out.len()` as f32.
    #[inline(always)]
    pub fn load(&self, start: usize, out: &mut [f32]) {
        let range = start..start + out.len();
        match self {
            Self::F32(v) => out.copy_from_slice(&v[range]),
            Self::Bf16(v) => out.iter_mut().zip(&v[range]).for_each(|(o, x)| *o = bf16_to_f32(*x)),
            Self::F16(v) => out.iter_mut().zip(&v[range]).for_each(|(o, x)| *o = f16::from_bits(*x).to_f32()),
        }
    }
}

/// An element of the key/value cache.
pub trait KvElem: Copy + Send + Sync + 'static {
    /// The value, exactly.
    fn to_f32(self) -> f32;
    /// The nearest representable value, ties to even; NaN stays NaN.
    fn from_f32(x: f32) -> Self;
    /// Eight neighbours, widened.
    fn load8<I: Isa>(isa: I, x: &[Self; 8]) -> I::V;
}

impl KvElem for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn load8<I: Isa>(isa: I, x: &[Self; 8]) -> I::V {
        isa.load(x)
    }
}

/// Bfloat16 bits as a cache element; the memory layout is that of `u16`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl KvElem for Bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16_to_f32(self.0)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        Self(bf16_from_f32(x))
    }
    #[inline(always)]
    fn load8<I: Isa>(isa: I, x: &[Self; 8]) -> I::V {
        isa.load_bf16(x)
    }
}

/// Widens bfloat16 bits (exact).
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to bfloat16 bits, nearest with ties to even; a NaN keeps its sign and becomes quiet.
#[inline(always)]
pub fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let even = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + even) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if x.is_nan() { quiet } else { rounded }) as u16
}

/// Rounds an f32 to the nearest bfloat16 value and keeps it as f32.
#[inline(always)]
pub fn round_bf16(x: f32) -> f32 {
    bf16_to_f32(bf16_from_f32(x))
}

/// 1.5 * 2^23: adding it rounds to an integer.
pub(crate) const EXP_SHIFT: f32 = 12_582_912.0;
/// The 15 leading bits of ln 2: its product with an exponent is exact.
pub(crate) const LN2_HI: f32 = f32::from_bits(0x3f31_7200);
/// The rest of ln 2.
pub(crate) const LN2_LO: f32 = 1.428_606_8e-6;

/// e^x in f32, at most 1 ulp from the correctly rounded value (tested against f64 over the whole range),
/// gradual underflow included; +inf above 88.73, 0 below -103.98, NaN stays NaN.
///
/// Own so that loops over it vectorise: x = n ln 2 + r with |r| <= ln 2 / 2, the Taylor sum of e^r to r^7
/// (its remainder is under 0.1 ulp), times 2^n in two exact steps.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, EXP_SHIFT);
    let n = shifted - EXP_SHIFT;
    let r = n.mul_add(-LN2_HI, x);
    let r = n.mul_add(-LN2_LO, r);
    let p = r.mul_add(1.0 / 5040.0, 1.0 / 720.0);
    let p = p.mul_add(r, 1.0 / 120.0);
    let p = p.mul_add(r, 1.0 / 24.0);
    let p = p.mul_add(r, 1.0 / 6.0);
    let p = p.mul_add(r, 0.5);
    let p = (r * r).mul_add(p, r) + 1.0;
    let i = shifted.to_bits().wrapping_sub(EXP_SHIFT.to_bits()) as i32;
    let half = i >> 1;
    p * power_of_two(half) * power_of_two(i.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(e: i32) -> f32 {
    f32::from_bits((e.wrapping_add(127) as u32) << 23)
}

/// 1 / (1 + e^-x), within 2 ulp for x >= -87 (below, e^x to 2 ulp or gradual underflow); never overflows.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// x * sigmoid(x), within 3 ulp; 0 at -inf by its limit.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    if x == f32::NEG_INFINITY { 0.0 } else { x * sigmoid(x) }
}

/// ln(1 + e^x) without overflow, within 3 ulp: max(x, 0) + ln(1 + e^-|x|).
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    x.max(0.0) + exp(-x.abs()).ln_1p()
}

/// Sum of squares in the fixed 16-lane tree.
#[inline(always)]
pub fn sum_squares(x: &[f32]) -> f32 {
    dot(x, x)
}

/// Inner product in the fixed 16-lane tree (one rounding a term); both slices have one length.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (ac, at) = a.as_chunks::<LANES>();
    let (bc, bt) = b.as_chunks::<LANES>();
    for (x, y) in ac.iter().zip(bc) {
        for l in 0..LANES {
            lanes[l] = x[l].mul_add(y[l], lanes[l]);
        }
    }
    for (l, (x, y)) in at.iter().zip(bt).enumerate() {
        lanes[l] = x.mul_add(*y, lanes[l]);
    }
    fold_lanes(lanes)
}

/// Folds lanes in halves: (l, l + n/2), then (l, l + n/4), ... `N` is a power of two.
#[inline(always)]
pub fn fold_lanes<const N: usize>(mut lanes: [f32; N]) -> f32 {
    let mut width = N / 2;
    while width > 0 {
        for l in 0..width {
            lanes[l] += lanes[l + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Defines a public function whose body is compiled plain and, on x86-64, also with AVX2 + FMA; its first
/// argument is the [`Simd`](crate::host::simd::Simd) that chooses.
macro_rules! wide {
    ($(#[$meta:meta])* pub fn $name:ident [$($g:ident : $bound:path),*]
     ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(unsafe_code)]
        pub fn $name<$($g: $bound),*>(simd: $crate::host::simd::Simd, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                if simd.level() >= $crate::host::simd::Level::Avx2 {
                    // SAFETY: a `Simd` from this level up exists only where AVX2 and FMA were detected.
                    return unsafe { avx2($($arg),*) };
                }
            }
            let _ = simd;
            body($($arg),*)
        }
    };
}
pub(crate) use wide;

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;
