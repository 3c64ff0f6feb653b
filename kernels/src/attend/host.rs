//! CPU paged grouped-query attention: one item is (query rows of one sequence, one KV head).
//!
//! **Tree.** Score: q . k in 8 lanes (element i in lane i mod 8, one fused add a term), lanes folded in halves,
//! times `scale`. Page: maximum of its scores, p = e^(s - max), the sum of p in 8 lanes by token index folded
//! in halves, and acc = sum p v with one fused add a token in token order. Pages merge in index order by the
//! log-sum-exp rule; the result is acc / sum. All f32.
//!
//! **Trick.** Cache elements widen on their way into a register and meet the queries of the item in blocks
//! of 4 queries x 2 tokens (scores) or 4 queries x 16 columns (values) whose sums live in registers. The
//! blocking decides only which sums run side by side, never the order inside a sum, so one row and a tile of
//! rows give the same bits.
//!
//! **Rules.** A token at or beyond a row's length is never multiplied: what lies there (poison, NaN) cannot
//! show. A NaN score makes its row's output NaN. A row of length 0 attends to nothing and yields zeros.

use super::inner::{score_page, softmax_split, value_page};
use crate::lanes::{Isa, WIDTH, eight, eight_mut, lanes};
use crate::values::{KvElem, exp, sigmoid};

/// Tokens of a split, which is also a page.
pub const SPLIT: usize = 128;

/// The pages of one sequence and KV head, by page index.
pub trait Pages<E> {
    /// Keys and values of page `index`: `[SPLIT][head_dim]` each; at least the tokens below the item's
    /// length must be there.
    fn page(&self, index: usize) -> (&[E], &[E]);
}

/// Pages inside two arenas, found through a page table.
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'a, E> {
    /// Arena of keys.
    pub k: &'a [E],
    /// Arena of values (the same slice where both share an arena, with `v_offset` telling them apart).
    pub v: &'a [E],
    /// Arena page of each page of the sequence.
    pub table: &'a [u32],
    /// Elements from one arena page to the next.
    pub page_stride: usize,
    /// Where this layer's and KV head's keys start inside an arena page.
    pub k_offset: usize,
    /// The same for values.
    pub v_offset: usize,
    /// Elements of one head's page: `SPLIT * head_dim`.
    pub elements: usize,
}

impl<E> Pages<E> for PageTable<'_, E> {
    #[inline(always)]
    fn page(&self, index: usize) -> (&[E], &[E]) {
        let base = self.table[index] as usize * self.page_stride;
        let (k, v) = (base + self.k_offset, base + self.v_offset);
        (&self.k[k..k + self.elements], &self.v[v..v + self.elements])
    }
}

/// The shape of an item.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Query heads that share the KV head.
    pub group: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
}

impl Shape {
    /// f32 values of scratch for an item of `rows` query rows.
    pub const fn scratch_len(&self, rows: usize) -> usize {
        // Scores [q][SPLIT], page accumulator [q][d], (max, sum) of page and of the merge.
        rows * self.group * (SPLIT + self.head_dim + 4)
    }
}

/// The parts of a scratch slice.
struct Parts<'a> {
    scores: &'a mut [f32],
    page: &'a mut [f32],
    page_stats: &'a mut [f32],
    stats: &'a mut [f32],
}

#[inline(always)]
fn parts<'a>(scratch: &'a mut [f32], queries: usize, d: usize) -> Parts<'a> {
    let (scores, rest) = scratch.split_at_mut(SPLIT * queries);
    let (page, rest) = rest.split_at_mut(queries * d);
    let (page_stats, rest) = rest.split_at_mut(2 * queries);
    Parts { scores, page, page_stats, stats: &mut rest[..2 * queries] }
}

/// One page for all queries: fills `page` `[q][d]` and `page_stats` `[q][max, sum]`; `valid(q)` is the number
/// of the page's tokens query q sees, `most` the largest of them.
#[inline(always)]
fn split<I: Isa, E: KvElem>(
    isa: I,
    shape: &Shape,
    q: &[f32],
    (k, v): (&[E], &[E]),
    most: usize,
    valid: impl Fn(usize) -> usize,
    parts: &mut Parts<'_>,
) {
    let (d, queries) = (shape.head_dim, q.len() / shape.head_dim);
    score_page(isa, q, (k, v), d, most, shape.scale, parts.scores);
    for i in 0..queries {
        let scores = &mut parts.scores[i * SPLIT..(i + 1) * SPLIT];
        let (max, sum) = softmax_split(isa, scores, valid(i));
        parts.page_stats[2 * i] = max;
        parts.page_stats[2 * i + 1] = sum;
    }
    parts.page.fill(0.0);
    value_page(isa, parts.scores, v, d, most, valid, parts.page);
}

/// Merges a later split into an earlier one: (max, sum) pairs and unnormalised accumulators.
#[inline(always)]
fn merge_into<I: Isa>(isa: I, stats: &mut [f32], acc: &mut [f32], later_stats: &[f32], later: &[f32]) {
    let (m, n) = (stats[0], later_stats[0]);
    // A NaN sum marks a split whose scores held a NaN; it stays NaN through both factors.
    let max = if n > m { n } else { m };
    let (a, b) = (exp(m - max), exp(n - max));
    stats[0] = max;
    stats[1] = stats[1].mul_add(a, later_stats[1] * b);
    let (whole, later) = (acc.len() - acc.len() % WIDTH, &later[..acc.len()]);
    let (va, vb) = (isa.splat(a), isa.splat(b));
    for i in (0..whole).step_by(WIDTH) {
        let y = isa.mul(isa.load(eight(later, i)), vb);
        isa.store(isa.fma(isa.load(eight(acc, i)), va, y), eight_mut(acc, i));
    }
    for i in whole..acc.len() {
        acc[i] = acc[i].mul_add(a, later[i] * b);
    }
}

