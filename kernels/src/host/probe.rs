//! Ceiling probes of the host: what the pool's threads read, copy and update a second over a working set.
use super::pool::Pool;
use super::simd::Simd;
use crate::values::wide;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

/// Passes of one kind over one working set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passes {
    /// Bytes that one pass moves.
    pub bytes: u64,
    /// Nanoseconds of each pass, in execution order.
    pub nanos: Vec<u64>,
}

impl Passes {
    /// Rate of the fastest pass, in bytes a second.
    pub fn best(&self) -> u64 {
        self.nanos.iter().min().map_or(0, |ns| rate(self.bytes, *ns))
    }

    /// Rate of the median pass (the slower of two middles), in bytes a second.
    pub fn median(&self) -> u64 {
        let mut sorted = self.nanos.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map_or(0, |ns| rate(self.bytes, *ns))
    }
}

fn rate(bytes: u64, nanos: u64) -> u64 {
    (bytes as f64 * 1e9 / nanos.max(1) as f64) as u64
}

/// Every pass over one working set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointSeries {
    /// Bytes of the working set.
    pub working_set: u64,
    /// Read.
    pub read: Passes,
    /// Copy: half the set is read and half written.
    pub copy: Passes,
    /// Read, modify and write in place: all of it is read and written.
    pub update: Passes,
}

impl PointSeries {
    /// The best pass of each kind.
    pub fn best(&self) -> Rates {
        let [read, copy, update] = [&self.read, &self.copy, &self.update].map(Passes::best);
        Rates { working_set: self.working_set, read, copy, update }
    }
}

/// Probes each working set in `sizes` for about `time` per kind.
pub fn ceilings(pool: &mut Pool, simd: Simd, sizes: &[u64], time: Duration) -> Vec<PointSeries> {
    let threads = pool.threads();
    let mut out = Vec::new();
    for size in sizes {
        let mut words: Vec<u64> = (0..*size / 8).collect();
        let sink = AtomicU64::new(0);
        let part = words.len().div_ceil(threads).max(1);
        let read = passes(*size, time, || {
            pool.run(threads, &|i, _| {
                let mine = words.chunks(part).nth(i).unwrap_or(&[]);
                sink.fetch_add(sum_words(simd, mine), Ordering::Relaxed);
            });
        });
        let half = words.len() / 2;
        let (from, to) = words.split_at_mut(half);
        let copy = passes(half as u64 * 16, time, || {
            on_parts(pool, to, |i, mine, part| {
                let at = i * part;
                mine.copy_from_slice(&from[at..at + mine.len()]);
            })
        });
        let update = passes(2 * size, time, || {
            on_parts(pool, &mut words, |_, mine, _| {
                sink.fetch_add(bump_words(simd, mine), Ordering::Relaxed);
            })
        });
        out.push(PointSeries { working_set: *size, read, copy, update });
    }
    out
}

/// Launches behind one sample of [`launches`]: the clock itself costs some tens of nanoseconds.
pub const LAUNCHES_PER_SAMPLE: u32 = 8;

/// Nanoseconds of a launch without work in which every thread takes part, wake-up included: samples of
/// [`LAUNCHES_PER_SAMPLE`] launches, in execution order.
///
/// A job of empty items says nothing: the caller has drained it before another thread can enter. Here every
/// item waits until each thread holds one.
pub fn launches(pool: &mut Pool, time: Duration) -> Vec<u64> {
    let threads = pool.threads();
    let all = passes(0, time, || {
        for _ in 0..LAUNCHES_PER_SAMPLE {
            let meeting = Meeting::of(threads);
            pool.run(threads, &|_, _| meeting.arrive());
        }
    });
    all.nanos.iter().map(|ns| (ns / u64::from(LAUNCHES_PER_SAMPLE)).max(1)).collect()
}

/// Where the threads of one launch meet. A thread inside holds an item and can take no second one, so as many
/// items as threads leave only when every thread has taken part.
struct Meeting {
    threads: usize,
    arrived: AtomicUsize,
}

/// Spins before a waiting thread gives its processor to one that has none.
const SPINS: usize = 10_000;

impl Meeting {
    fn of(threads: usize) -> Self {
        Meeting { threads, arrived: AtomicUsize::new(0) }
    }

    fn arrive(&self) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut spins = 0;
        while self.arrived.load(Ordering::Acquire) < self.threads {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
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

/// Most passes of a series, so that its memory is bounded whatever the time.
const MAX_PASSES: usize = 4096;

fn passes(bytes: u64, time: Duration, mut pass: impl FnMut()) -> Passes {
    let begin = Instant::now();
    let mut nanos = Vec::with_capacity(MAX_PASSES);
    while nanos.len() < 3 || (begin.elapsed() < time && nanos.len() < MAX_PASSES) {
        let start = Instant::now();
        pass();
        nanos.push((start.elapsed().as_nanos() as u64).max(1));
    }
    Passes { bytes, nanos }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    #[test]
    fn every_kind_has_a_rate_for_every_size() {
        let mut pool = Pool::new(2, 0);
        let points = ceilings(&mut pool, Simd::SCALAR, &[1 << 16, 1 << 20], Duration::from_millis(1));
        let rates: Vec<Rates> = points.iter().map(PointSeries::best).collect();
        assert_eq!(rates.iter().map(|r| r.working_set).collect::<Vec<_>>(), [1 << 16, 1 << 20]);
        assert!(rates.iter().all(|r| r.read > 0 && r.copy > 0 && r.update > 0));
        for passes in points.iter().flat_map(|p| [&p.read, &p.copy, &p.update]) {
            assert!((3..=MAX_PASSES).contains(&passes.nanos.len()));
            assert!(passes.median() <= passes.best());
        }
    }

    #[test]
    fn rates_are_bytes_over_the_fastest_and_the_median_pass() {
        let passes = Passes { bytes: 1000, nanos: vec![500, 100, 200] };
        assert_eq!((passes.best(), passes.median()), (10_000_000_000, 5_000_000_000));
    }

    #[test]
    fn every_thread_takes_part_in_every_launch() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads, 0);
            for _ in 0..200 {
                let (meeting, seen) = (Meeting::of(threads), Mutex::new(BTreeSet::new()));
                pool.run(threads, &|_, _| {
                    meeting.arrive();
                    let id = format!("{:?}", std::thread::current().id());
                    seen.lock().unwrap().insert(id);
                });
                assert_eq!(seen.lock().unwrap().len(), threads);
            }
        }
    }

    #[test]
    fn a_launch_of_two_threads_costs_more_than_a_call() {
        let time = Duration::from_millis(20);
        let cost = |threads: usize| *launches(&mut Pool::new(threads, 0), time).iter().min().unwrap();
        let (alone, two) = (cost(1), cost(2));
        // At least four times a cache line changes its core: the job out, the arrival back, the meeting seen,
        // the worker gone. The empty job that closed before a worker entered cost 17 ns.
        assert!(two > alone && two >= 40, "{alone} ns alone, {two} ns with two");
        assert!(two < 50_000_000);
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
