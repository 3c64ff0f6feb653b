//! Each geometry field against the bytes it stands for, summed here from the tables of the model pages.

use harness::families::Model;
use harness::recipe::Recipe;
use serde_json::Value;

fn known(name: &str) -> Value {
    let (_, text, _) = Model::known().into_iter().find(|(n, _, _)| *n == name).unwrap();
    serde_json::from_str(text).unwrap()
}

fn manifest_bytes(config: &Value, recipe: &str) -> u64 {
    let model = Model::from_config(config).unwrap_or_else(|e| panic!("{e}"));
    model.manifest(&Recipe::builtin(recipe).unwrap()).unwrap().tensor_bytes()
}

fn text_of(config: &Value) -> &Value {
    config.get("text_config").unwrap_or(config)
}

fn set(config: &mut Value, field: &str, value: Value) {
    let text = if config.get("text_config").is_some() { &mut config["text_config"] } else { config };
    text[field] = value;
}

fn n(config: &Value, field: &str) -> u64 {
    text_of(config)[field].as_u64().unwrap_or_else(|| panic!("{field}"))
}

/// All tensors two bytes a value: the hybrid's table.
fn hybrid_bytes(c: &Value) -> u64 {
    let (h, i, v) = (n(c, "hidden_size"), n(c, "intermediate_size"), n(c, "vocab_size"));
    let (q, kv) = (n(c, "num_attention_heads"), n(c, "num_key_value_heads"));
    let d = n(c, "head_dim");
    let (kh, vh) = (n(c, "linear_num_key_heads"), n(c, "linear_num_value_heads"));
    let (dk, dv, taps) =
        (n(c, "linear_key_head_dim"), n(c, "linear_value_head_dim"), n(c, "linear_conv_kernel_dim"));
    let conv = 2 * kh * dk + vh * dv;
    let delta = conv * h + vh * dv * h + 2 * vh * h + conv * taps + 2 * vh + dv + h * vh * dv;
    let attention = 2 * q * d * h + 2 * kv * d * h + 2 * d + h * q * d;
    let both = 2 * h + 3 * i * h;
    let layers = text_of(c)["layer_types"].as_array().unwrap();
    let full = layers.iter().filter(|l| **l == "full_attention").count() as u64;
    let linear = layers.len() as u64 - full;
    2 * (2 * v * h + h + linear * (delta + both) + full * (attention + both))
}

#[test]
fn every_field_of_the_hybrid_moves_the_bytes_its_table_says() {
    let full = known("qwen3_6_27b");
    assert_eq!(manifest_bytes(&full, "bf16"), hybrid_bytes(&full));
    assert_eq!(hybrid_bytes(&full), 53_791_996_928);
    let changes = [
        ("hidden_size", 256),
        ("intermediate_size", 512),
        ("vocab_size", 7),
        ("num_attention_heads", 4 * n(&full, "num_key_value_heads")),
        ("head_dim", 64),
        ("linear_num_value_heads", n(&full, "linear_num_key_heads")),
        ("linear_key_head_dim", 16),
        ("linear_value_head_dim", 16),
        ("linear_conv_kernel_dim", 1),
    ];
    for (field, more) in changes {
        let mut changed = full.clone();
        if field == "head_dim" {
            // It is stated a second time, as the sections that the rotated half is cut into.
            let rope = changed["text_config"]["rope_parameters"].as_object_mut().unwrap();
            assert!(rope.remove("mrope_section").is_some());
        }
        set(&mut changed, field, (n(&full, field) + more).into());
        let (a, b) = (manifest_bytes(&full, "bf16"), manifest_bytes(&changed, "bf16"));
        assert!(b > a, "{field} moves no byte");
        assert_eq!(b - a, hybrid_bytes(&changed) - hybrid_bytes(&full), "{field}");
    }
    for (field, value) in [("num_key_value_heads", 1), ("linear_num_key_heads", 1)] {
        let mut changed = full.clone();
        set(&mut changed, field, value.into());
        assert_eq!(manifest_bytes(&changed, "bf16"), hybrid_bytes(&changed), "{field}");
        assert!(hybrid_bytes(&changed) < hybrid_bytes(&full), "{field}");
    }
    let mut fewer = full.clone();
    let types: Vec<Value> = text_of(&full)["layer_types"].as_array().unwrap()[..6].to_vec();
    set(&mut fewer, "layer_types", types.into());
    set(&mut fewer, "num_hidden_layers", 6.into());
    assert_eq!(manifest_bytes(&fewer, "bf16"), hybrid_bytes(&fewer));
}

/// The expert model's table: 4-bit blocks of 144 bytes, 6-bit blocks of 210, norms and router in f32.
fn expert_bytes(c: &Value) -> u64 {
    let (h, v, d) = (n(c, "hidden_size"), n(c, "vocab_size"), n(c, "head_dim"));
    let (q, kv) = (n(c, "num_attention_heads"), n(c, "num_key_value_heads"));
    let (e, w, layers) = (n(c, "num_experts"), n(c, "moe_intermediate_size"), n(c, "num_hidden_layers"));
    let q4 = |values: u64| values / 256 * 144;
    let q6 = |values: u64| values / 256 * 210;
    let mut sum = q4(v * h) + q6(v * h) + 4 * h;
    for layer in 0..layers {
        let eighth = layers / 8;
        let more = layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
        let mixed = |values: u64| if more { q6(values) } else { q4(values) };
        sum += 4 * (2 * h + 2 * d + e * h);
        sum += 2 * q4(q * d * h) + q4(kv * d * h) + mixed(kv * d * h);
        sum += 2 * q4(e * w * h) + mixed(e * h * w);
    }
    sum
}

#[test]
fn every_field_of_the_expert_model_moves_the_bytes_its_table_says() {
    let full = known("qwen3_30b_a3b");
    assert_eq!(manifest_bytes(&full, "q4_k_m"), expert_bytes(&full));
    assert_eq!(expert_bytes(&full), 18_550_716_416);
    let changes = [
        ("hidden_size", 256),
        ("vocab_size", 7),
        ("head_dim", 64),
        ("num_attention_heads", 4),
        ("num_experts", 1),
        ("moe_intermediate_size", 256),
        ("num_hidden_layers", 1),
    ];
    for (field, more) in changes {
        let mut changed = full.clone();
        set(&mut changed, field, (n(&full, field) + more).into());
        let (a, b) = (manifest_bytes(&full, "q4_k_m"), manifest_bytes(&changed, "q4_k_m"));
        assert!(b > a, "{field} moves no byte");
        assert_eq!(b - a, expert_bytes(&changed) - expert_bytes(&full), "{field}");
    }
    let mut fewer = full.clone();
    set(&mut fewer, "num_key_value_heads", 2.into());
    assert_eq!(manifest_bytes(&fewer, "q4_k_m"), expert_bytes(&fewer));
    let mut same = full.clone();
    set(&mut same, "num_experts_per_tok", 4.into());
    assert_eq!(manifest_bytes(&same, "q4_k_m"), manifest_bytes(&full, "q4_k_m"), "top-k holds no weights");
}
