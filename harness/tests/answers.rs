//! The built-in model answers its reference questions, token for token, in the class it is served in.
mod common;

use common::simd;
use harness::eval::{read, run};
use kernels::numeric::NumericClass;
use std::path::Path;

/// Share of answers that must be the reference's in every token, in percent.
const EXACT: usize = 99;
/// A first wrong token counts as a near tie when this run's two best logits are closer than this.
const NEAR_TIE: f32 = 0.05;

/// All 300 rows: 16 s of processor time over both threads.
#[test]
fn the_built_in_model_gives_its_reference_answers_in_bf16() {
    let dir = tempfile::tempdir().unwrap();
    let pack = harness::builtin::ensure_pack(dir.path()).unwrap();
    let questions = read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/builtin/eval.jsonl"))).unwrap();
    assert_eq!(questions.len(), 300, "the whole reference is asked");
    let result = run(&pack, &questions, NumericClass::Bf16, 2, simd()).unwrap();
    println!("{} of {} exact: {:?}", result.exact, result.questions, result.differences);
    assert_eq!(result.questions, questions.len());
    assert!(
        100 * result.exact >= EXACT * questions.len(),
        "{} exact: {:?}",
        result.exact,
        result.differences
    );
    for d in &result.differences {
        assert!(d.gap < NEAR_TIE, "question {} differs by more than a near tie: {d:?}", d.question);
    }
}
