//! Audit rows as a server-sent event stream.

use std::convert::Infallible;

use api::ErrorCode;
use api::audit::{AuditPosition, AuditRow, FollowEvents};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse as _, Response};
use futures::Stream;
use http_service::http::ApiError;

use super::guarded_body::with_guard;
use crate::fleet::{FeedItem, RowFeed, StreamPermit};

/// The header in which a reconnecting client sends the id of the last event that it received, see
/// <https://html.spec.whatwg.org/multipage/server-sent-events.html#the-last-event-id-header>.
const LAST_EVENT_ID: &str = "last-event-id";

/// A comment, which clients ignore. It is sent while there are no new rows.
const KEEP_ALIVE_COMMENT: &[u8] = b": nothing new\n\n";

/// Where the stream begins, by `Last-Event-ID` or else by the query; `None` for new rows only.
pub(super) fn position(headers: &HeaderMap, query: FollowEvents) -> Result<Option<i64>, ApiError> {
    Ok(last_event_id(headers)?.or(query.after.map(AuditPosition::get)))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    // Browsers send an empty header if they have received no event yet.
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|id| *id >= 0);
    id.map(Some).ok_or_else(|| {
        let message = "`Last-Event-ID`: must be the id of an event, an integer of at least 0";
        ApiError::new(ErrorCode::InvalidRequest, message)
    })
}

/// Answers with the rows of `feed` as they come. `permit` is returned when the stream ends.
pub(super) fn stream_response(feed: impl RowFeed, permit: StreamPermit) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, with_guard(Body::from_stream(event_stream(feed)), permit)).into_response()
}

/// Converts `feed` into a server-sent event stream. The next page is read once the previous one has been sent.
fn event_stream(feed: impl RowFeed) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures::stream::unfold(feed, |mut feed| async move {
        match feed.next().await {
            Ok(Some(FeedItem::Rows(rows))) => {
                let frame = |row| sse_frame(row, feed.event_id(row));
                Some((Ok(rows.iter().map(frame).collect::<String>().into()), feed))
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
fn sse_frame(row: &AuditRow, id: i64) -> String {
    let data = serde_json::to_string(row).unwrap_or_default();
    format!("event: {}\nid: {id}\ndata: {data}\n\n", row.event)
}
