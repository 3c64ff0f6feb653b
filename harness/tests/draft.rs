//! The draft head: its bytes, its accounts, its words, and that a step without it knows nothing of it.
mod common;

use common::{BUILTIN, HYBRID, engine, pack, simd, tokens};
use harness::checked::{touched_staged, touched_step};
use harness::containers::stream::Declared;
use harness::containers::{Checkpoint, Dtype, open, safetensors_write};
use harness::engine::{Engine, EngineError, EngineSize, Plans};
use harness::families::{Model, PlanError};
use harness::oracle::{max_difference, run_pack};
use harness::pack::Pack;
use harness::recipe::Recipe;
use kernels::buffer::Arena;
use kernels::check::check;
use kernels::numeric::NumericClass;
use ledger::{Direction, TrafficClass};
use std::path::{Path, PathBuf};

fn full() -> (Model, Recipe) {
    let (_, config, recipe) = Model::known().into_iter().find(|k| k.0 == "qwen3_6_27b").unwrap();
    (Model::from_config(&serde_json::from_str(config).unwrap()).unwrap(), Recipe::builtin(recipe).unwrap())
}

fn drafting(pack: &Pack, class: NumericClass, size: EngineSize) -> Engine {
    let h = &pack.header;
    Engine::drafting(&h.model, &h.manifest, class, size, pack.weights().unwrap(), simd()).unwrap()
}

#[test]
fn the_head_at_full_size_has_the_published_bytes_and_the_model_without_it_too() {
    let (model, recipe) = full();
    let (without, with) = (model.manifest(&recipe).unwrap(), model.manifest_with_draft(&recipe).unwrap());
    assert_eq!(without.tensor_bytes(), 53_791_996_928);
    assert_eq!(with.tensor_bytes() - without.tensor_bytes(), 849_398_784);
    assert_eq!(model.draft_tensors().len(), 15);
    assert_eq!(with.entries[..without.entries.len()], without.entries[..], "the head lies behind the model");
}

/// The step without the head is a prefix of the step with it: same launches, same accounts, same cache.
#[test]
fn a_drafting_step_is_the_plain_step_and_the_head_behind_it() {
    let (model, recipe) = full();
    let manifest = model.manifest_with_draft(&recipe).unwrap();
    let size = EngineSize { batch: 8, context: 2048, threads: 1 };
    for class in NumericClass::ALL {
        let plain = Plans::build(&model, &model.manifest(&recipe).unwrap(), class, size).unwrap();
        let draft = Plans::drafting(&model, &manifest, class, size).unwrap();
        for (plain, draft) in [(plain.decode, draft.decode), (plain.prefill, draft.prefill)] {
            let max = model.summary().maximum_facts(&plain.bucket);
            assert_eq!(check(&draft, &max), [], "{class}");
            let (a, b) = (plain.lines(), draft.lines());
            for (a, b) in a.iter().zip(&b) {
                assert_eq!((&a.op, &a.name, &a.account), (&b.op, &b.name, &b.account));
            }
            let behind = &draft.launches[plain.launches.len()..];
            assert!(!behind.is_empty() && behind.iter().all(|l| l.kind == "draft"));
            let read = |lines: &[ledger::Line]| -> u64 {
                let weight =
                    |l: &ledger::Line| l.account.at(&max).get(TrafficClass::Weight, Direction::Read).0;
                lines.iter().map(weight).sum()
            };
            // The head reads its own weights, the shared output matrix, the final norm and embedding rows.
            let shared = 248_320 * 5120 * 2 + 5120 * 2 + max.next_tokens * 5120 * 2;
            assert_eq!(read(&b) - read(&a), 849_398_784 + shared, "{class}");
            let cache = |p: &kernels::plan::Plan| p.arena_bytes[Arena::Cache as usize];
            let own = model.summary().draft_kv_values_per_token * class.kv_bytes() * 2048 * 8;
            assert_eq!(cache(&draft) - cache(&plain), own);
        }
    }
}

