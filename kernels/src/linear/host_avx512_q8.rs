//! AVX-512 form of the integer tree for super-block formats: four weight rows by four columns at a time.
//!
//! A *column* is an activation row in one super-block: with one activation row the four columns are four
//! super-blocks in turn, with two rows two of each, from three rows on four rows. The columns are first
//! arranged as [`crate::formats::codes_avx512`] wants them, once for all weight rows of the tile, so that a row
//! meets a column in four `vpdpbusd`, one `packs` and one multiply-add with the scales (two columns share two of
//! each). Sixteen exact i32 sums then share their folding and one float step: lane r of a vector is weight row r,
//! element c is column c.
#![allow(unsafe_code)]

use super::host::Shape;
use super::host_act::{ActKind, Q8_GROUP};
use super::host_avx512_q8_0;
use crate::formats::Format;
use crate::formats::codes_avx2::{K2, K4, K5, K6};
use crate::formats::codes_avx512::{Heads, Minima, Wide, interleave, sum_lanes};
use std::arch::x86_64::*;

/// Columns and weight rows of a block.
pub(super) const FOUR: usize = 4;

/// Four arranged columns.
#[repr(C, align(64))]
struct Columns {
    /// A, B, C, D of each column.
    codes: [[__m512i; 4]; FOUR],
    /// What minima multiply: eight sums of 32 codes a column, or sixteen of 16.
    sums: [[i16; 16]; FOUR],
    /// First values of the two sums of a column, which take out the offset of the weight codes.
    start: [[__m512i; 2]; FOUR],
    /// Scales of the columns.
    scales: [f32; FOUR],
}

/// Bytes ahead of a weight row's block at which its stream begins to be fetched.
const AHEAD: usize = 1024;

/// Records that weight codes meet once they are unpacked: up to eight activation rows.
const RECORDS: usize = 2;

/// Bytes of scratch that a tile of `k` values needs, the alignment of its records included.
pub(super) const fn scratch_bytes(k: usize) -> usize {
    k / Q8_GROUP * RECORDS * size_of::<Columns>() + align_of::<Columns>()
}

/// One Q8 row by its parts.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) codes: *const u8,
    pub(super) scales: *const f32,
    sums: *const i16,
}

/// Selected activation rows m..m+4, the last one again where there are fewer.
#[inline(always)]
pub(super) unsafe fn fours(shape: &Shape<'_>, x: &[u8], m: usize) -> [Row; FOUR] {
    let (k, last) = (shape.k, shape.rows.len() - 1);
    let stride = ActKind::Q8.row_bytes(k).unwrap_or(0);
    let mut rows = [Row { codes: x.as_ptr(), scales: x.as_ptr().cast(), sums: x.as_ptr().cast() }; FOUR];
    for (i, row) in rows.iter_mut().enumerate() {
        // SAFETY: selected rows exist and hold k values.
        unsafe {
            row.codes = x.as_ptr().add(shape.rows.get((m + i).min(last)) * stride);
            row.scales = row.codes.add(k).cast();
            row.sums = row.codes.add(k + k / 64).cast();
        }
    }
    rows
}

/// Multiplies the tile; one dispatch by format.
///
/// # Safety
/// The level's features are there, the shape was checked, `scratch` holds [`scratch_bytes`].
pub(super) unsafe fn tile(shape: &Shape<'_>, x: &[u8], scratch: &mut [f32], out: &mut [f32]) {
    // SAFETY: the caller's contract.
    unsafe {
        match shape.format {
            Format::Q4_K => columns::<K4>(shape, x, scratch, out),
            Format::Q5_K => columns::<K5>(shape, x, scratch, out),
            Format::Q6_K => columns::<K6>(shape, x, scratch, out),
            Format::Q2_K => columns::<K2>(shape, x, scratch, out),
            Format::Q8_0 => host_avx512_q8_0::tile(shape, x, scratch, out),
            Format::F32 | Format::F16 | Format::Bf16 => unreachable!("refused when the shape was checked"),
        }
    }
}

