//! The fill rule: how a context bucket is filled before a series, reproducible from seed and row alone.
use super::QualifyError;
use crate::engine::{Engine, EngineError, PREFILL_ROWS, STATE_GRID, Sequence};

/// Steps of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    /// Warm-up steps.
    pub warmup: usize,
    /// Samples; as many steps with launch timers run between them.
    pub samples: usize,
}

impl Series {
    /// All decode steps of the series: the last one ends exactly at the bucket.
    pub fn steps(&self) -> usize {
        self.warmup + 2 * self.samples
    }
}

/// What every row is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillRule {
    /// Seed.
    pub seed: u64,
    /// Tokens of the shared prefix.
    pub prefix: usize,
    /// Tokens of each row's own suffix.
    pub suffix: usize,
    /// Context bucket.
    pub context: usize,
    /// Vocabulary.
    pub vocab: usize,
}

/// Fewest tokens of a row's own suffix.
const SUFFIX: usize = 16;

impl FillRule {
    /// The rule for a bucket: prefix + suffix + steps = context.
    pub fn new(seed: u64, context: usize, series: &Series, vocab: usize) -> Result<Self, QualifyError> {
        let need = SUFFIX + series.steps() + 1;
        if context < need {
            return Err(QualifyError::Context { context, need });
        }
        // The suffix begins where a prompt may begin: only there has it the bits of an unforked prefill.
        let filled = context - series.steps();
        let prefix = (filled - SUFFIX) / STATE_GRID * STATE_GRID;
        Ok(Self { seed, prefix, suffix: filled - prefix, context, vocab })
    }

    /// The `index`-th token of stream `stream`: 0 is the prefix, `row + 1` the suffix of a row.
    pub fn token(&self, stream: u64, index: usize) -> u32 {
        // splitmix64 over (seed, stream, index): any token can be computed alone.
        let mut z = self.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((index as u64) << 32);
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % self.vocab as u64) as u32
    }

    /// The prefix.
    pub fn prefix_tokens(&self) -> Vec<u32> {
        (0..self.prefix).map(|i| self.token(0, i)).collect()
    }

    /// A row's suffix.
    pub fn suffix_tokens(&self, row: usize) -> Vec<u32> {
        (0..self.suffix).map(|i| self.token(row as u64 + 1, i)).collect()
    }

    /// Prefills `tokens` into `sequence` on the grid.
    pub fn prefill(
        &self,
        engine: &mut Engine,
        sequence: Sequence,
        tokens: &[u32],
    ) -> Result<u32, EngineError> {
        let mut at = 0;
        while at < tokens.len() {
            let length = engine.sequences().get(sequence)?.length;
            let n = Engine::chunk_len(length, tokens.len() - at);
            engine.prefill(&[(sequence, &tokens[at..at + n])], false)?;
            at += n;
        }
        Ok(engine.chosen().first().copied().unwrap_or(0))
    }

    /// Fills `rows` rows. Returns each row's sequence and its first greedy token.
    pub fn fill(&self, engine: &mut Engine, rows: usize) -> Result<Vec<(Sequence, u32)>, EngineError> {
        let base = engine.open(self.context)?;
        self.prefill(engine, base, &self.prefix_tokens())?;
        let mut sequences = vec![base];
        for _ in 1..rows {
            sequences.push(engine.fork(base, self.context)?);
        }
        let suffixes: Vec<Vec<u32>> = (0..rows).map(|r| self.suffix_tokens(r)).collect();
        let first = Engine::chunk_len(self.prefix, self.suffix);
        let mut out = Vec::with_capacity(rows);
        let group = (PREFILL_ROWS / self.suffix).min(engine.plans.prefill.bucket.seqs).max(1);
        for start in (0..rows).step_by(group) {
            let end = (start + group).min(rows);
            // A suffix that crosses the prefill grid takes two chunks, for every row alike.
            for (a, b) in [(0, first), (first, self.suffix)] {
                if a < b {
                    let chunks: Vec<_> = (start..end).map(|r| (sequences[r], &suffixes[r][a..b])).collect();
                    engine.prefill(&chunks, false)?;
                }
            }
            out.extend(sequences[start..end].iter().copied().zip(engine.chosen().iter().copied()));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_ends_exactly_at_the_bucket() {
        let series = Series { warmup: 4, samples: 12 };
        let rule = FillRule::new(1, 2048, &series, 100).unwrap();
        assert_eq!(rule.prefix + rule.suffix + series.steps(), 2048);
        assert_eq!((rule.prefix, rule.suffix), (1984, 36));
        assert!(FillRule::new(1, 40, &series, 100).is_err());
    }

    #[test]
    fn rows_differ_and_are_reproducible() {
        let rule = FillRule { seed: 7, prefix: 10, suffix: 16, context: 64, vocab: 4096 };
        let rows: std::collections::BTreeSet<Vec<u32>> = (0..1024).map(|r| rule.suffix_tokens(r)).collect();
        assert_eq!(rows.len(), 1024);
        assert_eq!(rule.suffix_tokens(3), rule.suffix_tokens(3));
        assert!(rule.prefix_tokens().iter().all(|t| *t < 4096));
    }
}
