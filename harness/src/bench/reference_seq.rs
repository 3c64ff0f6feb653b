//! The ops that look along a sequence, in f64: rotary append, attention, convolution, delta rule.
use super::reference::ROWS;
use super::sample::{Buffers, Check, dot, rms, sigmoid, silu, spread};
use kernels::attend::Attend;
use kernels::conv::Conv;
use kernels::delta::Delta;
use kernels::numeric::ActKind;
use kernels::rope::Rope;
use ledger::PAGE_TOKENS;

/// Heads looked at in each row.
const HEADS: usize = 4;

/// First value of a cached token of a head: caches are `[pages, kv_heads, page_tokens, head_dim]`.
fn cached(slot: usize, kv_heads: usize, head: usize, d: usize) -> usize {
    let page = PAGE_TOKENS as usize;
    ((slot / page * kv_heads + head) * page + slot % page) * d
}

fn rotate(o: &Rope, head: &mut [f64], position: u32) {
    let half = o.rotary_dims / 2;
    for m in 0..half {
        let frequency = o.theta.powf(-2.0 * m as f64 / o.rotary_dims as f64);
        let (s, c) = (f64::from(position) * frequency).sin_cos();
        let (x, y) = (head[m], head[m + half]);
        (head[m], head[m + half]) = (x * c - y * s, y * c + x * s);
    }
}

/// Queries, cached keys and cached values of some rows.
pub fn rope(o: &Rope, b: &Buffers<'_>, rows: usize, out: &mut Check) {
    let (d, q_norm, k_norm) = (o.head_dim, b.small(&o.q_norm), b.small(&o.k_norm));
    for r in spread(rows, ROWS) {
        let position = b.u32s(o.pos)[r];
        for h in 0..o.heads {
            let q = b.f32s(o.q, (r * o.heads + h) * o.q_stride, d);
            let mut want = rms(&q, &q_norm, o.eps, o.plus_one);
            rotate(o, &mut want, position);
            out.row(&b.f32s(o.q_out, (r * o.heads + h) * d, d), &want);
        }
        let slot = b.u32s(o.kv_slot)[r] as usize;
        for h in 0..o.kv_heads {
            let (from, at) = ((r * o.kv_heads + h) * d, cached(slot, o.kv_heads, h, d));
            let mut want = rms(&b.f32s(o.k, from, d), &k_norm, o.eps, o.plus_one);
            rotate(o, &mut want, position);
            out.row(&b.kv(o.k_cache, o.kv_bytes, at, d), &want);
            out.row(&b.kv(o.v_cache, o.kv_bytes, at, d), &b.f32s(o.v, from, d));
        }
    }
}

/// Some heads of some rows, over the whole cache of their sequence.
pub fn attend(o: &Attend, b: &Buffers<'_>, rows: usize, out: &mut Check) {
    let (d, page) = (o.head_dim, PAGE_TOKENS as usize);
    for r in spread(rows, ROWS) {
        let table = &b.u32s(o.table)[b.u32s(o.seg)[r] as usize * o.max_pages..];
        let slot = |t: usize| table[t / page] as usize * page + t % page;
        let len = b.u32s(o.pos)[r] as usize + 1;
        let got = b.act(o.out, o.out_kind, r, o.heads * d);
        // Outputs of one row share a scale, as they do where the row is quantised.
        let (mut have, mut want) = (Vec::new(), Vec::new());
        for h in whole_groups(o, spread(o.heads, HEADS)) {
            let kv_head = h / (o.heads / o.kv_heads);
            let at = |t: usize| cached(slot(t), o.kv_heads, kv_head, d);
            let q = b.f32s(o.q, (r * o.heads + h) * d, d);
            let score = |t: usize| dot(&q, &b.kv(o.k_cache, o.kv_bytes, at(t), d)) * f64::from(o.scale);
            let scores: Vec<f64> = (0..len).map(score).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut y = vec![0.0; d];
            let mut total = 0.0;
            for (t, score) in scores.iter().enumerate() {
                let p = (score - top).exp();
                total += p;
                let v = b.kv(o.v_cache, o.kv_bytes, at(t), d);
                y.iter_mut().zip(&v).for_each(|(y, v)| *y += p * v);
            }
            y.iter_mut().for_each(|y| *y /= total);
            if let Some(gate) = o.gate {
                let gate = b.f32s(gate, (r * o.heads + h) * 2 * d + d, d);
                y.iter_mut().zip(&gate).for_each(|(y, g)| *y *= sigmoid(*g));
            }
            have.extend_from_slice(&got[h * d..(h + 1) * d]);
            want.extend(y);
        }
        out.row(&have, &want);
    }
}

