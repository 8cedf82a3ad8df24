//! OpenAI Chat Completions, `POST /v1/chat/completions`.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/chat>, its streaming page and
//! <https://platform.openai.com/docs/guides/error-codes>, the types of the vendor's Python SDK, and refusals that
//! users quote.

pub(crate) mod check;
mod chunk;
pub(crate) mod error;
pub(crate) mod node;
mod render;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use serde_json::Value;

use crate::cache::{self, Prompt};
use crate::captured::Wire;
use crate::fault::Refusal;
use crate::protocol::{
    AcceptedKeys, ApiError, Context, IncomingRequest, Protocol, RenderedAnswer, Settings, StreamPosition,
};
use crate::reply::Reply;

/// The wire protocol of OpenAI Chat Completions.
pub(crate) struct OpenAiChat;

impl Protocol for OpenAiChat {
    const WIRE: Wire = Wire::OpenAiChat;
    const REQUEST_ID_HEADER: &'static str = "x-request-id";

    fn authorize(headers: &HeaderMap, keys: &AcceptedKeys) -> Result<(), ApiError> {
        authorize(headers, keys)
    }

    fn check(request: &IncomingRequest, context: &Context<'_>) -> Result<(), ApiError> {
        check::check(request, context.settings)
    }

    fn answer(request: &IncomingRequest, reply: &Reply, number: u64, settings: &Settings) -> RenderedAnswer {
        render::answer(request, reply, number, settings)
    }

    fn prompt(request: &IncomingRequest) -> Prompt {
        cache::automatic_prompt(cache_key(&request.body), &request.body, &["tools", "messages"])
    }

    fn last_user_text(body: &Value) -> String {
        node::last_user_text(body)
    }

    fn refusal(refusal: &Refusal, model: &str) -> ApiError {
        error::refusal(refusal, model)
    }

    fn error_body(error: &ApiError, _request_id: &str) -> Value {
        error::body(error)
    }

    fn error_event(error: &ApiError, _position: &StreamPosition<'_>) -> Bytes {
        error::event(error)
    }
}

/// Checks the key, a bearer token on both of the vendor's wires.
pub(crate) fn authorize(headers: &HeaderMap, keys: &AcceptedKeys) -> Result<(), ApiError> {
    let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    match value.and_then(|value| value.strip_prefix("Bearer ")) {
        Some(key) if keys.accept(key) => Ok(()),
        Some(_) => Err(error::invalid_key()),
        None => Err(ApiError::new(
            StatusCode::UNAUTHORIZED,
            "invalid_request_error",
            "You didn't provide an API key. You need to provide your API key in an Authorization header using \
             Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
        )),
    }
}

/// The value that routes similar requests to the same cache. Different keys share no entries.
pub(crate) fn cache_key(body: &Value) -> &str {
    body.get("prompt_cache_key").and_then(Value::as_str).unwrap_or_default()
}
