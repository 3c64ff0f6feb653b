//! Liveness, readiness and the model list: three questions, three answers.
//!
//! *Alive* is read from the ages that the engine thread stamps, never from the
//! process being there. *Ready* means that a token came out of the engine
//! lately: real traffic proves it, otherwise a canary of one prompt token and
//! one decode step runs. The *model list* is static and proves nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::error::ApiError;
use super::{Gateway, metrics};
use crate::scheduler::{Event, Failure, Life, Phase, Request, SamplingParams, TextModel};

/// An idle engine thread beats every 50 ms; older than this it is not running.
const BEAT_LIMIT: Duration = Duration::from_millis(900);

/// `GET /health`.
pub async fn health<T: TextModel>(State(gateway): State<Arc<Gateway<T>>>) -> Response {
    let status = gateway.handle.status();
    let (phase, age) = status.phase();
    let silent = phase == Phase::Idle.name() && age > BEAT_LIMIT;
    let (code, word, reason) = match status.life() {
        Life::Dead(failure) => (StatusCode::SERVICE_UNAVAILABLE, "dead", Some(failure.to_string())),
        Life::Stuck(failure) => (StatusCode::SERVICE_UNAVAILABLE, "stuck", Some(failure.to_string())),
        Life::Running if silent => (StatusCode::SERVICE_UNAVAILABLE, "stuck", Some("no heartbeat".into())),
        Life::Running => (StatusCode::OK, "ok", None),
    };
    let body = json!({
        "status": word,
        "reason": reason,
        "phase": phase,
        "phase_age_s": age.as_secs_f64(),
        "last_step_age_s": status.last_progress().map(|age| age.as_secs_f64()),
    });
    (code, Json(body)).into_response()
}

/// Outcome of the last canary.
#[derive(Debug, Clone, Default)]
pub struct Canary {
    outcome: Option<(Instant, Result<(), String>)>,
}

/// `GET /ready`.
pub async fn ready<T: TextModel>(State(gateway): State<Arc<Gateway<T>>>) -> Response {
    let (by, outcome) = readiness(&gateway).await;
    let code = if outcome.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({"ready": outcome.is_ok(), "by": by, "reason": outcome.err()});
    (code, Json(body)).into_response()
}

async fn readiness<T: TextModel>(gateway: &Gateway<T>) -> (&'static str, Result<(), String>) {
    let status = gateway.handle.status();
    let fresh = gateway.config.canary_fresh;
    if let Some(failure) = status.life().failure() {
        return ("engine", Err(failure.to_string()));
    }
    if status.last_progress().is_some_and(|age| age <= fresh) {
        return ("step", Ok(()));
    }
    // One canary at a time; whoever waited takes its outcome.
    let mut canary = gateway.canary.lock().await;
    if let Some((at, outcome)) = &canary.outcome
        && at.elapsed() <= fresh
    {
        return ("canary", outcome.clone());
    }
    let outcome = run_canary(gateway).await;
    canary.outcome = Some((Instant::now(), outcome.clone()));
    ("canary", outcome)
}

async fn run_canary<T: TextModel>(gateway: &Gateway<T>) -> Result<(), String> {
    let request = Request {
        prompt: vec![0],
        // The first token comes from prefill, the second from a decode step.
        max_new_tokens: 2,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        stop: Vec::new(),
        logprobs: None,
        ignore_stop_ids: true,
        deadline: gateway.config.canary_limit,
    };
    let mut generation = gateway.handle.submit(request).map_err(|error| error.to_string())?;
    while let Some(event) = generation.next().await {
        match event {
            Event::Delta(_) => {}
            Event::Done(_, usage) if usage.completion == 2 => return Ok(()),
            Event::Done(_, usage) => return Err(format!("canary made {} of 2 tokens", usage.completion)),
            Event::Failed(failure) => return Err(failure.to_string()),
        }
    }
    Err(Failure::EngineDead("canary ended without an answer".into()).to_string())
}

fn card<T: TextModel>(gateway: &Gateway<T>) -> Value {
    let limits = gateway.handle.limits();
    json!({
        "id": gateway.config.model,
        "object": "model",
        "created": gateway.config.created,
        "owned_by": "sparkpipe",
        "max_model_len": limits.longest(),
    })
}

/// `GET /v1/models`.
pub async fn models<T: TextModel>(State(gateway): State<Arc<Gateway<T>>>) -> Response {
    Json(json!({"object": "list", "data": [card(&gateway)]})).into_response()
}

/// `GET /v1/models/{id}`; ids may contain slashes.
pub async fn model<T: TextModel>(
    State(gateway): State<Arc<Gateway<T>>>,
    id: Result<Path<String>, PathRejection>,
) -> Response {
    let known = match id {
        Ok(Path(id)) => gateway.known_model(&id),
        // Percent-encoded bytes that are no text.
        Err(rejection) => Err(ApiError::param("model", rejection.body_text())),
    };
    match known {
        Ok(()) => Json(card(&gateway)).into_response(),
        Err(error) => error.into_response(),
    }
}

/// `GET /metrics`.
pub async fn prometheus<T: TextModel>(State(gateway): State<Arc<Gateway<T>>>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let routes = gateway.config.routes.as_deref();
    ([(header::CONTENT_TYPE, kind)], metrics::render(&gateway.handle, &gateway.http, routes)).into_response()
}
