//! Ceiling probes of the host: what the pool's threads read, copy and update a second over a working set.
use super::pool::Pool;
use super::simd::Simd;
use crate::values::wide;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

wide! {
    /// Sum of all words: a read of every byte that cannot be removed. Four streams at a time, as the matrix
    /// products read four weight rows: one stream alone does not reach what a core can have in flight.
    pub fn sum_words [](words: &[u64]) -> u64 {
        let mut lanes = [[0u64; 8]; 4];
        let (chunks, tail) = words.as_chunks::<8>();
        let (streams, rest) = chunks.split_at(chunks.len() / 4 * 4);
        let quarter = streams.len() / 4;
        for i in 0..quarter {
            for s in 0..4 {
                let chunk = &streams[s * quarter + i];
                for l in 0..8 {
                    lanes[s][l] = lanes[s][l].wrapping_add(chunk[l]);
                }
            }
        }
        let rest = lanes.iter().chain(rest).flatten().chain(tail);
        rest.fold(0, |a, b| a.wrapping_add(*b))
    }
}

wide! {
    /// Adds one to every word.
    pub fn bump_words [](words: &mut [u64]) -> u64 {
        words.iter_mut().for_each(|w| *w = w.wrapping_add(1));
        words.first().copied().unwrap_or(0)
    }
}

/// Best rates over one working set, in bytes a second; copy and update count reads plus writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Bytes of the working set.
    pub working_set: u64,
    /// Read.
    pub read: u64,
    /// Copy.
    pub copy: u64,
    /// Read, modify and write in place.
    pub update: u64,
}

/// Probes each working set in `sizes` for about `time` per kind and keeps the best pass of each.
pub fn ceilings(pool: &mut Pool, simd: Simd, sizes: &[u64], time: Duration) -> Vec<Rates> {
    let threads = pool.threads();
    let mut out = Vec::new();
    for size in sizes {
        let mut words: Vec<u64> = (0..*size / 8).collect();
        let sink = AtomicU64::new(0);
        let part = words.len().div_ceil(threads).max(1);
        let read = best(time, || {
            pool.run(threads, &|i, _| {
                let mine = words.chunks(part).nth(i).unwrap_or(&[]);
                sink.fetch_add(sum_words(simd, mine), Ordering::Relaxed);
            });
        });
        let half = words.len() / 2;
        let (from, to) = words.split_at_mut(half);
        let copy = best(time, || {
            on_parts(pool, to, |i, mine, part| {
                let at = i * part;
                mine.copy_from_slice(&from[at..at + mine.len()]);
            })
        });
        let update = best(time, || {
            on_parts(pool, &mut words, |_, mine, _| {
                sink.fetch_add(bump_words(simd, mine), Ordering::Relaxed);
            })
        });
        let rate = |bytes: u64, time: Duration| (bytes as f64 / time.as_secs_f64()) as u64;
        // Half the set is read and half written by a copy; an update reads and writes all of it.
        let (read, copy, update) = (rate(*size, read), rate(half as u64 * 16, copy), rate(2 * size, update));
        out.push(Rates { working_set: *size, read, copy, update });
    }
    out
}

/// Time that a launch without work costs, the pool's wake-up included.
pub fn launch_cost(pool: &mut Pool) -> Duration {
    let threads = pool.threads();
    best(Duration::from_millis(20), || {
        for _ in 0..64 {
            pool.run(threads, &|_, _| {});
        }
    }) / 64
}

fn on_parts(pool: &mut Pool, words: &mut [u64], job: impl Fn(usize, &mut [u64], usize) + Sync) {
    let threads = pool.threads();
    let part = words.len().div_ceil(threads).max(1);
    let parts: Vec<std::sync::Mutex<&mut [u64]>> =
        words.chunks_mut(part).map(std::sync::Mutex::new).collect();
    pool.run(threads, &|i, _| {
        if let Some(mine) = parts.get(i).and_then(|p| p.lock().ok()).as_deref_mut() {
            job(i, mine, part);
        }
    });
}

fn best(time: Duration, mut pass: impl FnMut()) -> Duration {
    let begin = Instant::now();
    let mut best = Duration::MAX;
    let mut passes = 0;
    while passes < 3 || begin.elapsed() < time {
        let start = Instant::now();
        pass();
        best = best.min(start.elapsed());
        passes += 1;
    }
    best.max(Duration::from_nanos(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_rate_for_every_size() {
        let mut pool = Pool::new(2, 0);
        let rates = ceilings(&mut pool, Simd::SCALAR, &[1 << 16, 1 << 20], Duration::from_millis(1));
        assert_eq!(rates.iter().map(|r| r.working_set).collect::<Vec<_>>(), [1 << 16, 1 << 20]);
        assert!(rates.iter().all(|r| r.read > 0 && r.copy > 0 && r.update > 0));
        assert!(launch_cost(&mut pool) < Duration::from_millis(50));
    }

    #[test]
    fn sums_are_exact_at_odd_lengths() {
        for n in [0usize, 1, 7, 8, 9, 65] {
            let words: Vec<u64> = (0..n as u64).collect();
            for simd in Simd::available() {
                assert_eq!(sum_words(simd, &words), words.iter().sum::<u64>());
            }
        }
    }
}
