//! Counters of the checked mode: which bytes of a buffer a launch handed out, kept as bitmaps.
//!
//! Bitmaps are zero pages until touched and a second bitmap remembers the blocks that are dirty, so counters
//! over a full-size cache cost what the launch touches, not what the cache holds.
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a dirty block: 64 words cover 4096 bytes of the buffer.
const BLOCK: usize = 64;

/// Bytes handed out of one buffer in one direction.
#[derive(Debug)]
struct Marks {
    words: Vec<AtomicU64>,
    dirty: Vec<AtomicU64>,
    distinct: AtomicU64,
    total: AtomicU64,
}

/// Zeroed atomics whose pages are not touched: the allocation is taken over in place.
fn zeros(len: usize) -> Vec<AtomicU64> {
    vec![0u64; len].into_iter().map(AtomicU64::new).collect()
}

impl Marks {
    fn new(bytes: u64) -> Self {
        let words = bytes.div_ceil(64) as usize;
        let dirty = zeros(words.div_ceil(BLOCK).div_ceil(64));
        Self { words: zeros(words), dirty, distinct: AtomicU64::new(0), total: AtomicU64::new(0) }
    }

    fn mark(&self, range: Range<usize>) {
        self.total.fetch_add(range.len() as u64, Ordering::Relaxed);
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start / 64, (range.end - 1) / 64);
        let mut fresh = 0;
        for word in first..=last {
            let from = if word == first { u64::MAX << (range.start % 64) } else { u64::MAX };
            let to = if word == last { u64::MAX >> (63 - (range.end - 1) % 64) } else { u64::MAX };
            let mask = from & to;
            // Most repeats find their bits set; a plain load is cheaper than another atomic update.
            if self.words[word].load(Ordering::Relaxed) & mask != mask {
                let before = self.words[word].fetch_or(mask, Ordering::Relaxed);
                fresh += u64::from((mask & !before).count_ones());
            }
        }
        if fresh > 0 {
            self.distinct.fetch_add(fresh, Ordering::Relaxed);
            for block in first / BLOCK..=last / BLOCK {
                self.dirty[block / 64].fetch_or(1 << (block % 64), Ordering::Relaxed);
            }
        }
    }

    fn reset(&self) {
        if self.total.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        self.distinct.store(0, Ordering::Relaxed);
        for (i, dirty) in self.dirty.iter().enumerate() {
            let mut bits = dirty.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let block = 64 * i + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let end = self.words.len().min((block + 1) * BLOCK);
                self.words[block * BLOCK..end].iter().for_each(|w| w.store(0, Ordering::Relaxed));
            }
        }
    }
}

/// Bytes handed out of one buffer during one launch.
#[derive(Debug)]
pub struct Counter {
    read: Marks,
    write: Marks,
}

/// What a [`Counter`] saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Distinct bytes read.
    pub read: u64,
    /// Distinct bytes written.
    pub write: u64,
    /// Bytes handed out for reading, repeats included.
    pub read_total: u64,
    /// Bytes handed out for writing, repeats included.
    pub write_total: u64,
}

impl Counter {
    /// A counter for a buffer of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self { read: Marks::new(bytes), write: Marks::new(bytes) }
    }

    pub(crate) fn mark_read(&self, bytes: Range<usize>) {
        self.read.mark(bytes);
    }

    pub(crate) fn mark_write(&self, bytes: Range<usize>) {
        self.write.mark(bytes);
    }

    /// Distinct and total bytes so far.
    pub fn touched(&self) -> Touched {
        Touched {
            read: self.read.distinct.load(Ordering::Relaxed),
            write: self.write.distinct.load(Ordering::Relaxed),
            read_total: self.read.total.load(Ordering::Relaxed),
            write_total: self.write.total.load(Ordering::Relaxed),
        }
    }

    /// Forgets everything; costs what was touched.
    pub fn reset(&self) {
        self.read.reset();
        self.write.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_equal_a_set_of_bytes(
            ranges in prop::collection::vec((0usize..9000, 0usize..5000), 1..12),
        ) {
            let counter = Counter::new(9000);
            for round in 0..2 {
                let (mut seen, mut total) = (vec![false; 9000], 0);
                for (start, len) in &ranges[round.min(ranges.len() - 1)..] {
                    let end = (start + len).min(9000);
                    seen[*start..end].fill(true);
                    total += (end - start) as u64;
                    counter.mark_read(*start..end);
                }
                let distinct = seen.iter().filter(|s| **s).count() as u64;
                prop_assert_eq!(
                    counter.touched(),
                    Touched { read: distinct, read_total: total, ..Touched::default() }
                );
                counter.reset();
                prop_assert_eq!(counter.touched(), Touched::default());
            }
        }
    }

    #[test]
    fn directions_are_apart_and_threads_agree() {
        let counter = Counter::new(1 << 16);
        std::thread::scope(|s| {
            for t in 0..3 {
                let counter = &counter;
                s.spawn(move || (0..1000).for_each(|i| counter.mark_write(t + i * 60..t + i * 60 + 31)));
            }
        });
        let want = Touched { write: 33_000, write_total: 93_000, ..Touched::default() };
        assert_eq!(counter.touched(), want);
    }
}
