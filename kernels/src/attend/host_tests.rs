//! Attention against f64, and bit equality over tiles, splits and builds.
use super::*;
use crate::host::simd::Simd;
use crate::testing::{simd, uniform};
use crate::values::{Bf16, bf16_from_f32};

fn row(n: usize, seed: u64) -> Vec<f32> {
    uniform(n, seed, 3.0)
}

/// K and V of a sequence in pages; tokens at `len` and beyond are NaN.
struct Cache<E> {
    k: Vec<E>,
    v: Vec<E>,
    d: usize,
}

impl<E: KvElem> Cache<E> {
    fn new(len: usize, d: usize, seed: u64) -> Self {
        let pages = len.div_ceil(SPLIT).max(1);
        let fill = |seed| {
            let mut x = row(len * d, seed);
            x.resize(pages * SPLIT * d, f32::NAN);
            x.iter().map(|x| E::from_f32(*x)).collect()
        };
        Self { k: fill(seed), v: fill(seed + 1), d }
    }
    fn token(x: &[E], t: usize, d: usize) -> Vec<f64> {
        x[t * d..(t + 1) * d].iter().map(|x| f64::from(x.to_f32())).collect()
    }
}

impl<E: KvElem> Pages<E> for Cache<E> {
    fn page(&self, index: usize) -> (&[E], &[E]) {
        let n = SPLIT * self.d;
        (&self.k[index * n..(index + 1) * n], &self.v[index * n..(index + 1) * n])
    }
}

fn exact<E: KvElem>(q: &[f32], cache: &Cache<E>, len: usize, scale: f32) -> Vec<f64> {
    let d = cache.d;
    let scores: Vec<f64> = (0..len)
        .map(|t| {
            let k = Cache::token(&cache.k, t, d);
            q.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum::<f64>() * f64::from(scale)
        })
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    let mut out = vec![0.0; d];
    for (t, s) in scores.iter().enumerate() {
        let p = (s - max).exp() / sum;
        out.iter_mut().zip(Cache::token(&cache.v, t, d)).for_each(|(o, v)| *o += p * v);
    }
    out
}

fn one<E: KvElem>(simd: Simd, shape: &Shape, q: &[f32], cache: &Cache<E>, len: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; shape.group * shape.head_dim];
    let mut scratch = vec![f32::NAN; shape.scratch_len(1)];
    attend_item(simd, shape, q, cache, len, &mut scratch, &mut out);
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn agrees<E: KvElem>(group: usize, d: usize, len: usize) {
    let shape = Shape { group, head_dim: d, scale: 1.0 / (d as f32).sqrt() };
    let (q, cache) = (row(group * d, 11), Cache::<E>::new(len, d, 12));
    let got = one(Simd::SCALAR, &shape, &q, &cache, len);
    for simd in Simd::available() {
        assert_eq!(bits(&got), bits(&one(simd, &shape, &q, &cache, len)), "{simd:?} differs");
    }
    for i in 0..group {
        let want = exact(&q[i * d..(i + 1) * d], &cache, len, shape.scale);
        for (g, w) in got[i * d..(i + 1) * d].iter().zip(want) {
            assert!((f64::from(*g) - w).abs() < 3e-6, "group {group} d {d} len {len}: {g} {w}");
        }
    }
}

#[test]
fn items_agree_with_f64_for_odd_and_even_shapes_and_both_cache_types() {
    for (group, d) in [(1, 8), (2, 64), (3, 20), (4, 128), (6, 256), (8, 128), (5, 13)] {
        for len in [1, 2, 7, 8, 9, 127, 128, 129, 300, 512] {
            agrees::<f32>(group, d, len);
            agrees::<Bf16>(group, d, len);
        }
    }
}

#[test]
fn a_tile_of_rows_gives_the_bits_of_its_rows_alone() {
    for (group, d, lens) in [
        (6, 64, vec![250, 251, 252, 253, 254, 255, 256, 257, 258]),
        (1, 32, vec![1, 2, 3, 4, 5, 130, 0, 129]),
        (2, 24, vec![128, 1, 300]),
    ] {
        let shape = Shape { group, head_dim: d, scale: 0.2 };
        let longest = lens.iter().copied().max().unwrap_or(0);
        let (q, cache) = (row(lens.len() * group * d, 3), Cache::<Bf16>::new(longest, d, 4));
        let mut out = vec![f32::NAN; q.len()];
        let mut scratch = vec![f32::NAN; shape.scratch_len(lens.len())];
        attend_tile(simd(), &shape, &q, &cache, &lens, &mut scratch, &mut out);
        for (r, len) in lens.iter().enumerate() {
            let range = r * group * d..(r + 1) * group * d;
            let alone = one(simd(), &shape, &q[range.clone()], &cache, *len);
            assert_eq!(bits(&out[range]), bits(&alone), "row {r} of length {len}");
        }
    }
}

