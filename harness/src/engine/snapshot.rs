//! Copies of a sequence's cache: for preemption (save and restore) and for filling a batch from one prefix.
use super::{Backend, Engine, EngineError, Sequence};
use kernels::buffer::Arena;
use ledger::{PAGE_TOKENS, TrafficClass};

/// A sequence saved outside the arenas: its state slab and its pages, byte for byte.
#[derive(Clone, Debug)]
pub struct Snapshot {
    bytes: Vec<u8>,
    length: usize,
    limit: usize,
}

impl Snapshot {
    /// Bytes it holds.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Engine {
    /// Ranges of the cache arena that belong to a sequence of `length` tokens, in a fixed order.
    fn ranges(&self, sequence: Sequence, length: usize) -> Result<Vec<(usize, usize)>, EngineError> {
        let live = self.sequences().get(sequence)?;
        let plan = &self.plans.decode;
        let bucket = &plan.bucket;
        let used = length.div_ceil(PAGE_TOKENS as usize);
        let mut out = Vec::new();
        for b in plan.buffers.iter().filter(|b| b.arena == Arena::Cache) {
            let (units, ids) = match b.class {
                TrafficClass::Kv => (bucket.pages, &live.pages[..used]),
                _ => (bucket.slots, std::slice::from_ref(&live.slot)),
            };
            let each = (b.bytes / units as u64) as usize;
            out.extend(ids.iter().map(|id| (b.offset as usize + *id as usize * each, each)));
        }
        Ok(out)
    }

    /// Saves a sequence and closes it.
    pub fn evict(&mut self, sequence: Sequence) -> Result<Snapshot, EngineError> {
        let live = self.sequences().get(sequence)?;
        let (length, limit) = (live.length, live.limit);
        let mut bytes = Vec::new();
        for (at, len) in self.ranges(sequence, length)? {
            match &self.backend {
                Backend::Host => bytes.extend_from_slice(&self.memory.arena(Arena::Cache)[at..at + len]),
                Backend::Cuda(steps) => {
                    let from = bytes.len();
                    bytes.resize(from + len, 0);
                    steps.read_cache(at, &mut bytes[from..])?;
                }
            }
        }
        self.close(sequence)?;
        Ok(Snapshot { bytes, length, limit })
    }

    /// Opens a sequence that continues exactly where the snapshot was taken.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<Sequence, EngineError> {
        let sequence = self.open(snapshot.limit)?;
        let mut from = 0;
        for (at, len) in self.ranges(sequence, snapshot.length)? {
            let saved = &snapshot.bytes[from..from + len];
            match &self.backend {
                Backend::Host => self.memory.arena_mut(Arena::Cache)[at..at + len].copy_from_slice(saved),
                Backend::Cuda(steps) => steps.write_cache(at, saved)?,
            }
            from += len;
        }
        self.sequences.set_length(sequence, snapshot.length);
        Ok(sequence)
    }

    /// Opens a sequence of up to `tokens` tokens that starts as a copy of `from`. Steps may follow at any length, a
    /// prompt only where the engine's grid lets one begin.
    pub fn fork(&mut self, from: Sequence, tokens: usize) -> Result<Sequence, EngineError> {
        let length = self.sequences().get(from)?.length;
        let sequence = self.open(tokens)?;
        let (source, target) = (self.ranges(from, length)?, self.ranges(sequence, length)?);
        let moves = source.into_iter().zip(target).map(|((a, len), (b, _))| (a, b, len));
        match &self.backend {
            Backend::Host => {
                let cache = self.memory.arena_mut(Arena::Cache);
                moves.for_each(|(a, b, len)| cache.copy_within(a..a + len, b));
            }
            Backend::Cuda(steps) => steps.copy_cache(moves)?,
        }
        self.sequences.set_length(sequence, length);
        Ok(sequence)
    }

    pub(super) fn clear_state(&mut self, slot: u32) -> Result<(), EngineError> {
        let plan = &self.plans.decode;
        let slots = plan.bucket.slots as u64;
        let spans: Vec<(usize, usize)> = plan
            .buffers
            .iter()
            .filter(|b| b.arena == Arena::Cache && b.class == TrafficClass::State)
            .map(|b| ((b.offset + u64::from(slot) * (b.bytes / slots)) as usize, (b.bytes / slots) as usize))
            .collect();
        for (at, len) in spans {
            match &self.backend {
                Backend::Host => self.memory.arena_mut(Arena::Cache)[at..at + len].fill(0),
                Backend::Cuda(steps) => steps.clear_cache(at, len)?,
            }
        }
        Ok(())
    }
}
