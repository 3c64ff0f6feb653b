//! CPU argmax: one item is one row of logits.
//!
//! Sixteen lanes keep the running best and its index (lane = index mod 16) and are merged by (value, lowest
//! index), which is associative: the answer does not depend on how the row is cut, so the vocabulary may be
//! split over threads and the pieces merged with [`merge`].

use crate::host::simd::Simd;
use crate::values::{LANES, wide};

/// Why a row has no greedy token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgmaxError {
    /// The row is empty.
    #[error("logits: the row has 0 values, at least 1 is needed")]
    Empty,
    /// A logit is NaN or infinite.
    #[error("logits[{index}] is not finite")]
    NotFinite {
        /// First such index.
        index: usize,
    },
}

/// A candidate: the value and its index in the whole row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// The logit.
    pub value: f32,
    /// Its index in the row.
    pub index: usize,
}

/// The better of two candidates: higher value, then lower index.
pub fn merge(a: Best, b: Best) -> Best {
    if b.value > a.value || (b.value == a.value && b.index < a.index) { b } else { a }
}

wide! {
    /// Lane maxima; the last value says whether all logits were finite.
    pub fn scan [](logits: &[f32]) -> ([f32; LANES], [u32; LANES], bool) {
        let mut value = [f32::NEG_INFINITY; LANES];
        let mut at = [u32::MAX; LANES];
        let mut wrong = [0u32; LANES];
        let (chunks, tail) = logits.as_chunks::<LANES>();
        for (c, x) in chunks.iter().enumerate() {
            for l in 0..LANES {
                let better = x[l] > value[l];
                value[l] = if better { x[l] } else { value[l] };
                at[l] = if better { c as u32 } else { at[l] };
                wrong[l] |= u32::from(!x[l].is_finite());
            }
        }
        for (l, x) in tail.iter().enumerate() {
            if *x > value[l] {
                value[l] = *x;
                at[l] = chunks.len() as u32;
            }
            wrong[l] |= u32::from(!x.is_finite());
        }
        (value, at, wrong.iter().all(|w| *w == 0))
    }
}

/// Best of a piece that starts at `first` in its row. Rows are shorter than 2^32 * 16.
pub fn argmax_piece(simd: Simd, logits: &[f32], first: usize) -> Result<Best, ArgmaxError> {
    if logits.is_empty() {
        return Err(ArgmaxError::Empty);
    }
    let (value, at, finite) = scan(simd, logits);
    if !finite {
        let index = logits.iter().position(|x| !x.is_finite()).unwrap_or(0);
        return Err(ArgmaxError::NotFinite { index: first + index });
    }
    let lane = |l: usize| Best { value: value[l], index: first + at[l] as usize * LANES + l };
    Ok((0..LANES.min(logits.len())).map(lane).reduce(merge).expect("at least one lane holds a value"))
}

/// Index of the highest logit of a row, the lowest index on ties (0.0 and -0.0 tie).
pub fn argmax_row(simd: Simd, logits: &[f32]) -> Result<usize, ArgmaxError> {
    argmax_piece(simd, logits, 0).map(|best| best.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{simd, words};

    fn row(n: usize, seed: u64) -> Vec<f32> {
        words(n, seed).map(|s| ((s >> 56) as f32 - 128.0) / 16.0).collect()
    }

    #[test]
    fn the_first_of_equal_maxima_wins_at_every_width() {
        for n in 1..200 {
            for seed in 0..20 {
                let x = row(n, seed);
                let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let want = x.iter().position(|v| *v == top);
                for simd in Simd::available() {
                    assert_eq!(argmax_row(simd, &x).ok(), want);
                }
            }
        }
        assert_eq!(argmax_row(simd(), &[0.0; 50]), Ok(0));
        assert_eq!(argmax_row(simd(), &[-0.0, 0.0]), Ok(0));
        assert_eq!(argmax_row(simd(), &[-f32::MAX; 33]), Ok(0));
    }

    #[test]
    fn pieces_merge_to_the_whole() {
        let x = row(1000, 9);
        let whole = argmax_row(simd(), &x).expect("finite");
        for cut in [1, 16, 333, 999] {
            let (a, b) = (argmax_piece(simd(), &x[..cut], 0), argmax_piece(simd(), &x[cut..], cut));
            assert_eq!(merge(a.expect("finite"), b.expect("finite")).index, whole);
        }
    }

    #[test]
    fn what_is_not_a_number_is_refused_by_index() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 15, 16, 40] {
                let mut x = row(41, 2);
                x[at] = bad;
                assert_eq!(argmax_row(simd(), &x), Err(ArgmaxError::NotFinite { index: at }));
            }
        }
        assert_eq!(argmax_row(simd(), &[]), Err(ArgmaxError::Empty));
    }
}
