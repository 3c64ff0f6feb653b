//! Routing: ids, counts, offsets and lists to the bit, ties included; weights to an ulp or two of the
//! exponential.
use crate::case::{Case, Close, bucket};
use crate::emulator::emulator;
use kernels::launch::Op;
use kernels::route::Route;

fn run(experts: usize, top_k: usize, rows: usize, room: usize, norm_topk: bool) {
    let Some(e) = emulator() else { return };
    let mut c = Case::new(bucket(room, room, 128), (experts * 31 + rows) as u64);
    // Steps of 1/8 over a small range: many exact ties.
    let x: Vec<f32> = (0..room * experts).map(|_| (c.value(24.0)).round() / 8.0).collect();
    let logits = c.f32s("logits", &x);
    let ids = c.exact("ids", 4 * room * top_k);
    let weights = c.out("weights", 4 * room * top_k, Close::F32 { abs: 0.0, rel: 2e-6 });
    let counts = c.exact("counts", 4 * experts);
    let offsets = c.exact("offsets", 4 * (experts + 1));
    let list = c.exact("list", 4 * room * top_k);
    c.run(
        e,
        Op::Route(Route { logits, experts, top_k, norm_topk, ids, weights, counts, offsets, list }),
        rows,
        &[],
    );
}

#[test]
fn choices_and_groups_of_one_row_and_many_blocks() {
    run(128, 8, 1, 1, true);
    run(128, 8, 13, 16, true);
    run(128, 8, 150, 160, true);
    run(6, 2, 5, 8, false);
    run(77, 5, 33, 40, false);
}
