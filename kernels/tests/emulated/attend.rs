//! Attention: rows of one token and of many units, in both granularities of the work list, and tiles of rows.
//!
//! Tokens that no row may see are NaN. Bits must not depend on the device (its grid and its choice of
//! granularity), on the order of blocks, nor on whether the decode or the prefill kernel ran a row.
use crate::case::{Case, Close, bucket};
use crate::emulator::emulator;
use kernels::attend::Attend;
use kernels::launch::Op;
use kernels::numeric::{ActKind, StepShape};

/// Two BF16 terms of p keep 16 bits: 2^-17 of the largest value; the rest is f32 in another order.
const F32: Close = Close::F32 { abs: 3e-5, rel: 2e-5 };
/// And one step of a BF16 result.
const BF16: Close = Close::Bf16 { abs: 3e-5, rel: 8e-3 };

#[derive(Clone, Copy)]
struct Shape {
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    gated: bool,
    out_kind: ActKind,
}

/// Rows of sequences: sequence `i` has tokens `0 .. length` and its last `rows` are queried.
fn run(s: Shape, sequences: &[(usize, usize)], decode: bool) -> Option<Vec<u8>> {
    let e = emulator()?;
    let Shape { kv_heads, group, head_dim: d, gated, out_kind } = s;
    let rows: usize = sequences.iter().map(|(_, n)| n).sum();
    let heads = kv_heads * group;
    let max_pages = sequences.iter().map(|(len, _)| len.div_ceil(128)).max().unwrap() + 1;
    let pages: usize = sequences.iter().map(|(len, _)| len.div_ceil(128)).sum();
    let room = rows + usize::from(decode);
    let mut b = bucket(room, sequences.len() + usize::from(decode), 128 * max_pages);
    b.decode = decode;
    let mut c = Case::new(b, 77);
    // The last page of the arena belongs to nobody.
    let mut cache = vec![vec![f32::NAN; (pages + 1) * kv_heads * 128 * d]; 2];
    let (mut pos, mut seg) = (Vec::new(), Vec::new());
    let mut table = vec![pages as u32; (sequences.len() + 1) * max_pages];
    let mut free: Vec<usize> = (0..pages).collect();
    for (i, (length, queried)) in sequences.iter().enumerate() {
        for p in 0..length.div_ceil(128) {
            let page = free.swap_remove(c.below(free.len()));
            table[i * max_pages + p] = page as u32;
            for x in &mut cache {
                for h in 0..kv_heads {
                    let tokens = 128.min(length - 128 * p);
                    let at = (page * kv_heads + h) * 128 * d;
                    x[at..at + tokens * d].copy_from_slice(&c.values(tokens * d, 3.0));
                }
            }
        }
        pos.extend((length - queried..*length).map(|p| p as u32));
        seg.extend(std::iter::repeat_n(i as u32, *queried));
    }
    pos.resize(room, 0);
    seg.resize(room, 0);
    let q: Vec<f32> =
        c.values(rows * heads * d, 3.0).iter().map(|x| kernels::values::round_bf16(*x)).collect();
    let mut q = q;
    q.resize(room * heads * d, f32::NAN);
    let q = c.f32s("q", &q);
    let gate = gated.then(|| c.random("gate", room * heads * 2 * d, 6.0));
    let (k_cache, v_cache) = (c.bf16s("k", &cache[0]), c.bf16s("v", &cache[1]));
    let (pos, seg, table) = (c.u32s("pos", &pos), c.u32s("seg", &seg), c.u32s("table", &table));
    let (size, close) = if out_kind == ActKind::F32 { (4, F32) } else { (2, BF16) };
    let out = c.out("out", size * room * heads * d, close);
    let scale = (d as f32).sqrt().recip();
    let kv_bytes = 2;
    let op = Attend {
        q,
        gate,
        k_cache,
        v_cache,
        kv_bytes,
        pos,
        seg,
        table,
        max_pages,
        heads,
        kv_heads,
        head_dim: d,
        scale,
        out,
        out_kind,
    };
    let shape = StepShape { rows, out_rows: rows, seqs: sequences.len() };
    let ran = c.run_shape(e, Op::Attend(op), shape, &[]);
    Some(ran.bytes(out)[..size * rows * heads * d].to_vec())
}

fn shape(kv_heads: usize, group: usize, head_dim: usize, gated: bool) -> Shape {
    Shape { kv_heads, group, head_dim, gated, out_kind: if gated { ActKind::Bf16 } else { ActKind::F32 } }
}

#[test]
fn rows_of_every_length_in_units_and_in_runs() {
    let lengths = |l: &[usize]| l.iter().map(|n| (*n, 1)).collect::<Vec<_>>();
    run(shape(2, 8, 128, false), &lengths(&[1, 127, 128, 129, 1030]), true);
    run(shape(1, 6, 256, true), &lengths(&[33, 300]), true);
    // More than 32 units: runs are merged first.
    run(shape(1, 2, 64, true), &lengths(&[4300, 64]), true);
    // Enough runs for the coarse list on the smaller device, and with 50 rows on the larger.
    run(shape(4, 2, 32, false), &lengths(&[3, 1100, 1024, 130, 64, 65, 90, 2100, 17]), true);
    run(shape(2, 3, 32, true), &lengths(&(0..50).map(|i| 1 + 37 * i % 1300).collect::<Vec<_>>()), true);
    run(shape(1, 2, 512, false), &lengths(&[140]), true);
}

#[test]
fn tiles_of_rows_and_wide_heads() {
    run(shape(1, 8, 128, false), &[(140, 19)], false);
    run(shape(2, 6, 256, true), &[(133, 7), (9, 9)], false);
    run(shape(2, 2, 64, true), &[(1200, 40)], false);
    run(shape(2, 4, 32, false), &[(70, 70), (1, 1), (130, 2)], false);
    run(shape(1, 1, 512, false), &[(70, 9)], false);
}

#[test]
fn a_row_has_the_same_bits_in_a_tile_and_in_the_work_list() {
    for (s, length) in
        [(shape(1, 6, 256, true), 1100), (shape(2, 8, 128, false), 260), (shape(1, 2, 64, false), 4200)]
    {
        let Some(tile) = run(s, &[(length, 1)], false) else { return };
        assert_eq!(Some(tile), run(s, &[(length, 1)], true));
    }
}
