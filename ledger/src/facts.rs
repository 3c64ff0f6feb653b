//! What a step really processed: the values an account is a function of.
use serde::{Deserialize, Serialize};

/// Tokens of one KV page. An attention split has the same length, so a split is a page.
pub const PAGE_TOKENS: u64 = 128;

/// The facts of one step. Decode: one row a sequence. Prefill: `rows` tokens of `lengths.len()` sequences.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepFacts {
    /// Rows (tokens) that pass through the matrix products.
    pub rows: u64,
    /// Rows whose logits are computed.
    pub out_rows: u64,
    /// Tokens in the cache of each sequence after this step.
    pub lengths: Vec<u64>,
    /// Distinct token ids among the rows (rows of the embedding table that are read).
    pub distinct_tokens: u64,
    /// Distinct ids among the tokens that follow the rows: rows of the table that a draft head reads.
    #[serde(default)]
    pub next_tokens: u64,
    /// Distinct routed experts of each MoE layer, in layer order; fractional when it is an expectation.
    pub experts: Vec<f64>,
}

/// A quantity of [`StepFacts`] that byte counts are linear in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// 1.
    One,
    /// Rows.
    Rows,
    /// Rows with logits.
    OutRows,
    /// Sequences.
    Sequences,
    /// Cached tokens over all sequences.
    KvTokens,
    /// Cache pages over all sequences.
    KvPages,
    /// Distinct token ids.
    DistinctTokens,
    /// Distinct ids of the tokens that follow the rows.
    NextTokens,
    /// Distinct experts of the n-th MoE layer.
    Experts(u16),
}

impl StepFacts {
    /// Facts of a decode step of `batch` rows that all have `context` cached tokens after the step.
    ///
    /// `experts_per_layer` is the distinct count (actual or expected) of each of `moe_layers` layers.
    pub fn decode(batch: u64, context: u64, moe_layers: usize, experts_per_layer: f64) -> Self {
        Self {
            rows: batch,
            out_rows: batch,
            lengths: vec![context; batch as usize],
            distinct_tokens: batch,
            next_tokens: batch,
            experts: vec![experts_per_layer; moe_layers],
        }
    }

    /// The value of `feature`. A MoE layer that the facts do not hold counts as no expert at all.
    pub fn value(&self, feature: Feature) -> f64 {
        match feature {
            Feature::One => 1.0,
            Feature::Rows => self.rows as f64,
            Feature::OutRows => self.out_rows as f64,
            Feature::Sequences => self.lengths.len() as f64,
            Feature::KvTokens => self.lengths.iter().sum::<u64>() as f64,
            Feature::KvPages => self.lengths.iter().map(|l| l.div_ceil(PAGE_TOKENS)).sum::<u64>() as f64,
            Feature::DistinctTokens => self.distinct_tokens as f64,
            Feature::NextTokens => self.next_tokens as f64,
            Feature::Experts(layer) => self.experts.get(usize::from(layer)).copied().unwrap_or(0.0),
        }
    }
}

/// Expected distinct experts of a layer: `E (1 - (1 - k/E)^B)` under uniform, independent routing.
pub fn expected_distinct_experts(experts: u64, top_k: u64, batch: u64) -> f64 {
    let e = experts as f64;
    e * (1.0 - (1.0 - top_k as f64 / e).powf(batch as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectation_matches_the_published_table() {
        // 128 experts, top 8: figures of the model page, one decimal.
        for (batch, want) in [(1, 8.0), (2, 15.5), (4, 29.1), (8, 51.6), (16, 82.4), (32, 111.8), (64, 125.9)]
        {
            let got = expected_distinct_experts(128, 8, batch);
            assert!((got - want).abs() < 0.05, "B{batch}: {got} against {want}");
        }
    }

    #[test]
    fn pages_round_up_for_each_sequence() {
        let facts = StepFacts { lengths: vec![1, 128, 129], ..StepFacts::default() };
        assert_eq!(facts.value(Feature::KvPages), 4.0);
        assert_eq!(facts.value(Feature::KvTokens), 258.0);
        assert_eq!(facts.value(Feature::Experts(3)), 0.0);
    }
}
