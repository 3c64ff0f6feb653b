//! Sequences, their pages and slots, and the staging of a step's inputs.
use super::{Engine, EngineError, Phase};
use kernels::buffer::BufId;
use ledger::PAGE_TOKENS;
use std::collections::BTreeSet;

/// Id of a sequence: an index and a generation, so that a stale id is never another sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence {
    index: u32,
    generation: u32,
}

/// What the engine knows of a live sequence.
#[derive(Clone, Debug)]
pub struct Live {
    /// State slot.
    pub slot: u32,
    /// KV pages in order.
    pub pages: Vec<u32>,
    /// Tokens in the cache.
    pub length: usize,
    /// Tokens it was priced for.
    pub limit: usize,
}

/// All sequences of an engine and the free lists they come from.
pub struct Sequences {
    live: Vec<Option<Live>>,
    generations: Vec<u32>,
    free_pages: Vec<u32>,
    pages: usize,
    seen: BTreeSet<u32>,
}

impl Sequences {
    /// `slots` sequences over `pages` pages.
    pub fn new(slots: usize, pages: usize) -> Self {
        Self {
            live: vec![None; slots],
            generations: vec![0; slots],
            free_pages: (0..pages as u32).rev().collect(),
            pages,
            seen: BTreeSet::new(),
        }
    }

    /// Free slots.
    pub fn free_slots(&self) -> usize {
        self.live.iter().filter(|l| l.is_none()).count()
    }

    /// Free pages.
    pub fn free_pages(&self) -> usize {
        self.free_pages.len()
    }

    /// Pages and slots are owned once: free + owned = all.
    pub fn conserved(&self) -> bool {
        let owned: Vec<u32> = self.live.iter().flatten().flat_map(|l| l.pages.iter().copied()).collect();
        let mut all: Vec<u32> = owned.into_iter().chain(self.free_pages.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all.len() == self.pages
    }

    /// Reserves a slot and pages for `tokens` tokens.
    pub fn open(&mut self, tokens: usize) -> Result<Sequence, EngineError> {
        let index = self.live.iter().position(Option::is_none);
        let index = index.ok_or(EngineError::Exhausted { what: "state slots", need: 1, have: 0 })?;
        let need = tokens.div_ceil(PAGE_TOKENS as usize);
        let have = self.free_pages.len();
        if need > have {
            return Err(EngineError::Exhausted { what: "KV pages", need, have });
        }
        let pages = self.free_pages.split_off(have - need);
        self.live[index] = Some(Live { slot: index as u32, pages, length: 0, limit: tokens });
        Ok(Sequence { index: index as u32, generation: self.generations[index] })
    }

    /// Returns a sequence's pages and slot.
    pub fn close(&mut self, sequence: Sequence) -> Result<(), EngineError> {
        self.get(sequence)?;
        let index = sequence.index as usize;
        if let Some(live) = self.live[index].take() {
            self.free_pages.extend(live.pages);
        }
        self.generations[index] = self.generations[index].wrapping_add(1);
        Ok(())
    }

    /// A live sequence.
    pub fn get(&self, sequence: Sequence) -> Result<&Live, EngineError> {
        let index = sequence.index as usize;
        match self.live.get(index).and_then(Option::as_ref) {
            Some(live) if self.generations[index] == sequence.generation => Ok(live),
            _ => Err(EngineError::Dead(sequence)),
        }
    }

    pub(super) fn set_length(&mut self, sequence: Sequence, length: usize) {
        if let Some(live) = self.live[sequence.index as usize].as_mut() {
            live.length = length;
        }
    }
}

impl Engine {
    /// Writes the inputs of the next step of `self.last`'s plan and advances the lengths. The last `ahead` tokens of
    /// each chunk have no row of their own: they only follow one.
    pub(super) fn stage<'t>(
        &mut self,
        chunks: impl Iterator<Item = (Sequence, &'t [u32])> + Clone,
        ahead: usize,
        all_logits: bool,
    ) -> Result<(), EngineError> {
        self.check_stage(chunks.clone(), ahead)?;
        let plan = match self.last {
            Phase::Decode => &self.plans.decode,
            Phase::Prefill => &self.plans.prefill,
        };
        let io = &plan.io;
        let memory = &mut self.memory;
        let mut put = |buf: BufId, at: usize, value: u32| {
            memory.values_mut::<u32>(&plan.buffers[buf.0 as usize])[at] = value;
        };
        let page = PAGE_TOKENS as usize;
        let (mut row, mut out, mut seqs) = (0, 0, 0);
        self.facts.lengths.clear();
        let mut seen = std::mem::take(&mut self.sequences.seen);
        seen.clear();
        for (sequence, given) in chunks {
            let tokens = &given[..given.len() - ahead];
            let live = self.sequences.get(sequence)?;
            put(io.seg_start, seqs, row as u32);
            put(io.slot, seqs, live.slot);
            let length = live.length + tokens.len();
            for (i, p) in live.pages[..length.div_ceil(page)].iter().enumerate() {
                put(io.table, seqs * io.max_pages + i, *p);
            }
            for (i, token) in tokens.iter().enumerate() {
                let pos = live.length + i;
                put(io.tokens, row, *token);
                put(io.pos, row, pos as u32);
                put(io.seg, row, seqs as u32);
                put(io.kv_slot, row, live.pages[pos / page] * page as u32 + (pos % page) as u32);
                if let (Some(draft), Some(next)) = (io.draft, given.get(i + 1)) {
                    put(draft.next, row, *next);
                }
                seen.insert(*token);
                if all_logits || i + 1 == tokens.len() {
                    put(io.out_index, out, row as u32);
                    out += 1;
                }
                row += 1;
            }
            self.facts.lengths.push(length as u64);
            self.sequences.set_length(sequence, length);
            seqs += 1;
        }
        put(io.seg_start, seqs, row as u32);
        self.facts.rows = row as u64;
        self.facts.out_rows = out as u64;
        self.facts.distinct_tokens = seen.len() as u64;
        self.sequences.seen = seen;
        Ok(())
    }

    fn check_stage<'t>(
        &self,
        chunks: impl Iterator<Item = (Sequence, &'t [u32])>,
        ahead: usize,
    ) -> Result<(), EngineError> {
        let bucket = &self.last_plan().bucket;
        let taken = usize::from(self.drafts() && self.last == Phase::Prefill);
        if ahead != taken {
            return Err(EngineError::Lookahead { given: ahead, taken });
        }
        let (mut rows, mut seqs) = (0, 0);
        let mut ids = BTreeSet::new();
        for (sequence, tokens) in chunks {
            let live = self.sequences.get(sequence)?;
            if !ids.insert(sequence) {
                return Err(EngineError::Limit { field: "rows of one sequence", value: 2, limit: 1 });
            }
            let count = tokens.len().saturating_sub(ahead);
            let end = live.length + count;
            if end > live.limit {
                let (value, limit) = (end as u64, live.limit as u64);
                return Err(EngineError::Limit { field: "sequence tokens", value, limit });
            }
            if let Some(token) = tokens.iter().find(|t| **t as usize >= self.summary.vocab) {
                let (value, limit) = (u64::from(*token), self.summary.vocab as u64 - 1);
                return Err(EngineError::Limit { field: "token id", value, limit });
            }
            rows += count;
            seqs += 1;
        }
        for (field, value, limit) in [("step rows", rows, bucket.rows), ("step sequences", seqs, bucket.seqs)]
        {
            if value > limit {
                return Err(EngineError::Limit { field, value: value as u64, limit: limit as u64 });
            }
        }
        Ok(())
    }
}
