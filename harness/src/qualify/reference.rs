//! The reference path: every row alone, through the one-row plan, from the same fill.
//!
//! It shares no batch, no neighbour and no slot with the timed run; row 0 also runs on the scalar kernels. Rows
//! are computed when first asked for and kept, because a row's reference does not depend on the batch.
use super::fill::{FillRule, Series};
use crate::engine::snapshot::Snapshot;
use crate::engine::{Engine, EngineError};

/// Reference tokens by row.
pub struct Reference {
    fast: Engine,
    scalar: Engine,
    rule: FillRule,
    steps: usize,
    prefix: Option<Snapshot>,
    rows: Vec<Vec<u32>>,
    scalar_equal: Option<bool>,
}

impl Reference {
    /// A reference over two one-row engines: the fast kernels and the scalar ones.
    pub fn new(fast: Engine, scalar: Engine, rule: FillRule, series: &Series) -> Self {
        Self { fast, scalar, rule, steps: series.steps(), prefix: None, rows: Vec::new(), scalar_equal: None }
    }

    /// Tokens of the first `rows` rows: the first greedy token after the fill, then one a step.
    pub fn tokens(&mut self, rows: usize, mut tick: impl FnMut(usize)) -> Result<&[Vec<u32>], EngineError> {
        while self.rows.len() < rows {
            let row = self.rows.len();
            let tokens = self.row(row)?;
            if row == 0 {
                let scalar = self.scalar_row()?;
                self.scalar_equal = Some(scalar == tokens);
            }
            self.rows.push(tokens);
            tick(self.rows.len());
        }
        Ok(&self.rows[..rows])
    }

    /// Whether row 0 was the same on the scalar kernels; `None` before it ran.
    pub fn scalar_equal(&self) -> Option<bool> {
        self.scalar_equal
    }

    fn row(&mut self, row: usize) -> Result<Vec<u32>, EngineError> {
        let sequence = match &self.prefix {
            Some(snapshot) => self.fast.restore(snapshot)?,
            None => {
                let sequence = self.fast.open(self.rule.context)?;
                self.rule.prefill(&mut self.fast, sequence, &self.rule.prefix_tokens())?;
                let snapshot = self.fast.evict(sequence)?;
                let sequence = self.fast.restore(&snapshot)?;
                self.prefix = Some(snapshot);
                sequence
            }
        };
        let first = self.rule.prefill(&mut self.fast, sequence, &self.rule.suffix_tokens(row))?;
        let tokens = continue_greedily(&mut self.fast, sequence, first, self.steps)?;
        self.fast.close(sequence)?;
        Ok(tokens)
    }

    fn scalar_row(&mut self) -> Result<Vec<u32>, EngineError> {
        let sequence = self.scalar.open(self.rule.context)?;
        self.rule.prefill(&mut self.scalar, sequence, &self.rule.prefix_tokens())?;
        let first = self.rule.prefill(&mut self.scalar, sequence, &self.rule.suffix_tokens(0))?;
        let tokens = continue_greedily(&mut self.scalar, sequence, first, self.steps)?;
        self.scalar.close(sequence)?;
        Ok(tokens)
    }
}

fn continue_greedily(
    engine: &mut Engine,
    sequence: crate::engine::Sequence,
    first: u32,
    steps: usize,
) -> Result<Vec<u32>, EngineError> {
    let mut tokens = vec![first];
    for step in 0..steps {
        engine.decode(&[(sequence, tokens[step])])?;
        tokens.push(engine.chosen()[0]);
    }
    Ok(tokens)
}
