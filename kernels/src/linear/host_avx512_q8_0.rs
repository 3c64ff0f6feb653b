//! AVX-512 form of the integer tree for `Q8_0`: as `host_avx512_q8`, but each of the eight blocks of a
//! super-block has a scale of its own, so sums are folded to blocks only.
//!
//! `vpdpbusd` takes unsigned codes: 128 is added to each (a flip of the top bit), and every sum starts at
//! -128 times the activations it will meet. Here lane c of a float vector is column c and element r weight row r.
#![allow(unsafe_code)]

use super::host::Shape;
use super::host_act::Q8_GROUP;
use super::host_avx512_q8::{FOUR, Row, across_halves, fours};
use crate::formats::codes_avx512::sum_lanes;
use std::arch::x86_64::*;

/// Bytes of a block, and its blocks in a super-block.
const BLOCK: usize = 34;
const BLOCKS: usize = 8;

/// Four columns: codes in their own order.
#[repr(C, align(64))]
struct Columns {
    codes: [[__m512i; 4]; FOUR],
    /// First values of the sums.
    start: [[__m512i; 4]; FOUR],
    scales: [f32; FOUR],
}

/// Bytes of scratch that a tile of `k` values needs, the alignment of its records included.
pub(super) const fn scratch_bytes(k: usize) -> usize {
    k / Q8_GROUP * size_of::<Columns>() + align_of::<Columns>()
}

/// Multiplies the tile.
///
/// # Safety
/// The level's features are there, the shape was checked, `scratch` holds [`scratch_bytes`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn tile(shape: &Shape<'_>, x: &[u8], scratch: &mut [f32], out: &mut [f32]) {
    debug_assert!(size_of_val(scratch) >= scratch_bytes(shape.k));
    let skip = scratch.as_ptr().align_offset(align_of::<Columns>());
    let to: *mut Columns = scratch.as_mut_ptr().wrapping_add(skip).cast();
    let mut m = 0;
    while m < shape.rows.len() {
        // SAFETY: the caller's contract; the scratch holds a record for each super-block.
        unsafe {
            let rows = fours(shape, x, m);
            m += match shape.rows.len() - m {
                1 => pass::<1>(shape, &rows, to, m, out),
                2 => pass::<2>(shape, &rows, to, m, out),
                _ => pass::<4>(shape, &rows, to, m, out),
            };
        }
    }
}

/// `X` activation rows against all weight rows of the tile; returns X.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn pass<const X: usize>(
    shape: &Shape<'_>,
    rows: &[Row; FOUR],
    to: *mut Columns,
    m: usize,
    out: &mut [f32],
) -> usize {
    let (nt, supers) = (shape.nt, shape.k / Q8_GROUP);
    for q in 0..supers.div_ceil(FOUR / X) {
        for c in 0..FOUR {
            let s = (q * (FOUR / X) + c / X).min(supers - 1);
            // SAFETY: the scratch has room for the record, super-block s exists.
            unsafe { arrange(&rows[c % X], s, &mut *to.add(q), c) };
        }
    }
    let quarter = nt.div_ceil(FOUR);
    for n in 0..quarter {
        let mut w = [shape.w.as_ptr(); FOUR];
        // SAFETY: weight rows are clamped to those that exist.
        let got = unsafe {
            for (r, w) in w.iter_mut().enumerate() {
                *w = shape.w.as_ptr().add((n + r * quarter).min(nt - 1) * shape.row_bytes);
            }
            block::<X>(w, to, supers)
        };
        for t in 0..X.min(shape.rows.len() - m) {
            for r in 0..FOUR {
                if n + r * quarter < nt {
                    out[(m + t) * nt + n + r * quarter] = got[FOUR * t + r];
                }
            }
        }
    }
    X
}

#[inline(always)]
unsafe fn arrange(row: &Row, s: usize, to: &mut Columns, c: usize) {
    // SAFETY: the caller's super-block exists; the level's features are there.
    unsafe {
        let (zero, offset) = (_mm512_setzero_si512(), _mm512_set1_epi8(i8::MIN));
        for z in 0..4 {
            let codes = _mm512_loadu_si512(row.codes.add(s * Q8_GROUP + 64 * z).cast());
            to.codes[c][z] = codes;
            // The offset as an unsigned byte is 128.
            to.start[c][z] = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, offset, codes));
        }
        to.scales[c] = row.scales.add(s).read_unaligned();
    }
}

/// Four weight rows by X activation rows over all super-blocks: output 4t + r.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn block<const X: usize>(w: [*const u8; FOUR], columns: *const Columns, supers: usize) -> [f32; 16] {
    let mut total = _mm512_setzero_ps();
    let per = FOUR / X;
    for q in 0..supers.div_ceil(per) {
        // SAFETY: record q and the super-blocks below `supers` of each row exist.
        unsafe {
            let x = &*columns.add(q);
            let mut at = [w; FOUR];
            let mut sums = [[_mm512_setzero_si512(); 2]; FOUR];
            for b in 0..per {
                let s = (q * per + b).min(supers - 1);
                for r in 0..FOUR {
                    at[b][r] = w[r].add(s * BLOCKS * BLOCK);
                }
                let codes = codes(&at[b]);
                for c in b * X..(b + 1) * X {
                    sums[c] = block_sums(&codes, x, c);
                }
            }
            let v = values::<X>(&at, &sums);
            total = add_up::<X>(v, &x.scales, total, supers - q * per);
        }
    }
    let mut out = [0f32; 16];
    // SAFETY: sixteen f32.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), total) };
    out
}

