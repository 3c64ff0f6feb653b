//! Host linear tiles: weight bytes a second at one row, multiply-adds a second at many.
//!
//! `cargo bench -p kernels --bench linear [-- FILTER]`. A case is named `act/format/m`; the weights are one
//! tile after another of a matrix of about 512 KiB, which stays in the second or third cache.
#![allow(missing_docs)]

mod common;

use common::weights;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kernels::formats::{Format, decode_row_with, elements::round_bf16};
use kernels::host::simd::{Simd, Switches};
use kernels::linear::host::{Act, ActKind, RowSel, quantize_q8_row, scratch_len, supports, tile, tile_rows};
use std::hint::black_box;

const K: usize = 2048;

fn linear(c: &mut Criterion) {
    let simd = Simd::detect(&Switches::default());
    let mut group = c.benchmark_group("linear");
    for format in Format::ALL {
        for kind in [ActKind::Q8, ActKind::Bf16, ActKind::F32] {
            if !supports(format, kind) {
                continue;
            }
            for m in [1usize, 2, 4, 8, 16, 64] {
                let nt = tile_rows(format, K);
                let row = usize::try_from(format.row_bytes(K).expect("whole blocks")).expect("fits");
                let n = ((512 << 10) / row).next_multiple_of(nt);
                let w = weights(format, n, K);
                let x: Vec<f32> = (0..m * K).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
                let mut half = vec![0u16; x.len()];
                round_bf16(simd, &x, &mut half);
                let q8_bytes = kind.row_bytes(K).expect("K is a multiple of 256");
                let mut q8 = vec![0u8; m * q8_bytes];
                if kind == ActKind::Q8 {
                    for (x, q) in x.chunks(K).zip(q8.chunks_mut(q8_bytes)) {
                        quantize_q8_row(simd, x, q);
                    }
                }
                let act = match kind {
                    ActKind::Q8 => Act::Q8(&q8),
                    ActKind::Bf16 => Act::Bf16(&half),
                    ActKind::F32 => Act::F32(&x),
                };
                let mut scratch = vec![0f32; scratch_len(K, nt)];
                let mut out = vec![0f32; m * nt];
                let rows = RowSel::Range { start: 0, end: m };
                // At one row weight bytes count, above it floating operations.
                group.throughput(if m == 1 {
                    Throughput::Bytes(w.len() as u64)
                } else {
                    Throughput::Elements((2 * m * n * K) as u64)
                });
                group.bench_function(format!("{kind:?}/{}/{m}", format.name()), |b| {
                    b.iter(|| {
                        for w in w.chunks_exact(row * nt) {
                            tile(simd, format, w, nt, K, &act, rows, &mut scratch, &mut out)
                                .expect("shapes fit");
                            black_box(&out);
                        }
                    });
                });
            }
        }
    }
    group.finish();
}

fn rows(c: &mut Criterion) {
    let simd = Simd::detect(&Switches::default());
    let mut group = c.benchmark_group("rows");
    let x: Vec<f32> = (0..K).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    group.throughput(Throughput::Elements(K as u64));
    let mut q8 = vec![0u8; ActKind::Q8.row_bytes(K).expect("K is a multiple of 256")];
    group.bench_function("quantize_q8", |b| b.iter(|| quantize_q8_row(simd, black_box(&x), &mut q8)));
    let mut half = vec![0u16; K];
    group.bench_function("round_bf16", |b| b.iter(|| round_bf16(simd, black_box(&x), &mut half)));
    let mut out = vec![0f32; K];
    for format in Format::ALL {
        let w = weights(format, 1, K);
        group.bench_function(format!("decode/{}", format.name()), |b| {
            b.iter(|| decode_row_with(simd, format, black_box(&w), &mut out).expect("shapes fit"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(400));
    targets = rows, linear
}
criterion_main!(benches);
