//! Host launch of the convolution: one sequence an item.
use super::{Conv, host};
use crate::host::device::Ctx;

/// Floats of scratch a thread needs.
pub fn scratch(_: &Conv) -> usize {
    0
}

/// Runs the launch.
pub fn run(o: &Conv, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd, seqs) = (ctx.views, ctx.simd, ctx.shape.seqs);
    let channels = host::Channels { dim: o.dim, taps: o.taps, first: 0, count: o.dim };
    let weight = ctx.small(&o.weight);
    let starts = views.rd::<u32>(o.seg_start).slice(0..seqs + 1);
    let slots = views.rd::<u32>(o.slot).slice(0..seqs);
    let (u, out, state) = (views.rd::<f32>(o.u), views.wr::<f32>(o.out), views.rw::<f32>(o.state));
    let window = (o.taps - 1) * o.dim;
    let rows = ctx.shape.rows / seqs.max(1);
    ctx.rows(seqs, o.dim * (rows + o.taps), |s, _| {
        let span = starts[s] as usize * o.dim..starts[s + 1] as usize * o.dim;
        let at = slots[s] as usize * window;
        let state = state.slice(at..at + window);
        host::conv_segment(simd, u.slice(span.clone()), &channels, state, &weight, out.slice(span));
    });
    Ok(())
}
