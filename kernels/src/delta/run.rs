//! Host launch of the delta rule: items are (sequence, value head); the state is updated in place.
use super::{Delta, DeltaForm, host};
use crate::host::device::Ctx;
use crate::rows::Sink;

/// Floats of scratch a thread needs.
pub fn scratch(o: &Delta, rows: usize) -> usize {
    let longest = if o.form == DeltaForm::Step { 1 } else { rows };
    host::step_scratch_len(o.dk, o.dv).max(host::chunk_scratch_len(o.dk, o.dv)) + longest * o.dv
}

/// Runs the launch.
pub fn run(o: &Delta, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd, seqs) = (ctx.views, ctx.simd, ctx.shape.seqs);
    let (a_log, dt_bias, norm) = (ctx.small(&o.a_log), ctx.small(&o.dt_bias), ctx.small(&o.norm));
    let starts = views.rd::<u32>(o.seg_start).slice(0..seqs + 1);
    let slots = views.rd::<u32>(o.slot).slice(0..seqs);
    let (qkv, z) = (views.rd::<f32>(o.qkv), views.rd::<f32>(o.z));
    let (a, b) = (views.rd::<f32>(o.a), views.rd::<f32>(o.b));
    let state = views.rw::<f32>(o.state);
    let sink = Sink::new(views, o.out, o.out_kind);
    let (dk, dv, heads, width, keys) = (o.dk, o.dv, o.v_heads, o.qkv_dim(), o.k_heads * o.dk);
    ctx.pool.run(seqs * heads, &|item, scratch| {
        let (s, h) = (item / heads, item % heads);
        let key_head = h / (heads / o.k_heads);
        let at = (slots[s] as usize * heads + h) * dk * dv;
        let state = state.slice(at..at + dk * dv);
        let (a_log, dt_bias) = (a_log.get(h), dt_bias.get(h));
        let head = host::Head { dk, dv, a_log, dt_bias, norm_w: norm, eps: o.eps, round_normed: false };
        let (first, end) = (starts[s] as usize, starts[s + 1] as usize);
        let n = end - first;
        // From this head's first value of the first row to its last value of the last row.
        let span = |view: &crate::memory::Rd<'_, f32>, stride: usize, column: usize, len: usize| {
            let start = first * stride + column;
            start..(start + (n - 1) * stride + len).min(view.len())
        };
        let part = |column: usize, len: usize| qkv.slice(span(&qkv, width, column, len));
        let (q, k, v) =
            (part(key_head * dk, dk), part(keys + key_head * dk, dk), part(2 * keys + h * dv, dv));
        let z = z.slice(span(&z, heads * dv, h * dv, dv));
        let (a, b) = (a.slice(span(&a, heads, h, 1)), b.slice(span(&b, heads, h, 1)));
        let (out, scratch) = scratch.split_at_mut(n * dv);
        match o.form {
            DeltaForm::Step => host::step_head(simd, &head, q, k, v, z, a[0], b[0], state, scratch, out),
            DeltaForm::Chunk => {
                let (qkv_stride, z_stride, ab_stride) = (width, heads * dv, heads);
                let segment = host::Segment { n, q, k, v, qkv_stride, z, z_stride, a, b, ab_stride };
                host::chunk_head(simd, &head, &segment, state, scratch, out, dv);
            }
        }
        for (i, row) in out.chunks_exact(dv).enumerate() {
            sink.put(simd, first + i, heads * dv, h * dv, row);
        }
    });
    Ok(())
}
