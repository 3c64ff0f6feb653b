//! Full-size byte figures out of geometry and recipe, and the golden ledgers.

use std::path::PathBuf;

use harness::families::Model;
use kernels::numeric::NumericClass;
use ledger::{Bytes, DeviceProfile, Format, check_golden, render};
use sparkpipe::commands::ledger::report;
use sparkpipe::commands::state::{Described, describe, recipe};

const CONTEXT: u64 = 2048;

fn device() -> DeviceProfile {
    DeviceProfile::named("h200").expect("a named device")
}

/// Weights, and active bytes at each batch.
fn figures(d: &Described, batches: &[u64]) -> (Bytes, Vec<Bytes>) {
    let report = report(d, d.recipe.numeric_class, device(), batches, CONTEXT, None).unwrap();
    (report.weights, report.summary().iter().map(|s| s.active).collect())
}

#[test]
fn the_dense_model_in_bf16_has_the_published_bytes() {
    let (weights, active) = figures(&describe("qwen3_6_27b", None).unwrap(), &[1]);
    assert_eq!(weights, Bytes(53_791_996_928));
    assert_eq!(active, [Bytes(51_249_210_368)]);
}

#[test]
fn the_expert_model_in_q4_k_m_has_the_published_bytes() {
    let (weights, active) = figures(&describe("qwen3_30b_a3b", None).unwrap(), &[1, 8]);
    assert_eq!(weights, Bytes(18_550_716_416));
    assert_eq!(format!("{:.4}", active[0].0 as f64 / 1e9), "1.9196");
    assert_eq!(format!("{:.3}", active[1].0 as f64 / 1e9), "7.901");
}

#[test]
fn golden_ledgers_hold() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let tiny = |folder: &str, with: &str| {
        let text = std::fs::read_to_string(root.join(folder).join("config.json")).unwrap();
        let model = Model::from_config(&serde_json::from_str(&text).unwrap()).unwrap();
        let name = PathBuf::from(folder).file_name().unwrap().to_string_lossy().into_owned();
        Described { name, model, recipe: recipe(with).unwrap() }
    };
    let cases = [
        ("qwen3_6_27b_bf16", describe("qwen3_6_27b", Some("bf16")).unwrap(), NumericClass::Bf16),
        ("qwen3_30b_a3b_q4_k_m", describe("qwen3_30b_a3b", Some("q4_k_m")).unwrap(), NumericClass::Int8Act),
        ("whatis_9m_bf16", describe("whatis-9m", None).unwrap(), NumericClass::Bf16),
        ("oracle_qwen3_6_27b_bf16", tiny("harness/oracles/qwen3_6_27b", "bf16"), NumericClass::F32),
        ("oracle_qwen3_30b_a3b_q4_k_m", tiny("harness/oracles/qwen3_30b_a3b", "q4_k_m"), NumericClass::F32),
    ];
    for (name, described, class) in cases {
        let report = report(&described, class, device(), &[1, 8, 64, 1024], CONTEXT, None).unwrap();
        let text = render(&report, Format::SummaryCsv).unwrap();
        check_golden(root.join("ledger/golden").join(format!("{name}.csv")), &text).unwrap();
    }
}
