//! The tracked oracles and the built-in model, in the f32 class: logits, greedy ids, traces.
use harness::oracle::{OracleResult, run};
use kernels::host::simd::{Simd, Switches};
use kernels::numeric::NumericClass;
use std::path::PathBuf;

fn oracle(dir: &str, class: NumericClass) -> OracleResult {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(dir);
    let result = run(&dir, class, 2, Simd::detect(&Switches::default())).unwrap();
    println!("{}", serde_json::to_string_pretty(&result).unwrap());
    result
}

#[test]
fn hybrid_oracle_passes_in_f32() {
    let result = oracle("oracles/qwen3_6_27b", NumericClass::F32);
    assert!(result.passed() && result.max_abs() < 1e-3);
}

#[test]
fn draft_head_of_the_hybrid_oracle_passes_in_f32() {
    let result = oracle("oracles/qwen3_6_27b", NumericClass::F32);
    let rows: usize = result.prompts.iter().map(|p| p.tokens - 1).sum();
    let draft = result.draft.unwrap();
    assert_eq!(draft.rows, rows, "every row of every prompt but its last");
    assert!(draft.max_abs < 1e-3, "{draft:?}");
}

#[test]
fn moe_oracle_from_gguf_passes_in_f32() {
    let result = oracle("oracles/qwen3_30b_a3b", NumericClass::F32);
    assert!(result.passed() && result.max_abs() < 1e-3);
}

#[test]
fn builtin_model_passes_in_f32() {
    let result = oracle("builtin", NumericClass::F32);
    assert!(result.passed() && result.max_abs() < 1e-3);
}

#[test]
fn rounded_classes_stay_inside_their_tolerance() {
    for (dir, class) in [
        ("oracles/qwen3_6_27b", NumericClass::Bf16),
        ("builtin", NumericClass::Bf16),
        ("oracles/qwen3_30b_a3b", NumericClass::Bf16),
        ("oracles/qwen3_30b_a3b", NumericClass::Int8Act),
    ] {
        let result = oracle(dir, class);
        assert!(result.passed(), "{dir} in {class}");
    }
}
