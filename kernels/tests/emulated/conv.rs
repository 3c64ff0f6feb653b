//! Convolution: decode rows, segments longer and shorter than a block's rows and than the window.
use crate::case::{Case, Close, bucket};
use crate::emulator::emulator;
use kernels::conv::Conv;
use kernels::formats::Format;
use kernels::launch::Op;
use kernels::numeric::{SmallWeight, StepShape};

/// SiLU through another exponential: a few ulp.
const CLOSE: Close = Close::F32 { abs: 1e-6, rel: 2e-6 };

fn run(dim: usize, taps: usize, lengths: &[usize], decode: bool) {
    let Some(e) = emulator() else { return };
    let (rows, seqs) = (lengths.iter().sum::<usize>(), lengths.len());
    let mut b = bucket(rows + 1, seqs + usize::from(decode), 128);
    b.decode = decode;
    let mut c = Case::new(b, (dim + rows) as u64);
    let u = c.random("u", (rows + 1) * dim, 4.0);
    let w = c.values(dim * taps, 1.0);
    let (buf, format) =
        if taps == 4 { (c.bf16s("w", &w), Format::Bf16) } else { (c.f32s("w", &w), Format::F32) };
    let weight = SmallWeight { buf, format, len: (dim * taps) as u64 };
    let state = c.random("state", (seqs + 2) * (taps - 1) * dim, 4.0);
    let mut start = vec![0u32];
    lengths.iter().for_each(|n| start.push(start[start.len() - 1] + *n as u32));
    start.push(0);
    let seg_start = c.u32s("seg_start", &start);
    let slots: Vec<u32> = (0..=seqs as u32).map(|s| seqs as u32 + 1 - s).collect();
    let slot = c.u32s("slot", &slots);
    let out = c.out("out", 4 * (rows + 1) * dim, CLOSE);
    let op = Conv { u, weight, state, seg_start, slot, dim, taps, out };
    c.run_shape(e, Op::Conv(op), StepShape { rows, out_rows: rows, seqs }, &[]);
}

#[test]
fn steps_and_segments_agree_with_the_host() {
    run(1028, 4, &[1, 1, 1], true);
    run(256, 4, &[70, 2, 1, 33], false);
    run(36, 3, &[5, 32], false);
}