#[test]
fn splits_computed_apart_merge_to_the_same_bits() {
    let shape = Shape { group: 6, head_dim: 48, scale: 0.3 };
    let (g, d) = (shape.group, shape.head_dim);
    for len in [1, 128, 129, 700] {
        let (q, cache) = (row(g * d, 5), Cache::<f32>::new(len, d, 6));
        let splits = len.div_ceil(SPLIT);
        let (mut stats, mut acc) = (vec![0.0; splits * g * 2], vec![0.0; splits * g * d]);
        let mut scratch = vec![0.0; shape.scratch_len(1)];
        for s in (0..splits).rev() {
            let (st, ac) = (&mut stats[s * g * 2..(s + 1) * g * 2], &mut acc[s * g * d..(s + 1) * g * d]);
            attend_split(simd(), &shape, &q, &cache, s, len, &mut scratch, st, ac);
        }
        let mut out = vec![f32::NAN; g * d];
        merge_splits(simd(), g, d, &stats, &acc, &mut out);
        assert_eq!(bits(&out), bits(&one(simd(), &shape, &q, &cache, len)));
    }
}

#[test]
fn bf16_pages_give_the_bits_of_f32_pages_with_the_same_values() {
    let shape = Shape { group: 4, head_dim: 64, scale: 0.125 };
    let (q, narrow) = (row(256, 7), Cache::<Bf16>::new(200, 64, 8));
    let wider = |x: &[Bf16]| x.iter().map(|x| x.to_f32()).collect();
    let cache = Cache::<f32> { k: wider(&narrow.k), v: wider(&narrow.v), d: 64 };
    assert_eq!(bf16_from_f32(cache.k[5]), narrow.k[5].0);
    assert_eq!(one(simd(), &shape, &q, &narrow, 200), one(simd(), &shape, &q, &cache, 200));
}

#[test]
fn nan_shows_in_its_head_only_extremes_stay_finite_and_gates_apply() {
    let shape = Shape { group: 2, head_dim: 16, scale: 1.0 };
    let cache = Cache::<f32>::new(150, 16, 9);
    let mut q = row(32, 10);
    q[3] = f32::NAN;
    let out = one(simd(), &shape, &q, &cache, 150);
    assert!(out[..16].iter().all(|x| x.is_nan()) && out[16..].iter().all(|x| x.is_finite()));
    q[3] = 0.0;
    q.iter_mut().for_each(|x| *x *= 1.0e6);
    assert!(one(simd(), &shape, &q, &cache, 150).iter().all(|x| x.abs() <= 1.5));
    assert_eq!(one(simd(), &shape, &q, &cache, 0), vec![0.0; 32]);
    let mut late = Cache::<f32>::new(150, 16, 9);
    late.k[140 * 16] = f32::NAN;
    assert!(one(simd(), &shape, &q, &late, 150).iter().all(|x| x.is_nan()));
    assert!(one(simd(), &shape, &q, &late, 140).iter().all(|x| x.is_finite()));
    let mut gated = vec![2.0; 4];
    gate_row(simd(), &[0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN], &mut gated);
    assert_eq!(gated[..3], [1.0, 2.0, 0.0]);
    assert!(gated[3].is_nan());
}

#[test]
fn pages_through_a_table_read_the_same() {
    let shape = Shape { group: 1, head_dim: 8, scale: 1.0 };
    let (q, cache) = (row(8, 1), Cache::<f32>::new(130, 8, 2));
    let n = SPLIT * 8;
    // Arena pages hold another head's keys, our keys and our values; the sequence sits in pages 3 and 1.
    let mut arena = vec![f32::NAN; 4 * 3 * n];
    for (index, at) in [(0, 3), (1, 1)] {
        let (k, v) = cache.page(index);
        arena[at * 3 * n + n..at * 3 * n + 2 * n].copy_from_slice(k);
        arena[at * 3 * n + 2 * n..(at + 1) * 3 * n].copy_from_slice(v);
    }
    let (k, v, table) = (&arena[..], &arena[..], &[3, 1][..]);
    let pages = PageTable { k, v, table, page_stride: 3 * n, k_offset: n, v_offset: 2 * n, elements: n };
    let mut out = vec![0.0; 8];
    attend_item(simd(), &shape, &q, &pages, 130, &mut vec![0.0; shape.scratch_len(1)], &mut out);
    assert_eq!(out, one(simd(), &shape, &q, &cache, 130));
}