/// Cuts the activation rows into eights, fours, twos and ones; a short four repeats its last row.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn columns<F: Wide>(shape: &Shape<'_>, x: &[u8], scratch: &mut [f32], out: &mut [f32]) {
    debug_assert!(size_of_val(scratch) >= scratch_bytes(shape.k));
    let skip = scratch.as_ptr().align_offset(align_of::<Columns>());
    let to: *mut Columns = scratch.as_mut_ptr().wrapping_add(skip).cast();
    let mut m = 0;
    while m < shape.rows.len() {
        // SAFETY: the caller's contract; the scratch holds two records for each super-block.
        unsafe {
            m += match shape.rows.len() - m {
                1 => pass::<F, 1, 1>(shape, x, to, m, out),
                2 => pass::<F, 2, 1>(shape, x, to, m, out),
                3 | 4 => pass::<F, 4, 1>(shape, x, to, m, out),
                _ => pass::<F, 4, RECORDS>(shape, x, to, m, out),
            };
        }
    }
}

/// `T` times `X` activation rows against all weight rows of the tile; returns their number.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn pass<F: Wide, const X: usize, const T: usize>(
    shape: &Shape<'_>,
    x: &[u8],
    to: *mut Columns,
    m: usize,
    out: &mut [f32],
) -> usize {
    let (nt, supers) = (shape.nt, shape.k / Q8_GROUP);
    for u in 0..T {
        // SAFETY: the scratch has room for T records a super-block; super-blocks are clamped to those that exist.
        unsafe {
            let rows = fours(shape, x, m + u * X);
            for q in 0..supers.div_ceil(FOUR / X) {
                for c in 0..FOUR {
                    let s = (q * (FOUR / X) + c / X).min(supers - 1);
                    arrange::<F>(&rows[c % X], s, &mut *to.add(q * T + u), c);
                }
            }
        }
    }
    // Four rows a quarter of the tile apart: four long streams, which the processor fetches ahead.
    let quarter = nt.div_ceil(FOUR);
    for n in 0..quarter {
        let mut w = [shape.w.as_ptr(); FOUR];
        // SAFETY: weight rows are clamped to those that exist.
        let got = unsafe {
            for (r, w) in w.iter_mut().enumerate() {
                *w = shape.w.as_ptr().add((n + r * quarter).min(nt - 1) * shape.row_bytes);
            }
            block::<F, X, T>(w, to, supers, if m == 0 { AHEAD } else { 0 })
        };
        for t in 0..(T * X).min(shape.rows.len() - m) {
            for r in 0..FOUR {
                if n + r * quarter < nt {
                    out[(m + t) * nt + n + r * quarter] = got[t / X][FOUR * r + t % X];
                }
            }
        }
    }
    T * X
}

/// Writes super-block `s` of an activation row as column `c` of a record.
#[inline(always)]
unsafe fn arrange<F: Wide>(row: &Row, s: usize, to: &mut Columns, c: usize) {
    // SAFETY: the caller's super-block exists: 256 codes, one scale, eight sums; the level's features are there.
    unsafe {
        let codes = row.codes.add(s * Q8_GROUP);
        let mut natural = [_mm512_setzero_si512(); 4];
        for (v, (low, high)) in natural.iter_mut().zip(F::ORDER) {
            let half = _mm256_loadu_si256(codes.add(32 * low).cast());
            *v = _mm512_inserti64x4::<1>(
                _mm512_castsi256_si512(half),
                _mm256_loadu_si256(codes.add(32 * high).cast()),
            );
        }
        let (a, b) = interleave(natural[0], natural[1]);
        let (c0, d) = interleave(natural[2], natural[3]);
        to.codes[c] = [a, b, c0, d];
        to.scales[c] = row.scales.add(s).read_unaligned();
        let zero = _mm512_setzero_si512();
        if F::OFFSET != 0 {
            let offset = _mm512_set1_epi8(F::OFFSET as i8);
            let first = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, offset, a), offset, b);
            let second = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, offset, c0), offset, d);
            to.start[c] = [_mm512_sub_epi32(zero, first), _mm512_sub_epi32(zero, second)];
        }
        let sums = to.sums[c].as_mut_ptr();
        match F::MINIMA {
            Minima::None => {}
            Minima::Of32 => _mm_storeu_si128(sums.cast(), _mm_loadu_si128(row.sums.add(8 * s).cast())),
            Minima::Of16 => {
                let ones = _mm512_set1_epi8(1);
                let mut fours = [zero; 4];
                for (i, v) in fours.iter_mut().enumerate() {
                    *v = _mm512_dpbusd_epi32(zero, ones, _mm512_loadu_si512(codes.add(64 * i).cast()));
                }
                _mm256_storeu_si256(sums.cast(), _mm512_cvtepi32_epi16(sum_lanes(fours)));
            }
        }
    }
}