lanes! {
    /// Attention of several query rows of one sequence over one KV head, sharing the reads of K and V.
    ///
    /// `q` and `out` are `[rows][group][head_dim]`; row r sees tokens `0 .. lens[r]`. `scratch` holds
    /// [`Shape::scratch_len`] values. Bit-identical to [`attend_item`] row by row.
    pub fn attend_tile [E: KvElem, P: Pages<E>](isa; shape: &Shape, q: &[f32], pages: &P, lens: &[usize],
                                              scratch: &mut [f32], out: &mut [f32]) {
        let (d, group) = (shape.head_dim, shape.group);
        let queries = lens.len() * group;
        let (q, out) = (&q[..queries * d], &mut out[..queries * d]);
        let mut parts = parts(scratch, queries, d);
        let longest = lens.iter().copied().max().unwrap_or(0);
        out.fill(0.0);
        for page in 0..longest.div_ceil(SPLIT) {
            let start = page * SPLIT;
            let most = SPLIT.min(longest - start);
            let valid = |i: usize| lens[i / group].saturating_sub(start).min(SPLIT);
            split(isa, shape, q, pages.page(page), most, valid, &mut parts);
            for i in 0..queries {
                if valid(i) == 0 {
                    continue;
                }
                let acc = &mut out[i * d..(i + 1) * d];
                let (from, stats) = (&parts.page[i * d..(i + 1) * d], 2 * i..2 * i + 2);
                if page == 0 {
                    acc.copy_from_slice(from);
                    parts.stats[stats.clone()].copy_from_slice(&parts.page_stats[stats]);
                } else {
                    merge_into(isa, &mut parts.stats[stats.clone()], acc, &parts.page_stats[stats], from);
                }
            }
        }
        for i in 0..queries {
            if lens[i / group] > 0 {
                let sum = parts.stats[2 * i + 1];
                out[i * d..(i + 1) * d].iter_mut().for_each(|x| *x /= sum);
            }
        }
    }
}

/// Attention of one query row over one KV head: `q` and `out` are `[group][head_dim]`, tokens `0 .. len`.
pub fn attend_item<E: KvElem, P: Pages<E>>(
    simd: crate::host::simd::Simd,
    shape: &Shape,
    q: &[f32],
    pages: &P,
    len: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    attend_tile(simd, shape, q, pages, &[len], scratch, out);
}

lanes! {
    /// One split alone, for sharing a long sequence over threads: `acc` `[group][head_dim]` unnormalised and
    /// `stats` `[group][max, sum]`. Page `page` must have a token below `len`.
    pub fn attend_split [E: KvElem, P: Pages<E>](isa; shape: &Shape, q: &[f32], pages: &P, page: usize, len: usize,
                                               scratch: &mut [f32], stats: &mut [f32], acc: &mut [f32]) {
        let (d, queries) = (shape.head_dim, shape.group);
        let mut parts = parts(scratch, queries, d);
        let n = len.saturating_sub(page * SPLIT).min(SPLIT);
        split(isa, shape, &q[..queries * d], pages.page(page), n, |_| n, &mut parts);
        acc[..queries * d].copy_from_slice(parts.page);
        stats[..2 * queries].copy_from_slice(parts.page_stats);
    }
}

lanes! {
    /// Merges splits in index order into `out` `[group][head_dim]`; `stats` is `[splits][group][2]` and
    /// `acc` `[splits][group][head_dim]`. The bits of [`attend_item`] over the same tokens.
    pub fn merge_splits [](isa; group: usize, head_dim: usize, stats: &[f32], acc: &[f32], out: &mut [f32]) {
        let splits = stats.len() / (2 * group);
        for i in 0..group {
            let out = &mut out[i * head_dim..(i + 1) * head_dim];
            let mut total = [f32::NEG_INFINITY, 0.0];
            out.fill(0.0);
            for s in 0..splits {
                let at = s * group + i;
                let (from, part) = (&acc[at * head_dim..(at + 1) * head_dim], &stats[2 * at..2 * at + 2]);
                if s == 0 {
                    out.copy_from_slice(from);
                    total.copy_from_slice(part);
                } else {
                    merge_into(isa, &mut total, out, part, from);
                }
            }
            if splits > 0 {
                out.iter_mut().for_each(|x| *x /= total[1]);
            }
        }
    }
}

lanes! {
    /// Output gate: `out_i *= sigmoid(gate_i)`.
    pub fn gate_row [](isa; gate: &[f32], out: &mut [f32]) {
        let (n, gate) = (out.len(), &gate[..out.len()]);
        let whole = n - n % WIDTH;
        for i in (0..whole).step_by(WIDTH) {
            let g = isa.sigmoid(isa.load(eight(gate, i)));
            isa.store(isa.mul(isa.load(eight(out, i)), g), eight_mut(out, i));
        }
        for i in whole..n {
            out[i] *= sigmoid(gate[i]);
        }
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
