//! `POST /execute` and `GET /execute/replay`: run a turn, and read its events again.

use std::convert::Infallible;
use std::time::Duration;

use api::engine::{Execute, Replay};
use api::event::TurnEvent;
use api::turn_reports::{AcceptedTurn, ReportQuery, TurnReport};
use api::turns::TurnState;
use api::{ErrorBody, ErrorCode, TaskId};
use axum::body::{Body, Bytes};
use axum::extract::State as Extract;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use http_service::http::{ApiError, Query};
use utoipa::IntoParams;

use super::AppState;
use super::admission::AdmittedLenient;
use super::auth::{Authenticated, Caller};
use crate::agent::{Accepted, TurnEvents, TurnStream};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The time that a call without a stream waits, in seconds, unless the request sets it.
const DEFAULT_WAIT_S: i64 = 90;

/// Runs a turn and streams its events, waits for its outcome (`stream` or `Accept`), or answers at once with
/// `background`. The turn continues if the client disconnects, and a queued message stays queued.
#[utoipa::path(
    post, path = "/execute", operation_id = "execute", request_body = Execute, security(("engine_key" = [])),
    params(
        ("wait" = Option<i64>, Query, description = "Without a stream: how long to wait, 0 to 90 seconds; 90 by default"),
    ),
    responses(
        (status = 200, description = "The turn's events; without a stream, its outcome", content(
            (TurnEvent = "text/event-stream"), (TurnReport = "application/json"),
        )),
        (status = 202, description = "With `background`; or, without a stream, the turn goes on", body = AcceptedTurn),
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
    caller: Caller,
    Extract(AppState(shared)): Extract<AppState>,
    headers: HeaderMap,
    Query(query): Query<ReportQuery>,
    AdmittedLenient(request, memory): AdmittedLenient<Execute>,
) -> Result<Response, ApiError> {
    caller.check_task(&request.task_id)?;
    let in_background = request.background;
    let is_streamed = request.stream.unwrap_or_else(|| !wants_json(&headers));
    let is_structured = request.response_format.is_some();
    let Accepted { turn, stream } = shared.agent.submit(request).await?;
    Ok(if in_background {
        (StatusCode::ACCEPTED, axum::Json(turn)).into_response()
    } else if is_streamed {
        sse_response(stream)
    } else {
        // The turn has what it needs of the body.
        drop(memory);
        let ids = (turn.task_id, turn.turn_id);
        let events = TurnEvents::new(stream);
        report_response(shared.agent.report(events, ids, is_structured, wait_time(&query)).await?)
    })
}

/// Whether `Accept` names JSON and nothing else. Many libraries name it among others, or `*/*`, unasked.
fn wants_json(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (first, more) = (accepted.next(), accepted.next());
    let media_type = first.filter(|_| more.is_none()).and_then(|accepted| accepted.split(';').next());
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

/// How long a call without a stream waits for its turn.
pub(super) fn wait_time(query: &ReportQuery) -> Duration {
    let seconds = query.wait.map_or(DEFAULT_WAIT_S, api::serde_helpers::BoundedInt::get);
    Duration::from_secs(seconds.unsigned_abs())
}

/// The response with the outcome of a turn: 202 while it goes on without needing anything.
pub(super) fn report_response(report: TurnReport) -> Response {
    let goes_on = matches!(report.status, TurnState::Queued | TurnState::Running);
    let status = if goes_on { StatusCode::ACCEPTED } else { StatusCode::OK };
    (status, axum::Json(report)).into_response()
}

/// The query of [`replay`], for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only its description is used; `api::engine::Replay` is what is parsed")]
struct ReplayQuery {
    /// Events after this time (Unix milliseconds).
    #[param(minimum = 0, default = 0)]
    after: Option<i64>,
    /// The task; by default the one that ran last.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
}

/// Streams the events of a task after a point in time, and new ones while a turn runs.
#[utoipa::path(
    get, path = "/execute/replay", operation_id = "replay_events", security(("engine_key" = [])),
    params(
        ReplayQuery,
        ("Last-Event-ID" = Option<String>, Header,
            description = "The id of the last event that the client has; it takes precedence over `after`"),
    ),
    responses(
        (status = 200, description = "The events", body = TurnEvent, content_type = "text/event-stream"),
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
