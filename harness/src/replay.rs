//! Replay: a plan at full geometry without weights.
//!
//! Products over weights are replaced by values derived from launch index and shape; every other kernel really
//! runs on a zeroed, lazily mapped payload whose small weights are seeded. The hash of what each launch wrote
//! is a byte trajectory: a golden file that any change of data flow, addresses or rounding must change.
use crate::engine::{Engine, EngineError, EngineSize, Phase, Sequence};
use crate::families::{Model, PlanError};
use crate::manifest::Manifest;
use kernels::buffer::{Arena, BufId};
use kernels::formats::Format;
use kernels::host::simd::Simd;
use kernels::launch::{Launch, Op};
use kernels::linear::Epilogue;
use kernels::memory::{Memory, Views};
use kernels::numeric::{ActKind, NumericClass, StepShape};
use kernels::plan::Plan;
use kernels::rows::Sink;
use kernels::sys::region::Region;
use kernels::values::bf16_from_f32;
use ledger::{Bytes, Direction, Feature, StepFacts};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

/// Hash of one buffer after a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Phase of the step.
    pub phase: Phase,
    /// Launch.
    pub launch: usize,
    /// Its operation.
    pub op: String,
    /// Layer.
    pub layer: Option<u16>,
    /// Buffer.
    pub buffer: String,
    /// First 16 hexadecimal digits of the BLAKE3 of the bytes the launch wrote.
    pub hash: String,
}

/// A byte trajectory as CSV.
pub fn csv(marks: &[Mark]) -> String {
    let mut out = String::from("phase,launch,op,layer,buffer,hash\n");
    for m in marks {
        let phase = if m.phase == Phase::Decode { "decode" } else { "prefill" };
        let layer = m.layer.map(|l| l.to_string()).unwrap_or_default();
        writeln!(out, "{phase},{},{},{layer},{},{}", m.launch, m.op, m.buffer, m.hash)
            .expect("writing to a string cannot fail");
    }
    out
}

