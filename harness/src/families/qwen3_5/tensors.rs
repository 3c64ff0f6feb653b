//! Tensors of the family in the order a step consumes them.
use super::geometry::{Geometry, LayerKind};
use crate::manifest::TensorSpec;

const PREFIX: &str = "model.language_model.";

fn spec(out: &mut Vec<TensorSpec>, layer: Option<usize>, hf: &str, shape: &[usize], class: &'static str) {
    let local = match layer {
        Some(l) => format!("layers.{l}.{hf}"),
        None => hf.to_owned(),
    };
    let full = if hf == "lm_head.weight" { local.clone() } else { format!("{PREFIX}{local}") };
    out.push(TensorSpec {
        name: local,
        hf: full,
        gguf: String::new(),
        shape: shape.iter().map(|d| *d as u64).collect(),
        class,
        layer: layer.map(|l| l as u16),
    });
}

/// All tensors of the text model.
pub fn list(g: &Geometry) -> Vec<TensorSpec> {
    let mut out = Vec::new();
    let (h, i) = (g.hidden, g.intermediate);
    spec(&mut out, None, "embed_tokens.weight", &[g.vocab, h], "embed");
    for (index, kind) in g.layers.iter().enumerate() {
        let l = Some(index);
        spec(&mut out, l, "input_layernorm.weight", &[h], "norm");
        match kind {
            LayerKind::LinearAttention => delta(&mut out, g, l),
            LayerKind::FullAttention => attention(&mut out, g, l),
        }
        spec(&mut out, l, "post_attention_layernorm.weight", &[h], "norm");
        spec(&mut out, l, "mlp.gate_proj.weight", &[i, h], "mlp.gate");
        spec(&mut out, l, "mlp.up_proj.weight", &[i, h], "mlp.up");
        spec(&mut out, l, "mlp.down_proj.weight", &[h, i], "mlp.down");
    }
    spec(&mut out, None, "norm.weight", &[h], "norm");
    spec(&mut out, None, "lm_head.weight", &[g.vocab, h], "head");
    out
}

fn delta(out: &mut Vec<TensorSpec>, g: &Geometry, l: Option<usize>) {
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

fn attention(out: &mut Vec<TensorSpec>, g: &Geometry, l: Option<usize>) {
    let (h, q, kv) = (g.hidden, g.heads * g.head_dim, g.kv_heads * g.head_dim);
    spec(out, l, "self_attn.q_proj.weight", &[2 * q, h], "attn.q");
    spec(out, l, "self_attn.k_proj.weight", &[kv, h], "attn.k");
    spec(out, l, "self_attn.v_proj.weight", &[kv, h], "attn.v");
    spec(out, l, "self_attn.q_norm.weight", &[g.head_dim], "norm");
    spec(out, l, "self_attn.k_norm.weight", &[g.head_dim], "norm");
    spec(out, l, "self_attn.o_proj.weight", &[h, q], "attn.o");
}
