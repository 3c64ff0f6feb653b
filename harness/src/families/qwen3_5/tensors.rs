//! Tensors of the family in the order a step consumes them.
use super::geometry::{Geometry, LayerKind};
use crate::manifest::TensorSpec;

const PREFIX: &str = "model.language_model.";

/// Where a tensor belongs: to the model, to one of its layers, to the draft head or to the head's layer.
#[derive(Clone, Copy)]
enum At {
    Model,
    Layer(usize),
    Draft,
    DraftLayer,
}

fn spec(out: &mut Vec<TensorSpec>, at: At, hf: &str, shape: &[usize], class: &'static str) {
    let name = match at {
        At::Model => hf.to_owned(),
        At::Layer(l) => format!("layers.{l}.{hf}"),
        At::Draft => format!("mtp.{hf}"),
        At::DraftLayer => format!("mtp.layers.0.{hf}"),
    };
    let bare = matches!(at, At::Draft | At::DraftLayer) || hf == "lm_head.weight";
    out.push(TensorSpec {
        hf: if bare { name.clone() } else { format!("{PREFIX}{name}") },
        name,
        gguf: String::new(),
        shape: shape.iter().map(|d| *d as u64).collect(),
        class,
        layer: if let At::Layer(l) = at { Some(l as u16) } else { None },
    });
}

/// All tensors of the text model.
pub fn list(g: &Geometry) -> Vec<TensorSpec> {
    let mut out = Vec::new();
    let h = g.hidden;
    spec(&mut out, At::Model, "embed_tokens.weight", &[g.vocab, h], "embed");
    for (index, kind) in g.layers.iter().enumerate() {
        layer(&mut out, g, At::Layer(index), *kind);
    }
    spec(&mut out, At::Model, "norm.weight", &[h], "norm");
    spec(&mut out, At::Model, "lm_head.weight", &[g.vocab, h], "head");
    out
}

/// The tensors of the draft head, which shares embedding and head with the model.
pub fn draft(g: &Geometry) -> Vec<TensorSpec> {
    let mut out = Vec::new();
    if g.draft_layers > 0 {
        let h = g.hidden;
        spec(&mut out, At::Draft, "pre_fc_norm_embedding.weight", &[h], "norm");
        spec(&mut out, At::Draft, "pre_fc_norm_hidden.weight", &[h], "norm");
        spec(&mut out, At::Draft, "fc.weight", &[h, 2 * h], "draft.join");
        layer(&mut out, g, At::DraftLayer, LayerKind::FullAttention);
        spec(&mut out, At::Draft, "norm.weight", &[h], "norm");
    }
    out
}

fn layer(out: &mut Vec<TensorSpec>, g: &Geometry, l: At, kind: LayerKind) {
    let (h, i) = (g.hidden, g.intermediate);
    spec(out, l, "input_layernorm.weight", &[h], "norm");
    match kind {
        LayerKind::LinearAttention => delta(out, g, l),
        LayerKind::FullAttention => attention(out, g, l),
    }
    spec(out, l, "post_attention_layernorm.weight", &[h], "norm");
    spec(out, l, "mlp.gate_proj.weight", &[i, h], "mlp.gate");
    spec(out, l, "mlp.up_proj.weight", &[i, h], "mlp.up");
    spec(out, l, "mlp.down_proj.weight", &[h, i], "mlp.down");
}

fn delta(out: &mut Vec<TensorSpec>, g: &Geometry, l: At) {
    let (h, v) = (g.hidden, g.v_heads * g.dv);
    spec(out, l, "linear_attn.in_proj_qkv.weight", &[g.conv_dim(), h], "delta.qkv");
    spec(out, l, "linear_attn.in_proj_z.weight", &[v, h], "delta.z");
    spec(out, l, "linear_attn.in_proj_a.weight", &[g.v_heads, h], "delta.a");
    spec(out, l, "linear_attn.in_proj_b.weight", &[g.v_heads, h], "delta.b");
    spec(out, l, "linear_attn.conv1d.weight", &[g.conv_dim(), 1, g.taps], "conv");
    spec(out, l, "linear_attn.A_log", &[g.v_heads], "norm");
    spec(out, l, "linear_attn.dt_bias", &[g.v_heads], "norm");
    spec(out, l, "linear_attn.norm.weight", &[g.dv], "norm");
    spec(out, l, "linear_attn.out_proj.weight", &[h, v], "delta.out");
}

fn attention(out: &mut Vec<TensorSpec>, g: &Geometry, l: At) {
    let (h, q, kv) = (g.hidden, g.heads * g.head_dim, g.kv_heads * g.head_dim);
    spec(out, l, "self_attn.q_proj.weight", &[2 * q, h], "attn.q");
    spec(out, l, "self_attn.k_proj.weight", &[kv, h], "attn.k");
    spec(out, l, "self_attn.v_proj.weight", &[kv, h], "attn.v");
    spec(out, l, "self_attn.q_norm.weight", &[g.head_dim], "norm");
    spec(out, l, "self_attn.k_norm.weight", &[g.head_dim], "norm");
    spec(out, l, "self_attn.o_proj.weight", &[h, q], "attn.o");
}
