//! Every op in f64, on a spread of its outputs: what the kernel should have written.
use super::case::Case;
use super::reference_seq as seq;
use super::sample::{Buffers, Check, dot, rms, silu, spread};
use kernels::argmax::Argmax;
use kernels::embed::Embed;
use kernels::experts::{ExpertDown, ExpertUp};
use kernels::fold::Fold;
use kernels::launch::Op;
use kernels::linear::{Epilogue, Linear, Matrix};
use kernels::norm::Norm;
use kernels::numeric::ActKind;
use kernels::route::Route;
use ledger::Feature;

/// Rows looked at.
pub const ROWS: usize = 6;
/// Columns of a product looked at in each row.
const COLUMNS: usize = 96;

/// Largest error a right kernel of this case may have. Its terms: f32 accumulation over the longest row of any
/// known model, then one rounding to the output's kind.
pub fn tolerance(op: &Op) -> f64 {
    let kind = |k: ActKind| match k {
        ActKind::F32 => 0.0,
        ActKind::Bf16 => 1.0 / 256.0,
        ActKind::Q8 => 1.0 / 200.0,
    };
    let kv = |bytes: u64| if bytes == 2 { kind(ActKind::Bf16) } else { 0.0 };
    let rounded = match op {
        Op::Norm(o) => o.outs.iter().map(|(k, _)| kind(*k)).fold(0.0, f64::max),
        Op::Linear(o) => o.parts.iter().fold(0.0, |m, p| match &p.epilogue {
            Epilogue::SiluMul { kind: k, .. } => f64::max(m, kind(*k)),
            _ => m,
        }),
        Op::Rope(o) => kv(o.kv_bytes),
        Op::Attend(o) => kind(o.out_kind),
        Op::Delta(o) => kind(o.out_kind),
        Op::ExpertUp(o) => kind(o.out_kind),
        _ => 0.0,
    };
    rounded + 1e-4
}

/// Compares what the case's launch wrote with f64.
pub fn check(case: &Case, b: &Buffers<'_>) -> Check {
    let mut out = Check::default();
    let step = &case.step;
    match &case.launch().op {
        Op::Embed(o) => embed(o, b, step.rows, &mut out),
        Op::Norm(o) => norm(o, b, if o.gather.is_some() { step.out_rows } else { step.rows }, &mut out),
        Op::Linear(o) => {
            linear(o, b, if o.rows == Feature::OutRows { step.out_rows } else { step.rows }, &mut out)
        }
        Op::Rope(o) => seq::rope(o, b, step.rows, &mut out),
        Op::Attend(o) => seq::attend(o, b, step.rows, &mut out),
        Op::Conv(o) => seq::conv(o, b, step.seqs, &mut out),
        Op::Delta(o) => seq::delta(o, b, step.seqs, &mut out),
        Op::Route(o) => route(o, b, step.rows, &mut out),
        Op::ExpertUp(o) => expert_up(o, b, case, &mut out),
        Op::ExpertDown(o) => expert_down(o, b, case, &mut out),
        Op::Fold(o) => fold(o, b, step.rows, &mut out),
        Op::Argmax(o) => argmax(o, b, step.out_rows, &mut out),
    }
    out
}

fn embed(o: &Embed, b: &Buffers<'_>, rows: usize, out: &mut Check) {
    let table = Matrix { buf: o.table, format: o.format, n: o.vocab, k: o.hidden };
    for r in spread(rows, ROWS) {
        let want = b.weights(&table, 0, b.u32s(o.tokens)[r] as usize);
        out.row(&b.f32s(o.out, r * o.hidden, o.hidden), &want);
    }
}

fn norm(o: &Norm, b: &Buffers<'_>, rows: usize, out: &mut Check) {
    let w = b.small(&o.weight);
    for r in spread(rows, ROWS) {
        let from = o.gather.map_or(r, |g| b.u32s(g)[r] as usize);
        let want = rms(&b.f32s(o.x, from * o.hidden, o.hidden), &w, o.eps, o.plus_one);
        for (kind, buf) in &o.outs {
            let row = b.act(*buf, *kind, r, o.width);
            out.row(&row[o.column..o.column + o.hidden], &want);
        }
    }
}

fn pick(row: &[f64], columns: &[usize]) -> Vec<f64> {
    columns.iter().map(|c| row[*c]).collect()
}

fn linear(o: &Linear, b: &Buffers<'_>, rows: usize, out: &mut Check) {
    let chosen = spread(rows, ROWS);
    let x: Vec<Vec<f64>> = chosen.iter().map(|r| b.act(o.x, o.kind, *r, o.parts[0].w.k)).collect();
    for part in &o.parts {
        let n = part.w.n;
        let columns = spread(n, COLUMNS);
        let product = |w: &Matrix| -> Vec<Vec<f64>> {
            let weights: Vec<Vec<f64>> = columns.iter().map(|c| b.weights(w, 0, *c)).collect();
            x.iter().map(|x| weights.iter().map(|w| dot(x, w)).collect()).collect()
        };
        let y = product(&part.w);
        let y2 = match &part.epilogue {
            Epilogue::SiluMul { up, .. } => product(up),
            _ => Vec::new(),
        };
        for (i, r) in chosen.iter().enumerate() {
            let (got, want) = match &part.epilogue {
                Epilogue::Store => (b.f32s(part.out, r * n, n), y[i].clone()),
                Epilogue::Accumulate => {
                    let old = pick(&b.old(part.out, r * n, n), &columns);
                    (b.f32s(part.out, r * n, n), old.iter().zip(&y[i]).map(|(a, y)| a + y).collect())
                }
                Epilogue::SiluMul { kind, .. } => {
                    let want = y[i].iter().zip(&y2[i]).map(|(g, u)| silu(*g) * u).collect();
                    (b.act(part.out, *kind, *r, n), want)
                }
            };
            compare(&got, &columns, want, out);
        }
    }
}

