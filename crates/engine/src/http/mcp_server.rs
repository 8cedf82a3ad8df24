//! The engine as a server of the Model Context Protocol, over streamable HTTP: other agents ask this one. The
//! revisions with a handshake and the one without are the same calls; they differ in how a caller says what it can
//! do, and in how a person is asked.

mod ask;
mod ask_projection;
mod caller;
mod cancellation;
mod elicitation;
mod handshake;
mod lookups;
mod resumption;
mod revision;
mod stateless;
mod tools;

use std::sync::Arc;

use api::ErrorBody;
use axum::extract::State as Extract;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
pub(super) use cancellation::CallSignals;
use revision::Revision;
use serde_json::{Value, json};

use self::caller::Caller;
use super::admission::BodyMemory;
use super::auth::BearerAuthenticated;
use super::front_schemas::{JsonRpcAnswer, JsonRpcMessage};
use super::json_rpc::{self, Fault, Message, RequestId, RpcBody};
use super::{AppState, Shared};

/// The header that names the revision of a request.
const VERSION_HEADER: &str = "mcp-protocol-version";
/// The header that names the session of a request.
const SESSION_HEADER: &str = "mcp-session-id";
/// The header that names the last event that a caller has of a stream.
const LAST_EVENT_HEADER: &str = "last-event-id";
/// The code for headers that contradict the body.
const HEADER_MISMATCH: i64 = -32020;
/// The code for a revision that is not spoken here.
const UNSUPPORTED_VERSION: i64 = -32022;

/// A refused request: an error of JSON-RPC and the status that the protocol gives it.
struct Refusal {
    status: StatusCode,
    id: Option<RequestId>,
    fault: Fault,
}

impl Refusal {
    const fn new(status: StatusCode, id: Option<RequestId>, fault: Fault) -> Self {
        Self { status, id, fault }
    }

    const fn bad_request(id: Option<RequestId>, fault: Fault) -> Self {
        Self::new(StatusCode::BAD_REQUEST, id, fault)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        json_rpc::respond(self.status, json_rpc::error(self.id.as_ref(), &self.fault))
    }
}

/// Receives a message of the Model Context Protocol, and answers it as JSON or as a stream of events.
#[utoipa::path(
    post, path = "/mcp", operation_id = "call_mcp", tag = "mcp",
    request_body = JsonRpcMessage, security(("engine_key" = []), ("bearer" = [])),
    params(
        ("MCP-Protocol-Version" = Option<String>, Header, description = "The revision; 2025-03-26 by default"),
        ("Mcp-Session-Id" = Option<String>, Header, description = "What the answer to `initialize` named, if it was"),
    ),
    responses(
        (status = 200, description = "The answer to a request, or a stream that ends with it", content(
            (JsonRpcAnswer = "application/json"), (inline(JsonRpcAnswer) = "text/event-stream"),
        )),
        (status = 202, description = "A notification or a person's answer was accepted"),
        (status = 400, description = "The message, its revision or its headers are invalid", body = JsonRpcAnswer),
        (status = 401, description = "INVALID_ENGINE_KEY", body = ErrorBody),
        (status = 403, description = "The request comes from a web page that is not of this machine", body = Value),
        (status = 404, description = "There is no such method or session", body = JsonRpcAnswer),
        (status = 406, description = "The caller does not accept JSON and event streams", body = JsonRpcAnswer),
        (status = 413, description = "PAYLOAD_TOO_LARGE", body = ErrorBody),
        (status = 500, description = "INTERNAL_ERROR", body = ErrorBody),
        (status = 503, description = "SHUTTING_DOWN, OVERLOADED", body = ErrorBody),
    ),
)]
pub(super) async fn mcp(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
    headers: HeaderMap,
    RpcBody(message, memory): RpcBody,
) -> Response {
    receive(&shared, &headers, message, memory).await.unwrap_or_else(IntoResponse::into_response)
}

/// Takes the stream of a call up again after its event `Last-Event-ID`, in the revisions whose events have ids.
#[utoipa::path(
    get, path = "/mcp", operation_id = "resume_mcp", tag = "mcp", security(("engine_key" = []), ("bearer" = [])),
    params(
        ("Last-Event-ID" = String, Header, description = "The id of the last event that the caller has"),
        ("MCP-Protocol-Version" = Option<String>, Header, description = "The revision; that of the session by default"),
        ("Mcp-Session-Id" = Option<String>, Header, description = "That of the call"),
    ),
    responses(
        (status = 200, description = "The rest of the stream", body = inline(JsonRpcAnswer), content_type = "text/event-stream"),
        (status = 400, description = "The id, the revision or the headers are invalid", body = JsonRpcAnswer),
        (status = 401, description = "INVALID_ENGINE_KEY", body = ErrorBody),
        (status = 403, description = "The request comes from a web page that is not of this machine", body = Value),
        (status = 404, description = "There is no such event or session", body = JsonRpcAnswer),
        (status = 405, description = "There is no `Last-Event-ID`: outside of calls the server sends nothing", body = JsonRpcAnswer),
        (status = 406, description = "The caller does not accept event streams", body = JsonRpcAnswer),
        (status = 500, description = "An unexpected failure", body = JsonRpcAnswer),
    ),
)]
pub(super) async fn resume_mcp(
    _: BearerAuthenticated,
    Extract(AppState(shared)): Extract<AppState>,
    headers: HeaderMap,
) -> Response {
    resume(&shared, &headers).await.unwrap_or_else(IntoResponse::into_response)
}

