//! Norm: both output kinds, gathered rows, side by side columns, offset weights.
use crate::case::{Case, Close, bucket};
use crate::emulator::emulator;
use kernels::formats::Format;
use kernels::launch::Op;
use kernels::norm::Norm;
use kernels::numeric::{ActKind, SmallWeight};

/// f32: the sum of squares has another tree (a few ulp of the factor). BF16: one step of the last of 8 bits.
const F32: Close = Close::F32 { abs: 1e-6, rel: 4e-6 };
const BF16: Close = Close::Bf16 { abs: 1e-6, rel: 8e-3 };

fn run(hidden: usize, rows: usize, kinds: &[ActKind], gather: bool, side: usize) {
    let Some(e) = emulator() else { return };
    let mut c = Case::new(bucket(rows + 1, rows + 1, 128), (hidden * 7 + rows) as u64);
    let x = c.random("x", (rows + 1) * hidden, 6.0);
    let w = c.values(hidden, 2.0);
    let bf16 = hidden % 3 == 0;
    let buf = if bf16 { c.bf16s("w", &w) } else { c.f32s("w", &w) };
    let format = if bf16 { Format::Bf16 } else { Format::F32 };
    let weight = SmallWeight { buf, format, len: hidden as u64 };
    let index: Vec<u32> = (0..=rows as u32).map(|r| (r * 3 + 1) % (rows as u32 + 1)).collect();
    let gather = gather.then(|| c.u32s("gather", &index));
    let width = hidden * (1 + side);
    let outs = kinds
        .iter()
        .map(|k| {
            let (bytes, close) = if *k == ActKind::F32 { (4, F32) } else { (2, BF16) };
            (*k, c.out(k.name(), bytes * width * (rows + 1), close))
        })
        .collect();
    let column = hidden * side;
    let plus_one = bf16;
    let op = Norm { name: "norm", x, weight, hidden, eps: 1e-6, plus_one, gather, outs, width, column };
    c.run(e, Op::Norm(op), rows, &[]);
}

#[test]
fn rows_of_all_widths_in_every_kind() {
    run(128, 1, &[ActKind::Bf16], false, 0);
    run(132, 3, &[ActKind::F32], false, 0);
    run(2048, 2, &[ActKind::F32, ActKind::Bf16], false, 0);
    run(5120, 2, &[ActKind::Bf16], true, 0);
    run(384, 5, &[ActKind::F32, ActKind::Bf16], true, 1);
}