/// Compares chosen columns against the scale of the whole row: a quantised output rounds with that.
fn compare(got: &[f64], columns: &[usize], mut want: Vec<f64>, out: &mut Check) {
    let mut have = pick(got, columns);
    let top = got.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let seen = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    // A row's largest value sets the scale only while it is of the order of those that were worked out.
    if top.is_finite() && top <= 64.0 * seen {
        have.push(top);
        want.push(top);
    }
    out.row(&have, &want);
}

fn route(o: &Route, b: &Buffers<'_>, rows: usize, out: &mut Check) {
    let (ids, k) = (b.u32s(o.ids), o.top_k);
    for r in spread(rows, 4 * ROWS) {
        let x = b.f32s(o.logits, r * o.experts, o.experts);
        let mut order: Vec<usize> = (0..o.experts).collect();
        order.sort_by(|i, j| x[*j].total_cmp(&x[*i]).then(i.cmp(j)));
        let e: Vec<f64> = order.iter().map(|i| (x[*i] - x[order[0]]).exp()).collect();
        let total: f64 = if o.norm_topk { e[..k].iter().sum() } else { e.iter().sum() };
        let want: Vec<f64> = e[..k].iter().map(|e| e / total).collect();
        out.row(&b.f32s(o.weights, r * k, k), &want);
        out.fact((0..k).all(|s| ids[r * k + s] as usize == order[s]));
    }
    let (counts, offsets, list) = (b.u32s(o.counts), b.u32s(o.offsets), b.u32s(o.list));
    out.fact(offsets[0] == 0 && offsets[o.experts] as usize == rows * k);
    for e in 0..o.experts {
        let mine: Vec<u32> =
            ids[..rows * k].iter().zip(0..).filter(|(id, _)| **id as usize == e).map(|(_, p)| p).collect();
        let range = offsets[e] as usize..(offsets[e + 1] as usize).min(list.len());
        let listed = list.get(range).unwrap_or_default();
        out.fact(counts[e] as usize == mine.len() && listed == mine.as_slice());
    }
}

/// The experts of the pairs, as the routing launch of the case chose them.
fn chosen<'a>(case: &Case, b: &'a Buffers<'_>) -> &'a [u32] {
    case.plan
        .launches
        .iter()
        .find_map(|l| match &l.op {
            Op::Route(r) => Some(b.u32s(r.ids)),
            _ => None,
        })
        .unwrap_or_default()
}

fn expert_up(o: &ExpertUp, b: &Buffers<'_>, case: &Case, out: &mut Check) {
    let (ids, n, columns) = (chosen(case, b), o.gate.n, spread(o.gate.n, COLUMNS));
    for pair in spread(case.step.rows * o.groups.top_k, 2 * ROWS) {
        let (e, x) = (ids[pair] as usize, b.act(o.x, o.kind, pair / o.groups.top_k, o.gate.k));
        let product = |w: &Matrix, c: usize| dot(&x, &b.weights(w, e, c));
        let want = columns.iter().map(|c| silu(product(&o.gate, *c)) * product(&o.up, *c)).collect();
        compare(&b.act(o.out, o.out_kind, pair, n), &columns, want, out);
    }
}

fn expert_down(o: &ExpertDown, b: &Buffers<'_>, case: &Case, out: &mut Check) {
    let (ids, n, columns) = (chosen(case, b), o.down.n, spread(o.down.n, COLUMNS));
    for pair in spread(case.step.rows * o.groups.top_k, 2 * ROWS) {
        let (e, x) = (ids[pair] as usize, b.act(o.h, o.kind, pair, o.down.k));
        let want = columns.iter().map(|c| dot(&x, &b.weights(&o.down, e, *c))).collect();
        compare(&b.f32s(o.out, pair * n, n), &columns, want, out);
    }
}

fn fold(o: &Fold, b: &Buffers<'_>, rows: usize, out: &mut Check) {
    let h = o.hidden;
    for r in spread(rows, ROWS) {
        let weights = b.f32s(o.weights, r * o.top_k, o.top_k);
        let mut want = b.old(o.residual, r * h, h);
        for (s, w) in weights.iter().enumerate() {
            let y = b.f32s(o.y, (r * o.top_k + s) * h, h);
            want.iter_mut().zip(&y).for_each(|(t, y)| *t += w * y);
        }
        out.row(&b.f32s(o.residual, r * h, h), &want);
    }
}

fn argmax(o: &Argmax, b: &Buffers<'_>, rows: usize, out: &mut Check) {
    for r in spread(rows, 4 * ROWS) {
        let x = b.f32s(o.logits, r * o.vocab, o.vocab);
        let best = (1..x.len()).fold(0, |best, i| if x[i] > x[best] { i } else { best });
        out.fact(b.u32s(o.chosen)[r] as usize == best);
    }
}
