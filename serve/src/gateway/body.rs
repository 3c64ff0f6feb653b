//! Reading a request body within its bounds of size, time and the bytes of all bodies together.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// A body and its share of the budget, given back when it is dropped.
pub struct Held {
    /// The bytes.
    pub bytes: Vec<u8>,
    share: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// Takes a chunk in, if the budget of all bodies has room for it.
    fn take(&mut self, chunk: &[u8], budget: &Arc<Semaphore>) -> Result<(), ApiError> {
        let full = || {
            let message = "the bodies of all requests together fill the server's budget";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "body_budget", message)
        };
        let count = u32::try_from(chunk.len()).map_err(|_| full())?;
        let more = Arc::clone(budget).try_acquire_many_owned(count).map_err(|_| full())?;
        match &mut self.share {
            Some(share) => share.merge(more),
            none => *none = Some(more),
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }
}

/// Reads a JSON body.
///
/// # Errors
/// `415` for another content type, `413` beyond `max` bytes, `408` beyond
/// `limit`, `429` when all bodies together leave no room in `budget`, `400`
/// when the client breaks off.
pub async fn read(
    headers: &HeaderMap,
    body: Body,
    max: usize,
    limit: Duration,
    budget: &Arc<Semaphore>,
) -> Result<Held, ApiError> {
    // A page in a browser can post text/plain anywhere without asking; JSON it cannot.
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    if !kind.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/json") {
        let message = format!("content type is `{kind}`, must be `application/json`");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", message));
    }
    let too_large = || {
        let message = format!("the body has more than {max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > max as u64) {
        return Err(too_large());
    }
    let read = async {
        let mut held = Held { bytes: Vec::new(), share: None };
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk: Bytes = chunk.map_err(|error| {
                ApiError::new(StatusCode::BAD_REQUEST, "body_broken", format!("reading the body: {error}"))
            })?;
            if held.bytes.len() + chunk.len() > max {
                return Err(too_large());
            }
            held.take(&chunk, budget)?;
        }
        Ok(held)
    };
    tokio::time::timeout(limit, read).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {limit:?}");
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
    })
}