#[test]
fn accounts_of_a_drafting_step_equal_the_bytes_touched() {
    let (pack, _guard) = pack(HYBRID);
    for class in [NumericClass::F32, NumericClass::Bf16] {
        let mut e = drafting(&pack, class, EngineSize { batch: 3, context: 400, threads: 1 });
        let vocab = e.summary().vocab;
        let sequences: Vec<_> = (0..3).map(|_| e.open(300).unwrap()).collect();
        for (i, s) in sequences.iter().enumerate() {
            for (len, all) in [(64, false), (9 + i, true)] {
                e.stage_ahead(&[(*s, &tokens(i as u64, len + 1, vocab))], all).unwrap();
                let report = touched_staged(&mut e).unwrap();
                assert!(report.exact(), "{class} prefill: {:?}", report.mismatches.first());
            }
        }
        let rows: Vec<_> = sequences.iter().map(|s| (*s, 7)).collect();
        for rows in [&rows[..], &rows[..2]] {
            let report = touched_step(&mut e, rows).unwrap();
            assert!(report.exact(), "{class} decode: {:?}", report.mismatches.first());
        }
    }
}

/// A step drafts behind its own choice what a prompt that goes on with that choice drafts at the same row, and
/// its own logits are those of an engine without the head, bit for bit.
#[test]
fn a_step_drafts_what_a_prompt_with_its_choice_drafts() {
    let (pack, _guard) = pack(HYBRID);
    let size = EngineSize { batch: 1, context: 200, threads: 1 };
    let mut plain = engine(&pack, NumericClass::F32, size, simd());
    let mut e = drafting(&pack, NumericClass::F32, size);
    let text = tokens(3, 90, e.summary().vocab);
    let (last, before) = text.split_last().unwrap();
    let (s, p) = (e.open(100).unwrap(), plain.open(100).unwrap());
    e.prefill_ahead(&[(s, &text)], false).unwrap();
    plain.prefill(&[(p, before)], false).unwrap();
    assert_eq!(e.logits(0), plain.logits(0), "prefill");
    e.decode(&[(s, *last)]).unwrap();
    plain.decode(&[(p, *last)]).unwrap();
    assert_eq!(e.logits(0), plain.logits(0), "step");
    let (chosen, drafted) = (e.chosen()[0], e.drafted()[0]);
    let step = e.draft_logits(0).unwrap().to_vec();
    let again = e.close(s).and_then(|()| e.open(100)).unwrap();
    let longer: Vec<u32> = text.iter().copied().chain([chosen]).collect();
    e.prefill_ahead(&[(again, &longer)], false).unwrap();
    let prompt = e.draft_logits(0).unwrap();
    assert!(max_difference(&step, prompt) < 1e-3, "{}", max_difference(&step, prompt));
    assert_eq!(drafted, e.drafted()[0]);
    assert_eq!((plain.draft_logits(0), plain.drafted()), (None, &[][..]));
}

#[test]
fn a_prompt_without_its_lookahead_is_refused_and_so_is_one_too_many() {
    let (pack, _guard) = pack(HYBRID);
    let size = EngineSize { batch: 1, context: 100, threads: 1 };
    let (mut plain, mut e) =
        (engine(&pack, NumericClass::F32, size, simd()), drafting(&pack, NumericClass::F32, size));
    let (p, s) = (plain.open(50).unwrap(), e.open(50).unwrap());
    let refused = |r: Result<(), EngineError>| r.unwrap_err().to_string();
    assert!(refused(e.prefill(&[(s, &[1, 2, 3])], false)).contains("0 tokens of lookahead"));
    assert!(refused(plain.prefill_ahead(&[(p, &[1, 2, 3])], false)).contains("takes 0"));
    assert!(refused(e.prefill_ahead(&[(s, &[1])], false)).contains("prefill chunk tokens is 0"));
    assert!(refused(e.prefill_ahead(&[(s, &[1, 1 << 20])], false)).contains("token id"));
    let (pack, _guard) = common::pack(BUILTIN);
    let h = &pack.header;
    let none = Plans::drafting(&h.model, &h.manifest, NumericClass::F32, size);
    assert!(matches!(none, Err(PlanError::NoDraft { .. })) && !pack.has_draft());
}

