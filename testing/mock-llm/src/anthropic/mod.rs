//! Anthropic Messages, `POST /v1/messages`.
//!
//! Sources: <https://platform.claude.com/docs/en/api/messages>, `/en/api/messages-streaming`,
//! `/en/api/errors`, `/en/build-with-claude/extended-thinking`, `/en/build-with-claude/prompt-caching`
//! and `/en/agents-and-tools/tool-use` on the same site, the types of the vendor's Python SDK, and refusals that
//! users quote.

mod check;
mod error;
mod event;
mod node;
mod prefix;
mod prompt;
mod render;

use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use serde_json::Value;

use crate::cache::Prompt;
use crate::captured::Wire;
use crate::fault::Refusal;
use crate::protocol::{
    AcceptedKeys, ApiError, Context, IncomingRequest, Protocol, RenderedAnswer, Settings, StreamPosition,
};
use crate::reply::Reply;

/// The supported versions of the API. The version before them streamed without event names.
const VERSIONS: [&str; 2] = ["2023-06-01", SAMPLING_REMOVED];
/// The version that removed `temperature`, `top_p` and `top_k`
/// (<https://platform.claude.com/docs/en/api/versioning>).
const SAMPLING_REMOVED: &str = "2026-10-21";

/// The wire protocol of Anthropic Messages.
pub(crate) struct AnthropicMessages;

impl Protocol for AnthropicMessages {
    const WIRE: Wire = Wire::AnthropicMessages;
    const REQUEST_ID_HEADER: &'static str = "request-id";

    fn authorize(headers: &HeaderMap, keys: &AcceptedKeys) -> Result<(), ApiError> {
        let unauthorized =
            |message| Err(ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", message));
        // `x-api-key` is the documented header. Since version 2, the vendor's SDK sends the key as a bearer token.
        let bearer = || header(headers, "authorization")?.strip_prefix("Bearer ");
        match header(headers, "x-api-key").or_else(bearer) {
            None => return unauthorized("x-api-key header is required"),
            Some(key) if !keys.accept(key) => return unauthorized("invalid x-api-key"),
            Some(_) => {}
        }
        match header(headers, "anthropic-version") {
            None => Err(ApiError::invalid("anthropic-version: header is required")),
            Some(version) if VERSIONS.contains(&version) => Ok(()),
            Some(version) => Err(ApiError::invalid(format!(
                "anthropic-version: \"{version}\" is not a valid version. You should use a valid version in the \
                 `anthropic-version` header."
            ))),
        }
    }

    fn check(request: &IncomingRequest, context: &Context<'_>) -> Result<(), ApiError> {
        check::check(request, context)
    }

    fn answer(request: &IncomingRequest, reply: &Reply, number: u64, settings: &Settings) -> RenderedAnswer {
        render::answer(request, reply, number, settings)
    }

    fn prompt(request: &IncomingRequest) -> Prompt {
        prompt::prompt(&request.body)
    }

    fn last_user_text(body: &Value) -> String {
        node::last_user_text(body)
    }

    fn refusal(refusal: &Refusal, model: &str) -> ApiError {
        error::refusal(refusal, model)
    }

    fn error_body(error: &ApiError, request_id: &str) -> Value {
        error::body(error, Some(request_id))
    }

    fn error_event(error: &ApiError, _position: &StreamPosition<'_>) -> Bytes {
        error::event(error)
    }
}

/// Whether the request uses the version without sampling parameters.
fn is_without_sampling(headers: &HeaderMap) -> bool {
    header(headers, "anthropic-version") == Some(SAMPLING_REMOVED)
}

/// Whether the request enables a beta. The name is given without its date.
fn has_beta(headers: &HeaderMap, name: &str) -> bool {
    let values = headers.get_all("anthropic-beta");
    values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|beta| beta.trim().starts_with(name))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
