//! Host linear tiles with weights from memory: a matrix far above the last cache, read once a pass by a pool.
//!
//! `cargo bench -p kernels --bench stream [-- FILTER [THREADS [MIB]]]`. A case is named `act/format/m`; each
//! prints weight bytes a second of its fastest pass for every vector level, beside the read ceiling.
#![allow(missing_docs)]

mod common;

use common::weights;
use kernels::formats::{Format, elements::round_bf16};
use kernels::host::pool::Pool;
use kernels::host::probe::ceilings;
use kernels::host::simd::Simd;
use kernels::linear::host::{Act, ActKind, RowSel, quantize_q8_row, scratch_len, supports, tile};
use std::time::{Duration, Instant};

const K: usize = 2048;
/// Weight rows of an item.
const ROWS: usize = 64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let filter = args.first().map_or("", String::as_str);
    let threads: usize = args.get(1).map_or(1, |a| a.parse().expect("THREADS is a number"));
    let mib: usize = args.get(2).map_or(512, |a| a.parse().expect("MIB is a number"));
    let mut pool = Pool::new(threads, scratch_len(K, ROWS) + 64 * ROWS);
    let levels = Simd::available();
    let best = *levels.last().expect("the scalar level is always there");
    let read = ceilings(&mut pool, best, &[(mib as u64) << 20], Duration::from_millis(300))[0].read.best();
    println!("{threads} threads, {mib} MiB, read {:.1} GB/s", read as f64 / 1e9);
    for format in Format::ALL {
        for kind in [ActKind::Q8, ActKind::Bf16] {
            let wanted = |m: usize| {
                let name = format!("{kind:?}/{}/{m}", format.name());
                (supports(format, kind) && name.contains(filter)).then_some(name)
            };
            let names: Vec<(usize, String)> =
                [1, 2, 4, 8, 16, 64].into_iter().filter_map(|m| wanted(m).map(|name| (m, name))).collect();
            if names.is_empty() {
                continue;
            }
            let row = usize::try_from(format.row_bytes(K).expect("whole blocks")).expect("fits");
            let n = ((mib << 20) / row).next_multiple_of(ROWS);
            let w = weights(format, n, K);
            for (m, name) in names {
                print!("{name}:");
                for &simd in levels.iter().filter(|l| **l != Simd::SCALAR) {
                    let time = fastest(&mut pool, simd, format, kind, &w, row, m);
                    let (bytes, flops) = (w.len() as f64, (2 * m * n * K) as f64);
                    print!(
                        "  {} {:.1} GB/s {:.0} GFLOP/s",
                        simd.name(),
                        bytes / time / 1e9,
                        flops / time / 1e9
                    );
                }
                println!();
            }
        }
    }
}

/// Seconds of the fastest of at least three passes.
fn fastest(
    pool: &mut Pool,
    simd: Simd,
    format: Format,
    kind: ActKind,
    w: &[u8],
    row: usize,
    m: usize,
) -> f64 {
    let x: Vec<f32> = (0..m * K).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let mut half = vec![0u16; x.len()];
    round_bf16(simd, &x, &mut half);
    let q8_bytes = ActKind::Q8.row_bytes(K).expect("K is a multiple of 256");
    let mut q8 = vec![0u8; m * q8_bytes];
    for (x, q) in x.chunks(K).zip(q8.chunks_mut(q8_bytes)) {
        quantize_q8_row(simd, x, q);
    }
    let act = if kind == ActKind::Q8 { Act::Q8(&q8) } else { Act::Bf16(&half) };
    let items = w.len() / (row * ROWS);
    let begin = Instant::now();
    let (mut best, mut passes) = (f64::INFINITY, 0);
    while passes < 3 || begin.elapsed() < Duration::from_millis(500) {
        let start = Instant::now();
        pool.run(items, &|item, scratch| {
            let w = &w[item * ROWS * row..(item + 1) * ROWS * row];
            let (scratch, out) = scratch.split_at_mut(scratch_len(K, ROWS));
            let rows = RowSel::Range { start: 0, end: m };
            tile(simd, format, w, ROWS, K, &act, rows, scratch, out).expect("shapes fit");
        });
        best = best.min(start.elapsed().as_secs_f64());
        passes += 1;
    }
    best
}
