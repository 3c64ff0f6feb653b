//! CPU routing: one item is one row; grouping is one item a layer.
//!
//! Softmax in f32 over all experts (maximum first, the sum in the fixed 16-lane tree), then the top k by
//! probability, ties to the lower index, then optionally divided by the sum of the chosen in slot order.
//! Since the exponential is monotone, the choice compares logits; equal logits tie exactly.

use crate::values::{LANES, exp, fold_lanes, wide};

/// Why a row cannot be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// A router logit is NaN or infinite.
    #[error("router logits[{expert}] is not finite")]
    NotFinite {
        /// First such expert.
        expert: usize,
    },
    /// More experts are asked for than there are, or none.
    #[error("top_k = {k} is outside 1..={experts}")]
    TopK {
        /// Experts a row.
        k: usize,
        /// Experts there are.
        experts: usize,
    },
    /// An expert id is outside the table.
    #[error("ids[{pair}] = {id} is not below experts = {experts}")]
    Id {
        /// Index of the (row, slot) pair.
        pair: usize,
        /// The id found.
        id: u32,
        /// Experts there are.
        experts: usize,
    },
}

wide! {
    /// (maximum, sum of exp(x - maximum), all finite) of a row.
    pub fn softmax_terms [](logits: &[f32]) -> (f32, f32, bool) {
        let finite = logits.iter().all(|x| x.is_finite());
        let top = logits.iter().fold(f32::NEG_INFINITY, |m, x| if *x > m { *x } else { m });
        let mut lanes = [0.0f32; LANES];
        let (chunks, tail) = logits.as_chunks::<LANES>();
        for x in chunks {
            for l in 0..LANES {
                lanes[l] += exp(x[l] - top);
            }
        }
        for (l, x) in tail.iter().enumerate() {
            lanes[l] += exp(x - top);
        }
        (top, fold_lanes(lanes), finite)
    }
}

/// Routes one row: `ids` and `weights` have k entries and are filled in order of falling probability.
///
/// With `norm_topk` the weights of the row sum to one, otherwise they are the softmax over all experts.
pub fn route_row(
    simd: crate::host::simd::Simd,
    logits: &[f32],
    norm_topk: bool,
    ids: &mut [u32],
    weights: &mut [f32],
) -> Result<(), RouteError> {
    let k = ids.len().min(weights.len());
    if k == 0 || k > logits.len() || ids.len() != weights.len() {
        return Err(RouteError::TopK { k, experts: logits.len() });
    }
    let (top, sum, finite) = softmax_terms(simd, logits);
    if !finite {
        let expert = logits.iter().position(|x| !x.is_finite()).unwrap_or(0);
        return Err(RouteError::NotFinite { expert });
    }
    top_k(logits, ids, weights);
    weights.iter_mut().for_each(|w| *w = exp(*w - top));
    let total = if norm_topk { weights.iter().fold(0.0, |s, w| s + w) } else { sum };
    weights.iter_mut().for_each(|w| *w /= total);
    Ok(())
}

/// The k highest values in falling order by insertion; an equal value never passes an earlier index.
fn top_k(logits: &[f32], ids: &mut [u32], values: &mut [f32]) {
    let k = ids.len();
    let mut filled = 0;
    for (e, x) in logits.iter().enumerate() {
        if filled == k && *x <= values[k - 1] {
            continue;
        }
        let mut at = if filled < k { filled } else { k - 1 };
        while at > 0 && values[at - 1] < *x {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
            at -= 1;
        }
        values[at] = *x;
        ids[at] = e as u32;
        filled = k.min(filled + 1);
    }
}

/// Groups (row, slot) pairs by expert, in token order inside an expert: a stable counting sort.
///
/// `ids` is `[rows][k]`; pair p is slot p mod k of row p / k. `counts` has `experts` entries, `offsets`
/// `experts + 1`; `list` gets the pair indices, those of expert e at `offsets[e] .. offsets[e + 1]`.
/// Returns the number of distinct experts.
pub fn group(
    ids: &[u32],
    experts: usize,
    counts: &mut [u32],
    offsets: &mut [u32],
    list: &mut [u32],
) -> Result<usize, RouteError> {
    let (counts, offsets) = (&mut counts[..experts], &mut offsets[..experts + 1]);
    counts.fill(0);
    for (pair, id) in ids.iter().enumerate() {
        match counts.get_mut(*id as usize) {
            Some(c) => *c += 1,
            None => return Err(RouteError::Id { pair, id: *id, experts }),
        }
    }
    offsets[0] = 0;
    for e in 0..experts {
        offsets[e + 1] = offsets[e] + counts[e];
    }
    // The offsets serve as cursors, then shift back by their counts.
    for (pair, id) in ids.iter().enumerate() {
        let cursor = &mut offsets[*id as usize];
        list[*cursor as usize] = pair as u32;
        *cursor += 1;
    }
    for e in 0..experts {
        offsets[e] -= counts[e];
    }
    Ok(counts.iter().filter(|c| **c > 0).count())
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
