//! Time to evaluate a ledger of a model's size and to print it.
use criterion::{Criterion, criterion_group, criterion_main};
use ledger::{Bytes, Format, LedgerDiff, StepFacts, StepLedger, render};
use std::hint::black_box;

#[path = "../tests/common/mod.rs"]
mod common;

fn reports(c: &mut Criterion) {
    let lines = common::lines(64);
    let facts = StepFacts::decode(64, 1000, 64, 63.0);
    c.bench_function("evaluate 64 layers", |b| {
        b.iter(|| StepLedger::evaluate(black_box(&lines), lines.len(), &facts, Bytes(24_000_000)));
    });
    let report = common::report(64, &[1, 8, 64, 1024]);
    for (name, format) in Format::ALL {
        c.bench_function(name, |b| b.iter(|| render(black_box(&report), format)));
    }
    let (one, many) = (common::ledger(64, 1), common::ledger(64, 64));
    c.bench_function("diff", |b| b.iter(|| LedgerDiff::new(black_box(&one), &many)));
}

criterion_group!(benches, reports);
criterion_main!(benches);
