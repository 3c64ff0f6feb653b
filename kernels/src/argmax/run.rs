//! Host launch of argmax: one row of logits an item.
use super::{Argmax, host};
use crate::host::device::Ctx;
use std::sync::OnceLock;

/// Runs the launch.
pub fn run(o: &Argmax, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd) = (ctx.views, ctx.simd);
    let (logits, chosen) = (views.rd::<f32>(o.logits), views.wr::<u32>(o.chosen));
    let failed = OnceLock::new();
    ctx.rows(ctx.shape.out_rows, o.vocab, |r, _| {
        match host::argmax_row(simd, logits.slice(r * o.vocab..(r + 1) * o.vocab)) {
            Ok(best) => chosen.slice(r..r + 1)[0] = best as u32,
            Err(e) => {
                failed.get_or_init(|| format!("row {r}: {e}"));
            }
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}
