//! The OpenAI-shaped front of one scheduler.
//!
//! A request passes three gates before it costs a step: bounded bytes
//! (`body`), checked fields (`openai`), and tokens that fit the receipt
//! (`generate`). Whatever refuses it names the field, the value and the limit.

mod body;
mod error;
mod fields;
mod generate;
mod health;
mod metrics;
mod openai;
mod render;
mod server;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tokio::sync::{Mutex, Semaphore};

pub use error::ApiError;
pub use health::Canary;
pub use metrics::HttpCounts;
pub use openai::{ChatRequest, Common, CompletionRequest, Prompt};
pub use server::serve;

use crate::routes::RouteCounts;
use crate::scheduler::{Handle, SamplingParams, TextModel};

/// Bounds and facts of a gateway.
#[derive(Debug, Clone)]
pub struct Config {
    /// Id of the one model served.
    pub model: String,
    /// When the model was made, in seconds since 1970.
    pub created: u64,
    /// Sampling where a request says nothing.
    pub sampling: SamplingParams,
    /// Answer limit of a text completion that names none, in tokens.
    pub default_completion_tokens: usize,
    /// Largest request body in bytes.
    pub max_body: usize,
    /// Bytes that the bodies of all requests may hold at once.
    pub max_body_bytes: usize,
    /// Requests that are parsed and tokenised at once; the others wait.
    pub max_tokenisers: usize,
    /// Longest time a body may take to arrive.
    pub body_limit: Duration,
    /// Largest request head in bytes, and most headers.
    pub max_head: usize,
    /// Most headers of a request.
    pub max_headers: usize,
    /// Longest time a request head may take to arrive.
    pub head_limit: Duration,
    /// Longest time a client may refuse bytes.
    pub write_limit: Duration,
    /// Longest life of a generation, waiting included.
    pub request_limit: Duration,
    /// Requests inside the gateway at once.
    pub max_in_flight: usize,
    /// Open connections at once; more wait in the listener's backlog.
    pub max_connections: usize,
    /// Longest time that shutdown waits for running answers.
    pub drain_limit: Duration,
    /// Longest time a readiness canary may take.
    pub canary_limit: Duration,
    /// Age up to which a step or canary proves readiness.
    pub canary_fresh: Duration,
    /// What became of recorded routes, where they are recorded.
    pub routes: Option<Arc<RouteCounts>>,
}

impl Config {
    /// Default bounds for a model id.
    pub fn new(model: impl Into<String>) -> Self {
        Config {
            model: model.into(),
            created: 0,
            sampling: SamplingParams::default(),
            default_completion_tokens: 16,
            max_body: 8 << 20,
            max_body_bytes: 64 << 20,
            max_tokenisers: 4,
            body_limit: Duration::from_secs(30),
            max_head: 64 << 10,
            max_headers: 100,
            head_limit: Duration::from_secs(10),
            write_limit: Duration::from_secs(60),
            request_limit: Duration::from_secs(600),
            max_in_flight: 1024,
            max_connections: 1024,
            drain_limit: Duration::from_secs(30),
            canary_limit: Duration::from_secs(10),
            canary_fresh: Duration::from_secs(5),
            routes: None,
        }
    }
}

/// State that every handler shares.
#[derive(Debug)]
pub struct Gateway<T: TextModel> {
    handle: Handle,
    text: Arc<T>,
    config: Config,
    http: HttpCounts,
    in_flight: Arc<Semaphore>,
    body_budget: Arc<Semaphore>,
    tokenisers: Semaphore,
    canary: Mutex<Canary>,
}

impl<T: TextModel> Gateway<T> {
    /// Joins a scheduler and a text model.
    pub fn new(handle: Handle, text: Arc<T>, config: Config) -> Arc<Self> {
        let permits = |n: usize| Semaphore::new(n.clamp(1, Semaphore::MAX_PERMITS));
        let in_flight = Arc::new(permits(config.max_in_flight));
        let body_budget = Arc::new(permits(config.max_body_bytes));
        let tokenisers = permits(config.max_tokenisers);
        let (http, canary) = (HttpCounts::default(), Mutex::default());
        Arc::new(Gateway { handle, text, config, http, in_flight, body_budget, tokenisers, canary })
    }

    fn known_model(&self, id: &str) -> Result<(), ApiError> {
        if id == self.config.model {
            return Ok(());
        }
        let message = format!("model `{id}` is not served here; this server has `{}`", self.config.model);
        let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
        Err(ApiError { param: Some("model".into()), ..error })
    }
}

/// All routes of a gateway.
pub fn router<T: TextModel>(gateway: Arc<Gateway<T>>) -> Router {
    Router::new()
        .route("/v1/models", get(health::models::<T>))
        .route("/v1/models/{*id}", get(health::model::<T>))
        .route("/v1/chat/completions", post(generate::chat::<T>))
        .route("/v1/completions", post(generate::completions::<T>))
        .route("/health", get(health::health::<T>))
        .route("/ready", get(health::ready::<T>))
        .route("/metrics", get(health::prometheus::<T>))
        .fallback(no_route::<T>)
        .method_not_allowed_fallback(no_method::<T>)
        .with_state(gateway)
}

async fn no_route<T: TextModel>(State(gateway): State<Arc<Gateway<T>>>) -> impl IntoResponse {
    gateway.http.add("other", 404);
    ApiError::new(StatusCode::NOT_FOUND, "unknown_route", "no such route")
}

async fn no_method<T: TextModel>(State(gateway): State<Arc<Gateway<T>>>) -> impl IntoResponse {
    gateway.http.add("other", 405);
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", "this route has another method")
}
