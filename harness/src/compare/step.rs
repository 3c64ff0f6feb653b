//! Our side of a comparison: decode steps from an empty cache with the tokens both sides are fed.
use crate::engine::{Engine, EngineError, Sequence};
use std::time::Instant;

/// Steps both sides run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StepRule {
    /// Rows of a step.
    pub batch: usize,
    /// Untimed steps before the series; the first is at position 0.
    pub warmup: usize,
    /// Timed steps.
    pub steps: usize,
}

impl StepRule {
    /// Tokens of a sequence at the end.
    pub fn context(&self) -> usize {
        self.warmup + self.steps
    }
}

/// The token of `row` at `position`. The products keep rows and positions apart, so routing varies.
pub fn token(position: usize, row: usize, vocab: usize) -> u32 {
    ((position as u64 * 7919 + row as u64 * 104_729) % vocab.max(1) as u64) as u32
}

/// Times of the steps in nanoseconds, in order. Only the step is timed, with logits of every row.
pub fn own_series(engine: &mut Engine, rule: &StepRule) -> Result<Vec<u64>, EngineError> {
    let vocab = engine.summary().vocab;
    let sequences: Vec<Sequence> =
        (0..rule.batch).map(|_| engine.open(rule.context())).collect::<Result<_, _>>()?;
    let mut series = Vec::with_capacity(rule.steps);
    for position in 0..rule.context() {
        let rows: Vec<_> =
            sequences.iter().enumerate().map(|(r, s)| (*s, token(position, r, vocab))).collect();
        engine.stage_decode(&rows)?;
        let start = Instant::now();
        engine.run_staged(None)?;
        if position >= rule.warmup {
            series.push(start.elapsed().as_nanos() as u64);
        }
    }
    for sequence in sequences {
        engine.close(sequence)?;
    }
    Ok(series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineSize;
    use kernels::host::simd::Simd;

    #[test]
    fn a_series_has_its_steps_and_leaves_no_sequence() {
        let home = tempfile::tempdir().unwrap();
        let pack = crate::builtin::ensure_pack(home.path()).unwrap();
        let h = &pack.header;
        let rule = StepRule { batch: 3, warmup: 2, steps: 4 };
        let size = EngineSize { batch: 3, context: rule.context(), threads: 1 };
        let class = h.recipe.numeric_class;
        let weights = pack.weights().unwrap();
        let mut engine = Engine::new(&h.model, &h.manifest, class, size, weights, Simd::SCALAR).unwrap();
        for _ in 0..2 {
            let series = own_series(&mut engine, &rule).unwrap();
            assert_eq!(series.len(), 4);
            assert!(series.iter().all(|t| *t > 0));
        }
    }

    #[test]
    fn tokens_stay_in_the_vocabulary_and_rows_differ() {
        assert_eq!(token(1, 0, 1_000_000), 7919);
        assert_eq!(token(0, 1, 1_000_000), 104_729);
        assert!((0..100).all(|p| (0..64).all(|r| token(p, r, 97) < 97)));
    }
}