/// Codes of a super-block of four rows, 128 added: two blocks a vector.
#[inline(always)]
unsafe fn codes(w: &[*const u8; FOUR]) -> [[__m512i; 4]; FOUR] {
    // SAFETY: eight blocks lie at each pointer; the level's features are there.
    unsafe {
        let flip = _mm512_set1_epi8(i8::MIN);
        let mut codes = [[flip; 4]; FOUR];
        for r in 0..FOUR {
            for z in 0..4 {
                let first = _mm256_loadu_si256(w[r].add(2 * z * BLOCK + 2).cast());
                let second = _mm256_loadu_si256(w[r].add((2 * z + 1) * BLOCK + 2).cast());
                let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
                codes[r][z] = _mm512_xor_si512(both, flip);
            }
        }
        codes
    }
}

/// Sums of column `c`: blocks 0 to 3 by lane, then blocks 4 to 7; element r is row r.
#[inline(always)]
unsafe fn block_sums(w: &[[__m512i; 4]; FOUR], x: &Columns, c: usize) -> [__m512i; 2] {
    // SAFETY: the level's features are there.
    unsafe {
        let mut pairs = [_mm512_setzero_si512(); 4];
        for z in 0..4 {
            let mut dots = [_mm512_setzero_si512(); FOUR];
            for r in 0..FOUR {
                dots[r] = _mm512_dpbusd_epi32(x.start[c][z], w[r][z], x.codes[c][z]);
            }
            pairs[z] = sum_lanes(dots);
        }
        [across_halves(pairs[0], pairs[1]), across_halves(pairs[2], pairs[3])]
    }
}

/// `v = fma(d_b, sum_b, v)` over the eight blocks in order.
#[inline(always)]
unsafe fn values<const X: usize>(at: &[[*const u8; FOUR]; FOUR], sums: &[[__m512i; 2]; FOUR]) -> __m512 {
    // SAFETY: the caller's blocks; the level's features are there.
    unsafe {
        let mut v = _mm512_setzero_ps();
        for half in 0..2 {
            // Lanes are blocks within a column: turn them into columns within a block.
            let a = _mm512_shuffle_i64x2::<0x44>(sums[0][half], sums[1][half]);
            let b = _mm512_shuffle_i64x2::<0x44>(sums[2][half], sums[3][half]);
            let c = _mm512_shuffle_i64x2::<0xee>(sums[0][half], sums[1][half]);
            let d = _mm512_shuffle_i64x2::<0xee>(sums[2][half], sums[3][half]);
            let by_block = [
                _mm512_shuffle_i64x2::<0x88>(a, b),
                _mm512_shuffle_i64x2::<0xdd>(a, b),
                _mm512_shuffle_i64x2::<0x88>(c, d),
                _mm512_shuffle_i64x2::<0xdd>(c, d),
            ];
            for i in 0..4 {
                v = _mm512_fmadd_ps(scales::<X>(at, 4 * half + i), _mm512_cvtepi32_ps(by_block[i]), v);
            }
        }
        v
    }
}

/// d of block `b` of the four rows, in the lane of each column.
#[inline(always)]
unsafe fn scales<const X: usize>(at: &[[*const u8; FOUR]; FOUR], b: usize) -> __m512 {
    // SAFETY: block b exists at each pointer; the level's features are there.
    unsafe {
        let mut halves = [0i64; FOUR];
        for i in 0..FOUR / X {
            let mut v = 0u64;
            for r in 0..FOUR {
                v |= u64::from(at[i][r].add(b * BLOCK).cast::<u16>().read_unaligned()) << (16 * r);
            }
            halves[i] = v.cast_signed();
        }
        let [a, b, c, d] = [halves[0], halves[1 / X], halves[2 / X], halves[3 / X]];
        _mm512_cvtph_ps(_mm256_set_epi64x(d, c, b, a))
    }
}

/// `total += scale * v`, super-block by super-block; lane t of `total` is activation row t. `left` is the number
/// of super-blocks from this record on.
#[inline(always)]
unsafe fn add_up<const X: usize>(v: __m512, scales: &[f32; FOUR], total: __m512, left: usize) -> __m512 {
    // SAFETY: the level's features are there; the reads lie inside `scales`.
    unsafe {
        // Scale c in every element of lane c.
        let pick = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        let scale = _mm512_permutexvar_ps(pick, _mm512_castps128_ps512(_mm_loadu_ps(scales.as_ptr())));
        let mut total = total;
        match X {
            1 => {
                let mut t = _mm512_castps512_ps128(total);
                t = _mm_fmadd_ps(_mm512_castps512_ps128(scale), _mm512_castps512_ps128(v), t);
                if left > 1 {
                    t = _mm_fmadd_ps(_mm512_extractf32x4_ps::<1>(scale), _mm512_extractf32x4_ps::<1>(v), t);
                }
                if left > 2 {
                    t = _mm_fmadd_ps(_mm512_extractf32x4_ps::<2>(scale), _mm512_extractf32x4_ps::<2>(v), t);
                }
                if left > 3 {
                    t = _mm_fmadd_ps(_mm512_extractf32x4_ps::<3>(scale), _mm512_extractf32x4_ps::<3>(v), t);
                }
                total = _mm512_zextps128_ps512(t);
            }
            2 => {
                let mut t = _mm512_castps512_ps256(total);
                t = _mm256_fmadd_ps(_mm512_castps512_ps256(scale), _mm512_castps512_ps256(v), t);
                if left > 1 {
                    let (scale, v) = (_mm512_extractf32x8_ps::<1>(scale), _mm512_extractf32x8_ps::<1>(v));
                    t = _mm256_fmadd_ps(scale, v, t);
                }
                total = _mm512_zextps256_ps512(t);
            }
            _ => total = _mm512_fmadd_ps(scale, v, total),
        }
        total
    }
}
