//! Linear: every format and epilogue against the host, and the bits of a row alone and among others.
use crate::case::{Case, Close, bucket};
use crate::emulator::{Emulator, emulator};
use crate::weights::{Random, weights};
use kernels::buffer::BufId;
use kernels::formats::Format;
use kernels::formats::planar::to_planar;
use kernels::launch::Op;
use kernels::linear::{Epilogue, Linear, LinearPart, Matrix};
use kernels::numeric::ActKind;
use ledger::Feature;

#[derive(Clone, Copy, PartialEq)]
enum Do {
    Store,
    Add,
    Silu(ActKind),
    /// The same with an up matrix of this format.
    SiluOf(Format, ActKind),
}

impl Do {
    fn silu(self) -> Option<ActKind> {
        match self {
            Do::Silu(kind) | Do::SiluOf(_, kind) => Some(kind),
            _ => None,
        }
    }
}

/// A part to run: format, rows of the matrix, what happens to the product.
type Spec = (Format, usize, Do);

/// Input row `row`: the same values whatever else is in the batch.
fn input(row: usize, k: usize) -> Vec<f32> {
    Random::new(1000 + row as u64).units(k)
}

/// Runs the parts over input rows `first .. first + rows` in a bucket of `most` rows; the outputs' bytes.
fn run(
    e: &Emulator,
    kind: ActKind,
    specs: &[Spec],
    k: usize,
    first: usize,
    rows: usize,
    most: usize,
) -> Vec<Vec<u8>> {
    let mut c = Case::new(bucket(most, most, 128), 11 + rows as u64);
    let x: Vec<f32> = (first..first + most).flat_map(|r| input(r, k)).collect();
    let x = if kind == ActKind::F32 { c.f32s("x", &x) } else { c.bf16s("x", &x) };
    let (mut swap, mut parts, mut outs) = (Vec::new(), Vec::new(), Vec::new());
    // Sums of k products of about a half by a half.
    let close = Close::F32 { abs: 2e-6 * (k as f32).sqrt(), rel: 1e-5 };
    for (i, &(format, n, what)) in specs.iter().enumerate() {
        let mut matrix = |c: &mut Case, format: Format, seed: u64| -> Matrix {
            let bytes = weights(format, n, k, seed);
            let planar = to_planar(format, n, k, &bytes).unwrap();
            let buf = c.weight("w", bytes);
            swap.push((buf, planar));
            Matrix { buf, format, n, k }
        };
        let w = matrix(&mut c, format, i as u64);
        let epilogue = match what {
            Do::Store => Epilogue::Store,
            Do::Add => Epilogue::Accumulate,
            Do::Silu(kind) => Epilogue::SiluMul { up: matrix(&mut c, format, 100 + i as u64), kind },
            Do::SiluOf(up, kind) => Epilogue::SiluMul { up: matrix(&mut c, up, 100 + i as u64), kind },
        };
        let out = match what {
            Do::Store => c.out("out", 4 * most * n, close),
            Do::Add => {
                let old: Vec<f32> =
                    (first..first + most).flat_map(|r| Random::new(9 + r as u64).units(n)).collect();
                let buf = c.f32s("out", &old);
                c.updated(buf, close);
                buf
            }
            _ if what.silu() == Some(ActKind::F32) => {
                c.out("out", 4 * most * n, Close::F32 { abs: 2e-4, rel: 4e-5 })
            }
            _ => c.out("out", 2 * most * n, Close::Bf16 { abs: 1e-4, rel: 1e-2 }),
        };
        outs.push((out, n, what));
        parts.push(LinearPart { name: "part", w, epilogue, out });
    }
    let ran = c.run(e, Op::Linear(Linear { x, kind, rows: Feature::Rows, parts }), rows, &swap);
    let bytes = |&(buf, n, what): &(BufId, usize, Do)| {
        let size = if what.silu() == Some(ActKind::Bf16) { 2 } else { 4 };
        ran.bytes(buf)[..size * n * rows].to_vec()
    };
    outs.iter().map(bytes).collect()
}