/// Four weight rows by T times X activation rows over all super-blocks: output 4r + t of each T.
///
/// What lies `ahead` bytes behind each block it reads begins to be fetched.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn block<F: Wide, const X: usize, const T: usize>(
    w: [*const u8; FOUR],
    columns: *const Columns,
    supers: usize,
    ahead: usize,
) -> [[f32; 16]; T] {
    let mut total = [_mm512_setzero_ps(); T];
    let per = FOUR / X;
    // A count the compiler does not know keeps the rows apart: unrolled, they are mixed and registers run out.
    let rows = std::hint::black_box(FOUR);
    for q in 0..supers.div_ceil(per) {
        // SAFETY: records T * q.. and the super-blocks below `supers` of each row exist.
        unsafe {
            let x = &*columns.add(T * q).cast::<[Columns; T]>();
            let mut at = [[w[0]; FOUR]; FOUR];
            for b in 0..per {
                for r in 0..FOUR {
                    at[b][r] = w[r].add((q * per + b).min(supers - 1) * F::BYTES);
                    for line in 0..F::BYTES.div_ceil(64) {
                        _mm_prefetch::<_MM_HINT_T0>(at[b][r].wrapping_add(ahead + 64 * line).cast());
                    }
                }
            }
            let v = values::<F, X, T>(&at, x, rows);
            for u in 0..T {
                total[u] = add_up::<X>(v[u], &x[u].scales, total[u], supers - q * per);
            }
        }
    }
    let mut out = [[0f32; 16]; T];
    for u in 0..T {
        // SAFETY: sixteen f32.
        unsafe { _mm512_storeu_ps(out[u].as_mut_ptr(), total[u]) };
    }
    out
}

/// The value `v` of the tree for 4 rows (lanes) by 4 columns (elements) of each record; `at[b][r]` is row r's
/// block of the columns c with c / X = b. `count` is four.
#[inline(always)]
unsafe fn values<F: Wide, const X: usize, const T: usize>(
    at: &[[*const u8; FOUR]; FOUR],
    x: &[Columns; T],
    count: usize,
) -> [__m512; T] {
    // SAFETY: the caller's blocks and records; the level's features are there.
    unsafe {
        let zero = _mm512_setzero_si512();
        let mut heads = [F::heads(&at[0]); FOUR];
        for b in 1..FOUR / X {
            heads[b] = F::heads(&at[b]);
        }
        let mut rows = [[zero; FOUR]; T];
        let columns: *const [Columns; T] = x;
        for r in 0..count.min(FOUR) {
            // Read anew for each row: else all columns are copied to the stack before the first.
            let x = &*std::ptr::from_ref(&columns).read_volatile();
            let mut codes = F::codes(at[0][r]);
            let mut scale = F::scale(at[0][r], &heads[0], r);
            let mut pairs = [[zero; 2]; T];
            for p in 0..2 {
                let (c, b) = (2 * p, 2 * p / X);
                if X < FOUR && p > 0 {
                    codes = F::codes(at[b][r]);
                    scale = F::scale(at[b][r], &heads[b], r);
                }
                let (mut first, first_scale) = ([[zero; 2]; T], scale);
                for u in 0..T {
                    first[u] = dot::<F>(&codes, &x[u], c);
                }
                if X == 1 {
                    codes = F::codes(at[b + 1][r]);
                    scale = F::scale(at[b + 1][r], &heads[b + 1], r);
                }
                let (even, odd) = interleave(first_scale, scale);
                for u in 0..T {
                    let second = dot::<F>(&codes, &x[u], c + 1);
                    let sum = _mm512_madd_epi16(_mm512_packs_epi32(first[u][0], second[0]), even);
                    let more = _mm512_packs_epi32(first[u][1], second[1]);
                    pairs[u][p] = _mm512_dpwssd_epi32(sum, more, odd);
                }
            }
            for u in 0..T {
                rows[u][r] = sum_pairs(pairs[u]);
            }
        }
        // d and dmin of column c in element c of each row's lane.
        let both = _mm512_unpacklo_epi64(
            _mm512_unpacklo_epi32(heads[0].d, heads[1 / X].d),
            _mm512_unpacklo_epi32(heads[2 / X].d, heads[3 / X].d),
        );
        let d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
        let dmin = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(both)));
        let mut v = [d; T];
        for u in 0..T {
            v[u] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(across(rows[u])));
            if F::MINIMA != Minima::None {
                let mut mins = [zero; FOUR];
                for c in 0..FOUR {
                    mins[c] = minima::<F>(&heads[c / X], &x[u].sums[c]);
                }
                v[u] = _mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(sum_lanes(mins)), v[u]);
            }
        }
        v
    }
}

