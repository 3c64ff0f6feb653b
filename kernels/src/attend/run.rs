//! Host launch of attention: items are (tile of rows of one sequence, key head); splits run in index order.
use super::{Attend, host};
use crate::host::device::Ctx;
use crate::memory::{Pod, Rd};
use crate::rows::Sink;
use crate::values::{Bf16, KvElem};
use ledger::PAGE_TOKENS;

/// Rows of a tile. They share the reads of K and V; the result of a row does not depend on it.
const TILE: usize = 8;

fn shape(o: &Attend) -> host::Shape {
    host::Shape { group: o.heads / o.kv_heads, head_dim: o.head_dim, scale: o.scale }
}

/// Floats of scratch a thread needs: queries and outputs of a tile beside the kernel's own.
pub fn scratch(o: &Attend, rows: usize) -> usize {
    let (shape, tile) = (shape(o), TILE.min(rows));
    shape.scratch_len(tile) + 2 * tile * shape.group * o.head_dim
}

/// Runs the launch.
pub fn run(o: &Attend, ctx: &mut Ctx<'_>) -> Result<(), String> {
    if o.kv_bytes == 4 { items::<f32>(o, ctx) } else { items::<Bf16>(o, ctx) }
}

/// Pages of one sequence and key head, cut at the sequence's length so that only its tokens are touched.
struct Cache<'v, 'a, E> {
    keys: &'v Rd<'a, E>,
    values: &'v Rd<'a, E>,
    table: &'v [u32],
    kv_heads: usize,
    head: usize,
    head_dim: usize,
    len: usize,
}

impl<E: Pod> host::Pages<E> for Cache<'_, '_, E> {
    fn page(&self, index: usize) -> (&[E], &[E]) {
        let page = PAGE_TOKENS as usize;
        let tokens = page.min(self.len - index * page);
        let at = (self.table[index] as usize * self.kv_heads + self.head) * page * self.head_dim;
        let span = at..at + tokens * self.head_dim;
        (self.keys.slice(span.clone()), self.values.slice(span))
    }
}

fn items<E: KvElem + Pod>(o: &Attend, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd) = (ctx.views, ctx.simd);
    let (d, shape, rows) = (o.head_dim, shape(o), ctx.shape.rows);
    let (q, table) = (views.rd::<f32>(o.q), views.rd::<u32>(o.table));
    let pos = views.rd::<u32>(o.pos).slice(0..rows);
    let seg = views.rd::<u32>(o.seg).slice(0..rows);
    let (keys, values) = (views.rd::<E>(o.k_cache), views.rd::<E>(o.v_cache));
    let gates = o.gate.map(|g| views.rd::<f32>(g));
    let sink = Sink::new(views, o.out, o.out_kind);
    // Decode has one row a sequence, so a tile of one; prefill tiles cut the rows at fixed indices.
    let tile = if rows == ctx.shape.seqs { 1 } else { TILE };
    let width = shape.group * d;
    ctx.pool.run(rows.div_ceil(tile) * o.kv_heads, &|item, scratch| {
        let (first, head) = (item / o.kv_heads * tile, item % o.kv_heads);
        let end = (first + tile).min(rows);
        let (queries, scratch) = scratch.split_at_mut(tile * width);
        let (out, scratch) = scratch.split_at_mut(tile * width);
        let mut r = first;
        while r < end {
            let n = (r..end).take_while(|i| seg[*i] == seg[r]).count();
            let mut lens = [0usize; TILE];
            for i in 0..n {
                let at = ((r + i) * o.heads + head * shape.group) * d;
                queries[i * width..(i + 1) * width].copy_from_slice(q.slice(at..at + width));
                lens[i] = pos[r + i] as usize + 1;
            }
            let len = lens[n - 1];
            let row = seg[r] as usize * o.max_pages;
            let table = table.slice(row..row + len.div_ceil(PAGE_TOKENS as usize));
            let (keys, values) = (&keys, &values);
            let cache = Cache { keys, values, table, kv_heads: o.kv_heads, head, head_dim: d, len };
            host::attend_tile(simd, &shape, &queries[..n * width], &cache, &lens[..n], scratch, out);
            for i in 0..n {
                let out = &mut out[i * width..(i + 1) * width];
                if let Some(gates) = &gates {
                    for (g, out) in out.chunks_exact_mut(d).enumerate() {
                        let at = ((r + i) * o.heads + head * shape.group + g) * 2 * d + d;
                        host::gate_row(simd, gates.slice(at..at + d), out);
                    }
                }
                sink.put(simd, r + i, o.heads * d, head * width, out);
            }
            r += n;
        }
    });
    Ok(())
}
