//! The revision without a handshake: each request says who calls, and an answer that needs a person's ends with the
//! question; the request is then sent again, with the answer.

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::caller::Caller;
use super::revision::Revision;
use super::{
    HEADER_MISMATCH, INSTRUCTIONS, Refusal, UNSUPPORTED_VERSION, VERSION_HEADER, call_tool, single_header,
    tools, unsupported_version,
};
use crate::http::Shared;
use crate::http::admission::BodyMemory;
use crate::http::json_rpc::{
    self, Fault, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Message, RequestId,
};

/// The key under which a request names its revision.
pub(super) const PROTOCOL_VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
/// The key under which a request says what its caller can do.
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
/// The header that repeats the method.
const METHOD_HEADER: &str = "mcp-method";
/// The header that repeats the name of the tool.
const NAME_HEADER: &str = "mcp-name";
/// How long a caller may keep what it discovered, in milliseconds.
const DISCOVERY_TTL_MS: u64 = 300_000;

/// Receives a message.
pub(super) async fn receive(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    message: Message,
    memory: BodyMemory,
) -> Result<Response, Refusal> {
    match message {
        Message::Request { id, method, params } => {
            let outcome = match check_envelope(headers, &method, &params) {
                Ok(caller) => answer(shared, &caller, id.clone(), &method, params, memory).await,
                Err(fault) => Err(fault),
            };
            outcome.map_err(|fault| Refusal::new(status_of(fault.code), Some(id), fault))
        }
        // The revision defines none that a caller sends over HTTP: it cancels by closing the stream.
        Message::Notification { .. } => Ok(StatusCode::ACCEPTED.into_response()),
        Message::Response { id, .. } => {
            let message = "this revision has no requests of a server; answers belong into `inputResponses`";
            Err(Refusal::bad_request(Some(id), Fault::invalid_request(message)))
        }
    }
}

/// The status that the revision gives an error.
const fn status_of(code: i64) -> StatusCode {
    match code {
        METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        INVALID_REQUEST | INVALID_PARAMS | HEADER_MISMATCH | UNSUPPORTED_VERSION => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// Checks what a request says about itself, and that its headers say the same.
fn check_envelope(headers: &HeaderMap, method: &str, params: &Map<String, Value>) -> Result<Caller, Fault> {
    let missing = |key: &str| Fault::invalid_params(format!("`_meta`: must contain `{key}`"));
    let member = |key: &str| params.get("_meta").and_then(|meta| meta.get(key)).ok_or_else(|| missing(key));
    let version = member(PROTOCOL_VERSION_KEY)?.as_str();
    let version =
        version.ok_or_else(|| Fault::invalid_params(format!("`{PROTOCOL_VERSION_KEY}`: must be a text")))?;
    let capabilities = member(CAPABILITIES_KEY)?;
    if !capabilities.is_object() {
        return Err(Fault::invalid_params(format!("`{CAPABILITIES_KEY}`: must be an object")));
    }
    let expect = |header: &str, value: &str| {
        let given = single_header(headers, header)?.and_then(decode_header_value);
        let message = || format!("`{header}`: must be that of the body");
        if given.as_deref() == Some(value) { Ok(()) } else { Err(Fault::new(HEADER_MISMATCH, message())) }
    };
    expect(VERSION_HEADER, version)?;
    expect(METHOD_HEADER, method)?;
    if method == "tools/call"
        && let Some(name) = params.get("name").and_then(Value::as_str)
    {
        expect(NAME_HEADER, name)?;
    }
    if version != Revision::V2026_07_28.as_str() {
        return Err(unsupported_version(version));
    }
    Ok(Caller::with_capabilities(Revision::V2026_07_28, capabilities))
}

/// The text of a header that repeats one of the body: as it is, or in base64 if no header can contain it.
fn decode_header_value(value: &str) -> Option<String> {
    let Some(encoded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.to_owned());
    };
    String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
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
        "server/discover" => caller.revision.complete(json!({
            "supportedVersions": Revision::ALL.map(Revision::as_str),
            "capabilities": {"tools": {}},
            "instructions": INSTRUCTIONS,
            "ttlMs": DISCOVERY_TTL_MS,
            "cacheScope": "private",
        })),
        "tools/list" => tools::list(caller.revision, &params)?,
        "tools/call" => return call_tool(shared, caller, id, tools::ToolCall::parse(params)?, memory).await,
        _ => return Err(Fault::unknown_method(method)),
    };
    Ok(json_rpc::respond(StatusCode::OK, json_rpc::result(&id, &result)))
}
