//! Argmax: ties to the lower index across pieces, and odd vocabularies.
use crate::case::{Case, bucket};
use crate::emulator::emulator;
use kernels::argmax::Argmax;
use kernels::launch::Op;

#[test]
fn the_lower_index_wins_in_every_cut() {
    let Some(e) = emulator() else { return };
    for (vocab, rows, steps) in [(5000, 1, 64.0), (4097, 3, 4.0), (512, 2, 2.0), (20_000, 40, 8.0)] {
        let mut c = Case::new(bucket(rows + 1, rows + 1, 128), vocab as u64);
        // Few distinct values: most rows have their maximum many times.
        let x: Vec<f32> =
            (0..(rows + 1) * vocab).map(|_| (c.value(2.0) * steps).round() / 4.0 - 0.0).collect();
        let logits = c.f32s("logits", &x);
        let chosen = c.exact("chosen", 4 * (rows + 1));
        c.run(e, Op::Argmax(Argmax { logits, vocab, chosen }), rows, &[]);
    }
}
