//! The calling product's audit log: pages of rows, and a server-sent event stream of new ones.

use std::convert::Infallible;
use std::sync::Arc;

use api::audit::{
    AuditEvent, AuditId, AuditList, AuditMessage, AuditPosition, AuditRow, FollowEvents, ListAudit,
};
use api::orchestrator::PageLimit;
use api::{ErrorBody, ErrorCode, UserId};
use axum::Json as Answer;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse as _, Response};
use futures::Stream;
use http_service::http::{ApiError, Query};

use super::auth::{AuthenticatedProduct, StreamingProduct};
use super::error::to_api_error;
use super::guarded_body::with_guard;
use crate::fleet::{AuditFeed, FeedItem, Fleet};

/// The header in which a reconnecting client sends the id of the last event that it received, see
/// <https://html.spec.whatwg.org/multipage/server-sent-events.html#the-last-event-id-header>.
const LAST_EVENT_ID: &str = "last-event-id";

/// A comment, which clients ignore. It is sent while there are no new rows.
const KEEP_ALIVE_COMMENT: &[u8] = b": nothing new\n\n";

/// Lists the calling product's audit log, newest row first.
#[utoipa::path(
    get, path = "/audit", operation_id = "list_audit_rows", tag = "audit",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("limit" = inline(Option<PageLimit>), Query, description = "Page size; 100 by default"),
        ("before" = inline(Option<AuditId>), Query, description = "Only rows older than the one with this id"),
        ("event" = Option<AuditEvent>, Query, description = "Only rows of this event"),
        ("user_id" = Option<UserId>, Query, description = "Only rows about this user's engines"),
    ),
    responses(
        (status = 200, description = "A page of rows", body = AuditList),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn list(
    AuthenticatedProduct(product): AuthenticatedProduct,
    State(fleet): State<Arc<Fleet>>,
    Query(request): Query<ListAudit>,
) -> Result<Answer<AuditList>, ApiError> {
    fleet.queries.audit(&product, request).await.map(Answer).map_err(to_api_error)
}

/// Streams the calling product's audit rows as they are committed. `event` is a row's event, `id` its id.
#[utoipa::path(
    get, path = "/events", operation_id = "follow_audit_rows", tag = "audit",
    security(("platform_key" = []), ("admin_key" = [])),
    params(
        ("after" = inline(Option<AuditPosition>), Query,
            description = "Start after the row with this id; 0 for all rows; by default only new rows"),
        ("Last-Event-ID" = inline(Option<AuditPosition>), Header,
            description = "Like `after`, and takes precedence over it"),
    ),
    responses(
        (status = 200, description = "The rows", body = AuditMessage, content_type = "text/event-stream"),
        (status = 400, description = "`INVALID_REQUEST`, also for the id of a row that does not exist yet",
            body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 503, description = "`CAPACITY_EXHAUSTED`: too many streams, `STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn follow(
    StreamingProduct(product, permit): StreamingProduct,
    State(fleet): State<Arc<Fleet>>,
    headers: HeaderMap,
    Query(request): Query<FollowEvents>,
) -> Result<Response, ApiError> {
    let after = match last_event_id(&headers)? {
        Some(id) => Some(id),
        None => request.after.map(AuditPosition::get),
    };
    let feed = fleet.queries.follow_audit_log(&product, after).await.map_err(to_api_error)?;
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, with_guard(Body::from_stream(event_stream(feed)), permit)).into_response())
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    // Browsers send an empty header if they have received no event yet.
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|id| *id >= 0);
    id.map(Some).ok_or_else(|| {
        let message = "`Last-Event-ID`: must be the id of an audit row, an integer of at least 0";
        ApiError::new(ErrorCode::InvalidRequest, message)
    })
}

/// Converts `feed` into a server-sent event stream. The next page is read once the previous one has been sent.
fn event_stream(feed: AuditFeed) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures::stream::unfold(feed, |mut feed| async move {
        match feed.next().await {
            Ok(Some(FeedItem::Rows(rows))) => {
                Some((Ok(rows.iter().map(sse_frame).collect::<String>().into()), feed))
            }
            Ok(Some(FeedItem::KeepAlive)) => Some((Ok(Bytes::from_static(KEEP_ALIVE_COMMENT)), feed)),
            Ok(None) => None,
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "The audit log could not be read; its stream ends, and the client may resume it."
                );
                None
            }
        }
    })
}

/// Formats a row as a server-sent event. Its data is one line, because JSON escapes line breaks.
fn sse_frame(row: &AuditRow) -> String {
    let data = serde_json::to_string(row).unwrap_or_default();
    format!("event: {}\nid: {}\ndata: {data}\n\n", row.event, row.id)
}
