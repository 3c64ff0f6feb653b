//! Byte trajectories and ledgers at serving geometry, against golden files.
//!
//! Covered, at the full width of both known models: every layer with two sequences, and the first eight layers (two
//! periods of the hybrid's layer pattern) with one and with eight, and in the class with 8-bit activations. Each
//! sequence is prefilled with 255 tokens, then all take the decode step at 256.
mod common;

use common::simd;
use harness::engine::{EngineSize, Phase, Plans};
use harness::families::Model;
use harness::manifest::Manifest;
use harness::recipe::Recipe;
use harness::replay::{Mark, csv, engine, trajectory};
use kernels::buffer::BufId;
use kernels::check::check;
use kernels::host::simd::Simd;
use kernels::launch::Op;
use kernels::numeric::NumericClass;
use kernels::plan::Plan;
use ledger::golden::check_golden;
use ledger::{Direction, Traffic, TrafficClass};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Instant;

const LAYERS: usize = 8;
const HYBRID: &str = "qwen3_6_27b";
const MOE: &str = "qwen3_30b_a3b";

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

/// A known model, cut to its first `layers` layers.
fn known(name: &str, layers: Option<usize>) -> (Model, Manifest) {
    let (_, config, recipe) = Model::known().into_iter().find(|k| k.0 == name).unwrap();
    let mut config: Value = serde_json::from_str(config).unwrap();
    if let Some(layers) = layers {
        let text = if config.get("text_config").is_some() { &mut config["text_config"] } else { &mut config };
        text["num_hidden_layers"] = json!(layers);
        if let Some(types) = text.get_mut("layer_types").and_then(Value::as_array_mut) {
            types.truncate(layers);
        }
    }
    let model = Model::from_config(&config).unwrap();
    let manifest = model.manifest(&Recipe::builtin(recipe).unwrap()).unwrap();
    (model, manifest)
}

/// The first eight layers with two sequences in BF16.
fn replayed(name: &str, simd: Simd, threads: usize, change: impl Fn(&mut Plans)) -> Vec<Mark> {
    replay(name, Some(LAYERS), 2, NumericClass::Bf16, simd, threads, change)
}

fn replay(
    name: &str,
    layers: Option<usize>,
    batch: usize,
    class: NumericClass,
    simd: Simd,
    threads: usize,
    change: impl Fn(&mut Plans),
) -> Vec<Mark> {
    let begin = Instant::now();
    let (model, manifest) = known(name, layers);
    let size = EngineSize { batch, context: 256, threads };
    let mut e = engine(&model, &manifest, class, size, simd).unwrap();
    change(&mut e.plans);
    let marks = trajectory(&mut e, 255).unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    println!("{name}, {} layers, B{batch}, {class}: {seconds:.1} s", model.summary().layers);
    marks
}

/// Replays and compares with the golden file of the model and `suffix`.
fn follows(name: &str, layers: Option<usize>, batch: usize, class: NumericClass, suffix: &str) -> Vec<Mark> {
    let marks = replay(name, layers, batch, class, simd(), 2, |_| {});
    check_golden(golden(&format!("replay_{name}{suffix}.csv")), &csv(&marks)).unwrap();
    marks
}

/// Layers whose residual was hashed, in prefill and decode.
fn layers_seen(marks: &[Mark]) -> BTreeSet<(bool, Option<u16>)> {
    let residual = marks.iter().filter(|m| m.buffer == "residual");
    residual.map(|m| (m.phase == Phase::Decode, m.layer)).collect()
}

#[test]
fn every_layer_of_the_hybrid_follows_its_golden_trajectory() {
    let marks = follows(HYBRID, None, 2, NumericClass::Bf16, "");
    assert_eq!(layers_seen(&marks).len(), 2 * (1 + 64));
    for what in ["delta/chunk", "delta/step", "conv", "attend/kv16", "norm"] {
        assert!(marks.iter().any(|m| m.op == what), "no {what} ran");
    }
}

#[test]
fn every_layer_of_the_moe_model_follows_its_golden_trajectory() {
    let marks = follows(MOE, None, 2, NumericClass::Bf16, "");
    assert_eq!(layers_seen(&marks).len(), 2 * (1 + 48));
    for what in ["route", "fold", "attend/kv16", "norm"] {
        assert!(marks.iter().any(|m| m.op == what), "no {what} ran");
    }
}

#[test]
fn one_and_eight_sequences_follow_their_golden_trajectories() {
    for name in [HYBRID, MOE] {
        follows(name, Some(LAYERS), 1, NumericClass::Bf16, ".b1");
        follows(name, Some(LAYERS), 8, NumericClass::Bf16, ".b8");
    }
}

