//! Fold: the host's order, so the host's bits.
use crate::case::{Case, bucket};
use crate::emulator::emulator;
use kernels::fold::Fold;
use kernels::launch::Op;

#[test]
fn slots_in_order_give_the_hosts_bits() {
    let Some(e) = emulator() else { return };
    for (hidden, top_k, rows) in [(2048, 8, 1), (516, 3, 5), (64, 9, 2)] {
        let mut c = Case::new(bucket(rows + 2, rows + 2, 128), 5 + hidden as u64);
        let y = c.random("y", (rows + 2) * top_k * hidden, 2.0);
        let weights = c.random("weights", (rows + 2) * top_k, 1.0);
        let residual = c.random("residual", (rows + 2) * hidden, 3.0);
        c.run(e, Op::Fold(Fold { y, weights, top_k, hidden, residual }), rows, &[]);
    }
}
