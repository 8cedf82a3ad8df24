//! `POST /v1/chat/completions`.

use std::time::Duration;

use api::engine::Execute;
use api::{ClientRequestId, TaskId};
use axum::extract::State as Extract;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;

use super::chat_projection::{ChatFold, ChatProjection, engine_stops};
use super::chat_request::ChatRequest;
use super::error::VendorErrorBody;
use super::refusals;
use super::{BearerAuthenticated, VendorBody, VendorError, annotate, task_of_header};
use crate::agent::{Accepted, TurnEvents};
use crate::http::AppState;
use crate::http::front_schemas::{ChatCompletion, ChatCompletionChunk, ChatCompletionRequest};
use crate::http::projection::{patient_response, stream_response};

/// How long a call without a stream waits for its turn: as long as the vendor's clients do.
pub(super) const MAX_WAIT: Duration = Duration::from_mins(10);

/// Runs a turn and answers in the form of OpenAI's chat completions.
#[utoipa::path(
    post, path = "/v1/chat/completions", operation_id = "openai_create_chat_completion", tag = "openai",
    request_body = ChatCompletionRequest, security(("engine_key" = []), ("bearer" = [])),
    params(
        ("Roundhouse-Task" = Option<String>, Header, description = "The task to continue; a new one by default"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the request safe to repeat"),
    ),
    responses(
        (status = 200, description = "The completion, or its chunks", content(
            (ChatCompletion = "application/json"), (inline(ChatCompletionChunk) = "text/event-stream"),
        )),
        (status = 400, description = refusals::INVALID_FIELD, body = VendorErrorBody),
        (status = 401, description = refusals::WRONG_KEY, body = VendorErrorBody),
        (status = 403, description = refusals::TOKEN, body = VendorErrorBody),
        (status = 404, description = refusals::UNKNOWN_MODEL, body = VendorErrorBody),
        (status = 408, description = refusals::LATE_BODY, body = VendorErrorBody),
        (status = 409, description = refusals::BUSY_OR_CANCELLED, body = VendorErrorBody),
        (status = 413, description = refusals::LARGE_BODY, body = VendorErrorBody),
        (status = 429, description = refusals::CAP, body = VendorErrorBody),
        (status = 500, description = refusals::INTERNAL, body = VendorErrorBody),
        (status = 502, description = refusals::PROVIDER, body = VendorErrorBody),
        (status = 503, description = refusals::UNFINISHED, body = VendorErrorBody),
    ),
)]
pub(in crate::http) async fn create_chat_completion(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
    headers: HeaderMap,
    VendorBody(body, memory): VendorBody,
) -> Result<Response, VendorError> {
    let request_id = idempotency_key(&headers)?;
    let new_task = new_task("chat", request_id.as_ref())?;
    let request = ChatRequest::parse(body, task_of_header(&headers)?, new_task)?;
    let ChatRequest { execute, model, is_streamed, includes_usage, without_effect } = request;
    let is_structured = execute.response_format.is_some();
    let task_id = execute.task_id.clone();
    let Accepted { stream, .. } =
        shared.agent.submit(Execute { client_request_id: request_id, ..execute }).await?;
    // The turn has what it needs of the body.
    drop(memory);
    let events = TurnEvents::new(stream);
    let mut response = if is_streamed {
        stream_response(events, ChatProjection::new(model, is_structured, includes_usage))
    } else {
        patient_response(completion(events, model)).await
    };
    annotate(response.headers_mut(), task_id.as_str(), &without_effect);
    Ok(response)
}

/// Waits for a turn's completion.
async fn completion(mut events: TurnEvents, model: String) -> Result<Value, VendorError> {
    let mut fold = ChatFold::new(model);
    let outcome = async {
        loop {
            let event = events.next().await.map_err(crate::agent::AgentError::from)?;
            let Some(event) = event else { return Err(engine_stops()) };
            if let Some(outcome) = fold.apply(event) {
                return outcome;
            }
        }
    };
    tokio::time::timeout(MAX_WAIT, outcome).await.unwrap_or_else(|_| {
        let message = "the turn has not ended in ten minutes, or waits for a person; it goes on, and its task \
                       gets the answer";
        Err(VendorError::unfinished("turn_unfinished", message))
    })
}

/// The idempotency key of a request.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<ClientRequestId>, VendorError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let invalid =
        || VendorError::invalid("Idempotency-Key", "must be a text as `client_request_id` takes it");
    let text = value.to_str().map_err(|_| invalid())?;
    ClientRequestId::new(text).map(Some).map_err(|_| invalid())
}

/// The task of a request that names none: a new one, which a repeated request finds again.
pub(super) fn new_task(kind: &str, request_id: Option<&ClientRequestId>) -> Result<TaskId, VendorError> {
    let name = match request_id {
        Some(id) => format!("openai-{kind}-{}", id.as_str()),
        None => format!("openai-{kind}-{}", uuid::Uuid::now_v7().simple()),
    };
    TaskId::new(name).map_err(|error| VendorError::invalid("Idempotency-Key", error))
}
