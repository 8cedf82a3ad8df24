//! Ollama, `POST /api/chat`: a stream of JSON lines, or a single object if `stream` is false.
//!
//! Sources: <https://docs.ollama.com/api/chat>, `/capabilities/thinking` and `/capabilities/tool-calling` on the
//! same site, the server's `server/routes.go` and `api/types.go` (<https://github.com/ollama/ollama>), and the
//! types of the vendor's Python SDK. Like the server, this wire ignores unknown members.

mod check;
mod error;
mod render;

use axum::http::header::AUTHORIZATION;
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

/// The prefixes of models that do not think.
const NON_THINKING_MODELS: &[&str] = &["llama", "codellama", "mistral", "gemma", "phi"];

/// The wire protocol of Ollama.
pub(crate) struct Ollama;

impl Protocol for Ollama {
    const WIRE: Wire = Wire::Ollama;
    // Ollama has none. A header with an empty name is left out.
    const REQUEST_ID_HEADER: &'static str = "";
    const STREAM_TYPE: &'static str = "application/x-ndjson";

    fn target(_uri: &Uri, body: &Value) -> RequestTarget {
        RequestTarget {
            model: body.get("model").and_then(Value::as_str).unwrap_or_default().to_owned(),
            is_streaming: body.get("stream").and_then(Value::as_bool).unwrap_or(true),
        }
    }

    /// Requires a key only if the test sets one, which imitates the vendor's cloud. Local servers need no key.
    fn authorize(headers: &HeaderMap, keys: &AcceptedKeys) -> Result<(), ApiError> {
        let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let key = value.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        match keys {
            AcceptedKeys::Only(_) if !keys.accept(key) => Err(error::unauthorized()),
            _ => Ok(()),
        }
    }

    fn check(request: &IncomingRequest, context: &Context<'_>) -> Result<(), ApiError> {
        check::check(request, context.settings)
    }

    fn answer(request: &IncomingRequest, reply: &Reply, number: u64, _settings: &Settings) -> RenderedAnswer {
        render::answer(request, reply, number)
    }

    fn prompt(request: &IncomingRequest) -> Prompt {
        cache::automatic_prompt("", &request.body, &["tools", "messages"])
    }

    fn last_user_text(body: &Value) -> String {
        let messages = body.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let is_users = |message: &&Value| message.get("role").and_then(Value::as_str) == Some("user");
        let content = |message: &Value| message.get("content").and_then(Value::as_str).map(str::to_owned);
        messages.iter().rev().filter(is_users).find_map(content).unwrap_or_default()
    }

    fn refusal(refusal: &Refusal, model: &str) -> ApiError {
        error::refusal(refusal, model)
    }

    fn error_body(error: &ApiError, _request_id: &str) -> Value {
        error::body(error)
    }

    fn error_event(error: &ApiError, _position: &StreamPosition<'_>) -> Bytes {
        error::line(error)
    }
}

/// Whether a model can think.
fn can_think(model: &str) -> bool {
    !NON_THINKING_MODELS.iter().any(|family| model.starts_with(family))
}
