//! The revisions with a handshake: `initialize` agrees on what both sides can do, and a person is asked by a request
//! on the stream of the call.

use std::sync::Arc;

use api::HitlId;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::caller::{Caller, Session};
use super::cancellation::Signal;
use super::elicitation::{self, Answer};
use super::resumption::EventId;
use super::revision::Revision;
use super::stateless::PROTOCOL_VERSION_KEY;
use super::{
    HEADER_MISMATCH, INSTRUCTIONS, Refusal, SESSION_HEADER, VERSION_HEADER, ask, call_tool, server_info,
    single_header, tools,
};
use crate::agent::AgentError;
use crate::http::Shared;
use crate::http::admission::BodyMemory;
use crate::http::json_rpc::{self, Fault, INTERNAL_ERROR, Message, RequestId};

/// Receives a message. Requests that name no revision are of the one before the header existed, or of that of their
/// session.
pub(super) async fn receive(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    revision: Option<Revision>,
    message: Message,
    memory: BodyMemory,
) -> Result<Response, Refusal> {
    match message {
        Message::Request { id, method, params } if method == "initialize" => initialize(&id, &params),
        Message::Request { id, method, params } => {
            let caller = find_caller(headers, revision, Some(&id))?;
            if params.get("_meta").is_some_and(|meta| meta.get(PROTOCOL_VERSION_KEY).is_some()) {
                let message = format!("`{VERSION_HEADER}`: must be the revision that `_meta` names");
                return Err(Refusal::bad_request(Some(id), Fault::new(HEADER_MISMATCH, message)));
            }
            let outcome = answer(shared, &caller, id.clone(), &method, params, memory).await;
            // In these revisions a request that was understood is answered with 200, whatever became of it.
            Ok(outcome.unwrap_or_else(|fault| Refusal::new(StatusCode::OK, Some(id), fault).into_response()))
        }
        Message::Notification { method, params } => {
            let caller = find_caller(headers, revision, None)?;
            if method == "notifications/cancelled"
                && let Some(session) = caller.session
                && let Some(id) = params.get("requestId").cloned().and_then(RequestId::parse)
            {
                shared.mcp_calls.send(session, Signal::Cancelled(id));
            }
            Ok(StatusCode::ACCEPTED.into_response())
        }
        Message::Response { id, result } => {
            let caller = find_caller(headers, revision, None)?;
            take_answer(shared, caller.session, &id, result.as_ref()).await?;
            Ok(StatusCode::ACCEPTED.into_response())
        }
    }
}

/// Takes the stream of a call up again after the event that a caller names; the caller says in its headers who it is, as
/// in a request.
pub(super) async fn take_up(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    revision: Option<Revision>,
    last_event: &str,
) -> Result<Response, Refusal> {
    let caller = find_caller(headers, revision, None)?;
    let Ok(id) = last_event.parse::<EventId>() else {
        let fault = Fault::invalid_request("`Last-Event-ID`: must be the id of an event of a call's stream");
        return Err(Refusal::bad_request(None, fault));
    };
    ask::take_up(shared, &caller, id).await.map_err(|fault| {
        let is_internal = fault.code == INTERNAL_ERROR;
        let status = if is_internal { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::NOT_FOUND };
        Refusal::new(status, None, fault)
    })
}

/// The caller of a request, which need not have a session.
fn find_caller(
    headers: &HeaderMap,
    revision: Option<Revision>,
    id: Option<&RequestId>,
) -> Result<Caller, Refusal> {
    let bad_request = |fault| Refusal::bad_request(id.cloned(), fault);
    let Some(session) = single_header(headers, SESSION_HEADER).map_err(bad_request)? else {
        return Ok(Caller::unknown(revision.unwrap_or(Revision::V2025_03_26)));
    };
    let unknown = || {
        let fault = Fault::invalid_request("there is no such session; send `initialize` again");
        Refusal::new(StatusCode::NOT_FOUND, id.cloned(), fault)
    };
    let session: Session = session.parse().map_err(|_| unknown())?;
    if revision.is_some_and(|revision| revision != session.revision()) {
        let message = format!("`{VERSION_HEADER}`: must be the revision that the session agreed on");
        return Err(bad_request(Fault::invalid_request(message)));
    }
    Ok(session.caller())
}

fn initialize(id: &RequestId, params: &Map<String, Value>) -> Result<Response, Refusal> {
    let Some(requested) = params.get("protocolVersion").and_then(Value::as_str) else {
        let fault = Fault::invalid_params("`protocolVersion`: must be a text");
        return Err(Refusal::new(StatusCode::OK, Some(id.clone()), fault));
    };
    let spoken = requested.parse().ok().filter(|revision: &Revision| revision.has_handshake());
    let revision = spoken.unwrap_or(Revision::LAST_WITH_HANDSHAKE);
    let caller = Caller::with_capabilities(revision, params.get("capabilities").unwrap_or(&Value::Null));
    let result = json!({
        "protocolVersion": revision.as_str(),
        "capabilities": {"tools": {"listChanged": false}},
        "serverInfo": server_info(),
        "instructions": INSTRUCTIONS,
    });
    let mut response = json_rpc::respond(StatusCode::OK, json_rpc::result(id, &result));
    if let Ok(session) = HeaderValue::try_from(Session::begin(&caller).to_string()) {
        response.headers_mut().insert(HeaderName::from_static(SESSION_HEADER), session);
    }
    Ok(response)
}

async fn answer(
    shared: &Arc<Shared>,
    caller: &Caller,
    id: RequestId,
    method: &str,
    params: Map<String, Value>,
    memory: BodyMemory,
) -> Result<Response, Fault> {
    let result = match method {
        "ping" => json!({}),
        "tools/list" => tools::list(caller.revision, &params)?,
        "tools/call" => {
            let mut call = tools::ToolCall::parse(params)?;
            // What continues a call is of another revision.
            (call.request_state, call.input_responses) = (None, Map::new());
            return call_tool(shared, caller, id, call, memory).await;
        }
        _ => return Err(Fault::unknown_method(method)),
    };
    Ok(json_rpc::respond(StatusCode::OK, json_rpc::result(&id, &result)))
}

/// Takes a person's answer. The id of the protocol's request is that of ours, so the answer finds its turn also
/// after a restart.
async fn take_answer(
    shared: &Shared,
    session: Option<Uuid>,
    id: &RequestId,
    result: Option<&Value>,
) -> Result<(), Refusal> {
    let Some(request_id) = id.as_text().and_then(|id| id.parse::<HitlId>().ok()) else { return Ok(()) };
    let refusal = |message: String| Refusal::bad_request(Some(id.clone()), Fault::invalid_params(message));
    let pending = shared.agent.pending_requests().await.map_err(|error| refusal(error.to_string()))?;
    // Another answer may have been faster.
    let Some(request) = pending.iter().find(|request| request.request_id == request_id) else {
        return Ok(());
    };
    let outcome = match elicitation::parse_answer(request, result) {
        Ok(Answer::Given(respond)) => match shared.agent.respond(respond).await {
            Ok(_) | Err(AgentError::NotPending) => return Ok(()),
            Err(error) => Err(refusal(error.to_string())),
        },
        Ok(Answer::Dismissed) => Ok(()),
        Err(message) => Err(refusal(message)),
    };
    // The call does not go on by this answer, so it must not wait for another one.
    if let Some(session) = session {
        shared.mcp_calls.send(session, Signal::Dismissed(request_id));
    }
    outcome
}
