//! Steps that end in a draft head: prompts with a token of lookahead, and what the head says.
//!
//! The head needs the token behind each row. A prompt's rows know it, its last token has none yet: that one goes
//! through the step plan, which drafts behind its own greedy choice.
use super::{Engine, EngineError, Phase, Sequence};
use std::collections::BTreeSet;

impl Engine {
    /// Whether its steps end in a draft head.
    pub fn drafts(&self) -> bool {
        self.plans.decode.io.draft.is_some()
    }

    /// As [`Engine::prefill`], on an engine that drafts: the last token of each chunk is only looked at and is the
    /// first of the chunk that follows, or the token of the first step.
    pub fn prefill_ahead(
        &mut self,
        chunks: &[(Sequence, &[u32])],
        all_logits: bool,
    ) -> Result<(), EngineError> {
        self.stage_ahead(chunks, all_logits)?;
        self.run_staged(None)
    }

    /// Writes the inputs of a prefill step with lookahead.
    pub fn stage_ahead(
        &mut self,
        chunks: &[(Sequence, &[u32])],
        all_logits: bool,
    ) -> Result<(), EngineError> {
        self.stage_chunks(chunks, 1, all_logits)
    }

    /// The draft head's logits of output row `row` of the last step; none on an engine without the head.
    pub fn draft_logits(&self, row: usize) -> Option<&[f32]> {
        let (plan, vocab) = (self.last_plan(), self.summary.vocab);
        let logits = self.memory.values::<f32>(plan.buffer(plan.io.draft?.logits));
        logits.get(row * vocab..(row + 1) * vocab)
    }

    /// The draft head's greedy choices of the last step, one for each output row.
    pub fn drafted(&self) -> &[u32] {
        let plan = self.last_plan();
        let Some(draft) = plan.io.draft else { return &[] };
        &self.memory.values::<u32>(plan.buffer(draft.chosen))[..self.facts.out_rows as usize]
    }

    /// Distinct tokens behind the rows of the last step: a decode step knows them when it has run.
    pub(super) fn distinct_next(&self) -> u64 {
        let plan = self.last_plan();
        let Some(draft) = plan.io.draft else { return 0 };
        let rows = if self.last == Phase::Decode { self.facts.out_rows } else { self.facts.rows };
        let next = &self.memory.values::<u32>(plan.buffer(draft.next))[..rows as usize];
        next.iter().collect::<BTreeSet<_>>().len() as u64
    }
}
