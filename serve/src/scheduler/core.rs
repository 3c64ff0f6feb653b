//! The pump: one pass of continuous batching over one engine.
//!
//! A pass drops who left or is late, admits from the front of the queue, runs at
//! most one prefill chunk and then one decode step over every row that has a
//! token to feed. So a decoding row waits at most one chunk between its tokens,
//! and a long prompt is passed by shorter ones at most `max_bypass` times. Where
//! nothing is free a row that had its turn makes room: see `turns`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::engine::{EngineError, EngineLimits, StepEngine, TextModel};
use super::output::Output;
use super::request::{Delta, Event, Failure, Finish, Usage};
use super::status::{Phase, Status};
use super::{Config, Ticket};

/// Events a row may emit for one token: text, and the end.
const ROOM: usize = 2;

/// How a resident row is getting on.
pub(super) enum Stage {
    /// Chunks left to run, and how often a shorter prompt went first.
    Prefill { left: usize, bypassed: usize },
    /// The token to feed next.
    Decode { next: u32 },
}

pub(super) struct Row<S> {
    pub(super) seq: S,
    pub(super) ticket: Ticket,
    pub(super) stage: Stage,
    output: Output,
    pub(super) stalled_since: Option<Instant>,
    /// Tokens drawn since it got its row.
    pub(super) ran: usize,
    pub(super) over: bool,
}

/// What waits for a row, in one order.
pub(super) enum Waiting<S> {
    /// Never had one.
    New(Ticket),
    /// Had a turn; the engine has saved it.
    Paused(Box<Row<S>>),
}

/// Queue and resident rows of one engine; lives on the engine's thread.
pub(super) struct Core<E: StepEngine, T: TextModel> {
    pub(super) engine: E,
    text: Arc<T>,
    pub(super) status: Arc<Status>,
    pub(super) config: Config,
    limits: EngineLimits,
    pub(super) queue: VecDeque<Waiting<E::Seq>>,
    pub(super) rows: Vec<Row<E::Seq>>,
    batch: Vec<(E::Seq, u32)>,
}

impl<E: StepEngine, T: TextModel> Core<E, T> {
    pub(super) fn new(engine: E, text: Arc<T>, status: Arc<Status>, config: Config) -> Self {
        let limits = engine.limits();
        let batch = Vec::with_capacity(limits.rows());
        Core { engine, text, status, config, limits, queue: VecDeque::new(), rows: Vec::new(), batch }
    }

    pub(super) fn push(&mut self, ticket: Ticket) {
        self.queue.push_back(Waiting::New(ticket));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.rows.is_empty()
    }

    /// One pass. Returns whether the engine did any work.
    pub(super) fn pump(&mut self) -> Result<bool, String> {
        let now = Instant::now();
        self.drop_gone(now);
        self.admit()?;
        let chunk = self.prefill_one(now)?;
        let step = self.step(now)?;
        self.sweep();
        self.gauge();
        Ok(chunk || step)
    }

    /// Fails everything; the engine is not called again.
    pub(super) fn fail_all(&mut self, failure: &Failure) {
        for row in self.rows.drain(..) {
            if !row.over {
                fail(&self.status, &row.ticket, failure.clone());
            }
        }
        for waiting in self.queue.drain(..) {
            let ticket = match &waiting {
                Waiting::New(ticket) => ticket,
                Waiting::Paused(row) => &row.ticket,
            };
            fail(&self.status, ticket, failure.clone());
        }
        self.gauge();
    }

    fn gauge(&self) {
        let paused = self.paused();
        self.status.active.store(self.rows.len(), Relaxed);
        self.status.waiting.store(self.queue.len() - paused, Relaxed);
        self.status.paused.store(paused, Relaxed);
    }

    /// Ends requests whose client left, whose deadline passed or whose reader
    /// stalls, in every state.
    fn drop_gone(&mut self, now: Instant) {
        let (status, engine, stall) = (&self.status, &mut self.engine, self.config.reader_stall);
        self.queue.retain(|waiting| match waiting {
            Waiting::New(ticket) => !gone(status, ticket, "queued", now),
            Waiting::Paused(row) => {
                let unread = !has_room(row) && given_up(status, row, stall, now);
                let over = unread || gone(status, &row.ticket, "paused", now);
                if over {
                    engine.release(row.seq);
                }
                !over
            }
        });
        for row in &mut self.rows {
            let stage = match row.stage {
                Stage::Prefill { .. } => "prefilling",
                Stage::Decode { .. } => "decoding",
            };
            row.over = row.over || gone(status, &row.ticket, stage, now);
            row.over = row.over || given_up(status, row, stall, now);
        }
        self.sweep();
    }

