//! The oracle gate: a checkpoint beside the answers of an independent implementation.
//!
//! A folder holds a checkpoint and `expected.safetensors` (logits, greedy ids, layer traces). The gate runs
//! every prompt through the prefill plan, compares logits and traces, and continues greedily through the step
//! plan. Missing data is an error, never a pass.
mod draft;
pub mod trace;

pub use draft::DraftResult;

use crate::containers::{Checkpoint, ContainerError, Dtype, open};
use crate::engine::{Engine, EngineError, EngineSize, PREFILL_GRID, Place, Weights};
use crate::pack::{Pack, PackError, model_of};
use crate::recipe::Recipe;
use kernels::host::simd::Simd;
use kernels::numeric::NumericClass;
use receipts::OracleScope;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What goes wrong while an oracle runs.
#[derive(Debug, Error)]
pub enum OracleError {
    /// Container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Pack.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// Engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The folder lacks something.
    #[error("oracle {dir}: {what}")]
    Folder {
        /// Folder.
        dir: PathBuf,
        /// What is missing or wrong.
        what: String,
    },
}

/// Result of one prompt.
#[derive(Clone, Debug, Serialize)]
pub struct PromptResult {
    /// Index.
    pub prompt: usize,
    /// Tokens.
    pub tokens: usize,
    /// Largest absolute logit difference.
    pub max_abs: f64,
    /// Largest KL divergence of a row's distribution from the reference.
    pub kl: f64,
    /// Whether the greedy continuation is equal.
    pub greedy_equal: bool,
    /// First step at which it differs and the reference's margin there, where the margin is known.
    pub first_divergence: Option<(usize, Option<f64>)>,
    /// First trace beyond the tolerance, with its difference.
    pub first_trace: Option<(String, f64)>,
}

/// Result of an oracle folder.
#[derive(Clone, Debug, Serialize)]
pub struct OracleResult {
    /// Folder name.
    pub name: String,
    /// Family.
    pub family: String,
    /// Whose weights it ran: those of the model in question, or a stand-in's.
    pub scope: OracleScope,
    /// Class it ran in.
    pub class: NumericClass,
    /// Tolerance on logits for the class.
    pub tolerance: f64,
    /// Prompts.
    pub prompts: Vec<PromptResult>,
    /// The draft head against the oracle's `mtp_logits`; absent where the oracle has none.
    pub draft: Option<DraftResult>,
}

impl OracleResult {
    /// Largest difference over all prompts.
    pub fn max_abs(&self) -> f64 {
        self.prompts.iter().map(|p| p.max_abs).fold(0.0, f64::max)
    }

    /// Whether every prompt passes: logits within the tolerance, greedy ids equal except where the reference's
    /// own margin is below twice the tolerance. Where the oracle speaks of a draft head, its logits too.
    pub fn passed(&self) -> bool {
        let greedy = |p: &PromptResult| {
            p.greedy_equal
                || (self.class != NumericClass::F32
                    && matches!(p.first_divergence, Some((_, Some(margin))) if margin <= 2.0 * self.tolerance))
        };
        let drafts = self.draft.as_ref().is_none_or(|d| d.max_abs <= self.tolerance);
        let prompts =
            !self.prompts.is_empty() && self.prompts.iter().all(|p| p.max_abs <= self.tolerance && greedy(p));
        prompts && drafts
    }
}

/// Tolerance on logits of a class, from the embedded policy: the same number the verdict applies.
pub fn tolerance(class: NumericClass) -> f64 {
    let policy = receipts::Policy::embedded();
    policy.oracle.get(class.name()).map_or(0.0, |o| o.max_abs_nano as f64 / 1e9)
}

struct Expected<'a>(&'a Checkpoint, &'a Path);