#[test]
fn the_moe_model_with_8_bit_activations_follows_its_golden_trajectory() {
    let marks = follows(MOE, Some(LAYERS), 2, NumericClass::Int8Act, ".int8act");
    assert_ne!(csv(&marks), csv(&replayed(MOE, simd(), 2, |_| {})), "another class rounds elsewhere");
}

#[test]
fn the_trajectory_is_the_same_in_scalar_code_on_one_thread() {
    let (a, b) = (replayed(MOE, Simd::SCALAR, 1, |_| {}), replayed(MOE, simd(), 2, |_| {}));
    assert_eq!(csv(&a), csv(&b));
}

#[test]
fn a_seeded_aliasing_bug_leaves_the_trajectory_and_is_found_by_the_checker() {
    // The input of layer 2's fold (expert outputs) is laid over the routing weights that the fold also reads.
    let alias = |p: &mut Plan| {
        let folds: Vec<(BufId, BufId)> = p
            .launches
            .iter()
            .filter_map(|l| if let Op::Fold(o) = &l.op { Some((o.y, o.weights)) } else { None })
            .collect();
        let (y, weights) = folds[2];
        p.buffers[weights.0 as usize].offset = p.buffer(y).offset;
    };
    let (model, manifest) = known(MOE, Some(LAYERS));
    let size = EngineSize { batch: 2, context: 256, threads: 1 };
    let mut plans = Plans::build(&model, &manifest, NumericClass::Bf16, size).unwrap();
    alias(&mut plans.decode);
    assert!(!check(&plans.decode, &model.summary().maximum_facts(&plans.decode.bucket)).is_empty());
    let marks = replayed(MOE, simd(), 2, |p| alias(&mut p.decode));
    let clean = replayed(MOE, simd(), 2, |_| {});
    assert_ne!(csv(&marks), csv(&clean), "a value that another overwrites must change the trajectory");
    let first = marks.iter().zip(&clean).find(|(a, b)| a != b).unwrap().0;
    assert_eq!((first.layer, first.op.as_str()), (Some(2), "fold"), "the first wrong launch names the layer");
}

/// Bytes by layer kind, class and direction of a decode step at the expected facts.
fn ledger_csv(name: &str) -> String {
    let (model, manifest) = known(name, None);
    let mut out = String::from("batch,context,kind,launches,class,read,write\n");
    for (batch, context) in [(1, 2048), (8, 2048), (64, 2048), (1, 16384), (1024, 2048)] {
        let size = EngineSize { batch, context, threads: 1 };
        let plan = Plans::build(&model, &manifest, NumericClass::Bf16, size).unwrap().decode;
        let facts = model.summary().expected_facts(batch as u64, context as u64);
        let mut kinds: BTreeMap<&str, (usize, Traffic)> = BTreeMap::new();
        plan.launches.iter().for_each(|l| kinds.entry(l.kind).or_default().0 += 1);
        for line in plan.lines() {
            let launch = &plan.launches[line.launch];
            kinds.get_mut(launch.kind).unwrap().1.merge(&line.account.at(&facts));
        }
        for (kind, (launches, t)) in kinds {
            for class in TrafficClass::ALL.into_iter().filter(|c| t.class(*c).0 > 0) {
                let (read, write) = (t.get(class, Direction::Read).0, t.get(class, Direction::Write).0);
                writeln!(out, "{batch},{context},{kind},{launches},{},{read},{write}", class.name()).unwrap();
            }
        }
    }
    out
}

#[test]
fn serving_geometry_agrees_with_its_golden_ledgers() {
    for name in [HYBRID, MOE] {
        check_golden(golden(&format!("ledger_{name}.csv")), &ledger_csv(name)).unwrap();
    }
}

#[test]
fn a_step_reads_every_weight_once_and_nothing_else() {
    for name in [HYBRID, MOE] {
        let (model, manifest) = known(name, None);
        let size = EngineSize { batch: 1024, context: 2048, threads: 1 };
        let plan = Plans::build(&model, &manifest, NumericClass::Bf16, size).unwrap().decode;
        // With every expert active and every row of the table wanted, a step reads the payload exactly once.
        let mut facts = model.summary().maximum_facts(&plan.bucket);
        facts.distinct_tokens = model.summary().vocab as u64;
        if let Some(m) = model.summary().moe {
            facts.experts = vec![m.experts as f64; m.layers];
        }
        let read: u64 = plan
            .lines()
            .iter()
            .map(|l| l.account.at(&facts).get(TrafficClass::Weight, Direction::Read).0)
            .sum();
        assert_eq!(read, manifest.tensor_bytes(), "{name}");
    }
}
