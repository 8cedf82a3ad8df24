//! Handles one request of one wire: reads, captures and checks it, takes the next reply, and answers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::Value;

use crate::captured::CapturedRequest;
use crate::fault::{Fault, Refusal};
use crate::plan::{plan_complete, plan_stream};
use crate::playback;
use crate::protocol::{
    AnswerBody, ApiError, Context, IncomingRequest, Protocol, RenderedAnswer, StreamPosition,
};
use crate::reply::{Block, Reply};
use crate::shared::{ReplySource, RunningGuard, Shared};

/// The vendors' limit for request bodies, in bytes.
pub(crate) const MAX_BODY_BYTES: usize = 32 * 1024 * 1024;

/// Handles a request of the wire `P`.
pub(crate) async fn handle<P: Protocol>(
    State(shared): State<Arc<Shared>>,
    uri: Uri,
    headers: HeaderMap,
    raw: Result<Bytes, BytesRejection>,
) -> Response {
    let running = shared.begin_answer();
    let raw = match raw {
        Ok(raw) => raw,
        Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let message = "Request exceeds the maximum size";
            let error = ApiError::new(rejection.status(), "request_too_large", message);
            shared.lock().record_refusal(P::WIRE, &error);
            return error_response::<P>(&error, 0);
        }
        // The client disconnected in the middle of its request, which violates no rule.
        Err(rejection) => return rejection.into_response(),
    };
    // A body that is not JSON becomes null, which no wire accepts.
    let body: Value = serde_json::from_slice(&raw).unwrap_or_default();
    let target = P::target(&uri, &body);
    let request = IncomingRequest { uri, target, headers, raw, body };

    let (number, accepted) = capture_and_check::<P>(&shared, &request);
    shared.announce_request();
    match accepted.and_then(|reply| refuse_if_scripted::<P>(reply, &request)) {
        Ok(reply) => render_response::<P>(&shared, &request, reply, number, running).await,
        Err(error) => error_response::<P>(&error, number),
    }
}

/// Captures, numbers and checks a request, and takes the next reply if it is valid.
fn capture_and_check<P: Protocol>(
    shared: &Shared,
    request: &IncomingRequest,
) -> (u64, Result<Reply, ApiError>) {
    let captured = CapturedRequest::new(P::WIRE, request);
    let settings = &shared.settings;
    let mut state = shared.lock();
    let number = state.record_request(captured);
    let context = Context { settings, issued: &state.issued };
    let checked = P::authorize(&request.headers, &settings.keys).and_then(|()| P::check(request, &context));
    let accepted = match checked {
        Ok(()) => Ok(state.next_reply()),
        Err(error) => {
            state.record_refusal(P::WIRE, &error);
            Err(error)
        }
    };
    drop(state);
    (number, accepted.map(ReplySource::resolve))
}

/// Returns the reply unless its script refuses the request. An error event becomes a refusal if the answer is not
/// streamed.
fn refuse_if_scripted<P: Protocol>(reply: Reply, request: &IncomingRequest) -> Result<Reply, ApiError> {
    match &reply.fault {
        Some(Fault::Refuse { refusal }) => Err(P::refusal(refusal, request.model())),
        Some(Fault::ErrorEventAfter { .. }) if !request.wants_stream() => {
            Err(P::refusal(stream_error_refusal(&reply), request.model()))
        }
        _ => Ok(reply),
    }
}

/// The refusal that an error within a stream reports.
fn stream_error_refusal(reply: &Reply) -> &Refusal {
    match &reply.fault {
        Some(Fault::ErrorEventAfter { refusal: Some(refusal), .. }) => refusal,
        _ => &Refusal::Overloaded,
    }
}

/// Renders the answer. It does not hold the lock meanwhile, so that other requests can be answered.
async fn render_response<P: Protocol>(
    shared: &Shared,
    request: &IncomingRequest,
    reply: Reply,
    number: u64,
    running: RunningGuard,
) -> Response {
    let reply = record_cache_use::<P>(resolve_echo::<P>(reply, request), shared, request);
    let RenderedAnswer { answer, issued } = P::answer(request, &reply, number, &shared.settings);
    if let Some(issued) = issued {
        shared.lock().issued.record(issued);
    }
    let (steps, content_type) = match answer {
        AnswerBody::Stream(transcript) => {
            let error_event = |events| {
                let error = P::refusal(stream_error_refusal(&reply), request.model());
                P::error_event(&error, &StreamPosition { request, number, events })
            };
            (plan_stream(&transcript, &reply, error_event), P::STREAM_TYPE)
        }
        AnswerBody::Complete(body) => {
            (plan_complete(&Bytes::from(body.to_string()), &reply), "application/json")
        }
    };
    if let Some(Fault::SlowHeaders { delay_ms }) = reply.fault {
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
    }
    let mut response = Response::new(playback::body(steps, running));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    insert_header(headers, P::REQUEST_ID_HEADER, &request_id(number));
    response
}

fn resolve_echo<P: Protocol>(mut reply: Reply, request: &IncomingRequest) -> Reply {
    for block in &mut reply.blocks {
        if matches!(block, Block::Echo) {
            *block = Block::Text { text: P::last_user_text(&request.body) };
        }
    }
    reply
}

/// Records the request in the simulated cache. The answer reports the result unless the script sets token counts.
fn record_cache_use<P: Protocol>(mut reply: Reply, shared: &Shared, request: &IncomingRequest) -> Reply {
    if !shared.settings.track_cache {
        return reply;
    }
    let prompt = P::prompt(request);
    let used = shared.lock().cache.record(P::WIRE, request.model(), &prompt);
    let usage = &mut reply.usage;
    if usage.input.is_none() && (usage.cache_read, usage.cache_write) == (0, 0) {
        usage.input = Some(used.input);
        usage.cache_read = used.read;
        usage.cache_write = used.written;
    }
    reply
}

fn error_response<P: Protocol>(error: &ApiError, number: u64) -> Response {
    let request_id = request_id(number);
    let body = P::error_body(error, &request_id).to_string();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = error.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    insert_header(headers, P::REQUEST_ID_HEADER, &request_id);
    for (name, value) in &error.headers {
        insert_header(headers, name, value);
    }
    response
}

/// Inserts a header. Scripted headers that are invalid in HTTP are left out.
fn insert_header(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
        headers.insert(name, value);
    }
}

fn request_id(number: u64) -> String {
    format!("req_{number:024}")
}
