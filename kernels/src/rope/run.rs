//! Host launch of the query/key norm, rotary embedding and cache append: one row an item.
use super::{Rope, host};
use crate::host::device::Ctx;
use crate::memory::{Pod, Wr};
use crate::values::{Bf16, KvElem, Vector};

/// Floats of scratch a thread needs: the angles and one head.
pub fn scratch(o: &Rope) -> usize {
    o.rotary_dims + o.head_dim
}

/// Runs the launch.
pub fn run(o: &Rope, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let weights = (ctx.small(&o.q_norm), ctx.small(&o.k_norm));
    if o.kv_bytes == 4 { append::<f32>(o, ctx, weights) } else { append::<Bf16>(o, ctx, weights) }
}

/// The cache slots of one row, handed out head by head through the counting views.
struct Slots<'v, 'a, E> {
    keys: &'v Wr<'a, E>,
    values: &'v Wr<'a, E>,
    slot: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl<E: Pod> host::SlotsOf<E> for Slots<'_, '_, E> {
    fn slots(&mut self, kv_head: usize) -> (&mut [E], &mut [E]) {
        // Caches are [pages, kv_heads, page_tokens, head_dim].
        let page = ledger::PAGE_TOKENS as usize;
        let token = (self.slot / page * self.kv_heads + kv_head) * page + self.slot % page;
        let span = token * self.head_dim..(token + 1) * self.head_dim;
        (self.keys.slice(span.clone()), self.values.slice(span))
    }
}

fn append<E: KvElem + Pod>(
    o: &Rope,
    ctx: &mut Ctx<'_>,
    (q_norm, k_norm): (Vector<'_>, Vector<'_>),
) -> Result<(), String> {
    let (views, simd) = (ctx.views, ctx.simd);
    let (q, k, v) = (views.rd::<f32>(o.q), views.rd::<f32>(o.k), views.rd::<f32>(o.v));
    let (pos, slot) = (views.rd::<u32>(o.pos), views.rd::<u32>(o.kv_slot));
    let (keys, values, out) = (views.wr::<E>(o.k_cache), views.wr::<E>(o.v_cache), views.wr::<f32>(o.q_out));
    let (d, heads, kv_heads) = (o.head_dim, o.heads, o.kv_heads);
    let norm = |weight| Some(host::HeadNorm { weight, eps: o.eps, plus_one: o.plus_one });
    let layer = host::QkvLayer {
        head_dim: d,
        gated: false,
        q_norm: norm(q_norm),
        k_norm: norm(k_norm),
        round_q: o.kv_bytes == 2,
    };
    ctx.rows(ctx.shape.rows, 4 * (heads + kv_heads) * d, |r, scratch| {
        let (angles, head) = scratch.split_at_mut(o.rotary_dims);
        host::fill_cos_sin(pos.get(r), o.theta, o.rotary_dims, angles);
        let (keys, values) = (&keys, &values);
        let mut slots = Slots { keys, values, slot: slot.get(r) as usize, kv_heads, head_dim: d };
        // Head by head, so that a gate that follows each query head is not counted as read here.
        for h in 0..heads {
            let at = (r * heads + h) * o.q_stride;
            let to = out.slice((r * heads + h) * d..(r * heads + h + 1) * d);
            host::qkv_row(simd, &layer, angles, q.slice(at..at + d), &[], &[], to, &mut slots, head);
        }
        let kv = r * kv_heads * d..(r + 1) * kv_heads * d;
        host::qkv_row(simd, &layer, angles, &[], k.slice(kv.clone()), v.slice(kv), &mut [], &mut slots, head);
    });
    Ok(())
}