/// Quantised rows round to a 127th of the largest value of each 256: a head is looked at with the heads it shares
/// them with, or the largest value could be one that nobody worked out.
fn whole_groups(o: &Attend, chosen: Vec<usize>) -> Vec<usize> {
    let group = match o.out_kind {
        ActKind::Q8 => (256 / o.head_dim).max(1),
        ActKind::F32 | ActKind::Bf16 => 1,
    };
    let mut heads: Vec<usize> = chosen.iter().flat_map(|h| (h / group * group..).take(group)).collect();
    heads.dedup();
    heads.retain(|h| *h < o.heads);
    heads
}

/// All channels of some sequences, and the window they leave behind.
pub fn conv(o: &Conv, b: &Buffers<'_>, seqs: usize, out: &mut Check) {
    let (dim, taps, w) = (o.dim, o.taps, b.small(&o.weight));
    for s in spread(seqs, ROWS) {
        let starts = b.u32s(o.seg_start);
        let (first, end) = (starts[s] as usize, starts[s + 1] as usize);
        let at = b.u32s(o.slot)[s] as usize * (taps - 1) * dim;
        let mut inputs = b.old(o.state, at, (taps - 1) * dim);
        inputs.extend(b.f32s(o.u, first * dim, (end - first) * dim));
        for t in 0..end - first {
            let tap = |c: usize, j: usize| w[c * taps + j] * inputs[(t + j) * dim + c];
            let want: Vec<f64> = (0..dim).map(|c| silu((0..taps).map(|j| tap(c, j)).sum())).collect();
            out.row(&b.f32s(o.out, (first + t) * dim, dim), &want);
        }
        out.row(&b.f32s(o.state, at, (taps - 1) * dim), &inputs[(end - first) * dim..]);
    }
}

/// Some heads of some sequences token by token, whichever form ran, and their state at the end.
pub fn delta(o: &Delta, b: &Buffers<'_>, seqs: usize, out: &mut Check) {
    let (a_log, dt_bias, norm) = (b.small(&o.a_log), b.small(&o.dt_bias), b.small(&o.norm));
    let (dk, dv, heads, keys) = (o.dk, o.dv, o.v_heads, o.k_heads * o.dk);
    let unit = |x: Vec<f64>| {
        let n = (dot(&x, &x) + 1e-6).sqrt();
        x.into_iter().map(|x| x / n).collect::<Vec<f64>>()
    };
    for (s, h) in
        spread(seqs, HEADS).into_iter().flat_map(|s| spread(heads, HEADS).into_iter().map(move |h| (s, h)))
    {
        let starts = b.u32s(o.seg_start);
        let at = (b.u32s(o.slot)[s] as usize * heads + h) * dk * dv;
        let mut state = b.old(o.state, at, dk * dv);
        let key = h / (heads / o.k_heads) * dk;
        for r in starts[s] as usize..starts[s + 1] as usize {
            let part = |column: usize, n: usize| b.f32s(o.qkv, r * o.qkv_dim() + column, n);
            let (q, k, v) = (unit(part(key, dk)), unit(part(keys + key, dk)), part(2 * keys + h * dv, dv));
            let scalar = |buf| b.f32s(buf, r * heads + h, 1)[0];
            let alpha = (-a_log[h].exp() * (scalar(o.a) + dt_bias[h]).exp().ln_1p()).exp();
            let beta = sigmoid(scalar(o.b));
            state.iter_mut().for_each(|s| *s *= alpha);
            let column =
                |state: &[f64], x: &[f64], c: usize| (0..dk).map(|i| x[i] * state[i * dv + c]).sum::<f64>();
            let change: Vec<f64> = (0..dv).map(|c| beta * (v[c] - column(&state, &k, c))).collect();
            for (i, k) in k.iter().enumerate() {
                state[i * dv..(i + 1) * dv].iter_mut().zip(&change).for_each(|(s, d)| *s += k * d);
            }
            let scale = (dk as f64).sqrt().recip();
            let y: Vec<f64> = (0..dv).map(|c| scale * column(&state, &q, c)).collect();
            let z = b.f32s(o.z, (r * heads + h) * dv, dv);
            let normed = rms(&y, &norm, o.eps, false);
            let want: Vec<f64> = normed.iter().zip(&z).map(|(y, z)| y * silu(*z)).collect();
            out.row(&b.act(o.out, o.out_kind, r, heads * dv)[h * dv..(h + 1) * dv], &want);
        }
        out.row(&b.f32s(o.state, at, dk * dv), &state);
    }
}
