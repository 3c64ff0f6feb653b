//! Query/key norm, rotation and append: full and partial rotation, gates between heads, far positions.
use crate::case::{Case, Close, bucket};
use crate::emulator::emulator;
use kernels::formats::Format;
use kernels::launch::Op;
use kernels::numeric::SmallWeight;
use kernels::rope::Rope;

/// The norm's tree and two ulp of the angle's cosine move a value by about 1e-6; rounding to BF16 then gives
/// the same value or its neighbour, 2^-8 away.
const CLOSE: f32 = 8e-3;

fn run(heads: usize, kv_heads: usize, head_dim: usize, rotary_dims: usize, gated: bool, positions: &[u32]) {
    let Some(e) = emulator() else { return };
    let rows = positions.len();
    let mut c = Case::new(bucket(rows + 1, rows + 1, 1 << 20), (head_dim + heads) as u64);
    let q_stride = if gated { 2 * head_dim } else { head_dim };
    let q = c.random("q", (rows + 1) * heads * q_stride, 5.0);
    let k = c.random("k", (rows + 1) * kv_heads * head_dim, 5.0);
    let v = c.random("v", (rows + 1) * kv_heads * head_dim, 5.0);
    let norm = |c: &mut Case, name: &str| {
        let w = c.values(head_dim, 2.0);
        let (buf, format) =
            if gated { (c.bf16s(name, &w), Format::Bf16) } else { (c.f32s(name, &w), Format::F32) };
        SmallWeight { buf, format, len: head_dim as u64 }
    };
    let (q_norm, k_norm) = (norm(&mut c, "q_norm"), norm(&mut c, "k_norm"));
    let pages = 3;
    let pos = c.u32s("pos", &[positions, &[0]].concat());
    let slots: Vec<u32> = (0..=rows as u32).map(|r| (r * 131 + 250) % (pages * 128)).collect();
    let kv_slot = c.u32s("kv_slot", &slots);
    let bytes = 2 * pages as usize * kv_heads * 128 * head_dim;
    let close = Close::Bf16 { abs: 1e-5, rel: CLOSE };
    let (k_cache, v_cache) = (c.out("k_cache", bytes, close), c.exact("v_cache", bytes));
    let q_out = c.out("q_out", 4 * (rows + 1) * heads * head_dim, Close::F32 { abs: 1e-5, rel: CLOSE });
    let (eps, plus_one, theta, kv_bytes) = (1e-6, gated, if gated { 1e7 } else { 1e6 }, 2);
    c.run(
        e,
        Op::Rope(Rope {
            q,
            q_stride,
            k,
            v,
            q_norm,
            k_norm,
            eps,
            plus_one,
            heads,
            kv_heads,
            head_dim,
            rotary_dims,
            theta,
            pos,
            kv_slot,
            k_cache,
            v_cache,
            kv_bytes,
            q_out,
        }),
        rows,
        &[],
    );
}

#[test]
fn heads_of_both_families_and_odd_ones_at_near_and_far_positions() {
    let far = [0, 1, 77, 2047, 65_535, 262_143, 999_999, 1_048_575];
    run(4, 2, 128, 128, false, &far);
    run(3, 1, 256, 64, true, &far[2..]);
    run(2, 1, 64, 16, true, &far[..3]);
    run(5, 2, 36, 0, false, &far[..2]);
}
