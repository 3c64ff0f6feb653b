//! Accounts equal the bytes that kernels really touch: every launch, buffer and direction of both families.
mod common;

use common::{BUILTIN, HYBRID, MOE, engine, fill, pack, simd, tokens};
use harness::checked::{MismatchKind, TouchedReport, touched_staged, touched_step};
use harness::engine::{Engine, EngineSize, Sequence};
use kernels::launch::Op;
use kernels::numeric::NumericClass;
use ledger::{Amount, Direction, Feature, TrafficClass};

fn show(report: &TouchedReport) -> String {
    let first: Vec<String> = report.mismatches.iter().take(12).map(|m| format!("{m:?}")).collect();
    format!("{} mismatches\n{}", report.mismatches.len(), first.join("\n"))
}

fn assert_exact(report: &TouchedReport, what: &str) {
    assert!(report.exact(), "{what}: {}", show(report));
    assert!(report.counted.reads().0 > 0 && report.counted.writes().0 > 0, "{what}: nothing was touched");
}

/// `batch` sequences of different lengths, some past a page and past the prefill grid.
fn open_all(e: &mut Engine, batch: usize, vocab: usize) -> Vec<Sequence> {
    let sequence = |e: &mut Engine, i: usize| {
        let s = e.open(e.size().context).unwrap();
        fill(e, s, &tokens(i as u64 + 1, [3, 127, 128, 129, 300][i % 5], vocab));
        s
    };
    (0..batch).map(|i| sequence(e, i)).collect()
}

/// The sequences again, each filled to a length that a prompt may go on from.
fn reopened(e: &mut Engine, sequences: &[Sequence], vocab: usize) -> Vec<Sequence> {
    sequences.iter().for_each(|s| drop(e.close(*s)));
    let sequence = |i: usize| {
        let s = e.open(e.size().context).unwrap();
        fill(e, s, &tokens(i as u64 + 1, [64, 128, 192, 256, 320][i % 5], vocab));
        s
    };
    (0..sequences.len()).map(sequence).collect()
}

fn prove(dir: &str, class: NumericClass, batches: &[usize]) {
    let (pack, _guard) = pack(dir);
    for &batch in batches {
        for threads in [1, 2] {
            let size = EngineSize { batch, context: 400, threads };
            let mut e = engine(&pack, class, size, simd());
            let vocab = e.summary().vocab;
            let mut sequences = open_all(&mut e, batch, vocab);
            let what = |phase: &str| format!("{dir} {class} B{batch} threads {threads}, {phase}");
            // Duplicate tokens: only two distinct rows of the embedding are read.
            let rows: Vec<_> = sequences.iter().enumerate().map(|(i, s)| (*s, 5 + (i % 2) as u32)).collect();
            let report = touched_step(&mut e, &rows).unwrap();
            assert_exact(&report, &what("decode"));
            // A decode step with fewer rows than its bucket.
            let report = touched_step(&mut e, &rows[..batch.div_ceil(2)]).unwrap();
            assert_exact(&report, &what("part of a decode bucket"));
            // Several ragged chunks behind different lengths; last rows only, then all rows.
            for (n, all) in [(7, false), (3, true)] {
                sequences = reopened(&mut e, &sequences, vocab);
                let texts: Vec<Vec<u32>> =
                    (0..batch).map(|i| tokens(99 + i as u64, 1 + (i + n) % n, 9)).collect();
                let chunks: Vec<_> = sequences.iter().zip(&texts).map(|(s, t)| (*s, t.as_slice())).collect();
                e.stage_prefill(&chunks, all).unwrap();
                let report = touched_staged(&mut e).unwrap();
                assert_exact(&report, &what(if all { "prefill, all logits" } else { "prefill" }));
            }
        }
    }
}

#[test]
fn hybrid_accounts_equal_the_bytes_touched_in_f32() {
    prove(HYBRID, NumericClass::F32, &[1, 5]);
}

#[test]
fn hybrid_accounts_equal_the_bytes_touched_in_bf16() {
    prove(HYBRID, NumericClass::Bf16, &[1, 2, 7]);
}

#[test]
fn moe_accounts_equal_the_bytes_touched_in_f32() {
    prove(MOE, NumericClass::F32, &[1, 5]);
}

#[test]
fn moe_accounts_equal_the_bytes_touched_in_bf16() {
    prove(MOE, NumericClass::Bf16, &[2, 7]);
}

#[test]
fn moe_accounts_equal_the_bytes_touched_in_int8act() {
    prove(MOE, NumericClass::Int8Act, &[1, 3, 7]);
}

#[test]
fn builtin_accounts_equal_the_bytes_touched() {
    prove(BUILTIN, NumericClass::Bf16, &[3]);
}

#[test]
fn a_prefill_of_a_whole_grid_cell_is_exact() {
    for (dir, class) in [(HYBRID, NumericClass::Bf16), (MOE, NumericClass::Int8Act)] {
        let (pack, _guard) = pack(dir);
        let mut e = engine(&pack, class, EngineSize { batch: 1, context: 520, threads: 2 }, simd());
        let s = e.open(520).unwrap();
        let text = tokens(3, 512, e.summary().vocab);
        for chunk in text.chunks(256) {
            e.stage_prefill(&[(s, chunk)], true).unwrap();
            let report = touched_staged(&mut e).unwrap();
            assert_exact(&report, dir);
        }
    }
}

