//! From logits to text: one sequence's sampler, decoder and stop matcher.
//!
//! Text leaves only as whole characters that cannot be part of a stop text any
//! more; a token's log-probability leaves with the first text it takes part in.

use std::collections::VecDeque;

use crate::shim::decode::{StopMatcher, StreamDecoder};
use crate::shim::sampler::Sampler;

use super::logprob::LogSoftmax;

use super::engine::TextModel;
use super::request::{Delta, Finish, Request, TokenLogprob};

/// The answer side of one sequence.
pub(super) struct Output {
    sampler: Sampler,
    decoder: StreamDecoder,
    matcher: StopMatcher,
    history: Vec<u32>,
    prompt_len: usize,
    max_new_tokens: usize,
    logprobs: Option<usize>,
    ignore_stop_ids: bool,
    /// Tokens whose text is withheld, with the byte offset at which it starts.
    withheld: VecDeque<(usize, TokenLogprob)>,
    decoded_bytes: usize,
    emitted_bytes: usize,
}

impl Output {
    pub(super) fn new(request: &Request) -> Result<Self, String> {
        let mut history = Vec::with_capacity(request.prompt.len() + request.max_new_tokens);
        history.extend_from_slice(&request.prompt);
        Ok(Output {
            sampler: Sampler::new(request.sampling.clone()).map_err(|e| e.to_string())?,
            decoder: StreamDecoder::new(),
            matcher: StopMatcher::new(&request.stop),
            history,
            prompt_len: request.prompt.len(),
            max_new_tokens: request.max_new_tokens,
            logprobs: request.logprobs,
            ignore_stop_ids: request.ignore_stop_ids,
            withheld: VecDeque::new(),
            decoded_bytes: 0,
            emitted_bytes: 0,
        })
    }

    /// Tokens sampled so far.
    pub(super) fn generated(&self) -> usize {
        self.history.len() - self.prompt_len
    }

    /// Draws the next token; returns it with the text it releases and, when the
    /// answer is complete, why.
    pub(super) fn advance<T: TextModel>(
        &mut self,
        logits: &mut [f32],
        text: &T,
    ) -> Result<(u32, Delta, Option<Finish>), String> {
        let alternatives = self.logprobs.map(|n| LogSoftmax::of(logits, n));
        let token = self.sampler.sample(logits, &self.history).map_err(|e| e.to_string())?;
        self.history.push(token);
        if !self.ignore_stop_ids && text.stop_ids().contains(&token) {
            return Ok((token, self.flush(), Some(Finish::Stop)));
        }
        let bytes: &[u8] = if text.is_special(token) { &[] } else { text.token_bytes(token) };
        if let Some(table) = alternatives {
            self.withheld.push_back((self.decoded_bytes, table.token(token)));
        }
        self.decoded_bytes += bytes.len();
        let mut delta = Delta::default();
        let piece = self.decoder.push(bytes);
        if self.matcher.push(&piece, &mut delta.text) {
            self.release_tokens(&mut delta, false);
            return Ok((token, delta, Some(Finish::Stop)));
        }
        if self.generated() >= self.max_new_tokens {
            let finish = self.finish_text(&mut delta);
            return Ok((token, delta, Some(finish)));
        }
        self.release_tokens(&mut delta, false);
        Ok((token, delta, None))
    }

    /// Everything withheld, at a natural end.
    fn flush(&mut self) -> Delta {
        let mut delta = Delta::default();
        self.finish_text(&mut delta);
        delta
    }

    fn finish_text(&mut self, delta: &mut Delta) -> Finish {
        let tail = self.decoder.finish();
        if self.matcher.push(&tail, &mut delta.text) {
            self.release_tokens(delta, false);
            return Finish::Stop;
        }
        self.matcher.finish(&mut delta.text);
        self.release_tokens(delta, true);
        Finish::Length
    }

    fn release_tokens(&mut self, delta: &mut Delta, all: bool) {
        self.emitted_bytes += delta.text.len();
        while let Some((start, _)) = self.withheld.front() {
            if !all && *start >= self.emitted_bytes {
                break;
            }
            if let Some((_, token)) = self.withheld.pop_front() {
                delta.tokens.push(token);
            }
        }
    }
}
