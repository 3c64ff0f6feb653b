//! Number formats of weights: what a row of K values weighs in bytes and what each byte means.
//!
//! One file a format, each with the block layout at its top and one `decode_block`. [`decode_row`] is the
//! definition every kernel is tested against: it yields exactly the f32 values of the reference decoder, in
//! plain IEEE f32 operations, never contracted. [`planar`] holds the second layout of the same bytes.
#![allow(unsafe_code)]

use crate::host::simd::{Level, Simd};

#[cfg(target_arch = "x86_64")]
pub(crate) mod codes_avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod codes_avx512;
pub mod elements;
pub mod planar;
mod q2_k;
mod q4_k;
mod q5_k;
mod q6_k;
mod q8_0;
#[cfg(test)]
pub(crate) mod random;
#[cfg(test)]
mod tests;

pub use planar::Layout;
pub(crate) use q4_k::scales_mins as k_scales_mins;

/// The element or block format of a weight matrix.
// The names are those that checkpoints, recipes and papers use.
#[allow(non_camel_case_types)]
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Format {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// 32 signed bytes and one f16 scale: 8.5 bits a weight.
    Q8_0,
    /// 4-bit codes, 8 six-bit scales and minima a super-block: 4.5 bits a weight.
    Q4_K,
    /// 5-bit codes, scales as `Q4_K`: 5.5 bits a weight.
    Q5_K,
    /// 6-bit codes, 16 signed scales a super-block: 6.5625 bits a weight.
    Q6_K,
    /// 2-bit codes, 16 four-bit scales and minima a super-block: 2.625 bits a weight.
    Q2_K,
}

/// What is wrong with a row, a matrix or a buffer handed to this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// K is not a whole number of blocks.
    #[error("k = {k} is not a multiple of {block}, the block of {format:?}")]
    RaggedRow {
        /// The format asked for.
        format: Format,
        /// Values in the row.
        k: usize,
        /// Values in one block of the format.
        block: usize,
    },
    /// A size does not fit 64 bits.
    #[error("{n} rows of {k} values of {format:?} overflow a 64-bit byte count")]
    Overflow {
        /// The format asked for.
        format: Format,
        /// Rows.
        n: usize,
        /// Values in a row.
        k: usize,
    },
    /// A byte buffer has the wrong length.
    #[error("buffer holds {got} bytes, {format:?} needs {want}")]
    Length {
        /// The format asked for.
        format: Format,
        /// Bytes handed over.
        got: usize,
        /// Bytes needed.
        want: u64,
    },
}

impl Format {
    /// Every format, in declaration order.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_K, Self::Q5_K, Self::Q6_K, Self::Q2_K];

    /// Values in one block (1 for the plain element types).
    #[must_use]
    pub const fn block_values(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::Q2_K => 256,
        }
    }

    /// Bytes of one block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => q8_0::BYTES,
            Self::Q4_K => q4_k::BYTES,
            Self::Q5_K => q5_k::BYTES,
            Self::Q6_K => q6_k::BYTES,
            Self::Q2_K => q2_k::BYTES,
        }
    }

    /// The name used in recipes, pack manifests and receipts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_K => "q4_k",
            Self::Q5_K => "q5_k",
            Self::Q6_K => "q6_k",
            Self::Q2_K => "q2_k",
        }
    }

    /// The format called `name`, or `None`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }

    /// Bytes of one row of `k` values.
    ///
    /// # Errors
    /// [`FormatError::RaggedRow`] where `k` is not a whole number of blocks, [`FormatError::Overflow`].
    pub fn row_bytes(self, k: usize) -> Result<u64, FormatError> {
        let block = self.block_values();
        if !k.is_multiple_of(block) {
            return Err(FormatError::RaggedRow { format: self, k, block });
        }
        ((k / block) as u64).checked_mul(self.block_bytes() as u64).ok_or(FormatError::Overflow {
            format: self,
            n: 1,
            k,
        })
    }

    /// Bytes of `n` rows of `k` values (both layouts weigh the same).
    ///
    /// # Errors
    /// As [`Format::row_bytes`].
    pub fn matrix_bytes(self, n: usize, k: usize) -> Result<u64, FormatError> {
        self.row_bytes(k)?.checked_mul(n as u64).ok_or(FormatError::Overflow { format: self, n, k })
    }
}

/// Decodes one row of `out.len()` values from `bytes`, bit exact with the reference decoders.
///
/// # Errors
/// [`FormatError::RaggedRow`] and [`FormatError::Length`] where the two lengths do not fit each other.
pub fn decode_row(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    decode_row_with(Simd::SCALAR, format, bytes, out)
}

/// [`decode_row`] with the vector units of `simd`: the same bits, sooner.
///
/// # Errors
/// As [`decode_row`].
pub fn decode_row_with(simd: Simd, format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    let want = format.row_bytes(out.len())?;
    if bytes.len() as u64 != want {
        return Err(FormatError::Length { format, got: bytes.len(), want });
    }
    match simd.level() {
        // SAFETY: a `Simd` of these levels exists only where AVX2, FMA and F16C were detected.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => unsafe { decode_avx2(format, bytes, out) },
        _ => decode(format, bytes, out),
    }
    Ok(())
}

/// Super-blocks by hand; the plain loops again for the rest, compiled for AVX2 (and never contracted).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode_avx2(format: Format, bytes: &[u8], out: &mut [f32]) {
    use codes_avx2::{K2, K4, K5, K6, decode_super};
    // SAFETY: the caller has the features and checked that the row is whole blocks.
    unsafe {
        match format {
            Format::Q4_K => decode_super::<K4>(bytes, out),
            Format::Q5_K => decode_super::<K5>(bytes, out),
            Format::Q6_K => decode_super::<K6>(bytes, out),
            Format::Q2_K => decode_super::<K2>(bytes, out),
            _ => decode(format, bytes, out),
        }
    }
}

#[inline(always)]
fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    match format {
        Format::F32 => each(bytes, out, |b: &[u8; 4]| f32::from_le_bytes(*b)),
        Format::F16 => each(bytes, out, |b: &[u8; 2]| elements::f16_to_f32(u16::from_le_bytes(*b))),
        Format::Bf16 => each(bytes, out, |b: &[u8; 2]| elements::bf16_to_f32(u16::from_le_bytes(*b))),
        Format::Q8_0 => blocks(bytes, out, q8_0::decode_block),
        Format::Q4_K => blocks(bytes, out, q4_k::decode_block),
        Format::Q5_K => blocks(bytes, out, q5_k::decode_block),
        Format::Q6_K => blocks(bytes, out, q6_k::decode_block),
        Format::Q2_K => blocks(bytes, out, q2_k::decode_block),
    }
}

#[inline(always)]
fn each<const B: usize>(bytes: &[u8], out: &mut [f32], f: impl Fn(&[u8; B]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<B>();
    for (o, b) in out.iter_mut().zip(chunks) {
        *o = f(b);
    }
}

#[inline(always)]
fn blocks<const B: usize, const V: usize>(
    bytes: &[u8],
    out: &mut [f32],
    f: impl Fn(&[u8; B], &mut [f32; V]),
) {
    let (blocks, _) = bytes.as_chunks::<B>();
    let (values, _) = out.as_chunks_mut::<V>();
    for (b, v) in blocks.iter().zip(values) {
        f(b, v);
    }
}

/// The f16 at byte `at` of a block.
#[inline(always)]
fn f16_at(block: &[u8], at: usize) -> f32 {
    elements::f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}
