//! Cases: one launch cut out of a plan, with only the buffers it touches.
use super::Geometry;
use crate::engine::{EngineSize, PREFILL_ROWS, Plans};
use crate::families::PlanError;
use kernels::buffer::{BUFFER_ALIGN, BufId};
use kernels::launch::{Launch, Op};
use kernels::linear::{Epilogue, Linear, Matrix};
use kernels::numeric::{NumericClass, StepShape};
use kernels::plan::Plan;
use receipts::KernelNeed;
use std::collections::BTreeSet;
use std::fmt;

/// The phase whose plan a case comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseOf {
    /// One row a sequence.
    Decode,
    /// Many rows of one sequence.
    Prefill,
}

impl fmt::Display for PhaseOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Decode { "decode" } else { "prefill" })
    }
}

/// One launch alone.
#[derive(Clone, Debug)]
pub struct Case {
    /// Model it comes from.
    pub model: String,
    /// Operation name, as in the plan.
    pub op: String,
    /// Shape, readable and unique for an op.
    pub shape: String,
    /// Weight format, or `none`.
    pub format: &'static str,
    /// Numeric class of the plan.
    pub class: NumericClass,
    /// Phase.
    pub phase: PhaseOf,
    /// Rows.
    pub batch: usize,
    /// The cut plan: for expert products the routing launch first, the launch itself last.
    pub plan: Plan,
    /// Tokens of each sequence after the step.
    pub context: usize,
    /// Launch parameters.
    pub step: StepShape,
}

impl Case {
    /// The launch.
    pub fn launch(&self) -> &Launch {
        self.plan.launches.last().expect("a case is cut with its launch")
    }

    /// Bytes of all its buffers.
    pub fn buffer_bytes(&self) -> u64 {
        self.plan.arena_bytes.iter().sum()
    }
}

