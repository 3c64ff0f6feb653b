//! What goes into the scheduler and what comes out of it.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::SamplingParams;
use super::status::Life;

/// How much later than the engine thread the receiving end acts on a deadline:
/// the thread knows the stage, the receiver holds it even within one long call.
const GRACE: Duration = Duration::from_millis(100);

/// One generation to run.
#[derive(Debug, Clone)]
pub struct Request {
    /// Prompt tokens, at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate, at least one.
    pub max_new_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Texts that end the answer; none of their bytes is emitted.
    pub stop: Vec<String>,
    /// Report each token's log-probability and that many alternatives.
    pub logprobs: Option<usize>,
    /// Generate through end tokens (canaries).
    pub ignore_stop_ids: bool,
    /// Longest life of the request, waiting included.
    pub deadline: Duration,
}

/// A token with its log-probability under the raw (unscaled) logits.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability; finite, it has a floor.
    pub logprob: f32,
    /// Most likely tokens in falling order.
    pub top: Vec<(u32, f32)>,
}

/// A piece of an answer: whole characters, no part of a stop text.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delta {
    /// Text to append.
    pub text: String,
    /// Log-probabilities of the tokens that this text completes.
    pub tokens: Vec<TokenLogprob>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// An end token or a stop text.
    Stop,
    /// `max_new_tokens` reached.
    Length,
}

/// Tokens that a request used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt: usize,
    /// Sampled tokens, an end token included.
    pub completion: usize,
}

/// What a running request reports.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// More of the answer.
    Delta(Delta),
    /// The answer is complete; nothing follows.
    Done(Finish, Usage),
    /// The request failed; nothing follows.
    Failed(Failure),
}

/// Why an accepted request did not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Its deadline passed.
    #[error("deadline of {limit:?} passed while {stage}")]
    Deadline {
        /// Where the request stood.
        stage: &'static str,
        /// The deadline.
        limit: Duration,
    },
    /// The client did not read its answer.
    #[error("client did not read its answer for {limit:?}")]
    SlowReader {
        /// Longest stall allowed.
        limit: Duration,
    },
    /// The engine refused this sequence.
    #[error("{0}")]
    Refused(String),
    /// No token could be drawn from the logits.
    #[error("sampling failed: {0}")]
    Sampling(String),
    /// The engine thread has ended.
    #[error("engine is dead: {0}")]
    EngineDead(String),
    /// The engine thread has not come back from one call.
    #[error("engine is stuck: in `{phase}` for {for_ms} ms, limit {limit_ms} ms")]
    EngineStuck {
        /// The call it is in.
        phase: &'static str,
        /// Since when.
        for_ms: u64,
        /// The watchdog's limit.
        limit_ms: u64,
    },
    /// The server is going down.
    #[error("server is shutting down")]
    ShuttingDown,
}

/// Why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// All seats (rows and waiting places) are taken.
    #[error("queue is full: {seats} requests are running or waiting")]
    QueueFull {
        /// Running and waiting places together.
        seats: usize,
    },
    /// A field of the request is out of its limits.
    #[error("{field} is {value}, limit {limit}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// The engine cannot run anything.
    #[error(transparent)]
    Down(#[from] Failure),
}

/// The receiving end of one request. Dropping it cancels the request: its slot
/// and pages are free within one step.
#[derive(Debug)]
pub struct Generation {
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) life: watch::Receiver<Life>,
    /// The request's deadline and how long that was.
    pub(super) until: (Instant, Duration),
    pub(super) ended: bool,
}

impl Generation {
    /// The next event; `None` after `Done` or `Failed`. Never waits longer than
    /// the request's deadline or the watchdog's limit.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = tokio::select! {
            biased;
            event = self.events.recv() => event,
            // What the engine said before it went down comes first.
            _ = self.life.wait_for(|life| !life.is_running()) => None,
            () = tokio::time::sleep_until((self.until.0 + GRACE).into()) => {
                let failure = Failure::Deadline { stage: "waiting for the engine", limit: self.until.1 };
                Some(Event::Failed(failure))
            }
        };
        let event =
            event.or_else(|| self.events.try_recv().ok()).unwrap_or_else(|| Event::Failed(self.lost()));
        self.ended = !matches!(event, Event::Delta(_));
        Some(event)
    }

    fn lost(&self) -> Failure {
        let life = self.life.borrow().failure();
        life.unwrap_or_else(|| Failure::EngineDead("the engine thread dropped the request".into()))
    }
}
