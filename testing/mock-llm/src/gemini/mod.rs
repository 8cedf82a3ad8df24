//! Gemini, `POST /v1beta/models/{model}:generateContent` and `:streamGenerateContent?alt=sse`, also under `/v1`.
//!
//! Sources: <https://ai.google.dev/api/generate-content>, `/gemini-api/docs/function-calling`,
//! `/gemini-api/docs/thinking`, `/gemini-api/docs/thought-signatures` and `/gemini-api/docs/troubleshooting` on
//! the same site, the types of the vendor's Python SDK, and refusals that users quote.

mod check;
mod error;
mod node;
mod render;

use axum::http::{HeaderMap, Uri};
use bytes::Bytes;
use serde_json::Value;

use crate::cache::{self, Prompt};
use crate::captured::Wire;
use crate::fault::Refusal;
use crate::protocol::{
    AcceptedKeys, ApiError, Context, IncomingRequest, Protocol, RenderedAnswer, RequestTarget, Settings,
    StreamPosition,
};
use crate::reply::Reply;

/// The method for a complete answer.
const GENERATE_METHOD: &str = "generateContent";
/// The method for a stream.
const STREAM_METHOD: &str = "streamGenerateContent";
/// The prefix of models that always think and sign their calls.
const SIGNING_MODELS: &str = "gemini-3";

/// The wire protocol of Gemini.
pub(crate) struct Gemini;

impl Protocol for Gemini {
    const WIRE: Wire = Wire::Gemini;
    // Gemini has none. A header with an empty name is left out.
    const REQUEST_ID_HEADER: &'static str = "";
    const STREAM_TYPE: &'static str = "text/event-stream";

    fn target(uri: &Uri, _body: &Value) -> RequestTarget {
        let (model, method) = model_and_method(uri);
        RequestTarget { model: model.to_owned(), is_streaming: method == STREAM_METHOD }
    }

    fn authorize(headers: &HeaderMap, keys: &AcceptedKeys) -> Result<(), ApiError> {
        match headers.get("x-goog-api-key").and_then(|key| key.to_str().ok()) {
            Some(key) if keys.accept(key) => Ok(()),
            Some(_) => Err(error::invalid_key()),
            None => Err(error::missing_key()),
        }
    }

    fn check(request: &IncomingRequest, context: &Context<'_>) -> Result<(), ApiError> {
        check::check(request, context.issued)
    }

    fn answer(request: &IncomingRequest, reply: &Reply, number: u64, _settings: &Settings) -> RenderedAnswer {
        render::answer(request, reply, number)
    }

    fn prompt(request: &IncomingRequest) -> Prompt {
        let members = ["systemInstruction", "tools", "contents"];
        cache::automatic_prompt("", &request.body, &members)
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

/// The model and the method of a path of the form `…/MODEL:METHOD`.
fn model_and_method(uri: &Uri) -> (&str, &str) {
    let last = uri.path().rsplit('/').next().unwrap_or_default();
    last.rsplit_once(':').unwrap_or((last, ""))
}

/// Whether a model signs its calls regardless of the request.
fn always_signs(model: &str) -> bool {
    model.starts_with(SIGNING_MODELS)
}