/// Sums of eight products of a row with column `c`: those of codes A and B, then those of C and D.
#[inline(always)]
unsafe fn dot<F: Wide>(w: &[__m512i; 4], x: &Columns, c: usize) -> [__m512i; 2] {
    // SAFETY: the level's features are there.
    unsafe {
        let zero = _mm512_setzero_si512();
        let [even, odd] = if F::OFFSET == 0 { [zero; 2] } else { x.start[c] };
        let even = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(even, w[0], x.codes[c][0]), w[1], x.codes[c][1]);
        let odd = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(odd, w[2], x.codes[c][2]), w[3], x.codes[c][3]);
        [even, odd]
    }
}

/// Sums of two neighbours in each lane: elements 0 and 1 from the first vector, 2 and 3 from the second.
#[inline(always)]
unsafe fn sum_pairs(v: [__m512i; 2]) -> __m512i {
    // SAFETY: the level's features are there; the shuffle moves bits, whatever they mean.
    unsafe {
        let (a, b) = (_mm512_castsi512_ps(v[0]), _mm512_castsi512_ps(v[1]));
        let (even, odd) = (_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
        _mm512_add_epi32(_mm512_castps_si512(even), _mm512_castps_si512(odd))
    }
}

/// Minima times sums of activations, four partial sums in each row's lane.
#[inline(always)]
unsafe fn minima<F: Wide>(heads: &Heads, sums: &[i16; 16]) -> __m512i {
    // SAFETY: 32 bytes of sums; the level's features are there.
    unsafe {
        let first = _mm512_broadcast_i32x4(_mm_loadu_si128(sums.as_ptr().cast()));
        let v = _mm512_madd_epi16(heads.mins[0], first);
        if F::MINIMA == Minima::Of32 {
            return v;
        }
        let second = _mm512_broadcast_i32x4(_mm_loadu_si128(sums.as_ptr().add(8).cast()));
        _mm512_add_epi32(v, _mm512_madd_epi16(heads.mins[1], second))
    }
}

/// Sums of the four lanes of each vector: lane r of the result is that of vector r.
#[inline(always)]
unsafe fn across(v: [__m512i; FOUR]) -> __m512i {
    // SAFETY: the level's features are there.
    unsafe { across_halves(across_halves(v[0], v[1]), across_halves(v[2], v[3])) }
}

/// Sums of lanes 0 + 1 and 2 + 3 of the first vector, then of the second.
#[inline(always)]
pub(super) unsafe fn across_halves(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the level's features are there.
    unsafe { _mm512_add_epi32(_mm512_shuffle_i64x2::<0x88>(a, b), _mm512_shuffle_i64x2::<0xdd>(a, b)) }
}

/// `total += scale * v` for each column, super-block by super-block; element t of a lane is activation row t.
/// `left` is the number of super-blocks from this record on.
#[inline(always)]
unsafe fn add_up<const X: usize>(v: __m512, scales: &[f32; FOUR], total: __m512, left: usize) -> __m512 {
    // SAFETY: the level's features are there; the reads lie inside `scales`.
    unsafe {
        let scale = _mm512_broadcast_f32x4(_mm_loadu_ps(scales.as_ptr()));
        match X {
            1 => {
                let mut t =
                    _mm512_fmadd_ps(_mm512_permute_ps::<0x00>(scale), _mm512_permute_ps::<0x00>(v), total);
                if left > 1 {
                    t = _mm512_fmadd_ps(_mm512_permute_ps::<0x55>(scale), _mm512_permute_ps::<0x55>(v), t);
                }
                if left > 2 {
                    t = _mm512_fmadd_ps(_mm512_permute_ps::<0xaa>(scale), _mm512_permute_ps::<0xaa>(v), t);
                }
                if left > 3 {
                    t = _mm512_fmadd_ps(_mm512_permute_ps::<0xff>(scale), _mm512_permute_ps::<0xff>(v), t);
                }
                t
            }
            2 => {
                let t =
                    _mm512_fmadd_ps(_mm512_permute_ps::<0x44>(scale), _mm512_permute_ps::<0x44>(v), total);
                if left < 2 {
                    return t;
                }
                _mm512_fmadd_ps(_mm512_permute_ps::<0xee>(scale), _mm512_permute_ps::<0xee>(v), t)
            }
            _ => _mm512_fmadd_ps(scale, v, total),
        }
    }
}