/// SplitMix64: one well mixed word for each index.
fn mix(index: u64) -> u64 {
    let mut z = index.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A value in [-1, 1) for position `index` of stream `seed`; exact in f32.
fn value(seed: u64, index: u64) -> f32 {
    let word = mix(mix(seed) ^ index) >> 40;
    word as f32 / (1u32 << 23) as f32 - 1.0
}

/// The payload of a replay: zero pages, with seeded values in the small weights (norms, convolutions).
pub fn payload(manifest: &Manifest) -> Result<Region, EngineError> {
    let memory = |source: io::Error| EngineError::Memory { bytes: Bytes(manifest.payload), source };
    let mut region = Region::zeroed(manifest.payload).map_err(memory)?;
    let bytes = region.as_mut_slice();
    let small = manifest.entries.iter().enumerate().filter(|(_, e)| matches!(&*e.class, "norm" | "conv"));
    for (seed, entry) in small {
        let format = entry.parsed_format().map_err(PlanError::from)?;
        let at = entry.offset as usize;
        let to = &mut bytes[at..at + entry.bytes as usize];
        for (i, to) in to.chunks_exact_mut(format.block_bytes()).enumerate() {
            let v = 0.5 * value(seed as u64, i as u64);
            match format {
                Format::F32 => to.copy_from_slice(&v.to_le_bytes()),
                Format::Bf16 => to.copy_from_slice(&bf16_from_f32(v).to_le_bytes()),
                Format::F16 => to.copy_from_slice(&half::f16::from_f32(v).to_le_bytes()),
                _ => {
                    let (tensor, format, k) = (entry.name.clone(), format.name(), 1);
                    let class = NumericClass::F32;
                    return Err(PlanError::Unsupported { tensor, class, format, k }.into());
                }
            }
        }
    }
    Ok(region)
}

/// An engine over a replay payload.
pub fn engine(
    model: &Model,
    manifest: &Manifest,
    class: NumericClass,
    size: EngineSize,
    simd: Simd,
) -> Result<Engine, EngineError> {
    Engine::new(model, manifest, class, size, payload(manifest)?, simd)
}

/// Replays a prefill of `prompt` tokens for every sequence and one decode step behind it.
pub fn trajectory(engine: &mut Engine, prompt: usize) -> Result<Vec<Mark>, EngineError> {
    let (batch, vocab) = (engine.size().batch, engine.summary().vocab as u64);
    let mut marks = Vec::new();
    let mut rows: Vec<(Sequence, u32)> = Vec::new();
    for b in 0..batch as u64 {
        let sequence = engine.open(prompt + 1)?;
        let text: Vec<u32> = (0..prompt as u64).map(|i| (mix(b << 32 | i) % vocab) as u32).collect();
        let mut at = 0;
        while at < prompt {
            let end = at + Engine::chunk_len(at, prompt - at);
            engine.stage_prefill(&[(sequence, &text[at..end])], false)?;
            marks.extend(replay_staged(engine)?);
            at = end;
        }
        rows.push((sequence, (mix(b) % vocab) as u32));
    }
    engine.stage_decode(&rows)?;
    marks.extend(replay_staged(engine)?);
    Ok(marks)
}

/// Replays the staged step: fills products, runs everything else, hashes what each launch wrote.
pub fn replay_staged(engine: &mut Engine) -> Result<Vec<Mark>, EngineError> {
    let simd = engine.device().simd();
    let (phase, facts) = (engine.phase(), engine.facts());
    let mut marks = Vec::new();
    let mut replace = |plan: &Plan, memory: &Memory, index: usize, shape: StepShape| {
        let launch = &plan.launches[index];
        if launch.op.is_product() {
            fill(plan, memory, index, launch, shape, simd);
        }
        launch.op.is_product()
    };
    let mut after = |plan: &Plan, index: usize, memory: &Memory| {
        mark(plan, memory, index, phase, &facts, &mut marks);
    };
    engine.run_with(&mut replace, &mut after)?;
    Ok(marks)
}

/// Writes the outputs of a product: values of (launch, part, row, column), in the kind its consumer reads.
fn fill(plan: &Plan, memory: &Memory, index: usize, launch: &Launch, shape: StepShape, simd: Simd) {
    let views = Views::new(memory, &plan.buffers);
    let mut row_values = Vec::new();
    let mut rows = |part: usize, rows: usize, n: usize, out: BufId, kind: ActKind, add: bool| {
        let seed = (index as u64) << 8 | part as u64;
        let sink = Sink::new(views, out, kind);
        for r in 0..rows {
            row_values.clear();
            row_values.extend((0..n).map(|c| value(seed ^ (n as u64) << 40, (r * n + c) as u64)));
            if add {
                let to = views.rw::<f32>(out).slice(r * n..(r + 1) * n);
                to.iter_mut().zip(&row_values).for_each(|(to, v)| *to += 0.25 * v);
            } else {
                sink.put(simd, r, n, 0, &row_values);
            }
        }
    };
    match &launch.op {
        Op::Embed(o) => rows(0, shape.rows, o.hidden, o.out, ActKind::F32, false),
        Op::Linear(o) => {
            let count = if o.rows == Feature::OutRows { shape.out_rows } else { shape.rows };
            for (i, p) in o.parts.iter().enumerate() {
                match p.epilogue {
                    Epilogue::Store => rows(i, count, p.w.n, p.out, ActKind::F32, false),
                    Epilogue::Accumulate => rows(i, count, p.w.n, p.out, ActKind::F32, true),
                    Epilogue::SiluMul { kind, .. } => rows(i, count, p.w.n, p.out, kind, false),
                }
            }
        }
        Op::ExpertUp(o) => rows(0, shape.rows * o.groups.top_k, o.gate.n, o.out, o.out_kind, false),
        Op::ExpertDown(o) => rows(0, shape.rows * o.groups.top_k, o.down.n, o.out, ActKind::F32, false),
        _ => {}
    }
}

/// Hashes the written bytes of scratch and output buffers; of products only the residual, the rest is seeded.
fn mark(plan: &Plan, memory: &Memory, index: usize, phase: Phase, facts: &StepFacts, marks: &mut Vec<Mark>) {
    let launch = &plan.launches[index];
    let mut written: BTreeMap<BufId, u64> = BTreeMap::new();
    for access in launch.parts.iter().flat_map(|p| &p.accesses) {
        if access.direction == Direction::Write {
            *written.entry(access.buf).or_default() += access.amount.at(facts).0;
        }
    }
    for (buf, bytes) in written {
        let buffer = plan.buffer(buf);
        let inside = matches!(buffer.arena, Arena::Scratch | Arena::Io);
        if !inside || (launch.op.is_product() && buffer.name != "residual") {
            continue;
        }
        // Rows lie one after the other, so what a step writes is a prefix of the buffer.
        let whole = memory.values::<u8>(buffer);
        let hash = blake3::hash(&whole[..(bytes as usize).min(whole.len())]).to_hex()[..16].to_owned();
        let (op, layer, buffer) = (launch.op.name(), launch.layer, buffer.name.clone());
        marks.push(Mark { phase, launch: index, op, layer, buffer, hash });
    }
}
