//! The Agent2Agent protocol, version 1.0, over JSON-RPC: other agents send this one messages. A context is a task of
//! ours, a task of the protocol is a turn.

mod card;
mod errors;
mod operations;
mod parts;
mod request;
mod stream;
mod task;

use api::ErrorBody;
use axum::extract::State as Extract;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::AppState;
use super::auth::BearerAuthenticated;
use super::front_schemas::{AgentCard, JsonRpcAnswer, JsonRpcMessage};
use super::json_rpc::{self, Fault, Message, RpcBody};

/// The header that names the version of a request.
const VERSION_HEADER: &str = "a2a-version";

/// Describes the agent, as other agents discover it.
#[utoipa::path(
    get, path = "/.well-known/agent-card.json", operation_id = "get_agent_card", tag = "a2a",
    security(("engine_key" = []), ("bearer" = [])),
    responses(
        (status = 200, description = "The agent card", body = AgentCard),
        (status = 401, description = "INVALID_ENGINE_KEY", body = ErrorBody),
        (status = 500, description = "INTERNAL_ERROR", body = ErrorBody),
    ),
)]
pub(super) async fn agent_card(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
    headers: HeaderMap,
) -> Result<axum::Json<Value>, http_service::http::ApiError> {
    let skills = shared.agent.skills().await?.skills;
    Ok(axum::Json(card::agent_card(&headers, &shared.agent.identity(), &skills)))
}

/// Receives a request of the Agent2Agent protocol, and answers it as JSON or as a stream of events.
#[utoipa::path(
    post, path = "/a2a", operation_id = "call_agent", tag = "a2a",
    request_body = JsonRpcMessage, security(("engine_key" = []), ("bearer" = [])),
    params(("A2A-Version" = String, Header, description = "The version of the protocol: 1.0")),
    responses(
        (status = 200, description = "The answer, which may be an error of JSON-RPC, or a stream", content(
            (JsonRpcAnswer = "application/json"), (inline(JsonRpcAnswer) = "text/event-stream"),
        )),
        (status = 400, description = "INVALID_REQUEST: the body could not be read to its end", body = ErrorBody),
        (status = 401, description = "INVALID_ENGINE_KEY", body = ErrorBody),
        (status = 413, description = "PAYLOAD_TOO_LARGE", body = ErrorBody),
        (status = 500, description = "INTERNAL_ERROR", body = ErrorBody),
        (status = 503, description = "SHUTTING_DOWN, OVERLOADED", body = ErrorBody),
    ),
)]
pub(super) async fn a2a(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
    headers: HeaderMap,
    RpcBody(message, memory): RpcBody,
) -> Response {
    // In this binding an error has the status of the transport, which did its work.
    let refuse = |id, fault: Fault| json_rpc::respond(StatusCode::OK, json_rpc::error(id, &fault));
    let (id, method, params) = match message {
        Ok(Message::Request { id, method, params }) => (id, method, params),
        Ok(_) => return refuse(None, Fault::invalid_request("`id`: must be given")),
        Err(fault) => return refuse(None, fault),
    };
    let outcome = match check_version(&headers) {
        Ok(()) => operations::perform(&shared, id.clone(), &method, params, memory).await,
        Err(fault) => Err(fault),
    };
    outcome.unwrap_or_else(|fault| refuse(Some(&id), fault))
}

/// A request that names no version is one of 0.3.
fn check_version(headers: &HeaderMap) -> Result<(), Fault> {
    let version = headers.get(VERSION_HEADER).and_then(|value| value.to_str().ok()).unwrap_or("0.3");
    if version == "1" || version.starts_with("1.") {
        return Ok(());
    }
    Err(errors::version_not_supported("`A2A-Version`: must be 1.0; a request without it is one of 0.3"))
}

#[cfg(test)]
#[path = "../../tests/unit/http/a2a.rs"]
mod tests;
