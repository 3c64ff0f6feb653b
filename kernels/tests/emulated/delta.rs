//! Delta rule: steps of several sequences, chunked segments of odd lengths, weak and strong decay.
use crate::case::{Case, Close, bucket};
use crate::emulator::emulator;
use kernels::delta::{Delta, DeltaForm};
use kernels::formats::Format;
use kernels::launch::Op;
use kernels::numeric::{ActKind, SmallWeight, StepShape};

/// Heads: keys, values, dk, dv.
type Heads = (usize, usize, usize, usize);

fn run(form: DeltaForm, (k_heads, v_heads, dk, dv): Heads, lengths: &[usize], out_kind: ActKind) {
    let Some(e) = emulator() else { return };
    let (rows, seqs) = (lengths.iter().sum::<usize>(), lengths.len());
    let mut b = bucket(rows + 1, seqs + 1, 128);
    b.decode = form == DeltaForm::Step;
    let mut c = Case::new(b, (dk + rows) as u64);
    let width = 2 * k_heads * dk + v_heads * dv;
    let qkv = c.random("qkv", (rows + 1) * width, 3.0);
    let z = c.random("z", (rows + 1) * v_heads * dv, 5.0);
    let (a, b) = (c.random("a", (rows + 1) * v_heads, 4.0), c.random("b", (rows + 1) * v_heads, 4.0));
    // Decays from nearly none to nearly everything at once.
    let a_log: Vec<f32> = (0..v_heads).map(|h| -4.0 + 6.0 * h as f32 / v_heads as f32).collect();
    let a_log = SmallWeight { buf: c.f32s("a_log", &a_log), format: Format::F32, len: v_heads as u64 };
    let bias = c.values(v_heads, 2.0);
    let dt_bias = SmallWeight { buf: c.bf16s("dt_bias", &bias), format: Format::Bf16, len: v_heads as u64 };
    let w = c.values(dv, 2.0);
    let norm = SmallWeight { buf: c.f32s("norm", &w), format: Format::F32, len: dv as u64 };
    let state = c.random("state", (seqs + 2) * v_heads * dk * dv, 1.0);
    // Sums of dk terms in another order: some 2^-20 of the largest value; outputs are normed to about 1 times
    // z.
    c.updated(state, Close::F32 { abs: 4e-6, rel: 2e-5 });
    let mut start = vec![0u32];
    lengths.iter().for_each(|n| start.push(start[start.len() - 1] + *n as u32));
    start.push(0);
    let seg_start = c.u32s("seg_start", &start);
    let slot = c.u32s("slot", &(0..=seqs as u32).map(|s| seqs as u32 + 1 - s).collect::<Vec<_>>());
    let (size, close) = match out_kind {
        ActKind::F32 => (4, Close::F32 { abs: 3e-5, rel: 5e-5 }),
        _ => (2, Close::Bf16 { abs: 3e-5, rel: 8e-3 }),
    };
    let out = c.out("out", size * (rows + 1) * v_heads * dv, close);
    let op = Delta {
        form,
        qkv,
        z,
        a,
        b,
        a_log,
        dt_bias,
        norm,
        eps: 1e-6,
        state,
        seg_start,
        slot,
        k_heads,
        v_heads,
        dk,
        dv,
        out,
        out_kind,
    };
    c.run_shape(e, Op::Delta(op), StepShape { rows, out_rows: rows, seqs }, &[]);
}

#[test]
fn steps_of_several_sequences() {
    run(DeltaForm::Step, (1, 3, 128, 128), &[1, 1], ActKind::Bf16);
    run(DeltaForm::Step, (2, 6, 32, 32), &[1, 1, 1], ActKind::F32);
    run(DeltaForm::Step, (1, 2, 64, 32), &[1], ActKind::F32);
}

#[test]
fn segments_longer_and_shorter_than_chunks() {
    run(DeltaForm::Chunk, (1, 2, 128, 128), &[70], ActKind::F32);
    run(DeltaForm::Chunk, (2, 6, 32, 32), &[1, 33, 64, 5], ActKind::Bf16);
    run(DeltaForm::Chunk, (1, 3, 32, 64), &[31, 97], ActKind::F32);
}