    /// Releases rows that are over.
    fn sweep(&mut self) {
        if !self.rows.iter().any(|row| row.over) {
            return;
        }
        self.status.enter(Phase::Release);
        let engine = &mut self.engine;
        self.rows.retain(|row| {
            if row.over {
                engine.release(row.seq);
            }
            !row.over
        });
        self.status.active.store(self.rows.len(), Relaxed);
        self.status.enter(Phase::Idle);
    }

    /// Gives rows in order of waiting; stops at the first that does not fit, so
    /// that a large request is never starved by small ones. At most one row a
    /// pass makes room.
    fn admit(&mut self) -> Result<(), String> {
        let mut made_room = false;
        self.pass_stalled();
        while let Some(front) = self.queue.pop_front() {
            let full = self.rows.len() >= self.limits.rows();
            let left = if full { Some(front) } else { self.place(front)? };
            let Some(front) = left else { continue };
            self.queue.push_front(front);
            if made_room || !self.make_room()? {
                break;
            }
            made_room = true;
        }
        Ok(())
    }

    /// Puts what waited into a row; gives it back when it does not fit now.
    fn place(&mut self, waiting: Waiting<E::Seq>) -> Result<Option<Waiting<E::Seq>>, String> {
        let ticket = match waiting {
            Waiting::New(ticket) => ticket,
            Waiting::Paused(row) => return self.resume(row),
        };
        let output = match Output::new(&ticket.request, self.limits.vocab) {
            Ok(output) => output,
            Err(message) => {
                fail(&self.status, &ticket, Failure::Sampling(message));
                return Ok(None);
            }
        };
        self.status.enter(Phase::Admit);
        let admitted = self.engine.admit(&ticket.request.prompt, ticket.request.max_new_tokens);
        self.status.enter(Phase::Idle);
        match admitted {
            Ok(seq) => {
                let prompt = ticket.request.prompt.len();
                self.status.prompt_tokens.fetch_add(prompt as u64, Relaxed);
                let left = prompt.div_ceil(self.limits.prefill_chunk.max(1)).max(1);
                let stage = Stage::Prefill { left, bypassed: 0 };
                let (stalled_since, ran, over) = (None, 0, false);
                self.rows.push(Row { seq, ticket, stage, output, stalled_since, ran, over });
            }
            Err(EngineError::Exhausted { .. }) if !self.rows.is_empty() => {
                return Ok(Some(Waiting::New(ticket)));
            }
            Err(EngineError::Fatal(message)) => {
                self.queue.push_front(Waiting::New(ticket));
                return Err(message);
            }
            Err(refusal) => fail(&self.status, &ticket, Failure::Refused(refusal.to_string())),
        }
        Ok(None)
    }

    /// The prompt to advance: the one with fewest chunks left, unless an earlier
    /// one has been passed often enough. Rows are in order of arrival.
    fn next_prompt(&mut self) -> Option<usize> {
        let max_bypass = self.config.max_bypass;
        let mut shortest: Option<(usize, usize)> = None;
        for (index, row) in self.rows.iter().enumerate() {
            let Stage::Prefill { left, bypassed } = row.stage else { continue };
            if row.over || !has_room(row) {
                continue;
            }
            if bypassed >= max_bypass {
                shortest = Some((left, index));
                break;
            }
            if shortest.is_none_or(|(least, _)| left < least) {
                shortest = Some((left, index));
            }
        }
        let (_, chosen) = shortest?;
        for row in &mut self.rows[..chosen] {
            if let Stage::Prefill { bypassed, .. } = &mut row.stage {
                *bypassed += 1;
            }
        }
        Some(chosen)
    }

    fn prefill_one(&mut self, now: Instant) -> Result<bool, String> {
        let Some(index) = self.next_prompt() else { return Ok(false) };
        let seq = self.rows[index].seq;
        self.status.enter(Phase::Prefill);
        let ran = self.engine.prefill(seq);
        self.status.enter(Phase::Sample);
        let row = &mut self.rows[index];
        match ran {
            Ok(done) => {
                self.status.chunks.fetch_add(1, Relaxed);
                self.status.progressed();
                if let Stage::Prefill { left, .. } = &mut row.stage {
                    *left = left.saturating_sub(1).max(1);
                }
                if done {
                    self.status.first_token_seconds.observe(now.duration_since(row.ticket.accepted));
                    advance(row, self.engine.logits(seq), &*self.text, &self.status);
                }
            }
            Err(EngineError::Fatal(message)) => return Err(message),
            Err(refusal) => {
                fail(&self.status, &row.ticket, Failure::Refused(refusal.to_string()));
                row.over = true;
            }
        }
        self.status.enter(Phase::Idle);
        Ok(true)
    }