/// Every distinct (op name, shape, rows, phase) among the launches of the plans of `geometry`.
///
/// Decode at each of `batches`, with the draft head where the model has one; of the prefill plan the launches whose work depends on how rows form sequences.
/// A class without kernels for the geometry's formats has no plan and gives no case.
pub fn cases(
    geometry: &Geometry,
    class: NumericClass,
    batches: &[usize],
    context: usize,
    seen: &mut BTreeSet<(String, String, usize, PhaseOf)>,
) -> Result<Vec<Case>, PlanError> {
    let mut out = Vec::new();
    for (i, batch) in batches.iter().copied().enumerate() {
        let size = EngineSize { batch, context, threads: 1 };
        let plans = match Plans::build(&geometry.model, &geometry.manifest, class, size) {
            Ok(plans) => plans,
            Err(PlanError::Unsupported { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut add = |plan: &Plan, phase: PhaseOf, wanted: &dyn Fn(&Op) -> bool| {
            for (index, launch) in plan.launches.iter().enumerate() {
                if wanted(&launch.op) {
                    let case = cut(geometry, plan, index, phase, context);
                    if seen.insert((case.op.clone(), case.shape.clone(), case.batch, phase)) {
                        out.push(case);
                    }
                }
            }
        };
        add(&plans.decode, PhaseOf::Decode, &|_| true);
        if !geometry.model.draft_tensors().is_empty() {
            let drafting = Plans::drafting(&geometry.model, &geometry.manifest, class, size)?;
            add(&drafting.decode, PhaseOf::Decode, &|_| true);
        }
        if i == 0 {
            let one = EngineSize { batch: 1, context: context.max(PREFILL_ROWS), threads: 1 };
            let prefill = Plans::build(&geometry.model, &geometry.manifest, class, one)?.prefill;
            let decode: BTreeSet<String> = plans.decode.launches.iter().map(|l| l.op.name()).collect();
            add(&prefill, PhaseOf::Prefill, &|op| {
                matches!(op, Op::Delta(_) | Op::Conv(_) | Op::Attend(_)) || !decode.contains(&op.name())
            });
        }
    }
    Ok(out)
}

fn cut(geometry: &Geometry, plan: &Plan, index: usize, phase: PhaseOf, context: usize) -> Case {
    let launch = &plan.launches[index];
    let offsets = match &launch.op {
        Op::ExpertUp(o) => Some(o.groups.offsets),
        Op::ExpertDown(o) => Some(o.groups.offsets),
        _ => None,
    };
    let route = plan.launches[..index].iter().rev().find(|l| match &l.op {
        Op::Route(r) => Some(r.offsets) == offsets,
        _ => false,
    });
    let launches: Vec<Launch> = route.into_iter().chain([launch]).cloned().collect();
    let used: BTreeSet<BufId> =
        launches.iter().flat_map(|l| &l.parts).flat_map(|p| &p.accesses).map(|a| a.buf).collect();
    let mut cut = Plan { launches, arena_bytes: [0; 4], ..plan.clone() };
    for (id, buffer) in cut.buffers.iter_mut().enumerate() {
        let next = &mut cut.arena_bytes[buffer.arena as usize];
        if used.contains(&BufId(id as u32)) {
            buffer.offset = *next;
            *next = (*next + buffer.bytes).next_multiple_of(BUFFER_ALIGN);
        } else {
            (buffer.offset, buffer.bytes) = (0, 0);
        }
    }
    cut.thread_scratch = kernels::host::thread_scratch(&cut);
    let rows = plan.bucket.rows;
    let seqs = plan.bucket.seqs;
    let out_rows = if phase == PhaseOf::Decode { rows } else { seqs };
    let context = if phase == PhaseOf::Decode { context } else { context.max(PREFILL_ROWS) };
    Case {
        model: geometry.name.clone(),
        op: launch.op.name(),
        // Kernel receipts have no field for the phase, and a step may only rest on decode launches.
        shape: match phase {
            PhaseOf::Decode => shape(&launch.op, context),
            PhaseOf::Prefill => format!("{},prefill", shape(&launch.op, context)),
        },
        format: format(&launch.op),
        class: plan.class,
        phase,
        batch: rows,
        context,
        step: StepShape { rows, out_rows, seqs },
        plan: cut,
    }
}

/// The launches of a decode plan of `context` tokens as kernel receipts name them, each once.
pub fn needs(plan: &Plan, context: usize) -> Vec<KernelNeed> {
    let need = |launch: &Launch| KernelNeed {
        op: launch.op.name(),
        shape: shape(&launch.op, context),
        format: format(&launch.op).into(),
        numeric_class: plan.class.name().into(),
        batch: plan.bucket.rows as u32,
    };
    plan.launches.iter().map(need).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Format of the launch's (first) matrix.
fn format(op: &Op) -> &'static str {
    match op {
        Op::Embed(o) => o.format.name(),
        Op::Linear(o) => o.parts[0].w.format.name(),
        Op::ExpertUp(o) => o.gate.format.name(),
        Op::ExpertDown(o) => o.down.format.name(),
        _ => "none",
    }
}

/// `1024x256`, with the format where it is not the launch's own.
fn matrix(w: &Matrix, first: &Matrix) -> String {
    let size = format!("{}x{}", w.n, w.k);
    if w.format == first.format { size } else { format!("{size}:{}", w.format.name()) }
}

fn linear(o: &Linear) -> String {
    let first = &o.parts[0].w;
    let part = |p: &kernels::linear::LinearPart| match &p.epilogue {
        Epilogue::Store => matrix(&p.w, first),
        Epilogue::Accumulate => format!("{},add", matrix(&p.w, first)),
        Epilogue::SiluMul { up, kind } => {
            format!("{},silu*{}>{}", matrix(&p.w, first), matrix(up, first), kind.name())
        }
    };
    o.parts.iter().map(part).collect::<Vec<_>>().join("+")
}

fn shape(op: &Op, context: usize) -> String {
    match op {
        Op::Embed(o) => format!("{}x{}", o.vocab, o.hidden),
        Op::Norm(o) => {
            let outs: Vec<&str> = o.outs.iter().map(|(kind, _)| kind.name()).collect();
            let gather = if o.gather.is_some() { ",gather" } else { "" };
            let part = if o.width > o.hidden { format!(",{}of{}", o.column, o.width) } else { String::new() };
            format!("{}:{}>{}{gather}{part}", o.hidden, o.weight.format.name(), outs.join("+"))
        }
        Op::Linear(o) => linear(o),
        Op::Rope(o) => {
            let gate = if o.q_stride > o.head_dim { ",gated" } else { "" };
            format!("{}/{}x{},rotary{}{gate}", o.heads, o.kv_heads, o.head_dim, o.rotary_dims)
        }
        Op::Attend(o) => {
            let gate = if o.gate.is_some() { ",gated" } else { "" };
            format!("{}/{}x{},context{context}{gate}>{}", o.heads, o.kv_heads, o.head_dim, o.out_kind.name())
        }
        Op::Conv(o) => format!("{}x{}", o.dim, o.taps),
        Op::Delta(o) => format!("{}/{}x{}x{}>{}", o.v_heads, o.k_heads, o.dk, o.dv, o.out_kind.name()),
        Op::Route(o) => format!("{}top{}", o.experts, o.top_k),
        Op::ExpertUp(o) => {
            let up = matrix(&o.up, &o.gate);
            format!(
                "{}top{}x{}*{up}>{}",
                o.groups.experts,
                o.groups.top_k,
                matrix(&o.gate, &o.gate),
                o.out_kind.name()
            )
        }
        Op::ExpertDown(o) => format!("{}top{}x{}x{}", o.groups.experts, o.groups.top_k, o.down.n, o.down.k),
        Op::Fold(o) => format!("top{}x{}", o.top_k, o.hidden),
        Op::Argmax(o) => o.vocab.to_string(),
    }
}
