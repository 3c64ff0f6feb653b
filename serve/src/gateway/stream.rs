//! Answers as server-sent events.
//!
//! The stream owns the generations: when the client leaves, the connection
//! drops the stream, the stream drops them, and that cancels them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{SelectAll, Stream, StreamExt};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::error::ApiError;
use super::generate::Job;
use super::render::{Head, Shape};
use crate::scheduler::{Event, Generation, TextModel, Usage};

/// Pause after which a comment line keeps the connection alive.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

type Indexed = std::pin::Pin<Box<dyn Stream<Item = (usize, Event)> + Send>>;

struct State<T> {
    head: Head,
    text: Arc<T>,
    events: SelectAll<Indexed>,
    ready: VecDeque<String>,
    usage: Usage,
    /// Characters sent of each choice, for `text_offset`.
    sent: Vec<usize>,
    logprobs: bool,
    over: bool,
    _permit: OwnedSemaphorePermit,
}

/// Turns a job into an event stream.
pub(super) fn respond<T: TextModel>(job: Job, text: Arc<T>) -> Response {
    let sent = vec![0; job.generations.len()];
    let ready = match job.head.shape {
        Shape::Chat => (0..sent.len()).map(|index| job.head.opening(index).to_string()).collect(),
        Shape::Text => VecDeque::new(),
    };
    let events = job.generations.into_iter().enumerate().map(indexed).collect();
    let state = State {
        head: job.head,
        text,
        events,
        ready,
        usage: Usage::default(),
        sent,
        logprobs: job.logprobs,
        over: false,
        _permit: job.permit,
    };
    let stream = futures::stream::unfold(state, |mut state| async move {
        let data = state.next().await?;
        Some((Ok::<_, Infallible>(SseEvent::default().data(data)), state))
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

fn indexed((index, generation): (usize, Generation)) -> Indexed {
    Box::pin(futures::stream::unfold(generation, move |mut generation| async move {
        let event = generation.next().await?;
        Some(((index, event), generation))
    }))
}

impl<T: TextModel> State<T> {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Some(data);
            }
            if self.over {
                return None;
            }
            match self.events.next().await {
                Some((index, event)) => self.take(index, event),
                None => self.close(),
            }
        }
    }

    fn take(&mut self, index: usize, event: Event) {
        match event {
            Event::Delta(delta) => {
                let offset = self.sent[index];
                self.sent[index] += delta.text.chars().count();
                let logprobs = if self.logprobs {
                    self.head.logprobs(&delta.tokens, &*self.text, offset)
                } else {
                    Value::Null
                };
                self.ready.push_back(self.head.chunk(index, &delta.text, logprobs, None).to_string());
            }
            Event::Done(finish, usage) => {
                self.usage.prompt += usage.prompt;
                self.usage.completion += usage.completion;
                self.ready.push_back(self.head.chunk(index, "", Value::Null, Some(finish)).to_string());
            }
            Event::Failed(failure) => {
                // No `[DONE]` follows: the answer is not complete.
                self.ready.push_back(ApiError::from(failure).body().to_string());
                self.events.clear();
                self.over = true;
            }
        }
    }

    fn close(&mut self) {
        if self.head.include_usage {
            self.ready.push_back(self.head.usage_chunk(self.usage).to_string());
        }
        self.ready.push_back("[DONE]".into());
        self.over = true;
    }
}
