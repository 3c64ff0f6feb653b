//! Log-probabilities of one logits row, before any sampling filter touches it.

use std::cmp::Ordering;

use super::request::TokenLogprob;

/// A copied row with its normaliser; made only when a client asked for it.
pub(super) struct LogSoftmax {
    row: Vec<f32>,
    log_sum: f64,
    top: Vec<(u32, f32)>,
}

impl LogSoftmax {
    /// Normalises `row` in f64 and finds its `n` most likely tokens; equal
    /// logits are ordered by token id.
    pub(super) fn of(row: &[f32], n: usize) -> Self {
        let max = row.iter().copied().filter(|x| !x.is_nan()).fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 =
            row.iter().filter(|x| !x.is_nan()).map(|x| (f64::from(*x) - f64::from(max)).exp()).sum();
        // All masked: every difference is NaN, and so is the sum; say -inf.
        let log_sum = if max.is_finite() { f64::from(max) + sum.ln() } else { f64::INFINITY };
        let mut made = LogSoftmax { row: row.to_vec(), log_sum, top: Vec::new() };
        made.top = made.most_likely(n.min(row.len()));
        made
    }

    fn at(&self, token: usize) -> f32 {
        match self.row.get(token) {
            Some(x) => (f64::from(*x) - self.log_sum) as f32,
            None => f32::NEG_INFINITY,
        }
    }

    fn most_likely(&self, n: usize) -> Vec<(u32, f32)> {
        if n == 0 {
            return Vec::new();
        }
        let key = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x };
        let order = |a: &usize, b: &usize| {
            key(self.row[*b]).partial_cmp(&key(self.row[*a])).unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        let mut ids: Vec<usize> = (0..self.row.len()).collect();
        if n < ids.len() {
            ids.select_nth_unstable_by(n, order);
            ids.truncate(n);
        }
        ids.sort_unstable_by(order);
        ids.into_iter().filter_map(|id| Some((u32::try_from(id).ok()?, self.at(id)))).collect()
    }

    /// The record of a drawn token.
    pub(super) fn token(self, token: u32) -> TokenLogprob {
        let logprob = self.at(token as usize);
        TokenLogprob { token, logprob, top: self.top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_fall_and_sum_to_one() {
        let row = [0.0f32, 2.0, 1.0, 2.0];
        let record = LogSoftmax::of(&row, 4).token(2);
        let ids: Vec<u32> = record.top.iter().map(|t| t.0).collect();
        assert_eq!(ids, [1, 3, 2, 0], "ties go to the lower id");
        let mass: f32 = record.top.iter().map(|t| t.1.exp()).sum();
        assert!((mass - 1.0).abs() < 1e-6);
        assert_eq!(record.logprob, record.top[2].1);
    }

    #[test]
    fn masked_rows_stay_ordered_and_never_panic() {
        let mut row = vec![f32::NEG_INFINITY; 30];
        row[7] = 3.0;
        row[9] = f32::NAN;
        let record = LogSoftmax::of(&row, 20).token(7);
        assert_eq!(record.top[0], (7, 0.0));
        assert_eq!(record.top.len(), 20);
        let all_masked = LogSoftmax::of(&[f32::NEG_INFINITY; 3], 2).token(0);
        assert_eq!(all_masked.logprob, f32::NEG_INFINITY);
    }
}
