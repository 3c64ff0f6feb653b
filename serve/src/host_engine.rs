//! The harness engine behind the scheduler's seam: one admitted sequence is one slot with its pages.
use crate::routes::RouteSender;
use crate::scheduler::{EngineError, EngineLimits, StepEngine};
use harness::engine::snapshot::Snapshot;
use harness::engine::{Engine, EngineError as HostError, PREFILL_GRID, Sequence};
use ledger::PAGE_TOKENS;
use std::collections::HashMap;

/// Where an admitted sequence is.
enum Place {
    Resident(Sequence),
    Saved(Snapshot),
}

struct Admitted {
    place: Place,
    prompt: Vec<u32>,
    done: usize,
    logits: Vec<f32>,
}

/// Identity of an admitted sequence; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostSeq(u64);

/// A [`StepEngine`] over the host device.
pub struct HostEngine {
    engine: Engine,
    admitted: HashMap<HostSeq, Admitted>,
    next: u64,
    rows: Vec<(Sequence, u32)>,
    routes: Option<RouteSender>,
}

fn seam(error: HostError) -> EngineError {
    match error {
        HostError::Exhausted { what, need, have } => EngineError::Exhausted { what, need, have },
        HostError::Limit { field: "sequence tokens", value, limit } => {
            EngineError::TooLong { tokens: value as usize, limit: limit as usize }
        }
        other => EngineError::Fatal(other.to_string()),
    }
}

impl HostEngine {
    /// Wraps an engine that nothing else drives.
    pub fn new(engine: Engine) -> Self {
        Self { engine, admitted: HashMap::new(), next: 0, rows: Vec::new(), routes: None }
    }

    /// Hands the expert routes of every decode step to `routes`.
    #[must_use]
    pub fn recording(mut self, routes: Option<RouteSender>) -> Self {
        self.routes = routes;
        self
    }

    fn resident(&self, seq: HostSeq) -> Result<Sequence, EngineError> {
        match self.admitted.get(&seq).map(|a| &a.place) {
            Some(Place::Resident(sequence)) => Ok(*sequence),
            _ => Err(EngineError::Fatal(format!("{seq:?} is not resident"))),
        }
    }

    /// Keeps the logits of output row `row` for `seq`.
    fn keep(&mut self, seq: HostSeq, row: usize) {
        if let Some(admitted) = self.admitted.get_mut(&seq) {
            admitted.logits.copy_from_slice(self.engine.logits(row));
        }
    }
}

impl StepEngine for HostEngine {
    type Seq = HostSeq;

    fn limits(&self) -> EngineLimits {
        let size = self.engine.size();
        let bucket = &self.engine.plans.decode.bucket;
        EngineLimits {
            max_batch: size.batch,
            max_context: size.context,
            prefill_chunk: PREFILL_GRID,
            vocab: self.engine.summary().vocab,
            pages: bucket.pages,
            page_tokens: PAGE_TOKENS as usize,
            slots: bucket.slots,
        }
    }

    fn admit(&mut self, prompt: &[u32], max_new_tokens: usize) -> Result<HostSeq, EngineError> {
        let tokens = prompt.len().saturating_add(max_new_tokens);
        let sequence = self.engine.open(tokens).map_err(seam)?;
        let seq = HostSeq(self.next);
        self.next += 1;
        let logits = vec![0.0; self.engine.summary().vocab];
        let place = Place::Resident(sequence);
        self.admitted.insert(seq, Admitted { place, prompt: prompt.to_vec(), done: 0, logits });
        Ok(seq)
    }

    fn prefill(&mut self, seq: HostSeq) -> Result<bool, EngineError> {
        let sequence = self.resident(seq)?;
        let Some(admitted) = self.admitted.get_mut(&seq) else { return Ok(false) };
        let n = Engine::chunk_len(admitted.done, admitted.prompt.len() - admitted.done);
        let chunk = &admitted.prompt[admitted.done..admitted.done + n];
        self.engine.prefill(&[(sequence, chunk)], false).map_err(seam)?;
        admitted.done += n;
        let finished = admitted.done == admitted.prompt.len();
        if finished {
            self.engine.fetch_logits().map_err(seam)?;
            self.keep(seq, 0);
        }
        Ok(finished)
    }

    fn step(&mut self, rows: &[(HostSeq, u32)]) -> Result<(), EngineError> {
        self.rows.clear();
        for (seq, token) in rows {
            let sequence = self.resident(*seq)?;
            self.rows.push((sequence, *token));
        }
        self.engine.decode(&self.rows).map_err(|e| EngineError::Fatal(e.to_string()))?;
        self.engine.fetch_logits().map_err(seam)?;
        for (row, (seq, _)) in rows.iter().enumerate() {
            self.keep(*seq, row);
        }
        if let Some(routes) = &self.routes {
            routes.offer(self.engine.routes());
        }
        Ok(())
    }

    fn logits(&mut self, seq: HostSeq) -> &mut [f32] {
        self.admitted.get_mut(&seq).map_or(&mut [], |a| &mut a.logits)
    }

    fn release(&mut self, seq: HostSeq) {
        if let Some(Admitted { place: Place::Resident(sequence), .. }) = self.admitted.remove(&seq) {
            // An id that the engine no longer knows owns nothing: there is nothing left to give back.
            let _ = self.engine.close(sequence);
        }
    }

    fn evict(&mut self, seq: HostSeq) -> Result<(), EngineError> {
        let sequence = self.resident(seq)?;
        let snapshot = self.engine.evict(sequence).map_err(seam)?;
        if let Some(admitted) = self.admitted.get_mut(&seq) {
            admitted.place = Place::Saved(snapshot);
        }
        Ok(())
    }

    fn restore(&mut self, seq: HostSeq) -> Result<bool, EngineError> {
        let Some(admitted) = self.admitted.get_mut(&seq) else {
            return Err(EngineError::Fatal(format!("{seq:?} was never admitted")));
        };
        let Place::Saved(snapshot) = &admitted.place else { return Ok(true) };
        match self.engine.restore(snapshot) {
            Ok(sequence) => {
                admitted.place = Place::Resident(sequence);
                Ok(true)
            }
            Err(HostError::Exhausted { .. }) => Ok(false),
            Err(other) => Err(seam(other)),
        }
    }
}
