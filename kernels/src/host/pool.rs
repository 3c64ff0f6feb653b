//! A fixed pool of threads that runs the items of one launch and allocates nothing while it does.
//!
//! Which thread runs an item never changes a result: items are independent and write disjoint ranges.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};

type Job = dyn Fn(usize, &mut [f32]) + Sync;

struct Shared {
    /// Number of jobs published so far; workers wait for it to move.
    epoch: AtomicUsize,
    next: AtomicUsize,
    items: AtomicUsize,
    /// Workers inside the job; the caller leaves only when it is zero.
    active: AtomicUsize,
    /// Whether the job may be entered. A worker that wakes late finds it closed and costs the caller nothing.
    open: AtomicBool,
    stop: AtomicBool,
    panicked: AtomicBool,
    job: UnsafeCell<Option<*const Job>>,
}

// SAFETY: `job` is written only while it is closed and no worker is active. A worker first counts itself as
// active and then looks whether the job is open; the caller first closes and then waits for `active` to be zero.
// In the one order of sequentially consistent operations either the worker sees it closed or the caller sees
// the worker, so a job is never read after its caller returned.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// The pool. The calling thread is one of its threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    threads: Vec<Thread>,
    scratch: Vec<f32>,
}

/// Spins of a waiting thread before it sleeps: about 50 us, longer than the gap between two launches.
const SPINS: usize = 20_000;

impl Pool {
    /// A pool of `threads` threads, each with `scratch` floats of its own.
    pub fn new(threads: usize, scratch: usize) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            items: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            job: UnsafeCell::new(None),
        });
        let workers: Vec<_> = (1..threads.max(1))
            .map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("host-{i}"))
                    .spawn(move || worker(&shared, scratch))
                    .expect("the system starts the pool's threads once, at start-up")
            })
            .collect();
        let threads = workers.iter().map(|w| w.thread().clone()).collect();
        Self { shared, workers, threads, scratch: vec![0.0; scratch] }
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Floats of scratch each thread has.
    pub fn scratch(&self) -> usize {
        self.scratch.len()
    }

    /// Runs `job(item, scratch)` for every item in `0..items` and returns when all are done.
    pub fn run(&mut self, items: usize, job: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        if items <= 1 || self.workers.is_empty() {
            for item in 0..items {
                job(item, &mut self.scratch);
            }
            return;
        }
        let s = &*self.shared;
        let erased: *const (dyn Fn(usize, &mut [f32]) + Sync + '_) = job;
        // SAFETY: only the lifetime is erased; the job outlives this call, which waits for every active worker.
        let erased: *const Job = unsafe { std::mem::transmute(erased) };
        // SAFETY: the job is closed and no worker is active (the last call waited), so nobody reads the cell.
        unsafe { *s.job.get() = Some(erased) };
        s.next.store(0, Ordering::Relaxed);
        s.items.store(items, Ordering::Relaxed);
        s.open.store(true, Ordering::SeqCst);
        s.epoch.fetch_add(1, Ordering::SeqCst);
        for thread in &self.threads {
            thread.unpark();
        }
        let closing = Closing(s);
        drain(s, job, &mut self.scratch);
        drop(closing);
        assert!(!s.panicked.load(Ordering::Relaxed), "a kernel item panicked on a pool thread");
    }
}

/// Closes the job and waits for its workers, also when the caller's own item panics.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.open.store(false, Ordering::SeqCst);
        let mut spins = 0usize;
        while self.0.active.load(Ordering::SeqCst) != 0 {
            spins += 1;
            // A worker inside its last item may have lost its processor: give it ours.
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

fn drain(s: &Shared, job: &(dyn Fn(usize, &mut [f32]) + Sync), scratch: &mut [f32]) {
    let items = s.items.load(Ordering::Relaxed);
    loop {
        let item = s.next.fetch_add(1, Ordering::Relaxed);
        if item >= items {
            return;
        }
        job(item, scratch);
    }
}

fn worker(s: &Shared, scratch: usize) {
    let mut scratch = vec![0.0f32; scratch];
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while s.epoch.load(Ordering::Acquire) == seen {
            if s.stop.load(Ordering::Acquire) {
                return;
            }
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::park() }
        }
        seen = s.epoch.load(Ordering::SeqCst);
        s.active.fetch_add(1, Ordering::SeqCst);
        if s.open.load(Ordering::SeqCst) {
            // SAFETY: counted as active before the job was seen open, so its caller waits for this worker.
            let job = unsafe { &*(*s.job.get()).expect("a job is stored before it is opened") };
            let run = std::panic::AssertUnwindSafe(|| drain(s, job, &mut scratch));
            if std::panic::catch_unwind(run).is_err() {
                s.panicked.store(true, Ordering::SeqCst);
            }
        }
        s.active.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.unpark();
        }
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                self.shared.panicked.store(true, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_item_runs_exactly_once() {
        let mut pool = Pool::new(4, 8);
        for round in 0..200usize {
            let hits: Vec<AtomicU64> = (0..round).map(|_| AtomicU64::new(0)).collect();
            pool.run(round, &|i, scratch| {
                assert_eq!(scratch.len(), 8);
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "round {round}");
        }
    }

    #[test]
    fn a_pool_that_slept_wakes_up() {
        let mut pool = Pool::new(2, 0);
        std::thread::sleep(std::time::Duration::from_millis(30));
        let sum = AtomicU64::new(0);
        pool.run(100, &|i, _| {
            sum.fetch_add(i as u64, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 4950);
    }
}
