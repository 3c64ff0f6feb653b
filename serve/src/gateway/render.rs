//! Answers as OpenAI objects: whole, in chunks, and their log-probabilities.

use serde_json::{Value, json};

use harness::sampler::LOGPROB_FLOOR;

use crate::scheduler::{Finish, TextModel, TokenLogprob, Usage};

/// Which of the two interfaces an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

impl Shape {
    /// The route's short name.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Chat => "chat_completions",
            Shape::Text => "completions",
        }
    }
}

/// What every object of one answer repeats.
#[derive(Debug, Clone)]
pub struct Head {
    /// Interface.
    pub shape: Shape,
    /// `chatcmpl-...` or `cmpl-...`.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's id.
    pub model: String,
    /// Chunks carry `usage: null` because a usage chunk follows.
    pub include_usage: bool,
}

impl Head {
    fn object(&self, chunk: bool, choices: Value, usage: Option<Usage>) -> Value {
        let object = match (self.shape, chunk) {
            (Shape::Chat, true) => "chat.completion.chunk",
            (Shape::Chat, false) => "chat.completion",
            (Shape::Text, _) => "text_completion",
        };
        let mut made = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        });
        if usage.is_some() || (chunk && self.include_usage) {
            made["usage"] = usage.map_or(Value::Null, usage_object);
        }
        made
    }

    /// A whole answer.
    pub fn whole(&self, choices: Vec<Value>, usage: Usage) -> Value {
        self.object(false, Value::Array(choices), Some(usage))
    }

    /// One choice of a whole answer.
    pub fn choice(&self, index: usize, text: &str, finish: Finish, logprobs: Value) -> Value {
        let mut choice =
            json!({"index": index, "finish_reason": finish_reason(finish), "logprobs": logprobs});
        match self.shape {
            Shape::Chat => {
                choice["message"] = json!({"role": "assistant", "content": text, "refusal": null});
            }
            Shape::Text => choice["text"] = json!(text),
        }
        choice
    }

    /// The chunk that opens a chat choice.
    pub fn opening(&self, index: usize) -> Value {
        let delta = json!({"role": "assistant", "content": ""});
        let choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        self.object(true, json!([choice]), None)
    }

    /// A chunk of text, or the last chunk of a choice.
    pub fn chunk(&self, index: usize, text: &str, logprobs: Value, finish: Option<Finish>) -> Value {
        let mut choice =
            json!({"index": index, "logprobs": logprobs, "finish_reason": finish.map(finish_reason)});
        match self.shape {
            Shape::Chat if finish.is_some() => choice["delta"] = json!({}),
            Shape::Chat => choice["delta"] = json!({"content": text}),
            Shape::Text => choice["text"] = json!(text),
        }
        self.object(true, json!([choice]), None)
    }

    /// The usage chunk: the last one, without choices.
    pub fn usage_chunk(&self, usage: Usage) -> Value {
        self.object(true, json!([]), Some(usage))
    }

    /// Log-probabilities in the form of this interface; `offset` is the length
    /// in characters of the text before them.
    pub fn logprobs<T: TextModel>(&self, tokens: &[TokenLogprob], text: &T, offset: usize) -> Value {
        match self.shape {
            Shape::Chat => {
                let content: Vec<Value> = tokens.iter().map(|token| chat_token(token, text)).collect();
                json!({"content": content, "refusal": null})
            }
            Shape::Text => text_logprobs(tokens, text, offset),
        }
    }
}

fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

fn usage_object(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt.saturating_add(usage.completion),
    })
}

/// A log-probability that JSON can carry, even should one not be finite.
fn finite(logprob: f32) -> Value {
    if logprob.is_nan() { Value::Null } else { json!(logprob.clamp(LOGPROB_FLOOR, 0.0)) }
}

fn shown<T: TextModel>(token: u32, text: &T) -> String {
    String::from_utf8_lossy(text.token_bytes(token)).into_owned()
}

fn chat_token<T: TextModel>(token: &TokenLogprob, text: &T) -> Value {
    let entry = |id: u32, logprob: f32| json!({"token": shown(id, text), "logprob": finite(logprob), "bytes": text.token_bytes(id)});
    let top: Vec<Value> = token.top.iter().map(|(id, logprob)| entry(*id, *logprob)).collect();
    let mut made = entry(token.token, token.logprob);
    made["top_logprobs"] = Value::Array(top);
    made
}

fn text_logprobs<T: TextModel>(tokens: &[TokenLogprob], text: &T, mut offset: usize) -> Value {
    let mut offsets = Vec::with_capacity(tokens.len());
    let mut names = Vec::with_capacity(tokens.len());
    let mut top = Vec::with_capacity(tokens.len());
    for token in tokens {
        let name = shown(token.token, text);
        offsets.push(offset);
        offset += name.chars().count();
        names.push(name);
        let entries = token.top.iter().map(|(id, logprob)| (shown(*id, text), finite(*logprob)));
        top.push(Value::Object(entries.collect()));
    }
    let logprobs: Vec<Value> = tokens.iter().map(|token| finite(token.logprob)).collect();
    json!({"tokens": names, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets})
}