    /// Rebuilds the batch from the rows that have a token and a reader, runs one
    /// step and draws each row's next token.
    fn step(&mut self, now: Instant) -> Result<bool, String> {
        self.batch.clear();
        for row in &mut self.rows {
            let Stage::Decode { next } = row.stage else { continue };
            if row.over || row.ticket.events.is_closed() {
                continue;
            }
            if has_room(row) {
                row.stalled_since = None;
                self.batch.push((row.seq, next));
            } else if row.stalled_since.is_none() {
                row.stalled_since = Some(now);
            }
        }
        if self.batch.is_empty() {
            return Ok(false);
        }
        let started = Instant::now();
        self.status.enter(Phase::Step);
        let ran = self.engine.step(&self.batch);
        self.status.enter(Phase::Sample);
        ran.map_err(|error| match error {
            EngineError::Fatal(message) => message,
            other => format!("step of {} rows: {other}", self.batch.len()),
        })?;
        self.status.step_seconds.observe(started.elapsed());
        self.status.progressed();
        self.status.steps.fetch_add(1, Relaxed);
        self.status.step_rows.fetch_add(self.batch.len() as u64, Relaxed);
        self.status.peak_rows.fetch_max(self.batch.len(), Relaxed);
        let mut stepped = self.batch.iter().map(|(seq, _)| *seq).peekable();
        for row in &mut self.rows {
            if stepped.next_if_eq(&row.seq).is_some() {
                advance(row, self.engine.logits(row.seq), &*self.text, &self.status);
            }
        }
        self.status.enter(Phase::Idle);
        Ok(true)
    }
}

pub(super) fn has_room<S>(row: &Row<S>) -> bool {
    row.ticket.events.capacity() >= ROOM
}

/// Draws a token for a row and reports what it releases.
fn advance<S, T: TextModel>(row: &mut Row<S>, logits: &mut [f32], text: &T, status: &Status) {
    status.sampled_tokens.fetch_add(1, Relaxed);
    match row.output.advance(logits, text) {
        Ok((token, delta, finish)) => {
            row.stage = Stage::Decode { next: token };
            row.ran += 1;
            emit(row, delta, finish, status);
        }
        Err(message) => {
            fail(status, &row.ticket, Failure::Sampling(message));
            row.over = true;
        }
    }
}

fn emit<S>(row: &mut Row<S>, delta: Delta, finish: Option<Finish>, status: &Status) {
    if delta != Delta::default() {
        // A closed channel is seen by the next pass; a full one cannot be, `has_room` held.
        let _ = row.ticket.events.try_send(Event::Delta(delta));
    }
    if let Some(finish) = finish {
        let usage = Usage { prompt: row.ticket.request.prompt.len(), completion: row.output.generated() };
        status.done.fetch_add(1, Relaxed);
        let _ = row.ticket.events.try_send(Event::Done(finish, usage));
        row.over = true;
    }
}

/// Ends a request whose client has left its answer unread for too long.
fn given_up<S>(status: &Status, row: &Row<S>, limit: Duration, now: Instant) -> bool {
    let late = row.stalled_since.is_some_and(|since| now.duration_since(since) >= limit);
    if late {
        fail(status, &row.ticket, Failure::SlowReader { limit });
    }
    late
}

/// Ends a request whose client left or whose deadline passed.
fn gone(status: &Status, ticket: &Ticket, stage: &'static str, now: Instant) -> bool {
    if ticket.events.is_closed() {
        status.cancelled.fetch_add(1, Relaxed);
        return true;
    }
    let late = now.duration_since(ticket.accepted) >= ticket.request.deadline;
    if late {
        fail(status, ticket, Failure::Deadline { stage, limit: ticket.request.deadline });
    }
    late
}

pub(super) fn fail(status: &Status, ticket: &Ticket, failure: Failure) {
    status.failed.fetch_add(1, Relaxed);
    // A reader that left no room learns of it by the channel's end.
    let _ = ticket.events.try_send(Event::Failed(failure));
}
