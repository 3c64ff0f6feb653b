//! Seeded inputs of a case: weights in valid blocks, activations in their kind, step inputs that make sense.
use super::case::Case;
use crate::containers::Dtype;
use crate::synth::blocks::encode;
use crate::synth::values::{Fill, fill};
use kernels::buffer::BufId;
use kernels::formats::Format;
use kernels::host::simd::Simd;
use kernels::launch::Op;
use kernels::linear::host::quantize_q8_row;
use kernels::linear::{Epilogue, Matrix};
use kernels::memory::Memory;
use kernels::numeric::{ActKind, SmallWeight};
use kernels::values::{bf16_from_f32, bf16_to_f32};
use ledger::PAGE_TOKENS;

/// Values made afresh for a buffer; a larger one repeats them from another place in its rows.
const FRESH: usize = 1 << 20;

/// What a buffer holds.
enum Role {
    /// f32 of this deviation.
    F32(f32),
    /// Activation rows of this width.
    Rows(ActKind, usize),
    /// Matrix rows of this length.
    Weight(Format, usize),
    /// A small weight around a centre.
    Small(Format, f32, f32),
    /// Cached keys or values of this many bytes.
    Kv(u64),
    /// f32 queries beside a cache of this many bytes a value: the launch before rounds them to BF16 where that is.
    Query(u64),
}

fn small(w: &SmallWeight, centre: f32, deviation: f32) -> (BufId, Role) {
    (w.buf, Role::Small(w.format, centre, deviation))
}

fn matrix(w: &Matrix) -> (BufId, Role) {
    (w.buf, Role::Weight(w.format, w.k))
}

fn norm(w: &SmallWeight, plus_one: bool) -> (BufId, Role) {
    small(w, if plus_one { 0.0 } else { 1.0 }, 0.1)
}

/// The buffers that `op` reads (step inputs apart) and what they hold.
fn roles(op: &Op) -> Vec<(BufId, Role)> {
    use Role::{F32, Kv, Query, Rows};
    match op {
        Op::Embed(o) => vec![(o.table, Role::Weight(o.format, o.hidden))],
        Op::Norm(o) => vec![(o.x, F32(1.0)), norm(&o.weight, o.plus_one)],
        Op::Linear(o) => {
            let mut out = vec![(o.x, Rows(o.kind, o.parts[0].w.k))];
            for part in &o.parts {
                out.push(matrix(&part.w));
                match &part.epilogue {
                    Epilogue::Store => {}
                    Epilogue::Accumulate => out.push((part.out, F32(1.0))),
                    Epilogue::SiluMul { up, .. } => out.push(matrix(up)),
                }
            }
            out
        }
        Op::Rope(o) => {
            let rows = [o.q, o.k, o.v].map(|b| (b, F32(1.0)));
            rows.into_iter().chain([norm(&o.q_norm, o.plus_one), norm(&o.k_norm, o.plus_one)]).collect()
        }
        Op::Attend(o) => {
            let mut out =
                vec![(o.k_cache, Kv(o.kv_bytes)), (o.v_cache, Kv(o.kv_bytes)), (o.q, Query(o.kv_bytes))];
            out.extend(o.gate.map(|g| (g, F32(1.0))));
            out
        }
        Op::Conv(o) => vec![(o.u, F32(1.0)), small(&o.weight, 0.0, 0.5), (o.state, F32(1.0))],
        Op::Delta(o) => {
            let rows = [o.qkv, o.z, o.a, o.b].map(|b| (b, F32(1.0)));
            let weights = [small(&o.a_log, 0.0, 0.5), small(&o.dt_bias, 0.0, 0.5), small(&o.norm, 1.0, 0.1)];
            rows.into_iter().chain(weights).chain([(o.state, F32(0.1))]).collect()
        }
        Op::Route(o) => vec![(o.logits, F32(1.0))],
        Op::ExpertUp(o) => vec![(o.x, Rows(o.kind, o.gate.k)), matrix(&o.gate), matrix(&o.up)],
        Op::ExpertDown(o) => vec![(o.h, Rows(o.kind, o.down.k)), matrix(&o.down)],
        Op::Fold(o) => vec![(o.y, F32(1.0)), (o.weights, F32(0.3)), (o.residual, F32(1.0))],
        Op::Argmax(o) => vec![(o.logits, F32(1.0))],
    }
}

fn dtype(format: Format) -> Option<Dtype> {
    Some(match format {
        Format::F32 => Dtype::F32,
        Format::F16 => Dtype::F16,
        Format::Bf16 => Dtype::BF16,
        Format::Q8_0 => Dtype::Q8_0,
        Format::Q4_K => Dtype::Q4_K,
        Format::Q5_K => Dtype::Q5_K,
        Format::Q6_K => Dtype::Q6_K,
        Format::Q2_K => Dtype::Q2_K,
        _ => return None,
    })
}

