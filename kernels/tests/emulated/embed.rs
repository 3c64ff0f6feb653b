//! Embedding: every format, in the planar layout on the device, to the host's bits.
use crate::case::{Case, bucket};
use crate::emulator::emulator;
use kernels::embed::Embed;
use kernels::formats::Format;
use kernels::formats::planar::to_planar;
use kernels::launch::Op;
use ledger::Feature;

#[test]
fn every_format_gives_the_hosts_bits() {
    let Some(e) = emulator() else { return };
    // 21 rows: a full tile of 16 and a short one.
    let (vocab, hidden, rows) = (21, 512, 4);
    for format in Format::ALL {
        let mut c = Case::new(bucket(rows + 1, rows + 1, 128), 3 + format as u64);
        let bytes = c.matrix(format, vocab, hidden);
        let table = c.weight("table", bytes.clone());
        let ids: Vec<u32> = [0, 15, 16, 20, 7].to_vec();
        let tokens = c.u32s("tokens", &ids);
        let out = c.exact("out", 4 * (rows + 1) * hidden);
        let op = Embed { tokens, table, format, vocab, hidden, out, distinct: Feature::DistinctTokens };
        let planar = to_planar(format, vocab, hidden, &bytes).unwrap();
        c.run(e, Op::Embed(op), rows, &[(table, planar)]);
    }
}
