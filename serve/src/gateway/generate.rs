//! One generation request from bytes to its answer.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Request as HttpRequest, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::error::ApiError;
use super::openai::{ChatRequest, Common, CompletionRequest, Prompt, fresh_u64};
use super::render::{Head, Shape};
use super::{Gateway, body, stream};
use crate::scheduler::{Event, Finish, Generation, Request, TextModel, TokenLogprob, Usage};

/// A submitted request: one generation for each prompt.
pub(super) struct Job {
    pub(super) head: Head,
    pub(super) generations: Vec<Generation>,
    pub(super) logprobs: bool,
    stream: bool,
    /// Held until the answer is complete or dropped.
    pub(super) permit: OwnedSemaphorePermit,
}

/// `POST /v1/chat/completions`.
pub async fn chat<T: TextModel>(State(gateway): State<Arc<Gateway<T>>>, request: HttpRequest) -> Response {
    answer(gateway, request, Shape::Chat).await
}

/// `POST /v1/completions`.
pub async fn completions<T: TextModel>(
    State(gateway): State<Arc<Gateway<T>>>,
    request: HttpRequest,
) -> Response {
    answer(gateway, request, Shape::Text).await
}

async fn answer<T: TextModel>(gateway: Arc<Gateway<T>>, request: HttpRequest, shape: Shape) -> Response {
    let response = match start(&gateway, request, shape).await {
        Err(error) => error.into_response(),
        Ok(job) if job.stream => stream::respond(job, Arc::clone(&gateway.text)),
        Ok(job) => match collect(job, &*gateway.text).await {
            Ok(object) => Json(object).into_response(),
            Err(error) => error.into_response(),
        },
    };
    gateway.http.add(shape.name(), response.status().as_u16());
    response
}

async fn start<T: TextModel>(
    gateway: &Arc<Gateway<T>>,
    request: HttpRequest,
    shape: Shape,
) -> Result<Job, ApiError> {
    let config = &gateway.config;
    let permit = Arc::clone(&gateway.in_flight).try_acquire_owned().map_err(|_| {
        let message = format!("{} requests are in flight, the limit", config.max_in_flight);
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", message)
    })?;
    let (parts, bytes) = request.into_parts();
    let limits = (config.max_body, config.body_limit);
    let held = body::read(&parts.headers, bytes, limits.0, limits.1, &gateway.body_budget).await?;
    // A parsed body takes many times its bytes: few are parsed at once, the others wait as bytes.
    let worker_seat = gateway.tokenisers.acquire().await;
    // Templates and tokenizers may take a while on long input: not on a reactor thread.
    let worker = Arc::clone(gateway);
    let tokenised = tokio::task::spawn_blocking(move || tokenise(&worker, &held.bytes, shape)).await;
    drop(worker_seat);
    let (common, prompts) = tokenised.map_err(|_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "tokenise_failed", "tokenising the request failed")
    })??;
    let requests = prompts
        .into_iter()
        .map(|prompt| sized(gateway, &common, prompt, shape))
        .collect::<Result<Vec<_>, _>>()?;
    // If one does not get a seat the others are dropped here, which cancels them.
    let generations =
        requests.into_iter().map(|r| gateway.handle.submit(r)).collect::<Result<Vec<_>, _>>()?;
    let prefix = if shape == Shape::Chat { "chatcmpl" } else { "cmpl" };
    let head = Head {
        shape,
        id: format!("{prefix}-{:016x}", fresh_u64()?),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        model: common.model,
        include_usage: common.include_usage,
    };
    Ok(Job { head, generations, logprobs: common.logprobs.is_some(), stream: common.stream, permit })
}

type Tokenised = (Common, Vec<Vec<u32>>);

