//! The two generation requests, checked field by field.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::Fields;
use crate::scheduler::{ChatMessage, SamplingParams};
use harness::sampler::SamplerError;

/// Most stop texts of a request.
pub const MAX_STOPS: usize = 4;
/// Most bytes of one stop text.
pub const MAX_STOP_BYTES: usize = 1024;
/// Most alternatives reported for a token.
pub const MAX_TOP_LOGPROBS: usize = 20;
/// Most tokens that one request biases.
pub const MAX_BIASES: usize = 1024;
/// Most prompts of one completion request.
pub const MAX_PROMPTS: usize = 16;

/// Fields accepted without effect: they concern accounting at a provider.
const IGNORED: [&str; 8] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
    "prompt_cache_retention",
];

/// What both requests share.
#[derive(Debug, Clone)]
pub struct Common {
    /// The model's id.
    pub model: String,
    /// Answer limit in tokens, if given.
    pub max_tokens: Option<usize>,
    /// Field that gave the limit, for messages.
    pub max_tokens_field: &'static str,
    /// How to draw tokens.
    pub sampling: SamplingParams,
    /// Stop texts.
    pub stop: Vec<String>,
    /// Server-sent events instead of one object.
    pub stream: bool,
    /// A usage chunk at the end of the stream.
    pub include_usage: bool,
    /// Log-probabilities with that many alternatives.
    pub logprobs: Option<usize>,
}

/// `/v1/chat/completions`.
#[derive(Debug, Clone)]
pub struct ChatRequest {
    /// Shared fields.
    pub common: Common,
    /// The conversation.
    pub messages: Vec<ChatMessage>,
    /// Extra template variables.
    pub template: Map<String, Value>,
}

/// A prompt as text or as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// To be tokenised.
    Text(String),
    /// Already tokenised.
    Tokens(Vec<u32>),
}

/// `/v1/completions`.
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// Shared fields.
    pub common: Common,
    /// One answer is made for each.
    pub prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PromptField {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
    /// Padding against traffic analysis; there is none here.
    #[serde(default, rename = "include_obfuscation")]
    _obfuscation: Option<bool>,
}

impl ChatRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// `400` naming the field at fault.
    pub fn parse(body: &[u8], defaults: &SamplingParams) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let mut common = common(&mut fields, defaults)?;
        let wanted: bool = fields.take("logprobs")?.unwrap_or(false);
        let top = fields.number("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
        if top.is_some() && !wanted {
            return Err(ApiError::param("top_logprobs", "`top_logprobs` needs `logprobs: true`"));
        }
        common.logprobs = wanted.then_some(top.unwrap_or(0));
        let messages: Vec<Map<String, Value>> = fields
            .take("messages")?
            .ok_or_else(|| ApiError::param("messages", "`messages` is missing").with_code("missing_field"))?;
        if messages.is_empty() {
            return Err(ApiError::param("messages", "`messages` is empty"));
        }
        let messages =
            messages.into_iter().enumerate().map(|(i, m)| message(i, m)).collect::<Result<_, _>>()?;
        let template = fields.take("chat_template_kwargs")?.unwrap_or_default();
        for name in ["tools", "functions"] {
            fields.unsupported(name, |v| v.as_array().is_some_and(Vec::is_empty))?;
        }
        for name in ["tool_choice", "function_call"] {
            fields.unsupported(name, |v| matches!(v.as_str(), Some("none" | "auto")))?;
        }
        fields.unsupported("response_format", |v| v["type"] == "text")?;
        fields.unsupported("modalities", |v| *v == serde_json::json!(["text"]))?;
        fields.finish(&IGNORED)?;
        Ok(ChatRequest { common, messages, template })
    }
}

impl CompletionRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// `400` naming the field at fault.
    pub fn parse(body: &[u8], defaults: &SamplingParams) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let mut common = common(&mut fields, defaults)?;
        common.logprobs = fields.number("logprobs", 0..=MAX_TOP_LOGPROBS)?;
        let prompts = match fields.take("prompt")? {
            None => return Err(ApiError::param("prompt", "`prompt` is missing").with_code("missing_field")),
            Some(PromptField::Text(text)) => vec![Prompt::Text(text)],
            Some(PromptField::Texts(texts)) => texts.into_iter().map(Prompt::Text).collect(),
            Some(PromptField::Tokens(tokens)) => vec![Prompt::Tokens(tokens)],
            Some(PromptField::TokenLists(lists)) => lists.into_iter().map(Prompt::Tokens).collect(),
        };
        if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
            let message = format!("`prompt` has {} prompts, must have 1 to {MAX_PROMPTS}", prompts.len());
            return Err(ApiError::param("prompt", message));
        }
        fields.unsupported("best_of", |v| v.as_u64() == Some(1))?;
        fields.unsupported("echo", |v| v.as_bool() == Some(false))?;
        fields.unsupported("suffix", |v| v.as_str() == Some(""))?;
        fields.finish(&IGNORED)?;
        Ok(CompletionRequest { common, prompts })
    }
}

