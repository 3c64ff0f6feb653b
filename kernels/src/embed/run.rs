//! Host launch of the embedding: one token an item.
use super::Embed;
use crate::formats::decode_row_with;
use crate::host::device::Ctx;

/// Runs the launch. Token ids are checked against the vocabulary before a step is built.
pub fn run(o: &Embed, ctx: &mut Ctx<'_>) -> Result<(), String> {
    let (views, simd) = (ctx.views, ctx.simd);
    let tokens = views.rd::<u32>(o.tokens);
    let table = views.rd::<u8>(o.table);
    let out = views.wr::<f32>(o.out);
    let bytes = o.row_bytes() as usize;
    ctx.rows(ctx.shape.rows, o.hidden, |r, _| {
        let token = tokens.get(r) as usize;
        let stored = table.slice(token * bytes..(token + 1) * bytes);
        let row = out.slice(r * o.hidden..(r + 1) * o.hidden);
        decode_row_with(simd, o.format, stored, row)
            .expect("the plan checked the table's format against its width");
    });
    Ok(())
}
