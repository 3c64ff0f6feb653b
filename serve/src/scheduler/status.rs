//! What the engine thread is doing, readable by everyone without a lock.
//!
//! Health is derived from these ages, not from the process being there: the
//! thread stamps each call it enters and leaves, so a frozen call is visible as
//! an age and named by its phase.

use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::histogram::Histogram;
use super::request::Failure;

/// State of the engine thread as the watchdog sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Life {
    /// Working or idle.
    Running,
    /// In one call for too long.
    Stuck(Failure),
    /// Ended.
    Dead(Failure),
}

impl Life {
    /// Whether requests can make progress.
    pub fn is_running(&self) -> bool {
        matches!(self, Life::Running)
    }

    /// What a waiting request is told.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Life::Running => None,
            Life::Stuck(failure) | Life::Dead(failure) => Some(failure.clone()),
        }
    }
}

/// The call the engine thread is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Phase {
    /// Waiting for requests or bookkeeping; beats at least every idle interval.
    Idle = 0,
    /// Reserving a sequence.
    Admit = 1,
    /// Running a prefill chunk.
    Prefill = 2,
    /// Running a decode step.
    Step = 3,
    /// Freeing a sequence.
    Release = 4,
    /// Drawing tokens and building text.
    Sample = 5,
    /// Saving a sequence.
    Evict = 6,
    /// Restoring a sequence.
    Restore = 7,
}

const PHASES: [&str; 8] = ["idle", "admit", "prefill", "step", "release", "sample", "evict", "restore"];

impl Phase {
    /// The phase's name.
    pub fn name(self) -> &'static str {
        PHASES[self as usize]
    }
}

/// Shared gauges and counters of one scheduler.
#[derive(Debug)]
pub struct Status {
    base: Instant,
    phase: AtomicUsize,
    beat_us: AtomicU64,
    /// Microseconds since `base` of the last completed prefill chunk or step, plus one.
    progress_us: AtomicU64,
    life: watch::Sender<Life>,
    /// Rows resident in the engine.
    pub active: AtomicUsize,
    /// Requests accepted but not yet resident.
    pub waiting: AtomicUsize,
    /// Sequences that are saved and wait for their next turn.
    pub paused: AtomicUsize,
    /// Most rows that any one step ran.
    pub peak_rows: AtomicUsize,
    /// Decode steps completed.
    pub steps: AtomicU64,
    /// Rows of all decode steps.
    pub step_rows: AtomicU64,
    /// Prefill chunks completed.
    pub chunks: AtomicU64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: AtomicU64,
    /// Tokens sampled.
    pub sampled_tokens: AtomicU64,
    /// Times that a row made room for a waiting request.
    pub preemptions: AtomicU64,
    /// Requests that completed.
    pub done: AtomicU64,
    /// Requests whose client left.
    pub cancelled: AtomicU64,
    /// Requests that failed.
    pub failed: AtomicU64,
    /// Requests not accepted because all seats were taken.
    pub refused: AtomicU64,
    /// Seconds of each decode step.
    pub step_seconds: Histogram,
    /// Seconds from acceptance to the first sampled token.
    pub first_token_seconds: Histogram,
}

impl Status {
    pub(super) fn new() -> Self {
        Status {
            base: Instant::now(),
            phase: AtomicUsize::new(0),
            beat_us: AtomicU64::new(0),
            progress_us: AtomicU64::new(0),
            life: watch::Sender::new(Life::Running),
            active: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            paused: AtomicUsize::new(0),
            peak_rows: AtomicUsize::new(0),
            steps: AtomicU64::new(0),
            step_rows: AtomicU64::new(0),
            chunks: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            sampled_tokens: AtomicU64::new(0),
            preemptions: AtomicU64::new(0),
            done: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            step_seconds: Histogram::new(),
            first_token_seconds: Histogram::new(),
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.beat_us.store(self.now_us(), Relaxed);
        // A reader that sees the phase sees its stamp too.
        self.phase.store(phase as usize, Release);
    }

    pub(super) fn progressed(&self) {
        self.progress_us.store(self.now_us().saturating_add(1), Relaxed);
    }

    /// Name of the current phase and time since it was entered or last beaten.
    pub fn phase(&self) -> (&'static str, Duration) {
        let name = PHASES[self.phase.load(Acquire).min(PHASES.len() - 1)];
        let age = self.now_us().saturating_sub(self.beat_us.load(Relaxed));
        (name, Duration::from_micros(age))
    }

    /// Age of the last completed prefill chunk or decode step, if there was one.
    pub fn last_progress(&self) -> Option<Duration> {
        let at = self.progress_us.load(Relaxed).checked_sub(1)?;
        Some(Duration::from_micros(self.now_us().saturating_sub(at)))
    }

    /// State of the engine thread.
    pub fn life(&self) -> Life {
        self.life.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<Life> {
        self.life.subscribe()
    }

    /// Changes the state; death is final. Returns whether it changed.
    pub(super) fn set_life(&self, next: Life) -> bool {
        self.life.send_if_modified(|life| {
            let change = !matches!(life, Life::Dead(_)) && *life != next;
            if change {
                *life = next;
            }
            change
        })
    }
}