/// `encoded` again and again over `out`.
fn repeat(encoded: &[u8], out: &mut [u8]) {
    if !encoded.is_empty() {
        out.chunks_mut(encoded.len()).for_each(|chunk| chunk.copy_from_slice(&encoded[..chunk.len()]));
    }
}

/// Bytes of the role; `None` where the format has no encoder for it.
fn encoded(role: &Role, seed: u64, name: &str, bytes: usize) -> Option<Vec<u8>> {
    let values = |how: Fill, n: usize| {
        let mut out = vec![0.0f32; n];
        fill(how, seed, name, 0, &mut out);
        out
    };
    // An odd count of values or rows, so that repeats do not align with rows.
    let rows = |width: usize| (FRESH / width.max(1)).max(1) | 1;
    let mut out = Vec::new();
    match role {
        Role::F32(deviation) => {
            let n = (bytes / 4).min(FRESH + 1);
            encode(Dtype::F32, &values(Fill::Normal(*deviation), n), &mut out)?;
        }
        Role::Query(kv) => {
            let n = (bytes / 4).min(FRESH + 1);
            let mut x = values(Fill::Normal(1.0), n);
            if *kv == 2 {
                x.iter_mut().for_each(|v| *v = bf16_to_f32(bf16_from_f32(*v)));
            }
            encode(Dtype::F32, &x, &mut out)?;
        }
        Role::Kv(size) => {
            let n = (bytes / *size as usize).min(FRESH + 1);
            let as_type = if *size == 4 { Dtype::F32 } else { Dtype::BF16 };
            encode(as_type, &values(Fill::Normal(1.0), n), &mut out)?;
        }
        Role::Small(format, centre, deviation) => {
            let n = bytes / format.block_bytes();
            let how = Fill::Around { centre: *centre, deviation: *deviation };
            encode(dtype(*format)?, &values(how, n), &mut out)?;
        }
        Role::Weight(format, k) => {
            let all = bytes / format.row_bytes(*k).ok()? as usize;
            let n = all.min(rows(*k)) * k;
            let how = Fill::Normal((*k as f32).sqrt().recip());
            encode(dtype(*format)?, &values(how, n), &mut out)?;
        }
        Role::Rows(kind, width) => {
            let stride = kind.row_bytes(*width)?;
            let x = values(Fill::Normal(1.0), (bytes / stride).min(rows(*width)) * width);
            match kind {
                ActKind::F32 => encode(Dtype::F32, &x, &mut out)?,
                ActKind::Bf16 => out.extend(x.iter().flat_map(|v| bf16_from_f32(*v).to_le_bytes())),
                ActKind::Q8 => {
                    out.resize(x.len() / width * stride, 0);
                    for (row, to) in x.chunks_exact(*width).zip(out.chunks_exact_mut(stride)) {
                        quantize_q8_row(Simd::SCALAR, row, to);
                    }
                }
            }
        }
    }
    Some(out)
}

/// Fills all inputs of `case`. `None` where a buffer's format cannot be made.
pub fn inputs(case: &Case, seed: u64, memory: &mut Memory) -> Option<()> {
    for launch in &case.plan.launches {
        for (buf, role) in roles(&launch.op) {
            let buffer = case.plan.buffer(buf).clone();
            let to = memory.values_mut::<u8>(&buffer);
            repeat(&encoded(&role, seed, &buffer.name, to.len())?, to);
        }
    }
    steps(case, seed, memory);
    Some(())
}

/// Step inputs: sequence `s` owns state slot `s` and its own run of pages, and its rows end at the context.
fn steps(case: &Case, seed: u64, memory: &mut Memory) {
    let (io, step, page) = (&case.plan.io, case.step, PAGE_TOKENS as usize);
    let each = step.rows / step.seqs;
    let position = |row: usize| case.context - each + row % each;
    let vocab = match &case.launch().op {
        Op::Embed(o) => o.vocab,
        _ => 1,
    };
    let random = |i: usize| {
        let x = (seed ^ (i as u64 + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((x >> 32) % vocab as u64) as usize
    };
    let kv_slot = |row: usize| row / each * io.max_pages * page + position(row);
    let mut put = |buf: BufId, value: &dyn Fn(usize) -> usize| {
        let to = memory.values_mut::<u32>(case.plan.buffer(buf));
        to.iter_mut().enumerate().for_each(|(i, v)| *v = value(i) as u32);
    };
    put(io.tokens, &random);
    if let Some(draft) = io.draft {
        put(draft.next, &random);
    }
    put(io.pos, &position);
    put(io.seg, &|row| row / each);
    put(io.kv_slot, &kv_slot);
    put(io.seg_start, &|s| s * each);
    put(io.slot, &|s| s);
    put(io.table, &|i| i);
    put(io.out_index, &|i| ((i + 1) * each - 1).min(step.rows - 1));
}
