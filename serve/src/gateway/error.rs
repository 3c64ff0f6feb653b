//! Every refusal as the OpenAI error object, naming the parameter at fault.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::scheduler::{Failure, SubmitError};

/// An error as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// What went wrong and what the limit is.
    pub message: String,
    /// The request field at fault.
    pub param: Option<String>,
    /// Machine-readable cause.
    pub code: Option<&'static str>,
}

impl ApiError {
    /// An error without a parameter.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), param: None, code: Some(code) }
    }

    /// A `400` that names the parameter at fault.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            message: message.into(),
            param: Some(param.into()),
            code: Some("invalid_value"),
        }
    }

    /// The same error with another code.
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The error object, as in a body or in a stream.
    pub fn body(&self) -> Value {
        let kind = match self.status.as_u16() {
            429 => "rate_limit_error",
            404 => "not_found_error",
            400..=499 => "invalid_request_error",
            503 => "service_unavailable_error",
            _ => "server_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let (status, code) = match &failure {
            Failure::Deadline { .. } => (StatusCode::SERVICE_UNAVAILABLE, "deadline_exceeded"),
            Failure::SlowReader { .. } => (StatusCode::SERVICE_UNAVAILABLE, "slow_reader"),
            Failure::Refused(_) => (StatusCode::SERVICE_UNAVAILABLE, "engine_refused"),
            Failure::Sampling(_) => (StatusCode::INTERNAL_SERVER_ERROR, "sampling_failed"),
            Failure::EngineDead(_) => (StatusCode::SERVICE_UNAVAILABLE, "engine_dead"),
            Failure::EngineStuck { .. } => (StatusCode::SERVICE_UNAVAILABLE, "engine_stuck"),
            Failure::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
        };
        ApiError::new(status, code, failure.to_string())
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::QueueFull { .. } => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", error.to_string())
            }
            SubmitError::Invalid { .. } => {
                ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", error.to_string())
            }
            SubmitError::Down(failure) => failure.into(),
        }
    }
}
