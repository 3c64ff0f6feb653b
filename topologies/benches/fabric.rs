//! Time to read a fabric file and to place a model's layers on it.
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use topologies::{BUILTIN_NAMES, Topology};

fn fabric(c: &mut Criterion) {
    for name in BUILTIN_NAMES {
        let text = Topology::builtin_text(name).expect("a built-in name");
        c.bench_function(&format!("parse {name}"), |b| {
            b.iter(|| Topology::parse(name, black_box(text)).expect("built-in files are valid"));
        });
    }
    let fabric = Topology::builtin("single_switch_single_rail").expect("a built-in name");
    let layers = vec![760_000_000u64; 64];
    c.bench_function("place 64 layers on 16 nodes", |b| {
        b.iter(|| fabric.place(black_box(&layers), 16).expect("it fits"));
    });
}

criterion_group!(benches, fabric);
criterion_main!(benches);
