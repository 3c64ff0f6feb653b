//! Host launch of the norm: one row an item, one store for each kind of output.
use super::{Norm, host};
use crate::host::device::Ctx;
use crate::rows::{Sink, row};

/// Floats of scratch a thread needs.
pub fn scratch(o: &Norm) -> usize {
    o.hidden
}

/// Runs the launch.
pub fn run(o: &Norm, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd) = (ctx.views, ctx.simd);
    let weight = ctx.small(&o.weight);
    let x = views.rd::<f32>(o.x);
    let gather = o.gather.map(|g| views.rd::<u32>(g));
    let sinks = || o.outs.iter().map(move |(kind, buf)| Sink::new(views, *buf, *kind));
    let rows = if o.gather.is_some() { ctx.shape.out_rows } else { ctx.shape.rows };
    ctx.rows(rows, o.hidden, |r, scratch| {
        let from = gather.as_ref().map_or(r, |g| g.get(r) as usize);
        let y = &mut scratch[..o.hidden];
        host::rms_norm_row(simd, row(&x, from, o.hidden), &weight, o.eps, o.plus_one, y);
        for sink in sinks() {
            sink.put(simd, r, o.width, o.column, y);
        }
    });
    Ok(())
}
