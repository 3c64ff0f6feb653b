//! Host launch of the fold: one row an item.
use super::{Fold, MAX_TOP_K, host};
use crate::host::device::Ctx;

/// Runs the launch.
pub fn run(o: &Fold, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd) = (ctx.views, ctx.simd);
    let (y, weights) = (views.rd::<f32>(o.y), views.rd::<f32>(o.weights));
    let residual = views.rw::<f32>(o.residual);
    let k = o.top_k;
    if k > MAX_TOP_K {
        return Err(format!("top_k is {k}, the limit is {MAX_TOP_K}"));
    }
    let mut pairs = [0u32; MAX_TOP_K];
    pairs.iter_mut().enumerate().for_each(|(i, p)| *p = i as u32);
    ctx.rows(ctx.shape.rows, o.hidden * k, |r, _| {
        let y = y.slice(r * k * o.hidden..(r + 1) * k * o.hidden);
        let row = residual.slice(r * o.hidden..(r + 1) * o.hidden);
        host::fold_row(simd, y, o.hidden, &pairs[..k], weights.slice(r * k..(r + 1) * k), 0, row);
    });
    Ok(())
}
