//! Expert products against the host over routed tables, and the bits of a row alone and among others.
use crate::case::{Case, Close, bucket};
use crate::emulator::{Emulator, emulator};
use crate::weights::{Random, weights};
use kernels::experts::{ExpertDown, ExpertUp, Groups};
use kernels::formats::Format;
use kernels::formats::planar::to_planar;
use kernels::launch::Op;
use kernels::linear::Matrix;
use kernels::numeric::ActKind;
use kernels::route::host::group;

/// Sizes of a case.
#[derive(Clone, Copy)]
struct Sizes {
    format: Format,
    /// The up matrices' format, where it is another.
    up: Option<Format>,
    n: usize,
    k: usize,
    experts: usize,
    top_k: usize,
}

/// The experts of a row: distinct, a few of them popular; the same in every batch.
fn chosen(row: usize, s: &Sizes) -> Vec<u32> {
    let mut r = Random::new(77 + row as u64);
    let mut ids: Vec<u32> = Vec::new();
    while ids.len() < s.top_k {
        let wide = r.bits() % 2 == 0;
        let id = r.bits() % if wide { s.experts as u32 } else { (s.top_k + 1) as u32 };
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// Runs up (`silu` kind) or down over rows `first .. first + rows`; the bytes of their pairs.
fn run(e: &Emulator, s: &Sizes, silu: Option<ActKind>, first: usize, rows: usize, most: usize) -> Vec<u8> {
    let mut c = Case::new(bucket(most, most, 128), 3 + rows as u64);
    let ids: Vec<u32> = (first..first + rows).flat_map(|r| chosen(r, s)).collect();
    let (mut counts, mut offsets) = (vec![0; s.experts], vec![0; s.experts + 1]);
    let mut list = vec![u32::MAX; most * s.top_k];
    group(&ids, s.experts, &mut counts, &mut offsets, &mut list).unwrap();
    let (offsets, list) = (c.u32s("offsets", &offsets), c.u32s("list", &list));
    let groups = Groups { offsets, list, experts: s.experts, top_k: s.top_k, moe_layer: 0 };
    let mut swap = Vec::new();
    let mut matrix = |c: &mut Case, format: Format, seed: u64| {
        let mut planar = Vec::new();
        let mut bytes = Vec::new();
        for e in 0..s.experts {
            let one = weights(format, s.n, s.k, seed + e as u64);
            planar.extend(to_planar(format, s.n, s.k, &one).unwrap());
            bytes.extend(one);
        }
        let buf = c.weight("w", bytes);
        swap.push((buf, planar));
        Matrix { buf, format, n: s.n, k: s.k }
    };
    let w = matrix(&mut c, s.format, 1);
    // Down reads a row for each pair, up one for each row.
    let each = if silu.is_some() { 1 } else { s.top_k };
    let x: Vec<f32> =
        (first * each..(first + most) * each).flat_map(|r| Random::new(r as u64).units(s.k)).collect();
    let x = c.bf16s("x", &x);
    let pairs = most * s.top_k;
    let (size, out, op) = match silu {
        None => {
            let out =
                c.out("out", 4 * pairs * s.n, Close::F32 { abs: 2e-6 * (s.k as f32).sqrt(), rel: 1e-5 });
            (4, out, Op::ExpertDown(ExpertDown { h: x, kind: ActKind::Bf16, groups, down: w, out }))
        }
        Some(kind) => {
            let up = matrix(&mut c, s.up.unwrap_or(s.format), 1001);
            let (size, close) = match kind {
                ActKind::F32 => (4, Close::F32 { abs: 2e-4, rel: 4e-5 }),
                _ => (2, Close::Bf16 { abs: 1e-4, rel: 1e-2 }),
            };
            let out = c.out("out", size * pairs * s.n, close);
            let up = ExpertUp { x, kind: ActKind::Bf16, groups, gate: w, up, out, out_kind: kind };
            (size, out, Op::ExpertUp(up))
        }
    };
    let ran = c.run(e, op, rows, &swap);
    ran.bytes(out)[..size * rows * s.top_k * s.n].to_vec()
}

/// A row's pairs have the same bits in batches of every kind of kernel.
fn agree(s: &Sizes, silu: Option<ActKind>, batches: &[(usize, usize)]) {
    let Some(e) = emulator() else { return };
    let (most, last) = *batches.last().unwrap();
    let all = run(e, s, silu, 0, most, last);
    let row = all.len() / most;
    for &(rows, bucket) in &batches[..batches.len() - 1] {
        let first = most - rows;
        assert_eq!(&all[first * row..], &run(e, s, silu, first, rows, bucket)[..], "{rows} rows");
    }
}

const BATCHES: &[(usize, usize)] = &[(1, 1), (2, 4), (9, 12), (24, 25), (70, 70)];

#[test]
fn up_then_silu_of_four_bits() {
    let s = Sizes { format: Format::Q4_K, up: None, n: 48, k: 512, experts: 6, top_k: 2 };
    agree(&s, Some(ActKind::Bf16), BATCHES);
    agree(
        &Sizes { n: 32, k: 2048, experts: 40, top_k: 8, ..s },
        Some(ActKind::Bf16),
        &[(1, 1), (8, 8), (21, 25)],
    );
}

#[test]
fn down_of_six_and_four_bits() {
    let s = Sizes { format: Format::Q6_K, up: None, n: 80, k: 768, experts: 6, top_k: 2 };
    agree(&s, None, BATCHES);
    agree(&Sizes { format: Format::Q4_K, n: 64, k: 256, ..s }, None, BATCHES);
}

#[test]
fn other_formats_and_ragged_matrices() {
    for (format, n, k) in
        [(Format::Bf16, 40, 104), (Format::Q8_0, 24, 96), (Format::Q5_K, 16, 256), (Format::Q2_K, 48, 256)]
    {
        let s = Sizes { format, up: None, n, k, experts: 5, top_k: 3 };
        agree(&s, Some(ActKind::F32), &[(1, 1), (6, 6), (40, 40)]);
        agree(&s, None, &[(1, 1), (6, 6), (40, 40)]);
    }
}

#[test]
fn gate_and_up_of_two_formats() {
    let pairs = [(Format::Q4_K, Format::Q5_K), (Format::Q6_K, Format::Bf16), (Format::Q8_0, Format::Q2_K)];
    for (format, up) in pairs {
        let s = Sizes { format, up: Some(up), n: 256, k: 256, experts: 6, top_k: 2 };
        agree(&s, Some(ActKind::Bf16), &[(1, 1), (9, 12), (40, 40)]);
    }
    let s = Sizes { format: Format::Q4_K, up: Some(Format::Q6_K), n: 24, k: 1024, experts: 5, top_k: 3 };
    agree(&s, Some(ActKind::F32), &[(1, 1), (6, 6), (40, 40)]);
}

/// One slice of K: all eight tiles of a block side by side.
#[test]
fn one_slice_of_four_bits() {
    let s = Sizes { format: Format::Q4_K, up: None, n: 256, k: 256, experts: 6, top_k: 2 };
    agree(&s, Some(ActKind::Bf16), &[(1, 1), (8, 8), (40, 40)]);
}
