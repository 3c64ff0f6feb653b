//! Host launches of the expert products: items are (expert, column range); inactive experts cost a compare.
use super::{ExpertDown, ExpertUp, host};
use crate::host::device::Ctx;
use crate::lanes::silu_mul_row;
use crate::linear::Matrix;
use crate::linear::host::RowSel;
use crate::linear::run::{ROW_CHUNK, item_columns, product, product_scratch};
use crate::numeric::ActKind;
use crate::rows::{Sink, act};
use std::sync::OnceLock;

/// Floats of scratch a thread needs for gate and up.
pub fn up_scratch(o: &ExpertUp, rows: usize) -> usize {
    product_scratch(&o.gate, item_columns(&o.gate, o.kind, o.out_kind == ActKind::Q8), rows)
}

/// Floats of scratch a thread needs for down.
pub fn down_scratch(o: &ExpertDown, rows: usize) -> usize {
    product_scratch(&o.down, item_columns(&o.down, o.kind, false), rows * o.groups.top_k)
}

/// Columns of item `item`: (expert, first, end).
fn place(item: usize, w: &Matrix, step: usize) -> (usize, usize, usize) {
    let per_expert = w.n.div_ceil(step);
    let c0 = item % per_expert * step;
    (item / per_expert, c0, (c0 + step).min(w.n))
}

/// Runs gate and up.
pub fn run_up(o: &ExpertUp, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd, rows) = (ctx.views, ctx.simd, ctx.shape.rows);
    let g = &o.groups;
    let offsets = views.rd::<u32>(g.offsets).slice(0..g.experts + 1);
    let list = views.rd::<u32>(g.list).slice(0..rows * g.top_k);
    let x = act(views, o.x, o.kind, rows, o.gate.k);
    let step = item_columns(&o.gate, o.kind, o.out_kind == ActKind::Q8);
    let (gate, up) = (views.rd::<u8>(o.gate.buf), views.rd::<u8>(o.up.buf));
    let failed = OnceLock::new();
    ctx.pool.run(g.experts * o.gate.n.div_ceil(step), &|item, scratch| {
        let (e, c0, c1) = place(item, &o.gate, step);
        let pairs = host::pairs(offsets, list, e);
        if pairs.is_empty() {
            return;
        }
        let span = |w: &Matrix| {
            let (row, base) = (w.row_bytes() as usize, e * w.bytes() as usize);
            base + c0 * row..base + c1 * row
        };
        let (gate_rows, up_rows) = (gate.slice(span(&o.gate)), up.slice(span(&o.up)));
        let sink = Sink::new(views, o.out, o.out_kind);
        let width = c1 - c0;
        for chunk in pairs.chunks(ROW_CHUNK) {
            let mut buffer = [0u32; ROW_CHUNK];
            let sel = RowSel::List(host::rows_of(chunk, g.top_k, &mut buffer));
            let (y, rest) = scratch.split_at_mut(width * chunk.len());
            let (y2, rest) = rest.split_at_mut(width * chunk.len());
            let done = product(simd, &o.gate, gate_rows, &x, sel, rest, y)
                .and_then(|()| product(simd, &o.up, up_rows, &x, sel, rest, y2));
            if let Err(what) = done {
                failed.get_or_init(|| what);
                return;
            }
            silu_mul_row(simd, y, y2);
            for (m, pair) in chunk.iter().enumerate() {
                sink.put(simd, *pair as usize, o.gate.n, c0, &y[m * width..(m + 1) * width]);
            }
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Runs down.
pub fn run_down(o: &ExpertDown, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd, rows) = (ctx.views, ctx.simd, ctx.shape.rows);
    let g = &o.groups;
    let offsets = views.rd::<u32>(g.offsets).slice(0..g.experts + 1);
    let list = views.rd::<u32>(g.list).slice(0..rows * g.top_k);
    let h = act(views, o.h, o.kind, rows * g.top_k, o.down.k);
    let step = item_columns(&o.down, o.kind, false);
    let (down, out) = (views.rd::<u8>(o.down.buf), views.wr::<f32>(o.out));
    let failed = OnceLock::new();
    ctx.pool.run(g.experts * o.down.n.div_ceil(step), &|item, scratch| {
        let (e, c0, c1) = place(item, &o.down, step);
        let pairs = host::pairs(offsets, list, e);
        if pairs.is_empty() {
            return;
        }
        let (row, base) = (o.down.row_bytes() as usize, e * o.down.bytes() as usize);
        let weights = down.slice(base + c0 * row..base + c1 * row);
        let width = c1 - c0;
        for chunk in pairs.chunks(ROW_CHUNK) {
            let (y, rest) = scratch.split_at_mut(width * chunk.len());
            if let Err(what) = product(simd, &o.down, weights, &h, RowSel::List(chunk), rest, y) {
                failed.get_or_init(|| what);
                return;
            }
            for (m, pair) in chunk.iter().enumerate() {
                let at = *pair as usize * o.down.n;
                out.slice(at + c0..at + c1).copy_from_slice(&y[m * width..(m + 1) * width]);
            }
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}