fn oracle_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(HYBRID)
}

/// The oracle's checkpoint with some tensors left out, or its answers with some values moved.
fn copy(from: &Checkpoint, to: &Path, keep: impl Fn(&str) -> bool, shift: impl Fn(&str) -> f32) {
    let kept: Vec<_> = from.tensors().iter().filter(|t| keep(&t.name)).collect();
    let declared: Vec<_> = kept.iter().map(|t| Declared::new(t.name.as_str(), t.dtype, &t.shape)).collect();
    let mut out = safetensors_write::create(to, &declared, None).unwrap();
    for t in kept {
        let mut bytes = from.bytes_of(t).to_vec();
        if t.dtype == Dtype::F32 && shift(&t.name) != 0.0 {
            let value = f32::from_le_bytes(bytes[..4].try_into().unwrap()) + shift(&t.name);
            bytes[..4].copy_from_slice(&value.to_le_bytes());
        }
        out.write(&bytes).unwrap();
    }
    out.finish().unwrap();
}

fn pack_without(left_out: impl Fn(&str) -> bool) -> Result<(Pack, tempfile::TempDir), String> {
    let dir = tempfile::tempdir().unwrap();
    let from = open(&oracle_dir()).unwrap();
    copy(&from, &dir.path().join("model.safetensors"), |n| !left_out(n), |_| 0.0);
    std::fs::copy(oracle_dir().join("config.json"), dir.path().join("config.json")).unwrap();
    let (checkpoint, recipe) = (open(dir.path()).unwrap(), Recipe::builtin("bf16").unwrap());
    let pack = Pack::write(&checkpoint, "cut", &recipe, &dir.path().join("p")).map_err(|e| e.to_string())?;
    Ok((pack, dir))
}

#[test]
fn a_checkpoint_without_the_head_packs_and_one_with_half_of_it_does_not() {
    let (whole, _guard) = pack_without(|n| n.starts_with("mtp.")).unwrap();
    assert!(!whole.has_draft());
    let expected = open(&oracle_dir().join("expected.safetensors")).unwrap();
    let error = run_pack(&whole, &expected, "cut", NumericClass::F32, 1, simd()).unwrap_err().to_string();
    assert!(error.contains("mtp_logits") && error.contains("no draft head"), "{error}");
    let error = pack_without(|n| n == "mtp.fc.weight").map(|_| ()).unwrap_err();
    assert!(error.contains("mtp.fc.weight"), "{error}");
}

#[test]
fn one_wrong_draft_logit_fails_the_oracle_and_an_oracle_without_them_says_so() {
    let (pack, _guard) = pack(HYBRID);
    let dir = tempfile::tempdir().unwrap();
    let expected = open(&oracle_dir().join("expected.safetensors")).unwrap();
    let path = dir.path().join("moved.safetensors");
    copy(&expected, &path, |_| true, |n| if n == "prompt.1.mtp_logits" { 0.01 } else { 0.0 });
    let moved = run_pack(&pack, &open(&path).unwrap(), "moved", NumericClass::F32, 1, simd()).unwrap();
    let draft = moved.draft.as_ref().unwrap();
    assert!(!moved.passed() && (0.009..0.011).contains(&draft.max_abs), "{draft:?}");
    copy(&expected, &path, |n| !n.ends_with("mtp_logits"), |_| 0.0);
    let without = run_pack(&pack, &open(&path).unwrap(), "none", NumericClass::F32, 1, simd()).unwrap();
    assert!(without.passed() && without.draft.is_none());
}