fn tokenise<T: TextModel>(gateway: &Gateway<T>, body: &[u8], shape: Shape) -> Result<Tokenised, ApiError> {
    let defaults = &gateway.config.sampling;
    match shape {
        Shape::Chat => {
            let request = ChatRequest::parse(body, defaults)?;
            gateway.known_model(&request.common.model)?;
            let tokens = gateway.text.chat(&request.messages, &request.template).map_err(|message| {
                ApiError::param("messages", format!("chat template: {message}")).with_code("template_error")
            })?;
            Ok((request.common, vec![tokens]))
        }
        Shape::Text => {
            let request = CompletionRequest::parse(body, defaults)?;
            gateway.known_model(&request.common.model)?;
            let encode = |prompt| match prompt {
                Prompt::Tokens(tokens) => Ok(tokens),
                Prompt::Text(text) => gateway.text.encode(&text).map_err(|message| {
                    ApiError::param("prompt", format!("tokenizer: {message}")).with_code("tokenizer_error")
                }),
            };
            let prompts = request.prompts.into_iter().map(encode).collect::<Result<_, _>>()?;
            Ok((request.common, prompts))
        }
    }
}

/// Fits an answer behind a prompt, or says by how much it does not fit.
fn sized<T: TextModel>(
    gateway: &Gateway<T>,
    common: &Common,
    prompt: Vec<u32>,
    shape: Shape,
) -> Result<Request, ApiError> {
    let limits = gateway.handle.limits();
    let (limit, used) = (limits.longest(), prompt.len());
    let field = if shape == Shape::Chat { "messages" } else { "prompt" };
    if used == 0 {
        return Err(ApiError::param(field, format!("`{field}` has no tokens")));
    }
    if let Some(id) = prompt.iter().find(|id| **id as usize >= limits.vocab) {
        let message = format!("`{field}`: token id {id} is outside the vocabulary of {}", limits.vocab);
        return Err(ApiError::param(field, message));
    }
    if let Some((id, _)) = common.sampling.logit_bias.iter().find(|(id, _)| *id as usize >= limits.vocab) {
        let message = format!("`logit_bias`: token id {id} is outside the vocabulary of {}", limits.vocab);
        return Err(ApiError::param("logit_bias", message));
    }
    let room = limit.saturating_sub(used);
    let too_long = |param: &str, what: String| {
        let message = format!("the context is {limit} tokens; {what}");
        Err(ApiError::param(param, message).with_code("context_length_exceeded"))
    };
    if room == 0 {
        return too_long(field, format!("`{field}` alone has {used} and leaves no room for an answer"));
    }
    let max_new_tokens = match common.max_tokens {
        Some(wanted) if wanted > room => {
            let param = common.max_tokens_field;
            return too_long(param, format!("`{field}` has {used} and `{param}` asks for {wanted} more"));
        }
        Some(wanted) => wanted,
        None if shape == Shape::Chat => room,
        None => room.min(gateway.config.default_completion_tokens),
    };
    Ok(Request {
        prompt,
        max_new_tokens,
        sampling: common.sampling.clone(),
        stop: common.stop.clone(),
        logprobs: common.logprobs,
        ignore_stop_ids: false,
        deadline: gateway.config.request_limit,
    })
}

/// Waits for every generation and builds the whole answer.
async fn collect<T: TextModel>(job: Job, text: &T) -> Result<Value, ApiError> {
    let answers = futures::future::try_join_all(job.generations.into_iter().map(whole)).await?;
    let mut usage = Usage::default();
    let mut choices = Vec::with_capacity(answers.len());
    for (index, answer) in answers.into_iter().enumerate() {
        usage.prompt += answer.usage.prompt;
        usage.completion += answer.usage.completion;
        let logprobs = if job.logprobs { job.head.logprobs(&answer.tokens, text, 0) } else { Value::Null };
        choices.push(job.head.choice(index, &answer.text, answer.finish, logprobs));
    }
    drop(job.permit);
    Ok(job.head.whole(choices, usage))
}

struct Answer {
    text: String,
    tokens: Vec<TokenLogprob>,
    finish: Finish,
    usage: Usage,
}

async fn whole(mut generation: Generation) -> Result<Answer, ApiError> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    while let Some(event) = generation.next().await {
        match event {
            Event::Delta(delta) => {
                text.push_str(&delta.text);
                tokens.extend(delta.tokens);
            }
            Event::Done(finish, usage) => return Ok(Answer { text, tokens, finish, usage }),
            Event::Failed(failure) => return Err(failure.into()),
        }
    }
    let message = "the generation ended without an outcome";
    Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "no_outcome", message))
}
