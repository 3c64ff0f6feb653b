//! Exact answers: the greedy continuation of every question of an `eval.jsonl`, token by token.
//!
//! One idea: an answer counts only if all its tokens, the stop included, are the reference's. Each difference is
//! reported with this run's gap between its two best logits, so that a near tie is told from an error.
use crate::engine::{Engine, EngineSize, Place, Sequence, Weights};
use crate::oracle::{OracleError, checkpoint};
use crate::pack::{Pack, PackError};
use crate::recipe::Recipe;
use kernels::host::simd::Simd;
use kernels::numeric::NumericClass;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Rows decoded at once.
const BATCH: usize = 32;
/// Most questions read.
const MAX_QUESTIONS: usize = 1 << 20;
/// Longest file read.
const MAX_FILE: u64 = 1 << 30;

/// A question with its reference.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Question {
    /// Text, for reports.
    pub question: String,
    /// Tokens of the prompt.
    pub prompt_ids: Vec<u32>,
    /// Tokens of the answer up to and with the stop.
    pub greedy_ids: Vec<u32>,
}

/// The first token of an answer that is not the reference's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Index of the question.
    pub question: usize,
    /// Its text.
    pub text: String,
    /// Position in the answer.
    pub at: usize,
    /// Token chosen.
    pub have: u32,
    /// Token of the reference.
    pub want: u32,
    /// Gap between the two best logits.
    pub gap: f32,
}

/// Result over all questions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvalResult {
    /// Class it ran in.
    pub class: NumericClass,
    /// Questions.
    pub questions: usize,
    /// Answers that are the reference's in every token.
    pub exact: usize,
    /// The others, in order.
    pub differences: Vec<Difference>,
}

/// Reads an `eval.jsonl`.
pub fn read(path: &Path) -> Result<Vec<Question>, OracleError> {
    let bad = |what: String| OracleError::Folder { dir: path.into(), what };
    let about = std::fs::metadata(path).map_err(|e| bad(e.to_string()))?;
    if about.len() > MAX_FILE {
        return Err(bad(format!("{} bytes, the limit is {MAX_FILE}", about.len())));
    }
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let mut out = Vec::new();
    for (line, json) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let q: Question = serde_json::from_str(json).map_err(|e| bad(format!("line {}: {e}", line + 1)))?;
        if q.prompt_ids.is_empty() || q.greedy_ids.is_empty() {
            return Err(bad(format!("line {}: no prompt or no answer", line + 1)));
        }
        out.push(q);
        if out.len() > MAX_QUESTIONS {
            return Err(bad(format!("more than {MAX_QUESTIONS} questions")));
        }
    }
    if out.is_empty() {
        return Err(bad("no question".into()));
    }
    Ok(out)
}

/// Answers the questions of the folder's `eval.jsonl` with its checkpoint.
pub fn run_folder(dir: &Path, class: NumericClass, place: &Place) -> Result<EvalResult, OracleError> {
    let questions = read(&dir.join("eval.jsonl"))?;
    let checkpoint = checkpoint(dir)?;
    let recipe =
        Recipe::builtin("bf16").map_err(|e| OracleError::Folder { dir: dir.into(), what: e.to_string() })?;
    let temp = tempfile::tempdir().map_err(|source| PackError::Io { path: dir.into(), source })?;
    let pack = Pack::write(&checkpoint, "eval", &recipe, &temp.path().join("eval.pack"))?;
    run_at(&pack, &questions, class, place)
}

/// Answers `questions` with `pack` on the host.
pub fn run(
    pack: &Pack,
    questions: &[Question],
    class: NumericClass,
    threads: usize,
    simd: Simd,
) -> Result<EvalResult, OracleError> {
    run_at(pack, questions, class, &Place::Host { threads, simd })
}

/// Answers `questions` with `pack`.
pub fn run_at(
    pack: &Pack,
    questions: &[Question],
    class: NumericClass,
    place: &Place,
) -> Result<EvalResult, OracleError> {
    let threads = place.threads();
    let longest = questions.iter().map(|q| q.prompt_ids.len() + q.greedy_ids.len()).max().unwrap_or(1);
    let size = EngineSize { batch: BATCH.min(questions.len()).max(1), context: longest, threads };
    let h = &pack.header;
    let weights = Weights::Host(pack.weights()?);
    let mut engine = place.engine(&h.model, &h.manifest, class, size, weights)?;
    let mut differences = Vec::new();
    for (block, some) in questions.chunks(size.batch).enumerate() {
        answer(&mut engine, some, block * size.batch, &mut differences)?;
    }
    differences.sort_by_key(|d| d.question);
    let exact = questions.len() - differences.len();
    Ok(EvalResult { class, questions: questions.len(), exact, differences })
}