/// An engine with two sequences of the MoE oracle, whose decode plan a mutation may change.
fn mutated(change: impl Fn(&mut Engine)) -> TouchedReport {
    let (pack, _guard) = pack(MOE);
    let size = EngineSize { batch: 2, context: 200, threads: 1 };
    let mut e = engine(&pack, NumericClass::Int8Act, size, simd());
    let vocab = e.summary().vocab;
    let sequences: Vec<Sequence> = (0..2).map(|_| e.open(200).unwrap()).collect();
    for (i, s) in sequences.iter().enumerate() {
        fill(&mut e, *s, &tokens(i as u64, 20, vocab));
    }
    change(&mut e);
    touched_step(&mut e, &[(sequences[0], 1), (sequences[1], 2)]).unwrap()
}

fn kinds(report: &TouchedReport) -> Vec<MismatchKind> {
    report.mismatches.iter().map(|m| m.what).collect()
}

#[test]
fn without_a_mutation_the_step_is_exact() {
    assert_exact(&mutated(|_| {}), "unchanged");
}

/// Each account in turn is doubled, and each is missed by exactly one line.
#[test]
fn doubling_any_one_account_fails() {
    let (pack, _guard) = pack(MOE);
    let size = EngineSize { batch: 1, context: 1000, threads: 1 };
    let mut e = engine(&pack, NumericClass::Int8Act, size, simd());
    let s = e.open(1000).unwrap();
    fill(&mut e, s, &[1, 2, 3]);
    let layer_end = e.plans.decode.launches.iter().position(|l| l.layer == Some(1)).unwrap();
    for launch in 0..layer_end {
        for part in 0..e.plans.decode.launches[launch].parts.len() {
            for access in 0..e.plans.decode.launches[launch].parts[part].accesses.len() {
                let amount = |e: &mut Engine| {
                    e.plans.decode.launches[launch].parts[part].accesses[access].amount.clone()
                };
                let before = amount(&mut e);
                let direction = e.plans.decode.launches[launch].parts[part].accesses[access].direction;
                let doubled = before.clone().plus(before.clone());
                e.plans.decode.launches[launch].parts[part].accesses[access].amount = doubled;
                let report = touched_step(&mut e, &[(s, 7)]).unwrap();
                let want =
                    if direction == Direction::Read { MismatchKind::Read } else { MismatchKind::Write };
                assert_eq!(kinds(&report), [want], "launch {launch} part {part} access {access}");
                assert!(!report.exact() && report.mismatches[0].launch == launch);
                e.plans.decode.launches[launch].parts[part].accesses[access].amount = before;
            }
        }
    }
}

#[test]
fn dropping_the_scale_bytes_of_a_quantised_weight_fails() {
    let report = mutated(|e| {
        let launches = &mut e.plans.decode.launches;
        let at = launches.iter().position(|l| matches!(&l.op, Op::ExpertUp(_))).unwrap();
        let Op::ExpertUp(op) = &launches[at].op else { unreachable!("found above") };
        let (codes, gate) = ((op.gate.n * op.gate.k / 2) as u64, op.gate.buf);
        assert!(op.gate.format.block_values() > 1 && codes < op.gate.bytes(), "a format with scales");
        let access = launches[at].parts[0].accesses.iter_mut().find(|a| a.buf == gate).unwrap();
        access.amount = Amount::per(Feature::Experts(0), codes);
    });
    assert_eq!(kinds(&report), [MismatchKind::Read]);
    assert!(report.mismatches[0].planned < report.mismatches[0].counted);
}

#[test]
fn reading_a_weight_twice_fails_although_its_distinct_bytes_are_right() {
    let report = mutated(|e| {
        let launch =
            e.plans.decode.launches.iter_mut().find(|l| matches!(&l.op, Op::Linear(o) if o.parts.len() > 1));
        let Op::Linear(op) = &mut launch.unwrap().op else { unreachable!("found above") };
        let again = op.parts[0].clone();
        op.parts.push(again);
    });
    assert_eq!(report.planned, report.counted);
    assert_eq!(
        kinds(&report),
        [MismatchKind::WeightReadAgain, MismatchKind::WrittenAgain],
        "{}",
        show(&report)
    );
}

#[test]
fn a_buffer_that_the_account_forgets_fails() {
    let report = mutated(|e| {
        let launch = e.plans.decode.launches.iter_mut().find(|l| matches!(l.op, Op::Rope(_))).unwrap();
        launch.parts[0].accesses.retain(|a| a.direction == Direction::Read);
    });
    assert_eq!(kinds(&report), [MismatchKind::Write; 3], "{}", show(&report));
}

#[test]
fn totals_by_class_are_what_a_receipt_needs() {
    let report = mutated(|_| {});
    for class in [TrafficClass::Weight, TrafficClass::Kv, TrafficClass::Activation] {
        assert!(report.planned.class(class).0 > 0, "{class}");
    }
    assert_eq!(report.planned.get(TrafficClass::Weight, Direction::Write).0, 0);
    // Two sequences of 21 tokens, 3 layers, K and V of 2 heads x 128 in BF16.
    assert_eq!(report.counted.get(TrafficClass::Kv, Direction::Read).0, 2 * 21 * 3 * 2 * 2 * 128 * 2);
}
