//! The draft head against the oracle: logits for the token after the next, at every row of a prompt but the last.
use super::{Expected, OracleError, divergence, max_difference, size_for};
use crate::engine::{Engine, Place, Weights};
use crate::pack::Pack;
use kernels::numeric::NumericClass;
use serde::Serialize;

/// Result over all prompts of the oracle.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DraftResult {
    /// Rows compared.
    pub rows: usize,
    /// Largest absolute logit difference.
    pub max_abs: f64,
    /// Largest KL divergence of a row's distribution from the reference.
    pub kl: f64,
}

/// Compares the head where the oracle has logits for it. A checkpoint that lacks a head its oracle speaks of is an
/// error.
pub(super) fn run(
    pack: &Pack,
    expected: &Expected<'_>,
    class: NumericClass,
    place: &Place,
) -> Result<Option<DraftResult>, OracleError> {
    let name = |n: usize| format!("prompt.{n}.mtp_logits");
    if (0..expected.prompts()).all(|n| expected.0.get(&name(n)).is_none()) {
        return Ok(None);
    }
    let missing = |what: String| OracleError::Folder { dir: expected.1.into(), what };
    if !pack.has_draft() {
        return Err(missing("the oracle holds mtp_logits, the checkpoint no draft head".into()));
    }
    let (h, size) = (&pack.header, size_for(expected, place.threads())?);
    let weights = Weights::Host(pack.weights()?);
    let mut engine = place.drafting(&h.model, &h.manifest, class, size, weights)?;
    let vocab = engine.summary().vocab;
    let mut result = DraftResult { rows: 0, max_abs: 0.0, kl: 0.0 };
    for n in 0..expected.prompts() {
        let ids = expected.ids(&format!("prompt.{n}.input_ids"))?;
        let want = expected.need(&name(n))?;
        let rows = want.len() / vocab;
        if rows == 0 || want.len() % vocab != 0 || rows >= ids.len() {
            let (len, tokens) = (want.len(), ids.len());
            return Err(missing(format!("'{}' holds {len} values for {tokens} tokens", name(n))));
        }
        let sequence = engine.open(ids.len())?;
        let mut at = 0;
        while at < rows {
            let end = at + Engine::chunk_len(at, rows - at);
            engine.prefill_ahead(&[(sequence, &ids[at..=end])], true)?;
            engine.fetch_logits()?;
            for row in at..end {
                let have = engine.draft_logits(row - at).unwrap_or_default();
                let want = &want[row * vocab..(row + 1) * vocab];
                result.max_abs = result.max_abs.max(max_difference(have, want));
                result.kl = result.kl.max(divergence(want, have));
                result.rows += 1;
            }
            at = end;
        }
        engine.close(sequence)?;
    }
    Ok(Some(result))
}
