//! Geometry of the family, read from config.json (`text_config` when it is nested).
use crate::families::config::{Fields, GeometryError, MAX_LAYERS, check_numbers, check_sizes};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Mixer of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// Gated delta rule.
    LinearAttention,
    /// Gated softmax attention.
    FullAttention,
}

/// All numbers of the family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// Mixer of each layer.
    pub layers: Vec<LayerKind>,
    /// MLP width.
    pub intermediate: usize,
    /// Norm epsilon.
    pub eps: f32,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Attention head width.
    pub head_dim: usize,
    /// Rotated dimensions of a head.
    pub rotary_dims: usize,
    /// Rotary base.
    pub theta: f64,
    /// Key heads of the delta rule.
    pub k_heads: usize,
    /// Value heads of the delta rule.
    pub v_heads: usize,
    /// Key width of a delta head.
    pub dk: usize,
    /// Value width of a delta head.
    pub dv: usize,
    /// Convolution taps.
    pub taps: usize,
    /// Longest declared context.
    pub max_context: usize,
    /// Attention layers of the draft head: 1, or 0 where the model has none. Left out of a pack's header when 0,
    /// so that packs without a head keep their id.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub draft_layers: usize,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Geometry {
    /// Attention layers.
    pub fn attention_layers(&self) -> usize {
        self.layers.iter().filter(|l| **l == LayerKind::FullAttention).count()
    }

    /// Delta rule layers.
    pub fn delta_layers(&self) -> usize {
        self.layers.len() - self.attention_layers()
    }

    /// Channels of the convolution: q, k and v.
    pub fn conv_dim(&self) -> usize {
        2 * self.k_heads * self.dk + self.v_heads * self.dv
    }

    /// Recurrent state of one sequence in bytes: f32 matrices and the convolution windows.
    pub fn state_bytes(&self) -> u64 {
        let per_layer = self.v_heads * self.dk * self.dv + (self.taps - 1) * self.conv_dim();
        4 * (self.delta_layers() * per_layer) as u64
    }
}

fn bad(field: &str, value: impl ToString, expected: &str) -> GeometryError {
    GeometryError::Invalid { field: field.into(), value: value.to_string(), expected: expected.into() }
}

/// Reads and cross-checks a configuration.
pub fn read(config: &Value) -> Result<Geometry, GeometryError> {
    let (object, path) = match config.get("text_config") {
        Some(text) => (text, "text_config"),
        None => (config, ""),
    };
    let f = Fields::new(object, path);
    for (field, want) in [
        ("attn_output_gate", json!(true)),
        ("attention_bias", json!(false)),
        ("hidden_act", json!("silu")),
        ("tie_word_embeddings", json!(false)),
        ("mamba_ssm_dtype", json!("float32")),
    ] {
        f.exactly(field, &want)?;
    }
    if let Ok(gate) = f.get("output_gate_type")
        && gate != "swish"
    {
        return Err(bad("output_gate_type", gate, "swish"));
    }
    let rope = Fields::new(f.get("rope_parameters")?, "rope_parameters");
    rope.exactly("rope_type", &json!("default"))?;
    let head_dim = f.size("head_dim")?;
    let rotary = rope.number("partial_rotary_factor")? * head_dim as f64;
    let geometry = Geometry {
        hidden: f.size("hidden_size")?,
        vocab: f.size("vocab_size")?,
        layers: layers(&f)?,
        intermediate: f.size("intermediate_size")?,
        eps: f.number("rms_norm_eps")? as f32,
        heads: f.size("num_attention_heads")?,
        kv_heads: f.size("num_key_value_heads")?,
        head_dim,
        rotary_dims: rotary as usize,
        theta: rope.number("rope_theta")?,
        k_heads: f.size("linear_num_key_heads")?,
        v_heads: f.size("linear_num_value_heads")?,
        dk: f.size("linear_key_head_dim")?,
        dv: f.size("linear_value_head_dim")?,
        taps: f.size("linear_conv_kernel_dim")?,
        max_context: f.size("max_position_embeddings")?,
        draft_layers: draft_layers(&f)?,
    };
    if rotary.fract() != 0.0 {
        return Err(bad("partial_rotary_factor", rotary, "a whole number of rotated dimensions"));
    }
    check(&geometry)?;
    twins(config, &f, &rope, &geometry)?;
    Ok(geometry)
}

/// What a configuration says twice must agree: whoever wrote it may have changed one of the two.
fn twins(config: &Value, f: &Fields<'_>, rope: &Fields<'_>, g: &Geometry) -> Result<(), GeometryError> {
    let root = Fields::new(config, "");
    if root.get("tie_word_embeddings").is_ok() {
        root.exactly("tie_word_embeddings", &json!(false))?;
    }
    if f.get("model_type").is_ok_and(|t| t != "qwen3_5_text" && t != "qwen3_5") {
        return Err(bad("model_type", f.get("model_type")?, "qwen3_5_text"));
    }
    if f.get("partial_rotary_factor").is_ok() {
        f.exactly("partial_rotary_factor", rope.get("partial_rotary_factor")?)?;
    }
    if f.get("full_attention_interval").is_ok() {
        let every = f.size("full_attention_interval")?;
        let full = |i: usize| (i + 1).is_multiple_of(every);
        let agrees = |(i, kind): (usize, &LayerKind)| (*kind == LayerKind::FullAttention) == full(i);
        if !g.layers.iter().enumerate().all(agrees) {
            return Err(bad("full_attention_interval", every, "the interval that layer_types shows"));
        }
    }
    if let Ok(sections) = rope.get("mrope_section") {
        let parts: Option<Vec<u64>> = sections.as_array().and_then(|s| s.iter().map(Value::as_u64).collect());
        let pairs = g.rotary_dims as u64 / 2;
        if parts.is_none_or(|p| p.iter().try_fold(0u64, |a, b| a.checked_add(*b)) != Some(pairs)) {
            return Err(bad(
                "rope_parameters.mrope_section",
                sections,
                &format!("sections that sum to {pairs}"),
            ));
        }
    }
    Ok(())
}

