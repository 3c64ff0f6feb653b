//! Host launch of linear: items are column ranges of the parts; each reads its weight rows exactly once.
use super::contract::{Epilogue, Linear, LinearPart, Matrix};
use super::host::{Act, RowSel, scratch_len, tile, tile_rows};
use crate::host::device::Ctx;
use crate::host::simd::Simd;
use crate::lanes::{add_row, silu_mul_row};
use crate::memory::Views;
use crate::numeric::ActKind;
use crate::rows::{Sink, act};
use ledger::Feature;

/// Rows of activations that pass over a weight tile before its results are stored.
pub(crate) const ROW_CHUNK: usize = 128;

/// Columns of an item of the integer class: it decodes nothing, but arranges its activations once an item, and
/// reads its weights as four streams that should be long.
const INTEGER_COLUMNS: usize = 64;

/// Columns of an item: a multiple of the tile, and whole Q8 groups where the output is Q8.
pub(crate) fn item_columns(w: &Matrix, x: ActKind, q8_out: bool) -> usize {
    match (q8_out, x) {
        (true, _) => 256,
        (false, ActKind::Q8) => INTEGER_COLUMNS,
        (false, ActKind::F32 | ActKind::Bf16) => tile_rows(w.format, w.k),
    }
}

/// Floats that [`product`] needs for `rows` rows of an item of `columns` columns.
pub(crate) fn product_scratch(w: &Matrix, columns: usize, rows: usize) -> usize {
    let (tile, rows) = (tile_rows(w.format, w.k), rows.min(ROW_CHUNK));
    let narrow = if columns > tile { tile * rows } else { 0 };
    scratch_len(w.k, tile) + narrow + 2 * columns * rows
}

fn columns(part: &LinearPart, x: ActKind) -> usize {
    item_columns(&part.w, x, matches!(part.epilogue, Epilogue::SiluMul { kind: ActKind::Q8, .. }))
}

/// Floats of scratch a thread needs.
pub fn scratch(o: &Linear, rows: usize) -> usize {
    o.parts.iter().map(|p| product_scratch(&p.w, columns(p, o.kind), rows)).max().unwrap_or(0)
}

/// `out[m][c] = x[rows[m]] . w[c]` for the weight rows held in `stored`, tile by tile.
pub(crate) fn product(
    simd: Simd,
    w: &Matrix,
    stored: &[u8],
    x: &Act<'_>,
    rows: RowSel<'_>,
    scratch: &mut [f32],
    out: &mut [f32],
) -> Result<(), String> {
    let bytes = w.row_bytes() as usize;
    let (n, step) = (stored.len() / bytes, tile_rows(w.format, w.k));
    if n <= step || x.kind() == ActKind::Q8 {
        return tile(simd, w.format, stored, n, w.k, x, rows, scratch, out).map_err(|e| e.to_string());
    }
    let (decoded, narrow) = scratch.split_at_mut(scratch_len(w.k, step));
    for start in (0..n).step_by(step) {
        let nt = step.min(n - start);
        let part = &stored[start * bytes..(start + nt) * bytes];
        tile(simd, w.format, part, nt, w.k, x, rows, decoded, narrow).map_err(|e| e.to_string())?;
        for m in 0..rows.len() {
            out[m * n + start..m * n + start + nt].copy_from_slice(&narrow[m * nt..(m + 1) * nt]);
        }
    }
    Ok(())
}

/// Runs the launch.
pub fn run(o: &Linear, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd) = (ctx.views, ctx.simd);
    let rows = if o.rows == Feature::OutRows { ctx.shape.out_rows } else { ctx.shape.rows };
    let items = o.parts.iter().map(|p| p.w.n.div_ceil(columns(p, o.kind))).sum();
    let x = act(views, o.x, o.kind, rows, o.parts[0].w.k);
    let failed = std::sync::OnceLock::new();
    ctx.pool.run(items, &|mut item, scratch| {
        let part = o.parts.iter().find(|p| {
            let mine = p.w.n.div_ceil(columns(p, o.kind));
            let found = item < mine;
            item -= if found { 0 } else { mine };
            found
        });
        let part = part.expect("items are counted over the same parts");
        if let Err(what) = run_item(part, item, rows, &x, views, simd, scratch) {
            failed.get_or_init(|| what);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

fn run_item(
    part: &LinearPart,
    item: usize,
    rows: usize,
    x: &Act<'_>,
    views: Views<'_>,
    simd: Simd,
    scratch: &mut [f32],
) -> Result<(), String> {
    let (n, step) = (part.w.n, columns(part, x.kind()));
    let (c0, c1) = (item * step, (item * step + step).min(n));
    let width = c1 - c0;
    let bytes = part.w.row_bytes() as usize;
    let stored = views.rd::<u8>(part.w.buf).slice(c0 * bytes..c1 * bytes);
    let up = match part.epilogue {
        Epilogue::SiluMul { up, kind } => {
            let bytes = up.row_bytes() as usize;
            Some((up, views.rd::<u8>(up.buf).slice(c0 * bytes..c1 * bytes), Sink::new(views, part.out, kind)))
        }
        _ => None,
    };
    for start in (0..rows).step_by(ROW_CHUNK) {
        let chunk = ROW_CHUNK.min(rows - start);
        let sel = RowSel::Range { start, end: start + chunk };
        // Layout of the thread's scratch: first product, second product, then the tile's own.
        let (y, rest) = scratch.split_at_mut(width * chunk);
        match (&part.epilogue, &up) {
            (Epilogue::SiluMul { .. }, Some((up, up_stored, sink))) => {
                let (y2, rest) = rest.split_at_mut(width * chunk);
                product(simd, &part.w, stored, x, sel, rest, y)?;
                product(simd, up, up_stored, x, sel, rest, y2)?;
                silu_mul_row(simd, y, y2);
                for m in 0..chunk {
                    sink.put(simd, start + m, n, c0, &y[m * width..(m + 1) * width]);
                }
            }
            (Epilogue::Accumulate, _) => {
                product(simd, &part.w, stored, x, sel, rest, y)?;
                let out = views.rw::<f32>(part.out);
                for m in 0..chunk {
                    let at = (start + m) * n;
                    let to = out.slice(at + c0..at + c1);
                    add_row(simd, to, &y[m * width..(m + 1) * width]);
                }
            }
            _ => {
                product(simd, &part.w, stored, x, sel, rest, y)?;
                let out = views.wr::<f32>(part.out);
                for m in 0..chunk {
                    let at = (start + m) * n;
                    out.slice(at + c0..at + c1).copy_from_slice(&y[m * width..(m + 1) * width]);
                }
            }
        }
    }
    Ok(())
}
