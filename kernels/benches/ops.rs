//! Host operations at the shapes of a decode step; rates are over the bytes each must move.
//!
//! The cache and the states rotate through working sets far above the last cache, so the rates are memory's.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kernels::argmax::host::argmax_row;
use kernels::attend::host::{PageTable, SPLIT, Shape, attend_item};
use kernels::conv::host::{Channels, conv_segment};
use kernels::delta::host::{
    CHUNK, Head, Segment, chunk_head, chunk_scratch_len, step_head, step_scratch_len,
};
use kernels::fold::host::fold_row;
use kernels::host::simd::Simd;
use kernels::norm::host::rms_norm_row_bf16;
use kernels::route::host::route_row;
use kernels::values::{Bf16, KvElem, Vector};

/// Bytes of a rotating working set: far above the 32 MB last cache of the bench machine.
const COLD: usize = 192 << 20;

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect()
}

fn attend(c: &mut Criterion) {
    let simd = Simd::detect(&Default::default());
    for (group, d) in [(6, 256), (8, 128), (2, 64)] {
        let len = 4096;
        let (pages, elements) = (len / SPLIT, SPLIT * d);
        let items = COLD / (2 * 2 * len * d);
        let k: Vec<Bf16> =
            (0..items * len * d).map(|i| Bf16::from_f32((i % 97) as f32 / 97.0 - 0.5)).collect();
        let v = k.clone();
        let shape = Shape { group, head_dim: d, scale: 1.0 / (d as f32).sqrt() };
        let (q, mut out) = (ramp(group * d), vec![0.0; group * d]);
        let mut scratch = vec![0.0; shape.scratch_len(1)];
        let mut g = c.benchmark_group("attend");
        g.throughput(Throughput::Bytes((2 * 2 * len * d) as u64));
        let mut item = 0;
        g.bench_function(format!("bf16_g{group}_d{d}_len{len}"), |b| {
            b.iter(|| {
                let table: [u32; 32] = std::array::from_fn(|p| (item * pages + p) as u32);
                let at = PageTable {
                    k: &k,
                    v: &v,
                    table: &table,
                    page_stride: elements,
                    k_offset: 0,
                    v_offset: 0,
                    elements,
                };
                attend_item(simd, &shape, &q, &at, len, &mut scratch, &mut out);
                item = (item + 1) % items;
                black_box(&out);
            })
        });
        g.finish();
    }
}

fn delta(c: &mut Criterion) {
    let simd = Simd::detect(&Default::default());
    let (dk, dv, n) = (128, 128, 4 * CHUNK);
    let w = ramp(dv);
    let norm_w = Vector::F32(&w);
    let head = Head { dk, dv, a_log: 0.0, dt_bias: 0.1, norm_w, eps: 1e-6, round_normed: false };
    let states = COLD / (4 * dk * dv);
    let mut state = vec![0.01; states * dk * dv];
    let (x, gates) = (ramp(n * 384), ramp(n));
    let mut out = vec![0.0; n * dv];
    let mut g = c.benchmark_group("delta");
    g.throughput(Throughput::Bytes((2 * 4 * dk * dv) as u64));
    let (mut scratch, mut at) = (vec![0.0; step_scratch_len(dk, dv)], 0);
    g.bench_function("step_128x128", |b| {
        b.iter(|| {
            let s = &mut state[at * dk * dv..(at + 1) * dk * dv];
            let (q, k, v) = (&x[..128], &x[128..256], &x[256..384]);
            step_head(simd, &head, q, k, v, v, 0.2, 0.3, s, &mut scratch, &mut out[..dv]);
            at = (at + 1) % states;
        })
    });
    g.throughput(Throughput::Elements(n as u64));
    let mut scratch = vec![0.0; chunk_scratch_len(dk, dv)];
    g.bench_function("chunk_256_tokens", |b| {
        b.iter(|| {
            let (q, k, v) = (&x[..], &x[128..], &x[256..]);
            let (a, b, z) = (&gates[..], &gates[..], &x[256..]);
            let segment = Segment { n, q, k, v, qkv_stride: 384, z, z_stride: 384, a, b, ab_stride: 1 };
            chunk_head(simd, &head, &segment, &mut state[..dk * dv], &mut scratch, &mut out, dv);
        })
    });
    g.finish();
}

fn rows(c: &mut Criterion) {
    let simd = Simd::detect(&Default::default());
    let mut g = c.benchmark_group("rows");
    let (x, w) = (ramp(5120), ramp(5120));
    let mut out = vec![0u16; 5120];
    g.bench_function("rms_norm_5120_to_bf16", |b| {
        b.iter(|| rms_norm_row_bf16(simd, black_box(&x), &Vector::F32(&w), 1e-6, true, &mut out))
    });
    let (u, taps) = (ramp(10240), ramp(4 * 10240));
    let (mut state, mut y) = (vec![0.0; 3 * 10240], vec![0.0; 10240]);
    let whole = Channels { dim: 10240, taps: 4, first: 0, count: 10240 };
    g.bench_function("conv_10240_one_token", |b| {
        b.iter(|| conv_segment(simd, black_box(&u), &whole, &mut state, &Vector::F32(&taps), &mut y))
    });
    let (logits, mut ids, mut weights) = (ramp(128), [0; 8], [0.0; 8]);
    g.bench_function("route_128_top8", |b| {
        b.iter(|| route_row(simd, black_box(&logits), true, &mut ids, &mut weights))
    });
    let (experts, mut residual) = (ramp(8 * 2048), ramp(2048));
    let pairs = [0, 1, 2, 3, 4, 5, 6, 7];
    g.bench_function("fold_8x2048", |b| {
        b.iter(|| fold_row(simd, &experts, 2048, &pairs, black_box(&weights), 0, &mut residual))
    });
    let vocabulary = ramp(248_320);
    g.bench_function("argmax_248320", |b| b.iter(|| argmax_row(simd, black_box(&vocabulary))));
    g.finish();
}

criterion_group!(benches, attend, delta, rows);
criterion_main!(benches);
