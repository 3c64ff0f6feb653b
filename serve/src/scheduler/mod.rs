//! Continuous batching over one engine that lives on one thread.
//!
//! [`spawn`] moves the engine to its thread; a [`Handle`] submits requests and
//! gets a [`Generation`] for each. A *seat* (a row or a waiting place) is taken
//! at submission and given back when the request ends in any way, so what is in
//! flight can never exceed `max_batch + queue`.

mod core;
mod engine;
mod histogram;
mod output;
mod request;
mod status;
mod thread;
mod turns;

use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, mpsc};

pub use engine::{ChatMessage, EngineError, EngineLimits, StepEngine, TextModel};
pub use harness::sampler::SamplingParams;
pub use histogram::{BOUNDS_S, Histogram};
pub use request::{Delta, Event, Failure, Finish, Generation, Request, SubmitError, TokenLogprob, Usage};
pub use status::{Life, Phase, Status};
pub use thread::{Handle, Scheduler, spawn};

/// Bounds of a scheduler. No wait in it is endless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Waiting places beside the rows; a request beyond them is refused.
    pub queue: usize,
    /// Longest time one engine call may take before the watchdog trips. Ten
    /// times the receipt's slowest step or chunk is a good value.
    pub call_limit: Duration,
    /// Longest time a client may leave its answer unread.
    pub reader_stall: Duration,
    /// How often a prompt may be passed by shorter ones.
    pub max_bypass: usize,
    /// Events buffered for a client before its row pauses; at least 2.
    pub event_buffer: usize,
    /// Tokens of a turn: a row that has run as many makes room when a request
    /// waits. 0 keeps every row to its end.
    pub slice: usize,
    /// Most saved sequences that wait for their next turn.
    pub paused: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            queue: 64,
            call_limit: Duration::from_secs(30),
            reader_stall: Duration::from_secs(30),
            max_bypass: 4,
            event_buffer: 64,
            slice: 256,
            paused: 8,
        }
    }
}

/// A request on its way through the engine thread.
struct Ticket {
    request: Request,
    events: mpsc::Sender<Event>,
    accepted: Instant,
    /// Given back when the ticket is dropped, whatever ended it.
    _seat: OwnedSemaphorePermit,
}