async fn resume(shared: &Arc<Shared>, headers: &HeaderMap) -> Result<Response, Refusal> {
    check_origin(headers)?;
    check_accept(headers, &[EVENT_STREAM])?;
    let bad_request = |fault| Refusal::bad_request(None, fault);
    let version = single_header(headers, VERSION_HEADER).map_err(bad_request)?;
    let revision =
        version.map(|version| version.parse::<Revision>().map_err(|_| unsupported_version(version)));
    let revision = revision.transpose().map_err(bad_request)?;
    let last_event = single_header(headers, LAST_EVENT_HEADER).map_err(bad_request)?;
    let Some(last_event) = last_event.filter(|_| revision.is_none_or(Revision::has_event_ids)) else {
        let message =
            "the server sends nothing outside of calls; `Last-Event-ID` takes the stream of one up again";
        let fault = Fault::invalid_request(message);
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, None, fault));
    };
    handshake::take_up(shared, headers, revision, last_event).await
}

async fn receive(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    message: Result<Message, Fault>,
    memory: BodyMemory,
) -> Result<Response, Refusal> {
    check_origin(headers)?;
    check_accept(headers, &[JSON, EVENT_STREAM])?;
    let message = message.map_err(|fault| Refusal::bad_request(None, fault))?;
    let id = match &message {
        Message::Request { id, .. } => Some(id.clone()),
        Message::Notification { .. } | Message::Response { .. } => None,
    };
    let version =
        single_header(headers, VERSION_HEADER).map_err(|fault| Refusal::bad_request(id.clone(), fault))?;
    match version.map(|version| version.parse::<Revision>().map_err(|_| version)) {
        Some(Err(unknown)) => Err(Refusal::bad_request(id, unsupported_version(unknown))),
        Some(Ok(Revision::V2026_07_28)) => stateless::receive(shared, headers, message, memory).await,
        Some(Ok(revision)) => handshake::receive(shared, headers, Some(revision), message, memory).await,
        None => handshake::receive(shared, headers, None, message, memory).await,
    }
}

/// Refuses requests of web pages of other machines: one that has a name of its own point here could otherwise use
/// an engine of its visitor.
fn check_origin(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = origin.to_str().ok().and_then(|origin| reqwest::Url::parse(origin).ok());
    let is_local = host.as_ref().and_then(reqwest::Url::host_str).is_some_and(|host| {
        matches!(host, "localhost" | "127.0.0.1" | "[::1]") || host.ends_with(".localhost")
    });
    if is_local {
        return Ok(());
    }
    let message = "`Origin`: requests of web pages are accepted only from this machine";
    Err(Refusal::new(StatusCode::FORBIDDEN, None, Fault::invalid_request(message)))
}

/// A media type and the range that contains it.
type MediaType = (&'static str, &'static str);
const JSON: MediaType = ("application/json", "application/*");
const EVENT_STREAM: MediaType = ("text/event-stream", "text/*");

/// All forms that an answer can have must be accepted, as the protocol demands.
fn check_accept(headers: &HeaderMap, forms: &[MediaType]) -> Result<(), Refusal> {
    let values = || headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let types: Vec<String> = values()
        .flat_map(|value| value.split(','))
        .map(|range| range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
        .collect();
    let accepts = |(exact, group): &MediaType| {
        types.iter().any(|range| range == exact || range == group || range == "*/*")
    };
    if types.is_empty() || forms.iter().all(accepts) {
        return Ok(());
    }
    let names: Vec<&str> = forms.iter().map(|(exact, _)| *exact).collect();
    let message = format!("`Accept`: must contain {}", names.join(" and "));
    Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, None, Fault::invalid_request(message)))
}

/// A header that must not be given twice: its readers could disagree.
fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Fault> {
    let mut values = headers.get_all(name).into_iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(Fault::new(HEADER_MISMATCH, format!("`{name}`: must be given only once")));
    }
    let invalid = || Fault::new(HEADER_MISMATCH, format!("`{name}`: must be visible ASCII"));
    value.map(|value| value.to_str().map_err(|_| invalid())).transpose()
}

fn unsupported_version(requested: &str) -> Fault {
    let requested: String = requested.chars().take(64).collect();
    let data = json!({"supported": Revision::ALL.map(Revision::as_str), "requested": requested});
    Fault::new(UNSUPPORTED_VERSION, "Unsupported protocol version").with_data(data)
}

/// What the server tells a caller about itself.
fn server_info() -> Value {
    json!({"name": "roundhouse", "title": "Roundhouse", "version": env!("CARGO_PKG_VERSION")})
}

/// What the server tells a model about itself.
const INSTRUCTIONS: &str = "A durable agent of one user, with its own memory, workspace and tools. `ask` gives it a \
    message and returns its answer; the same `task_id` continues a conversation. `tasks` lists its conversations \
    and reads what became of a turn, also of one whose answer was not received. `memory_search` searches what it \
    remembers.";

/// Calls a tool.
async fn call_tool(
    shared: &Arc<Shared>,
    caller: &Caller,
    id: RequestId,
    call: tools::ToolCall,
    memory: BodyMemory,
) -> Result<Response, Fault> {
    match call.name.as_str() {
        tools::ASK => ask::ask(shared, caller, id, call, memory).await,
        tools::TASKS | tools::MEMORY_SEARCH => {
            let result = lookups::look_up(shared, &call.name, call.arguments).await;
            Ok(json_rpc::respond(StatusCode::OK, json_rpc::result(&id, &caller.revision.complete(result))))
        }
        _ => Err(Fault::invalid_params("`name`: there is no such tool; tools/list lists them")),
    }
}

#[cfg(test)]
#[path = "../../tests/unit/http/mcp_server.rs"]
mod tests;
