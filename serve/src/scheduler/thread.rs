//! The engine's thread, its watchdog and the handle that others hold.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc};

use super::core::Core;
use super::engine::{EngineLimits, StepEngine, TextModel};
use super::request::{Failure, Generation, Request, SubmitError};
use super::status::{Life, Phase, Status};
use super::{Config, Ticket};

/// Longest sleep of an idle engine thread; its heart beats at least this often.
const IDLE: Duration = Duration::from_millis(50);
/// Sleep when every row waits for its reader.
const STALLED: Duration = Duration::from_millis(2);
/// Longest deadline that a request may have.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(50);

/// Submits requests; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    submissions: SyncSender<Ticket>,
    seats: Arc<Semaphore>,
    total_seats: usize,
    closing: Arc<AtomicBool>,
    status: Arc<Status>,
    limits: EngineLimits,
    config: Config,
}

impl Handle {
    /// Takes a seat and queues a request.
    ///
    /// # Errors
    /// `QueueFull` without a free seat, `Invalid` beyond the engine's limits,
    /// `Down` when the engine is dead or stuck or the server is going down.
    pub fn submit(&self, mut request: Request) -> Result<Generation, SubmitError> {
        self.check(&request)?;
        if self.closing.load(Relaxed) {
            return Err(Failure::ShuttingDown.into());
        }
        if let Some(failure) = self.status.life().failure() {
            return Err(failure.into());
        }
        let full = || {
            self.status.refused.fetch_add(1, Relaxed);
            SubmitError::QueueFull { seats: self.total_seats }
        };
        let seat = Arc::clone(&self.seats).try_acquire_owned().map_err(|_| full())?;
        let (events, receiver) = mpsc::channel(self.config.event_buffer.max(2));
        let accepted = Instant::now();
        request.deadline = request.deadline.min(LONGEST);
        let until = (accepted + request.deadline, request.deadline);
        let ticket = Ticket { request, events, accepted, _seat: seat };
        let generation = Generation { events: receiver, life: self.status.watch(), until, ended: false };
        // The channel has a place for every seat, so it is full only if closed.
        self.submissions.try_send(ticket).map_err(|_| {
            let dead = || Failure::EngineDead("the engine thread has ended".into());
            SubmitError::Down(self.status.life().failure().unwrap_or_else(dead))
        })?;
        Ok(generation)
    }

    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let (prompt, new) = (request.prompt.len(), request.max_new_tokens);
        let invalid = |field, value, limit| Err(SubmitError::Invalid { field, value, limit });
        if prompt == 0 {
            return invalid("prompt tokens", 0, 1);
        }
        if new == 0 {
            return invalid("max_new_tokens", 0, 1);
        }
        if let Some(id) = request.prompt.iter().find(|id| **id as usize >= self.limits.vocab) {
            return invalid("token id", *id as usize, self.limits.vocab - 1);
        }
        let total = prompt.saturating_add(new);
        if total > self.limits.longest() {
            return invalid("prompt and answer tokens", total, self.limits.longest());
        }
        Ok(())
    }

    /// Gauges and counters.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Limits of the engine behind.
    pub fn limits(&self) -> EngineLimits {
        self.limits
    }

    /// Free seats: those of the rows and of the queue together.
    pub fn free_seats(&self) -> usize {
        self.seats.available_permits()
    }

    /// All seats.
    pub fn total_seats(&self) -> usize {
        self.total_seats
    }

    /// Accepts nothing more; what runs may finish.
    pub fn close(&self) {
        self.closing.store(true, Relaxed);
    }
}

/// Owner of the engine thread.
#[derive(Debug)]
pub struct Scheduler {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Scheduler {
    /// A handle to submit with.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stops accepting, waits up to `limit` for what runs, then returns whether
    /// the thread has ended; a stuck thread is left behind.
    pub fn shutdown(self, limit: Duration) -> bool {
        self.handle.close();
        let started = Instant::now();
        while !self.thread.is_finished() {
            if started.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.thread.join().is_ok()
    }
}

/// Moves the engine to its own thread and starts the watchdog.
///
/// # Errors
/// When the operating system gives no thread.
pub fn spawn<E: StepEngine, T: TextModel>(
    engine: E,
    text: Arc<T>,
    config: Config,
) -> std::io::Result<Scheduler> {
    let limits = engine.limits();
    let total_seats = limits.rows().saturating_add(config.queue).min(Semaphore::MAX_PERMITS);
    let (submissions, inbox) = sync_channel(total_seats);
    let status = Arc::new(Status::new());
    let closing = Arc::new(AtomicBool::new(false));
    let handle = Handle {
        submissions,
        seats: Arc::new(Semaphore::new(total_seats)),
        total_seats,
        closing: Arc::clone(&closing),
        status: Arc::clone(&status),
        limits,
        config,
    };
    let watched = Arc::downgrade(&status);
    let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
        let ended = EndGuard(Arc::clone(&status));
        let mut core = Core::new(engine, text, Arc::clone(&status), config);
        run(&mut core, &inbox, &closing, &status);
        drop(ended);
    })?;
    std::thread::Builder::new().name("watchdog".into()).spawn(move || watchdog(&watched, config))?;
    Ok(Scheduler { handle, thread })
}

/// Marks the engine dead however its thread ends, a panic included.
struct EndGuard(Arc<Status>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let why = if std::thread::panicking() { "its thread panicked" } else { "its thread ended" };
        self.0.set_life(Life::Dead(Failure::EngineDead(why.into())));
    }
}

fn run<E: StepEngine, T: TextModel>(
    core: &mut Core<E, T>,
    inbox: &Receiver<Ticket>,
    closing: &AtomicBool,
    status: &Status,
) {
    let mut worked = false;
    loop {
        let wait = match (worked, core.is_empty()) {
            (true, _) => Duration::ZERO,
            (false, true) => IDLE,
            (false, false) => STALLED,
        };
        match inbox.recv_timeout(wait) {
            Ok(ticket) => {
                core.push(ticket);
                while let Ok(more) = inbox.try_recv() {
                    core.push(more);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if core.is_empty() => return,
            Err(RecvTimeoutError::Disconnected) => {}
        }
        if closing.load(Relaxed) && core.is_empty() {
            status.set_life(Life::Dead(Failure::ShuttingDown));
            return;
        }
        status.enter(Phase::Idle);
        match core.pump() {
            Ok(did) => worked = did,
            Err(message) => {
                let failure = Failure::EngineDead(message);
                crate::complain(&format!("engine: {failure}; every request fails, nothing more is accepted"));
                core.fail_all(&failure);
                status.set_life(Life::Dead(failure));
                return;
            }
        }
    }
}

/// Compares the age of the engine thread's stamp with its limit. Says one line
/// when it trips and one when the thread comes back, never a periodic one.
fn watchdog(status: &Weak<Status>, config: Config) {
    loop {
        std::thread::sleep(LOOK.min(config.call_limit));
        let Some(status) = status.upgrade() else { return };
        let (phase, age) = status.phase();
        let limit = config.call_limit;
        match status.life() {
            Life::Dead(_) => return,
            Life::Running if age > limit => {
                let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
                let failure = Failure::EngineStuck { phase, for_ms: ms(age), limit_ms: ms(limit) };
                let rows = status.active.load(Relaxed);
                crate::complain(&format!("watchdog: {failure}; {rows} rows wait for it and fail now"));
                status.set_life(Life::Stuck(failure));
            }
            Life::Stuck(_) if age <= limit => {
                crate::complain(&format!("watchdog: the engine thread came back and is in `{phase}`"));
                status.set_life(Life::Running);
            }
            _ => {}
        }
    }
}
