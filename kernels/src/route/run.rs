//! Host launch of routing: rows in parallel, then one thread groups the pairs by expert.
use super::{Route, host};
use crate::host::device::Ctx;
use std::sync::OnceLock;

/// Runs the launch.
pub fn run(o: &Route, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd, rows, k) = (ctx.views, ctx.simd, ctx.shape.rows, o.top_k);
    let logits = views.rd::<f32>(o.logits);
    let (ids, weights) = (views.rw::<u32>(o.ids), views.wr::<f32>(o.weights));
    let failed = OnceLock::new();
    ctx.rows(rows, o.experts * (k + 2), |r, _| {
        let row = logits.slice(r * o.experts..(r + 1) * o.experts);
        let pair = r * k..(r + 1) * k;
        let chosen = ids.slice(pair.clone());
        if let Err(what) = host::route_row(simd, row, o.norm_topk, chosen, weights.slice(pair)) {
            failed.get_or_init(|| format!("row {r}: {what}"));
        }
    });
    if let Some(what) = failed.into_inner() {
        return Err(what);
    }
    let counts = views.wr::<u32>(o.counts).slice(0..o.experts);
    let offsets = views.wr::<u32>(o.offsets).slice(0..o.experts + 1);
    let list = views.wr::<u32>(o.list).slice(0..rows * k);
    let ids = views.rd::<u32>(o.ids).slice(0..rows * k);
    host::group(ids, o.experts, counts, offsets, list).map(|_| ()).map_err(|e| e.to_string())
}
