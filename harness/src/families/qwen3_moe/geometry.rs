//! Geometry of the family, from config.json or GGUF metadata.
use crate::containers::{MetaValue, Metadata};
use crate::families::config::{
    Fields, GeometryError, MAX_LAYERS, check_numbers, check_sizes, gguf_number, gguf_size,
};
use kernels::fold::MAX_TOP_K;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// All numbers of the family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Head width, all of it rotated.
    pub head_dim: usize,
    /// Rotary base.
    pub theta: f64,
    /// Norm epsilon.
    pub eps: f32,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Width of an expert.
    pub width: usize,
    /// Whether the chosen weights are renormalised.
    pub norm_topk: bool,
    /// Longest declared context.
    pub max_context: usize,
}

/// From config.json.
pub fn from_config(config: &Value) -> Result<Geometry, GeometryError> {
    let f = Fields::new(config, "");
    for (field, want) in [
        ("attention_bias", json!(false)),
        ("hidden_act", json!("silu")),
        ("tie_word_embeddings", json!(false)),
        ("decoder_sparse_step", json!(1)),
        ("mlp_only_layers", json!([])),
        ("use_sliding_window", json!(false)),
        ("rope_scaling", Value::Null),
    ] {
        f.exactly(field, &want)?;
    }
    checked(Geometry {
        hidden: f.size("hidden_size")?,
        vocab: f.size("vocab_size")?,
        layers: f.size("num_hidden_layers")?,
        heads: f.size("num_attention_heads")?,
        kv_heads: f.size("num_key_value_heads")?,
        head_dim: f.size("head_dim")?,
        theta: f.number("rope_theta")?,
        eps: f.number("rms_norm_eps")? as f32,
        experts: f.size("num_experts")?,
        top_k: f.size("num_experts_per_tok")?,
        width: f.size("moe_intermediate_size")?,
        norm_topk: f.flag("norm_topk_prob")?,
        max_context: f.size("max_position_embeddings")?,
    })
}

/// From GGUF metadata. The vocabulary is the length of the token list; the released checkpoints and their
/// converters renormalise the chosen weights, which the metadata does not say.
pub fn from_gguf(metadata: &Metadata) -> Result<Geometry, GeometryError> {
    let key = |k: &str| format!("qwen3moe.{k}");
    let size = |k: &str| gguf_size(metadata, &key(k));
    let head_dim = size("attention.key_length")?;
    if size("attention.value_length")? != head_dim {
        return Err(GeometryError::Invalid {
            field: key("attention.value_length"),
            value: "another length".into(),
            expected: format!("attention.key_length = {head_dim}"),
        });
    }
    let vocab = metadata.strings("tokenizer.ggml.tokens").map_or(0, <[String]>::len);
    if vocab == 0 {
        return Err(GeometryError::Missing { field: "tokenizer.ggml.tokens".into() });
    }
    checked(Geometry {
        hidden: size("embedding_length")?,
        vocab,
        layers: size("block_count")?,
        heads: size("attention.head_count")?,
        kv_heads: size("attention.head_count_kv")?,
        head_dim,
        theta: gguf_number(metadata, &key("rope.freq_base"))?,
        eps: gguf_number(metadata, &key("attention.layer_norm_rms_epsilon"))? as f32,
        experts: size("expert_count")?,
        top_k: size("expert_used_count")?,
        width: size("expert_feed_forward_length")?,
        norm_topk: true,
        max_context: size("context_length")?,
    })
}

/// The keys that [`from_gguf`] reads, and those that other readers of the format need.
pub fn to_gguf(g: &Geometry) -> Metadata {
    let mut meta = Metadata::default();
    let text = |s: &str| MetaValue::String(s.to_owned());
    meta.insert("general.architecture", text("qwen3moe"));
    meta.insert("general.name", text("synthetic"));
    meta.insert("general.quantization_version", MetaValue::U32(2));
    for (key, value) in [
        ("embedding_length", g.hidden),
        ("block_count", g.layers),
        ("context_length", g.max_context),
        ("feed_forward_length", g.width * g.top_k),
        ("attention.head_count", g.heads),
        ("attention.head_count_kv", g.kv_heads),
        ("attention.key_length", g.head_dim),
        ("attention.value_length", g.head_dim),
        ("expert_count", g.experts),
        ("expert_used_count", g.top_k),
        ("expert_feed_forward_length", g.width),
    ] {
        meta.insert(format!("qwen3moe.{key}"), MetaValue::U32(value as u32)); // sizes are at most 2^21
    }
    meta.insert("qwen3moe.rope.freq_base", MetaValue::F32(g.theta as f32));
    meta.insert("qwen3moe.attention.layer_norm_rms_epsilon", MetaValue::F32(g.eps));
    meta.insert("tokenizer.ggml.pre", text("qwen2"));
    meta
}

fn checked(g: Geometry) -> Result<Geometry, GeometryError> {
    check(&g)?;
    Ok(g)
}

/// Checks a geometry from wherever it comes.
pub fn check(g: &Geometry) -> Result<(), GeometryError> {
    check_sizes(&[
        ("hidden_size", g.hidden),
        ("vocab_size", g.vocab),
        ("num_hidden_layers", g.layers),
        ("num_attention_heads", g.heads),
        ("num_key_value_heads", g.kv_heads),
        ("head_dim", g.head_dim),
        ("num_experts", g.experts),
        ("num_experts_per_tok", g.top_k),
        ("moe_intermediate_size", g.width),
        ("max_position_embeddings", g.max_context),
    ])?;
    check_numbers(&[("rms_norm_eps", f64::from(g.eps)), ("rope_theta", g.theta)])?;
    let bad = |field: &str, value: usize, expected: &str| GeometryError::Invalid {
        field: field.into(),
        value: value.to_string(),
        expected: expected.into(),
    };
    if g.heads % g.kv_heads != 0 {
        return Err(bad("num_attention_heads", g.heads, "a multiple of num_key_value_heads"));
    }
    if g.head_dim % 16 != 0 || g.head_dim > 512 {
        return Err(bad("head_dim", g.head_dim, "a multiple of 16 up to 512"));
    }
    if g.top_k > g.experts || g.top_k > MAX_TOP_K {
        let expected = format!("at most num_experts = {} and at most {MAX_TOP_K}", g.experts);
        return Err(bad("num_experts_per_tok", g.top_k, &expected));
    }
    if g.layers > MAX_LAYERS {
        return Err(bad("num_hidden_layers", g.layers, &format!("at most {MAX_LAYERS}")));
    }
    Ok(())
}
