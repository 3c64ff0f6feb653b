//! Time to read, verify, hash and spell receipts, on the retained store.
use criterion::{Criterion, criterion_group, criterion_main};
use receipts::{Policy, Store, canon, parse_line, verdict};
use std::hint::black_box;
use std::path::Path;

fn store(c: &mut Criterion) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("retained/whatis-9m-host");
    let store = Store::open(&dir);
    let records = store.list().expect("the retained store reads");
    c.bench_function(&format!("verify a store of {} receipts", records.len()), |b| {
        b.iter(|| store.verify().expect("it reads").is_sound());
    });
    let text = std::fs::read(dir.join("receipts.jsonl")).expect("a tracked file");
    let line = text.split(|b| *b == b'\n').next().unwrap_or_default().to_vec();
    c.bench_function(&format!("parse a line of {} bytes", line.len()), |b| {
        b.iter(|| parse_line(black_box(&line)).expect("it is a line"));
    });
    c.bench_function("canonical JSON of a receipt", |b| {
        b.iter(|| canon::canonical(black_box(&records[0].sealed)).expect("it has one"));
    });
    c.bench_function("digest of a receipt", |b| {
        b.iter(|| canon::digest(black_box(&records[0].sealed)).expect("it has one"));
    });
    let step = records.iter().find_map(|r| r.entry().step()).expect("step receipts are retained");
    let policy = Policy::embedded();
    c.bench_function("verdict of a receipt", |b| b.iter(|| verdict(black_box(step), &policy)));
}

fn hash(c: &mut Criterion) {
    let megabyte = vec![0x5a; 1 << 20];
    c.bench_function("SHA-256 of 1 MiB", |b| b.iter(|| canon::sha256_hex(black_box(&megabyte))));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("retained/whatis-9m-host/receipts.jsonl");
    c.bench_function("BLAKE3 of the retained file", |b| {
        b.iter(|| receipts::hash_file(black_box(&path)).expect("a tracked file"));
    });
}

criterion_group!(benches, store, hash);
criterion_main!(benches);
