//! Reading a request body within its bounds of size and time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use futures::StreamExt;

use super::error::ApiError;

/// Reads a JSON body.
///
/// # Errors
/// `415` for another content type, `413` beyond `max` bytes, `408` beyond
/// `limit`, `400` when the client breaks off.
pub async fn read(headers: &HeaderMap, body: Body, max: usize, limit: Duration) -> Result<Vec<u8>, ApiError> {
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
        let mut bytes = Vec::new();
        let mut chunks = body.into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk: Bytes = chunk.map_err(|error| {
                ApiError::new(StatusCode::BAD_REQUEST, "body_broken", format!("reading the body: {error}"))
            })?;
            if bytes.len() + chunk.len() > max {
                return Err(too_large());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    tokio::time::timeout(limit, read).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {limit:?}");
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
    })
}