/// A row on its way: the question, its sequence and the tokens answered so far.
struct Row<'q> {
    index: usize,
    question: &'q Question,
    sequence: Sequence,
    answered: usize,
}

impl Row<'_> {
    /// Takes the next chosen token. `false` when the row is finished.
    fn take(&mut self, have: u32, logits: &[f32], differences: &mut Vec<Difference>) -> bool {
        let want = self.question.greedy_ids[self.answered];
        if have != want {
            differences.push(Difference {
                question: self.index,
                text: self.question.question.clone(),
                at: self.answered,
                have,
                want,
                gap: gap(logits),
            });
            return false;
        }
        self.answered += 1;
        self.answered < self.question.greedy_ids.len()
    }
}

fn answer(
    engine: &mut Engine,
    questions: &[Question],
    first: usize,
    differences: &mut Vec<Difference>,
) -> Result<(), OracleError> {
    let mut rows = Vec::new();
    for (i, question) in questions.iter().enumerate() {
        let sequence = engine.open(question.prompt_ids.len() + question.greedy_ids.len())?;
        let mut at = 0;
        while at < question.prompt_ids.len() {
            let end = at + Engine::chunk_len(at, question.prompt_ids.len() - at);
            engine.prefill(&[(sequence, &question.prompt_ids[at..end])], false)?;
            at = end;
        }
        engine.fetch_logits()?;
        let mut row = Row { index: first + i, question, sequence, answered: 0 };
        if row.take(engine.chosen()[0], engine.logits(0), differences) {
            rows.push(row);
        } else {
            engine.close(sequence)?;
        }
    }
    while !rows.is_empty() {
        let inputs: Vec<(Sequence, u32)> =
            rows.iter().map(|r| (r.sequence, r.question.greedy_ids[r.answered - 1])).collect();
        engine.decode(&inputs)?;
        engine.fetch_logits()?;
        let mut left = Vec::with_capacity(rows.len());
        let mut done = Vec::new();
        for (at, mut row) in rows.into_iter().enumerate() {
            if row.take(engine.chosen()[at], engine.logits(at), differences) {
                left.push(row);
            } else {
                done.push(row.sequence);
            }
        }
        done.into_iter().try_for_each(|sequence| engine.close(sequence))?;
        rows = left;
    }
    Ok(())
}

/// Gap between the two best logits.
fn gap(logits: &[f32]) -> f32 {
    let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &v in logits {
        if v > best {
            (best, second) = (v, best);
        } else if v > second {
            second = v;
        }
    }
    best - second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_between_the_two_best() {
        assert_eq!(gap(&[1.0, 5.0, 3.5]), 1.5);
        assert_eq!(gap(&[5.0, 1.0, 5.0]), 0.0);
    }

    #[test]
    fn questions_without_tokens_are_refused_by_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eval.jsonl");
        std::fs::write(&path, "{\"question\":\"q\",\"prompt_ids\":[1],\"greedy_ids\":[]}\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 1"));
        std::fs::write(&path, "").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("no question"));
    }

    #[test]
    fn the_first_questions_are_exact_and_a_wrong_reference_is_a_difference() {
        let dir = tempfile::tempdir().unwrap();
        let pack = crate::builtin::ensure_pack(dir.path()).unwrap();
        let eval = concat!(env!("CARGO_MANIFEST_DIR"), "/builtin/eval.jsonl");
        let mut questions = read(Path::new(eval)).unwrap();
        questions.truncate(4);
        questions[2].greedy_ids[1] ^= 1;
        let result = run(&pack, &questions, NumericClass::F32, 2, Simd::SCALAR).unwrap();
        assert_eq!((result.exact, result.differences.len()), (3, 1));
        assert_eq!((result.differences[0].question, result.differences[0].at), (2, 1));
        assert!(result.differences[0].gap > 0.0);
    }
}
