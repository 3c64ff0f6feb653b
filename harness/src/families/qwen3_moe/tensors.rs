//! Tensors of the family in the order a step consumes them.
use super::geometry::Geometry;
use crate::manifest::TensorSpec;

fn spec(layer: Option<usize>, hf: &str, gguf: &str, shape: &[usize], class: &'static str) -> TensorSpec {
    let (name, hf) = match layer {
        Some(l) => (format!("blk.{l}.{gguf}"), format!("model.layers.{l}.{hf}")),
        None => (gguf.to_owned(), hf.to_owned()),
    };
    TensorSpec {
        gguf: format!("{name}.weight"),
        name,
        hf: format!("{hf}.weight"),
        shape: shape.iter().map(|d| *d as u64).collect(),
        class,
        layer: layer.map(|l| l as u16),
    }
}

/// All tensors.
pub fn list(g: &Geometry) -> Vec<TensorSpec> {
    let (h, q, kv) = (g.hidden, g.heads * g.head_dim, g.kv_heads * g.head_dim);
    let (e, w) = (g.experts, g.width);
    let mut out = vec![spec(None, "model.embed_tokens", "token_embd", &[g.vocab, h], "embed")];
    for l in (0..g.layers).map(Some) {
        out.extend([
            spec(l, "input_layernorm", "attn_norm", &[h], "norm"),
            spec(l, "self_attn.q_proj", "attn_q", &[q, h], "attn.q"),
            spec(l, "self_attn.k_proj", "attn_k", &[kv, h], "attn.k"),
            spec(l, "self_attn.v_proj", "attn_v", &[kv, h], "attn.v"),
            spec(l, "self_attn.q_norm", "attn_q_norm", &[g.head_dim], "norm"),
            spec(l, "self_attn.k_norm", "attn_k_norm", &[g.head_dim], "norm"),
            spec(l, "self_attn.o_proj", "attn_output", &[h, q], "attn.o"),
            spec(l, "post_attention_layernorm", "ffn_norm", &[h], "norm"),
            spec(l, "mlp.gate", "ffn_gate_inp", &[e, h], "router"),
            spec(l, "mlp.experts.gate_proj", "ffn_gate_exps", &[e, w, h], "expert.gate"),
            spec(l, "mlp.experts.up_proj", "ffn_up_exps", &[e, w, h], "expert.up"),
            spec(l, "mlp.experts.down_proj", "ffn_down_exps", &[e, h, w], "expert.down"),
        ]);
    }
    out.push(spec(None, "model.norm", "output_norm", &[h], "norm"));
    out.push(spec(None, "lm_head", "output", &[g.vocab, h], "head"));
    out
}