impl Expected<'_> {
    fn floats(&self, name: &str) -> Result<Option<Vec<f32>>, OracleError> {
        let Some(info) = self.0.get(name) else { return Ok(None) };
        if info.dtype != Dtype::F32 {
            return Err(self.wrong(name, &format!("holds {}, expected F32", info.dtype)));
        }
        Ok(Some(self.0.bytes(name)?.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    }

    fn ids(&self, name: &str) -> Result<Vec<u32>, OracleError> {
        let info = self.0.tensor(name)?;
        if info.dtype != Dtype::I64 {
            return Err(self.wrong(name, &format!("holds {}, expected I64", info.dtype)));
        }
        let id = |b: &[u8; 8]| {
            let id = i64::from_le_bytes(*b);
            u32::try_from(id).map_err(|_| self.wrong(name, &format!("holds {id}, which is no token id")))
        };
        self.0.bytes_of(info).as_chunks::<8>().0.iter().map(id).collect()
    }

    fn wrong(&self, name: &str, what: &str) -> OracleError {
        OracleError::Folder { dir: self.1.into(), what: format!("'{name}' {what}") }
    }

    fn need(&self, name: &str) -> Result<Vec<f32>, OracleError> {
        let missing = || OracleError::Folder { dir: self.1.into(), what: format!("no '{name}'") };
        self.floats(name)?.ok_or_else(missing)
    }

    fn prompts(&self) -> usize {
        (0..).take_while(|n| self.0.get(&format!("prompt.{n}.input_ids")).is_some()).count()
    }
}

/// The checkpoint of an oracle folder: `model.gguf` where there is one, else its safetensors.
pub fn checkpoint(dir: &Path) -> Result<Checkpoint, ContainerError> {
    let gguf = dir.join("model.gguf");
    if gguf.exists() { open(&gguf) } else { open(dir) }
}

/// Runs the oracle in `dir` on the host.
pub fn run(dir: &Path, class: NumericClass, threads: usize, simd: Simd) -> Result<OracleResult, OracleError> {
    run_at(dir, class, &Place::Host { threads, simd })
}

/// Runs the oracle in `dir`.
pub fn run_at(dir: &Path, class: NumericClass, place: &Place) -> Result<OracleResult, OracleError> {
    let checkpoint = checkpoint(dir)?;
    let expected = open(&dir.join("expected.safetensors"))?;
    let name = folder_name(dir);
    let io = |source| PackError::Io { path: dir.into(), source };
    let temp = tempfile::tempdir().map_err(io)?;
    let recipe =
        Recipe::builtin("bf16").map_err(|e| OracleError::Folder { dir: dir.into(), what: e.to_string() })?;
    let pack = Pack::write(&checkpoint, &name, &recipe, &temp.path().join("oracle.pack"))?;
    run_pack_at(&pack, &expected, &name, class, place)
}

/// Compares a pack with the answers in `expected` on the host.
pub fn run_pack(
    pack: &Pack,
    expected: &Checkpoint,
    name: &str,
    class: NumericClass,
    threads: usize,
    simd: Simd,
) -> Result<OracleResult, OracleError> {
    run_pack_at(pack, expected, name, class, &Place::Host { threads, simd })
}

/// Compares a pack with the answers in `expected`.
pub fn run_pack_at(
    pack: &Pack,
    expected: &Checkpoint,
    name: &str,
    class: NumericClass,
    place: &Place,
) -> Result<OracleResult, OracleError> {
    let expected = Expected(expected, &pack.path);
    let mut engine = engine_for(pack, &expected, class, place)?;
    let mut prompts = Vec::new();
    for n in 0..expected.prompts() {
        prompts.push(run_prompt(&mut engine, &expected, n, tolerance(class))?);
    }
    if prompts.is_empty() {
        let what = "expected.safetensors holds no prompt".into();
        return Err(OracleError::Folder { dir: pack.path.clone(), what });
    }
    let draft = draft::run(pack, &expected, class, place)?;
    let family = pack.header.model.family().into();
    let (scope, tolerance) = (OracleScope::Model, tolerance(class));
    Ok(OracleResult { name: name.into(), family, scope, class, tolerance, prompts, draft })
}

/// Runs the oracle in `dir` for `pack`: on the pack itself where the folder's answers are about its very weights.
/// Answers about other weights (no oracle of full size exists) stand in for it where the folder's checkpoint is of the
/// same family and holds every format that the pack holds; the result says so.
pub fn run_for(
    pack: &Pack,
    dir: &Path,
    class: NumericClass,
    place: &Place,
) -> Result<OracleResult, OracleError> {
    let checkpoint = checkpoint(dir)?;
    let name = folder_name(dir);
    if pack.is_made_of(&checkpoint) {
        let expected = open(&dir.join("expected.safetensors"))?;
        return run_pack_at(pack, &expected, &name, class, place);
    }
    let wrong = |what: String| OracleError::Folder { dir: dir.into(), what };
    let (own, other) = (pack.header.model.family(), model_of(&checkpoint)?.family());
    if own != other {
        return Err(wrong(format!("is about the family {other}, the model is of {own}")));
    }
    let held: BTreeSet<String> =
        checkpoint.tensors().iter().map(|t| t.dtype.name().to_ascii_lowercase()).collect();
    let lacks = pack.header.manifest.entries.iter().find(|t| !held.contains(&t.format));
    if let Some(tensor) = lacks {
        let (format, name) = (&tensor.format, &tensor.name);
        return Err(wrong(format!(
            "holds no {format} tensor, so it says nothing about the model's '{name}'"
        )));
    }
    Ok(OracleResult { scope: OracleScope::Family, ..run_at(dir, class, place)? })
}

fn folder_name(dir: &Path) -> String {
    dir.file_name().map_or_else(|| "oracle".into(), |n| n.to_string_lossy().into_owned())
}

/// Greedy tokens that the references continue with.
const CONTINUATION: usize = 16;

fn engine_for(
    pack: &Pack,
    expected: &Expected<'_>,
    class: NumericClass,
    place: &Place,
) -> Result<Engine, OracleError> {
    let size = size_for(expected, place.threads())?;
    let h = &pack.header;
    Ok(place.engine(&h.model, &h.manifest, class, size, Weights::Host(pack.weights()?))?)
}

fn size_for(expected: &Expected<'_>, threads: usize) -> Result<EngineSize, OracleError> {
    let mut longest = 0;
    for n in 0..expected.prompts() {
        longest = longest.max(expected.ids(&format!("prompt.{n}.input_ids"))?.len());
    }
    Ok(EngineSize { batch: 1, context: longest + CONTINUATION, threads })
}

/// The logits of prompt `n` and the row they begin at: whole rows up to the last token.
fn wanted(
    expected: &Expected<'_>,
    n: usize,
    tokens: usize,
    vocab: usize,
) -> Result<(Vec<f32>, usize), OracleError> {
    let want = expected.need(&format!("prompt.{n}.logits"))?;
    let rows = want.len() / vocab;
    let from = match expected.0.get(&format!("prompt.{n}.logits_from")) {
        Some(_) => expected.ids(&format!("prompt.{n}.logits_from"))?.first().copied().unwrap_or(0) as usize,
        None => tokens.saturating_sub(rows),
    };
    if rows == 0 || want.len() % vocab != 0 || from.checked_add(rows) != Some(tokens) {
        let what = format!("holds {} values from row {from} on, for {tokens} tokens", want.len());
        return Err(expected.wrong(&format!("prompt.{n}.logits"), &what));
    }
    Ok((want, from))
}

fn run_prompt(
    engine: &mut Engine,
    expected: &Expected<'_>,
    n: usize,
    tolerance: f64,
) -> Result<PromptResult, OracleError> {
    let ids = expected.ids(&format!("prompt.{n}.input_ids"))?;
    let vocab = engine.summary().vocab;
    let (want, from) = wanted(expected, n, ids.len(), vocab)?;
    let greedy = expected.ids(&format!("prompt.{n}.greedy_ids"))?;
    if greedy.is_empty() {
        return Err(expected.wrong(&format!("prompt.{n}.greedy_ids"), "is empty"));
    }
    let margins = expected.floats(&format!("prompt.{n}.greedy_margin"))?;
    let sequence = engine.open(ids.len() + greedy.len())?;
    let (mut max_abs, mut kl, mut first_trace) = (0.0f64, 0.0f64, None);
    let mut fault = None;
    for (c, chunk) in ids.chunks(PREFILL_GRID).enumerate() {
        let start = c * PREFILL_GRID;
        engine.prefill_traced(sequence, chunk, &mut |layer, residual| {
            let name = match layer {
                Some(l) => format!("trace.{n}.layer.{l}.hidden"),
                None => format!("trace.{n}.embed"),
            };
            match expected.floats(&name) {
                Ok(Some(want)) if start == 0 && first_trace.is_none() => {
                    let want = &want[..residual.len().min(want.len())];
                    let worst = max_difference(residual, want);
                    if worst > tolerance.max(1e-3) * 4.0 && layer.is_some() {
                        first_trace = Some((name, worst));
                    }
                }
                Ok(_) => {}
                Err(e) => fault = Some(e),
            }
        })?;
        engine.fetch_logits()?;
        for row in 0..chunk.len() {
            if let Some(at) = (start + row).checked_sub(from) {
                let want = &want[at * vocab..(at + 1) * vocab];
                let have = engine.logits(row);
                max_abs = max_abs.max(max_difference(have, want));
                kl = kl.max(divergence(want, have));
            }
        }
    }
    if let Some(fault) = fault {
        return Err(fault);
    }
    let mut token = *engine.chosen().last().unwrap_or(&0);
    let mut first_divergence = None;
    for (step, want) in greedy.iter().enumerate() {
        if token != *want {
            let margin = margins.as_ref().and_then(|m| m.get(step)).map(|m| f64::from(*m));
            first_divergence = Some((step, margin));
            break;
        }
        if step + 1 < greedy.len() {
            engine.decode(&[(sequence, token)])?;
            token = engine.chosen()[0];
        }
    }
    engine.close(sequence)?;
    let greedy_equal = first_divergence.is_none();
    Ok(PromptResult {
        prompt: n,
        tokens: ids.len(),
        max_abs,
        kl,
        greedy_equal,
        first_divergence,
        first_trace,
    })
}

/// Largest absolute difference; NaN anywhere is infinite.
pub fn max_difference(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).fold(0.0, |worst, (a, b)| {
        let d = (f64::from(*a) - f64::from(*b)).abs();
        if d.is_nan() { f64::INFINITY } else { worst.max(d) }
    })
}

/// KL divergence of softmax(`have`) from softmax(`want`), in nats.
pub fn divergence(want: &[f32], have: &[f32]) -> f64 {
    let log_z = |x: &[f32]| {
        let max = x.iter().fold(f64::NEG_INFINITY, |m, v| m.max(f64::from(*v)));
        max + x.iter().map(|v| (f64::from(*v) - max).exp()).sum::<f64>().ln()
    };
    let (zw, zh) = (log_z(want), log_z(have));
    want.iter()
        .zip(have)
        .map(|(w, h)| {
            let (lw, lh) = (f64::from(*w) - zw, f64::from(*h) - zh);
            lw.exp() * (lw - lh)
        })
        .sum::<f64>()
        .max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_never_close() {
        assert_eq!(max_difference(&[1.0, f32::NAN], &[1.0, 0.0]), f64::INFINITY);
        assert_eq!(max_difference(&[1.0, 2.0], &[1.0, 2.5]), 0.5);
    }

    #[test]
    fn divergence_is_zero_only_for_equal_distributions() {
        assert!(divergence(&[1.0, 2.0, 3.0], &[2.0, 3.0, 4.0]) < 1e-12);
        assert!(divergence(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]) > 0.5);
    }
}
