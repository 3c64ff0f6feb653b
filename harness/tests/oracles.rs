//! The tracked oracles and the built-in model, in the f32 class: logits, greedy ids, traces.
mod common;

use harness::engine::Place;
use harness::oracle::{OracleResult, run, run_for};
use kernels::host::simd::{Simd, Switches};
use kernels::numeric::NumericClass;
use receipts::OracleScope;
use std::path::PathBuf;

fn host() -> Place {
    Place::Host { threads: 2, simd: common::simd() }
}

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

/// What stands in for a model's own answers says so, and what cannot is refused.
#[test]
fn an_oracle_speaks_of_the_very_weights_or_says_that_it_does_not() {
    let folder = |dir: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(dir);
    let class = NumericClass::Bf16;
    let (builtin, _kept) = common::pack(common::BUILTIN);
    let ask = |dir: &str| run_for(&builtin, &folder(dir), class, &host());
    let own = ask(common::BUILTIN).unwrap();
    assert!(own.scope == OracleScope::Model && own.passed());
    let stand_in = ask(common::HYBRID).unwrap();
    assert!(stand_in.scope == OracleScope::Family && stand_in.passed());
    let other = ask(common::MOE).unwrap_err().to_string();
    assert!(other.contains("is about the family qwen3_moe, the model is of qwen3_5"), "{other}");
}

/// The pack itself is run where the answers are about its weights: a fault of the pack is not hidden by a sound
/// checkpoint beside it.
#[test]
fn formats_that_an_oracle_does_not_hold_are_not_vouched_for() {
    let dir = tempfile::tempdir().unwrap();
    let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(common::HYBRID);
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let (mut pack, _kept) = common::pack(common::BUILTIN);
    pack.header.manifest.entries[0].format = "q5_k".into();
    let refused = run_for(&pack, dir.path(), NumericClass::Bf16, &host()).unwrap_err().to_string();
    assert!(refused.contains("holds no q5_k tensor"), "{refused}");
}