fn common(fields: &mut Fields, defaults: &SamplingParams) -> Result<Common, ApiError> {
    let model = fields
        .take("model")?
        .ok_or_else(|| ApiError::param("model", "`model` is missing").with_code("missing_field"))?;
    if fields.number("n", 1..=128u32)?.is_some_and(|n| n != 1) {
        return Err(
            ApiError::param("n", "`n` must be 1: one answer a request").with_code("unsupported_parameter")
        );
    }
    let old = fields.number("max_tokens", 1..=usize::MAX)?;
    let new = fields.number("max_completion_tokens", 1..=usize::MAX)?;
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        let message = format!("`max_completion_tokens` is {new} but `max_tokens` is {old}");
        return Err(ApiError::param("max_completion_tokens", message));
    }
    let stream = fields.take("stream")?.unwrap_or(false);
    let options: Option<StreamOptions> = fields.take("stream_options")?;
    if options.is_some() && !stream {
        return Err(ApiError::param("stream_options", "`stream_options` needs `stream: true`"));
    }
    Ok(Common {
        model,
        max_tokens: new.or(old),
        max_tokens_field: if new.is_some() { "max_completion_tokens" } else { "max_tokens" },
        sampling: sampling(fields, defaults)?,
        stop: stops(fields)?,
        stream,
        include_usage: options.and_then(|o| o.include_usage).unwrap_or(false),
        logprobs: None,
    })
}

fn sampling(fields: &mut Fields, defaults: &SamplingParams) -> Result<SamplingParams, ApiError> {
    let mut params = defaults.clone();
    let set = |slot: &mut f32, value: Option<f32>| *slot = value.unwrap_or(*slot);
    set(&mut params.temperature, fields.number("temperature", 0.0..=2.0)?);
    // The smallest positive f32: zero would keep no token at all.
    set(&mut params.top_p, fields.number("top_p", f32::MIN_POSITIVE..=1.0)?);
    set(&mut params.min_p, fields.number("min_p", 0.0..=1.0)?);
    set(&mut params.repetition_penalty, fields.number("repetition_penalty", 0.01..=10.0)?);
    set(&mut params.presence_penalty, fields.number("presence_penalty", -2.0..=2.0)?);
    set(&mut params.frequency_penalty, fields.number("frequency_penalty", -2.0..=2.0)?);
    if let Some(top_k) = fields.number("top_k", -1..=i64::from(i32::MAX))? {
        // -1 and 0 both switch it off.
        params.top_k = u32::try_from(top_k).unwrap_or(0);
    }
    match fields.take::<i64>("seed")? {
        Some(seed) => params.seed = seed.cast_unsigned(),
        None => params.seed = fresh_u64()?,
    }
    if let Some(bias) = fields.take("logit_bias")? {
        params.logit_bias = logit_bias(bias)?;
    }
    params.validate().map_err(|error| match error {
        SamplerError::Param { param, .. } => ApiError::param(param, error.to_string()),
        other => ApiError { param: None, ..ApiError::param("", other.to_string()) },
    })?;
    Ok(params)
}

fn logit_bias(given: BTreeMap<String, f32>) -> Result<Vec<(u32, f32)>, ApiError> {
    if given.len() > MAX_BIASES {
        let message = format!("`logit_bias` has {} entries, limit {MAX_BIASES}", given.len());
        return Err(ApiError::param("logit_bias", message));
    }
    let entry = |(token, bias): (String, f32)| match token.parse() {
        Ok(id) if (-100.0..=100.0).contains(&bias) => Ok((id, bias)),
        Ok(_) => Err(format!("`logit_bias` of token {token} is {bias}, must be from -100 to 100")),
        Err(_) => Err(format!("`logit_bias` has the key `{token}`, must be a token id")),
    };
    let entries: Result<Vec<_>, String> = given.into_iter().map(entry).collect();
    entries.map_err(|message| ApiError::param("logit_bias", message))
}

/// Eight random bytes.
///
/// # Errors
/// `500` when the operating system has none.
pub(super) fn fresh_u64() -> Result<u64, ApiError> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = format!("no random number from the operating system: {error}");
        ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "no_entropy", message)
    })?;
    Ok(u64::from_le_bytes(bytes))
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take("stop")? {
        None => Vec::new(),
        Some(OneOrMany::One(stop)) => vec![stop],
        Some(OneOrMany::Many(stops)) => stops,
    };
    if stops.len() > MAX_STOPS {
        let message = format!("`stop` has {} texts, limit {MAX_STOPS}", stops.len());
        return Err(ApiError::param("stop", message));
    }
    match stops.iter().find(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        Some(bad) => {
            let message = format!("a `stop` text has {} bytes, must have 1 to {MAX_STOP_BYTES}", bad.len());
            Err(ApiError::param("stop", message))
        }
        None => Ok(stops),
    }
}

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

fn message(index: usize, mut fields: Map<String, Value>) -> Result<ChatMessage, ApiError> {
    let role = match fields.remove("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role,
        other => {
            let message =
                format!("message {index} has role {}, must be one of {ROLES:?}", other.unwrap_or_default());
            return Err(ApiError::param(format!("messages[{index}].role"), message));
        }
    };
    let content = match fields.remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => joined(index, &parts)?,
        None | Some(Value::Null) if role == "assistant" => String::new(),
        _ => {
            let message =
                format!("message {index} has no text: content must be a string or a list of text parts");
            return Err(ApiError::param(format!("messages[{index}].content"), message));
        }
    };
    Ok(ChatMessage { role, content, fields })
}

fn joined(index: usize, parts: &[Value]) -> Result<String, ApiError> {
    let mut text = String::new();
    for (at, part) in parts.iter().enumerate() {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(piece)) => text.push_str(piece),
            (kind, _) => {
                let kind = kind.unwrap_or("none");
                let message =
                    format!("part {at} of message {index} has type {kind}: only text parts are supported");
                return Err(ApiError::param(format!("messages[{index}].content[{at}]"), message));
            }
        }
    }
    Ok(text)
}
