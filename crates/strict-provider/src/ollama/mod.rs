//! Ollama, `POST /api/chat`: lines of JSON, or one object when no stream is asked for.
//!
//! Sources: <https://docs.ollama.com/api/chat>, `/capabilities/thinking` and `/capabilities/tool-calling` there, the
//! server's `server/routes.go` and `api/types.go` (<https://github.com/ollama/ollama>), and the types of the
//! vendor's Python SDK. The server ignores members that it does not know, and so does this wire.

mod check;
mod error;
mod render;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Uri};
use bytes::Bytes;
use serde_json::Value;

use crate::cache::{self, Prompt};
use crate::fault::Refusal;
use crate::protocol::{ApiError, Context, Incoming, Keys, Protocol, Rendered, Settings, StreamPlace, Target};
use crate::record::Wire;
use crate::reply::Reply;

/// Families of models that do not think.
const PLAIN_MODELS: &[&str] = &["llama", "codellama", "mistral", "gemma", "phi"];

/// The wire.
pub(crate) struct Ollama;

impl Protocol for Ollama {
    const WIRE: Wire = Wire::Ollama;
    // It has none, and a header without a name is left out.
    const REQUEST_ID_HEADER: &'static str = "";
    const STREAM_TYPE: &'static str = "application/x-ndjson";

    fn target(_uri: &Uri, body: &Value) -> Target {
        Target {
            model: body.get("model").and_then(Value::as_str).unwrap_or_default().to_owned(),
            streams: body.get("stream").and_then(Value::as_bool).unwrap_or(true),
        }
    }

    /// A server of one's own asks for no key; a test that fixes one stands for the vendor's cloud.
    fn authorize(headers: &HeaderMap, keys: &Keys) -> Result<(), ApiError> {
        let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let key = value.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        match keys {
            Keys::Only(_) if !keys.accept(key) => Err(error::unauthorized()),
            _ => Ok(()),
        }
    }

    fn check(request: &Incoming, context: &Context<'_>) -> Result<(), ApiError> {
        check::check(request, context.settings)
    }

    fn answer(request: &Incoming, reply: &Reply, number: u64, _settings: &Settings) -> Rendered {
        render::answer(request, reply, number)
    }

    fn prompt(request: &Incoming) -> Prompt {
        cache::automatic("", &request.body, &["tools", "messages"])
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

    fn error_event(error: &ApiError, _place: &StreamPlace<'_>) -> Bytes {
        error::line(error)
    }
}

/// Whether a model thinks.
fn thinks(model: &str) -> bool {
    !PLAIN_MODELS.iter().any(|family| model.starts_with(family))
}
