//! From logits to text: one sequence's sampler, decoder and stop matcher.
//!
//! Text leaves only as whole characters that cannot be part of a stop text any
//! more; a token's log-probability leaves with the first text it takes part in.

use std::collections::VecDeque;

use harness::sampler::{History, Sampler, top_logprobs};
use harness::text::decode::{StopMatcher, StreamDecoder};

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
    /// Alternatives to report with each token, if any are.
    logprobs: Option<usize>,
    /// The row as the model made it: the sampler's filters work in place.
    raw: Vec<f32>,
    ignore_stop_ids: bool,
    /// Tokens whose text is withheld, with the byte offset at which it starts.
    withheld: VecDeque<(usize, TokenLogprob)>,
    decoded_bytes: usize,
    emitted_bytes: usize,
}

impl Output {
    pub(super) fn new(request: &Request, vocabulary: usize) -> Result<Self, String> {
        let mut history = Vec::with_capacity(request.prompt.len() + request.max_new_tokens);
        history.extend_from_slice(&request.prompt);
        Ok(Output {
            sampler: Sampler::new(request.sampling.clone(), vocabulary).map_err(|e| e.to_string())?,
            decoder: StreamDecoder::new(),
            matcher: StopMatcher::new(&request.stop),
            history,
            prompt_len: request.prompt.len(),
            max_new_tokens: request.max_new_tokens,
            logprobs: request.logprobs,
            raw: Vec::new(),
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
        if self.logprobs.is_some() {
            self.raw.clear();
            self.raw.extend_from_slice(logits);
        }
        let (prompt, generated) = self.history.split_at(self.prompt_len);
        let token = self.sampler.sample(logits, History { prompt, generated }).map_err(|e| e.to_string())?;
        self.history.push(token);
        if !self.ignore_stop_ids && text.stop_ids().contains(&token) {
            return Ok((token, self.flush(), Some(Finish::Stop)));
        }
        let bytes: &[u8] = if text.is_special(token) { &[] } else { text.token_bytes(token) };
        if let Some(n) = self.logprobs {
            let mut top = Vec::new();
            let logprob = top_logprobs(&self.raw, token, n, &mut top).map_err(|e| e.to_string())?;
            self.withheld.push_back((self.decoded_bytes, TokenLogprob { token, logprob, top }));
        }
        self.decoded_bytes += bytes.len();
        let mut delta = Delta::default();
        let piece = self.decoder.push(bytes);
        if self.matched(&piece, &mut delta) {
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
        if self.matched(&tail, delta) {
            self.release_tokens(delta, false);
            return Finish::Stop;
        }
        delta.text.push_str(&self.matcher.finish());
        self.release_tokens(delta, true);
        Finish::Length
    }

    /// Passes text through the stop matcher; whether a stop text is complete.
    fn matched(&mut self, piece: &str, delta: &mut Delta) -> bool {
        let released = self.matcher.push(piece);
        delta.text.push_str(&released.text);
        released.stop.is_some()
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
