//! OpenAI Responses, `POST /v1/responses`, without server-side state: every request contains the history.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/responses>, its streaming page, the guide to
//! reasoning (<https://platform.openai.com/docs/guides/reasoning>), the types of the vendor's Python SDK, recorded
//! streams that are published in the tests of other clients, and refusals that users quote.

mod check;
mod error;
mod read;
mod render;
mod response;
mod stream;

use axum::http::HeaderMap;
use bytes::Bytes;
use serde_json::Value;

use crate::cache::{self, Prompt};
use crate::captured::Wire;
use crate::fault::Refusal;
use crate::openai;
use crate::protocol::{
    AcceptedKeys, ApiError, Context, IncomingRequest, Protocol, RenderedAnswer, Settings, StreamPosition,
};
use crate::reply::Reply;

/// The wire protocol of OpenAI Responses.
pub(crate) struct OpenAiResponses;

impl Protocol for OpenAiResponses {
    const WIRE: Wire = Wire::OpenAiResponses;
    const REQUEST_ID_HEADER: &'static str = "x-request-id";

    fn authorize(headers: &HeaderMap, keys: &AcceptedKeys) -> Result<(), ApiError> {
        openai::authorize(headers, keys)
    }

    fn check(request: &IncomingRequest, context: &Context<'_>) -> Result<(), ApiError> {
        check::check(request, context.issued)
    }

    fn answer(request: &IncomingRequest, reply: &Reply, number: u64, _settings: &Settings) -> RenderedAnswer {
        render::answer(request, reply, number)
    }

    fn prompt(request: &IncomingRequest) -> Prompt {
        let scope = openai::cache_key(&request.body);
        cache::automatic_prompt(scope, &request.body, &["tools", "instructions", "input"])
    }

    fn last_user_text(body: &Value) -> String {
        read::last_user_text(body)
    }

    fn refusal(refusal: &Refusal, model: &str) -> ApiError {
        error::refusal(refusal, model)
    }

    fn error_body(error: &ApiError, _request_id: &str) -> Value {
        openai::error::body(error)
    }

    fn error_event(error: &ApiError, position: &StreamPosition<'_>) -> Bytes {
        error::events(error, position)
    }
}
