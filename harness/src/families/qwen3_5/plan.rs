//! The family's plan: delta or attention mixer, then the MLP, for every layer.
use super::geometry::{Geometry, LayerKind};
use crate::families::PlanError;
use crate::families::blocks::{AttentionShape, Blocks};
use crate::families::draft::DraftTensors;
use crate::manifest::Manifest;
use kernels::conv::Conv;
use kernels::delta::{Delta, DeltaForm};
use kernels::launch::Op;
use kernels::numeric::{ActKind, NumericClass};
use kernels::plan::{Bucket, Plan};
use ledger::TrafficClass;

const DRAFT: DraftTensors = DraftTensors {
    embedding: "embed_tokens.weight",
    norm: "norm.weight",
    embedding_norm: "mtp.pre_fc_norm_embedding.weight",
    hidden_norm: "mtp.pre_fc_norm_hidden.weight",
    join: "mtp.fc.weight",
};

fn attention_shape(g: &Geometry) -> AttentionShape {
    AttentionShape {
        heads: g.heads,
        kv_heads: g.kv_heads,
        head_dim: g.head_dim,
        rotary_dims: g.rotary_dims,
        theta: g.theta,
        eps: g.eps,
        plus_one: true,
        gated: true,
    }
}

/// Builds the plan of `bucket` with the draft head behind the step: one attention layer with its own cache.
pub fn with_draft(
    g: &Geometry,
    manifest: &Manifest,
    class: NumericClass,
    bucket: Bucket,
) -> Result<Plan, PlanError> {
    let mut p = build(g, manifest, class, bucket)?;
    p.b.layer("draft", Some(g.layers.len() as u16));
    p.draft_rows(&DRAFT, g.eps, true)?;
    let layer = "mtp.layers.0";
    p.attention(&attention_shape(g), &|part| attention_name(layer, part))?;
    p.mlp(g.eps, true, &|part| mlp_name(layer, part))?;
    p.draft_head("mtp.norm.weight", "lm_head.weight", g.eps, true)?;
    p.finish()
}

/// Builds the launches of a step in `bucket`.
pub fn build<'a>(
    g: &Geometry,
    manifest: &'a Manifest,
    class: NumericClass,
    bucket: Bucket,
) -> Result<Blocks<'a>, PlanError> {
    let mut p = Blocks::new(manifest, class, bucket, g.hidden, g.vocab, None);
    p.embed("embed_tokens.weight")?;
    let shape = attention_shape(g);
    for (index, kind) in g.layers.iter().enumerate() {
        let layer = Some(index as u16);
        match kind {
            LayerKind::LinearAttention => {
                p.b.layer("delta", layer);
                delta(g, &mut p, index)?;
            }
            LayerKind::FullAttention => {
                p.b.layer("attention", layer);
                p.attention(&shape, &|part| attention_name(&format!("layers.{index}"), part))?;
            }
        }
        p.b.layer("mlp", layer);
        p.mlp(g.eps, true, &|part| mlp_name(&format!("layers.{index}"), part))?;
    }
    p.head("norm.weight", "lm_head.weight", g.eps, true)?;
    Ok(p)
}

fn mlp_name(layer: &str, part: &str) -> String {
    match part {
        "norm" => format!("{layer}.post_attention_layernorm.weight"),
        part => format!("{layer}.mlp.{part}_proj.weight"),
    }
}

fn attention_name(layer: &str, part: &str) -> String {
    match part {
        "norm" => format!("{layer}.input_layernorm.weight"),
        "q_norm" | "k_norm" => format!("{layer}.self_attn.{part}.weight"),
        part => format!("{layer}.self_attn.{part}_proj.weight"),
    }
}

fn delta(g: &Geometry, p: &mut Blocks<'_>, layer: usize) -> Result<(), PlanError> {
    let name = |part: &str| format!("layers.{layer}.linear_attn.{part}");
    let products = [
        ("delta.qkv", name("in_proj_qkv.weight")),
        ("delta.z", name("in_proj_z.weight")),
        ("delta.a", name("in_proj_a.weight")),
        ("delta.b", name("in_proj_b.weight")),
    ];
    let norm = format!("layers.{layer}.input_layernorm.weight");
    let outs = p.normed_products(("delta.norm", &norm), g.eps, true, &products)?;
    let slots = p.b.bucket().slots as u64;
    let weight = p.small(&name("conv1d.weight"))?;
    let window = 4 * ((g.taps - 1) * g.conv_dim()) as u64;
    let state = p.b.cache(format!("conv.{layer}"), TrafficClass::State, slots * window);
    let convolved = p.scratch("convolved", g.conv_dim(), ActKind::F32);
    let (seg_start, slot) = (p.io.seg_start, p.io.slot);
    let (dim, taps) = (g.conv_dim(), g.taps);
    p.b.launch(Op::Conv(Conv { u: outs[0], weight, state, seg_start, slot, dim, taps, out: convolved }));
    let out_name = name("out_proj.weight");
    let out_matrix = p.matrix(&out_name)?;
    let out_kind = match p.kind(&out_name, &out_matrix, false)? {
        ActKind::Q8 => ActKind::Bf16, // a head's item writes dv values, not whole Q8 groups of 256
        kind => kind,
    };
    let out = p.scratch("delta_out", g.v_heads * g.dv, out_kind);
    let bytes = 4 * (g.v_heads * g.dk * g.dv) as u64;
    let op = Delta {
        form: if p.b.bucket().decode { DeltaForm::Step } else { DeltaForm::Chunk },
        qkv: convolved,
        z: outs[1],
        a: outs[2],
        b: outs[3],
        a_log: p.small(&name("A_log"))?,
        dt_bias: p.small(&name("dt_bias"))?,
        norm: p.small(&name("norm.weight"))?,
        eps: g.eps,
        state: p.b.cache(format!("delta.{layer}"), TrafficClass::State, slots * bytes),
        seg_start,
        slot,
        k_heads: g.k_heads,
        v_heads: g.v_heads,
        dk: g.dk,
        dv: g.dv,
        out,
        out_kind,
    };
    p.b.launch(Op::Delta(op));
    p.add_product("delta.out", &out_name, out_kind, out)
}