/// Layers of the multi-token-prediction head. A configuration that does not speak of one has none.
fn draft_layers(f: &Fields<'_>) -> Result<usize, GeometryError> {
    let Ok(value) = f.get("mtp_num_hidden_layers") else { return Ok(0) };
    match value.as_u64() {
        Some(0) => Ok(0),
        Some(1) => {
            f.exactly("mtp_use_dedicated_embeddings", &json!(false))?;
            Ok(1)
        }
        _ => Err(bad("mtp_num_hidden_layers", value, "0 or 1")),
    }
}

fn layers(f: &Fields<'_>) -> Result<Vec<LayerKind>, GeometryError> {
    let value = f.get("layer_types")?;
    let layers: Vec<LayerKind> = serde_json::from_value(value.clone())
        .map_err(|e| bad("layer_types", e, "a list of linear_attention and full_attention"))?;
    let count = f.size("num_hidden_layers")?;
    if count > MAX_LAYERS {
        return Err(bad("num_hidden_layers", count, &format!("at most {MAX_LAYERS}")));
    }
    if layers.len() != count {
        return Err(bad("layer_types", layers.len(), &format!("{count} entries (num_hidden_layers)")));
    }
    Ok(layers)
}

/// Checks a geometry from wherever it comes.
pub fn check(g: &Geometry) -> Result<(), GeometryError> {
    check_sizes(&[
        ("hidden_size", g.hidden),
        ("vocab_size", g.vocab),
        ("layer_types", g.layers.len()),
        ("intermediate_size", g.intermediate),
        ("num_attention_heads", g.heads),
        ("num_key_value_heads", g.kv_heads),
        ("linear_num_key_heads", g.k_heads),
        ("linear_num_value_heads", g.v_heads),
        ("head_dim", g.head_dim),
        ("linear_key_head_dim", g.dk),
        ("linear_value_head_dim", g.dv),
        ("max_position_embeddings", g.max_context),
    ])?;
    check_numbers(&[("rms_norm_eps", f64::from(g.eps)), ("rope_theta", g.theta)])?;
    if g.layers.len() > MAX_LAYERS {
        return Err(bad("layer_types", g.layers.len(), &format!("at most {MAX_LAYERS}")));
    }
    if g.draft_layers > 1 {
        return Err(bad("mtp_num_hidden_layers", g.draft_layers, "0 or 1"));
    }
    if g.heads % g.kv_heads != 0 {
        return Err(bad("num_attention_heads", g.heads, "a multiple of num_key_value_heads"));
    }
    if g.v_heads % g.k_heads != 0 {
        return Err(bad("linear_num_value_heads", g.v_heads, "a multiple of linear_num_key_heads"));
    }
    if g.rotary_dims % 2 != 0 || g.rotary_dims > g.head_dim {
        return Err(bad(
            "partial_rotary_factor",
            g.rotary_dims,
            "an even number of rotated dimensions in the head",
        ));
    }
    if !(2..=8).contains(&g.taps) {
        return Err(bad("linear_conv_kernel_dim", g.taps, "2 to 8"));
    }
    for (field, value) in
        [("head_dim", g.head_dim), ("linear_key_head_dim", g.dk), ("linear_value_head_dim", g.dv)]
    {
        if value % 16 != 0 || value > 512 {
            return Err(bad(field, value, "a multiple of 16 up to 512"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field that the built-in configuration holds twice, changed in one of the two places.
    #[test]
    fn what_is_said_twice_must_agree() {
        let config: Value = serde_json::from_str(crate::builtin::CONFIG).unwrap();
        assert!(read(&config).is_ok());
        for (pointer, value) in [
            ("/tie_word_embeddings", json!(true)),
            ("/text_config/tie_word_embeddings", json!(true)),
            ("/text_config/model_type", json!("x")),
            ("/text_config/partial_rotary_factor", json!(0.5)),
            ("/text_config/full_attention_interval", json!(2)),
            ("/text_config/full_attention_interval", json!("x")),
            ("/text_config/rope_parameters/mrope_section", json!([3, 3, 3])),
            ("/text_config/rope_parameters/mrope_section", json!([u64::MAX, 2])),
            ("/text_config/rope_parameters/mrope_section", json!(-1)),
        ] {
            let mut changed = config.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            let error = read(&changed).unwrap_err().to_string();
            assert!(error.contains(pointer.rsplit('/').next().unwrap()), "{pointer}: {error}");
        }
    }
}
