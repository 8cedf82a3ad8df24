//! `POST /execute` and `GET /execute/replay`: run a turn, and read its events again.

use std::convert::Infallible;

use api::engine::{Execute, Replay};
use api::event::SentEvent;
use api::turns::BackgroundTurn;
use api::{ErrorBody, ErrorCode, TaskId};
use axum::body::{Body, Bytes};
use axum::extract::State as Extract;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use http_service::http::{ApiError, Query};
use utoipa::IntoParams;

use super::AppState;
use super::admission::Admitted;
use super::auth::Authenticated;
use crate::agent::{Accepted, TurnStream};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Runs a turn and streams its events, or answers at once with `background`. The turn continues if the client
/// disconnects, and a queued message stays queued.
#[utoipa::path(
    post, path = "/execute", request_body = Execute, security(("engine_key" = [])),
    responses(
        (status = 200, description = "The turn's events", body = SentEvent, content_type = "text/event-stream"),
        (status = 202, description = "With `background`", body = BackgroundTurn),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST, MODEL_NOT_PERMITTED"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND, MESSAGE_NOT_FOUND (edit and retry)"),
        (status = 409, body = ErrorBody, description = "TASK_BUSY"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE"),
        (status = 429, body = ErrorBody, description = "QUEUE_FULL, USAGE_CAP_REACHED"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
        (status = 503, body = ErrorBody, description = "SHUTTING_DOWN, QUIESCED, OVERLOADED"),
    ),
)]
pub(super) async fn execute(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    Admitted(request, _memory): Admitted<Execute>,
) -> Result<Response, ApiError> {
    let in_background = request.background;
    let Accepted { turn, stream } = shared.agent.submit(request).await?;
    if in_background {
        return Ok((StatusCode::ACCEPTED, axum::Json(turn)).into_response());
    }
    Ok(sse_response(stream))
}

/// The query of [`replay`], for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only its description is used; `api::engine::Replay` is what is parsed")]
struct ReplayQuery {
    /// Events after this time (Unix milliseconds). `Last-Event-ID` takes precedence.
    #[param(minimum = 0, default = 0)]
    after: Option<i64>,
    /// The task; by default the one that ran last.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
}

/// Streams the events of a task after a point in time, and new ones while a turn runs.
#[utoipa::path(
    get, path = "/execute/replay", params(ReplayQuery), security(("engine_key" = [])),
    responses(
        (status = 200, description = "The events", body = SentEvent, content_type = "text/event-stream"),
        (status = 400, body = ErrorBody, description = "INVALID_REQUEST"),
        (status = 401, body = ErrorBody, description = "INVALID_ENGINE_KEY"),
        (status = 404, body = ErrorBody, description = "TASK_NOT_FOUND"),
        (status = 500, body = ErrorBody, description = "INTERNAL_ERROR"),
    ),
)]
pub(super) async fn replay(
    _: Authenticated,
    Extract(AppState(shared)): Extract<AppState>,
    headers: HeaderMap,
    Query(query): Query<Replay>,
) -> Result<Response, ApiError> {
    let after = match last_event_id(&headers)? {
        Some(id) => id,
        None => query.after.map_or(0, api::serde_helpers::BoundedInt::get),
    };
    let reader = shared.agent.replay(query.task_id, after)?;
    Ok(sse_response(reader.into()))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    // Browsers send an empty one for "none yet".
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|id| *id >= 0);
    id.map(Some).ok_or_else(|| {
        let message = "`Last-Event-ID`: must be the id of an event, an integer of at least 0";
        ApiError::new(ErrorCode::InvalidRequest, message)
    })
}

/// Returns the response that streams the events of `stream`. It ends when no more events can come, also because
/// the engine stops, which ends its turns.
fn sse_response(stream: TurnStream) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(event_chunks(stream))).into_response()
}

fn event_chunks(stream: TurnStream) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures::stream::unfold(stream, |mut stream| async move {
        match stream.next().await {
            Ok(events) => events.map(|events| (Ok(events), stream)),
            Err(error) => {
                tracing::error!(%error, "Events could not be read; the stream ends and may be replayed.");
                None
            }
        }
    })
}