/// Rows in batches of every size class agree with the host and have the bits they have alone.
fn agree(specs: &[Spec], k: usize, batches: &[(usize, usize)]) {
    let Some(e) = emulator() else { return };
    let (most, _) = *batches.last().unwrap();
    let all = run(e, ActKind::Bf16, specs, k, 0, most, most + 2);
    for &(rows, bucket) in batches {
        // The last rows, so that their column differs from the one they have among all.
        let first = most - rows;
        let some = run(e, ActKind::Bf16, specs, k, first, rows, bucket);
        for (all, some) in all.iter().zip(&some) {
            let row = all.len() / most;
            assert_eq!(&all[first * row..most * row], &some[..], "{rows} rows, k {k}");
        }
    }
}

const BATCHES: &[(usize, usize)] = &[(1, 1), (7, 8), (9, 16), (17, 17), (65, 66)];

#[test]
fn plain_formats_on_odd_shapes() {
    let specs = [
        (Format::Bf16, 40, Do::Store),
        (Format::F16, 17, Do::Add),
        (Format::F32, 3, Do::Store),
        (Format::Bf16, 24, Do::Silu(ActKind::Bf16)),
    ];
    agree(&specs, 520, BATCHES);
}

#[test]
fn four_and_six_bits() {
    let specs = [
        (Format::Q4_K, 48, Do::Store),
        (Format::Q6_K, 21, Do::Add),
        (Format::Q4_K, 9, Do::Silu(ActKind::F32)),
        (Format::Q6_K, 32, Do::Silu(ActKind::Bf16)),
    ];
    agree(&specs, 768, BATCHES);
}

#[test]
fn five_two_and_eight_bits() {
    agree(&[(Format::Q5_K, 35, Do::Add), (Format::Q5_K, 16, Do::Silu(ActKind::Bf16))], 512, BATCHES);
    agree(&[(Format::Q2_K, 35, Do::Add), (Format::Q2_K, 16, Do::Silu(ActKind::Bf16))], 512, BATCHES);
    agree(&[(Format::Q8_0, 35, Do::Store), (Format::Q8_0, 16, Do::Silu(ActKind::F32))], 1056, BATCHES);
}

#[test]
fn eight_slices_and_one_part() {
    agree(&[(Format::Bf16, 32, Do::Add)], 4096, &[(1, 1), (8, 8), (20, 24)]);
    agree(&[(Format::Q4_K, 32, Do::Add)], 4096, &[(1, 1), (8, 8), (20, 24)]);
}

#[test]
fn slices_one_after_another_in_a_block() {
    agree(&[(Format::Q4_K, 2048, Do::Store)], 512, &[(1, 1), (130, 130)]);
    agree(&[(Format::Bf16, 2000, Do::Add)], 544, &[(8, 8), (70, 130)]);
    agree(&[(Format::Bf16, 2000, Do::Silu(ActKind::Bf16))], 512, &[(8, 8), (70, 130)]);
}

#[test]
fn f32_rows_with_plain_weights() {
    let Some(e) = emulator() else { return };
    for (format, n, k) in [(Format::F32, 128, 2048), (Format::Bf16, 5, 104), (Format::F16, 33, 260 * 8)] {
        let specs = [(format, n, Do::Store), (format, n, Do::Add)];
        let all = run(e, ActKind::F32, &specs, k, 0, 33, 35);
        for (rows, bucket) in [(1, 1), (3, 4), (17, 33)] {
            let some = run(e, ActKind::F32, &specs, k, 33 - rows, rows, bucket);
            for (all, some) in all.iter().zip(&some) {
                assert_eq!(&all[(33 - rows) * n * 4..], &some[..], "{rows} rows");
            }
        }
    }
}

#[test]
fn gate_and_up_of_two_formats() {
    let specs = [
        (Format::Q4_K, 48, Do::SiluOf(Format::Q5_K, ActKind::Bf16)),
        (Format::Q6_K, 21, Do::Store),
        (Format::Q8_0, 40, Do::SiluOf(Format::Bf16, ActKind::F32)),
        (Format::Q5_K, 32, Do::Silu(ActKind::F32)),
    ];
    agree(&specs, 512, BATCHES);
    agree(&[(Format::Q4_K, 2048, Do::SiluOf(Format::Q6_K, ActKind::Bf16))], 512, &[(8, 8), (66, 130)]);
}
