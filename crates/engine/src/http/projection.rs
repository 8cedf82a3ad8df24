//! Fronts: other protocols in which a turn's events are sent. A front is a translation of a request into
//! [`api::engine::Execute`] and a [`Projector`] of the events; everything between them is here.

use std::convert::Infallible;
use std::time::Duration;

use api::event::SentEvent;
use axum::body::{Body, Bytes};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use serde_json::Value;

use crate::agent::TurnEvents;

/// The comment that is sent in place of a heartbeat.
const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// Translates the events of a turn, in order and from the first one on, into those of another protocol. It is a
/// state machine without side effects: the same events always give the same translation, so that a stream can be
/// taken up again after its client or the engine was gone.
pub(super) trait Projector: Send + 'static {
    /// Appends the translation of `event`, encoded as Server-Sent Events.
    fn apply(&mut self, event: SentEvent, out: &mut String);

    /// Appends what is to be said once all events that exist so far were applied. What the first events ask may be
    /// answered by later ones, so nothing that depends on what waits is said before.
    fn caught_up(&mut self, _out: &mut String) {}

    /// Appends what is to be said if no more events come although the turn has not ended: the engine stops.
    fn interrupt(&mut self, out: &mut String);

    /// Whether nothing follows any more.
    fn has_ended(&self) -> bool;
}

/// Returns the response that streams a turn's events in the projector's translation.
pub(super) fn stream_response(events: TurnEvents, projector: impl Projector) -> Response {
    sse_response(futures::stream::unfold((events, projector), |(mut events, mut projector)| async move {
        let chunk = next_chunk(&mut events, &mut projector).await?;
        Some((chunk, (events, projector)))
    }))
}

/// Returns the response that streams encoded Server-Sent Events.
pub(super) fn sse_response(chunks: impl futures::Stream<Item = String> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let chunks = chunks.map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk)));
    (headers, Body::from_stream(chunks)).into_response()
}

/// The translation of the next events that have one; `None` at the end. Cancel safe.
pub(super) async fn next_chunk(events: &mut TurnEvents, projector: &mut impl Projector) -> Option<String> {
    let mut out = String::new();
    while out.is_empty() {
        if projector.has_ended() {
            return None;
        }
        match events.next().await {
            Ok(Some(event)) if matches!(event.event, api::event::Event::Heartbeat(_)) => {
                out.push_str(KEEP_ALIVE);
            }
            Ok(Some(event)) => {
                projector.apply(event, &mut out);
                // What was read together is sent together.
                while let Some(event) = events.next_read() {
                    projector.apply(event, &mut out);
                }
            }
            Ok(None) => projector.interrupt(&mut out),
            Err(error) => {
                tracing::error!(%error, "Events could not be read; the stream ends and may be taken up again.");
                projector.interrupt(&mut out);
            }
        }
        if events.is_caught_up() && !projector.has_ended() {
            projector.caught_up(&mut out);
        }
    }
    Some(out)
}

/// Appends a Server-Sent Event; `kind` is its `event:` line, if it has one.
pub(super) fn push_sse(out: &mut String, kind: Option<&str>, data: &Value) {
    use std::fmt::Write as _;

    // Writing to a `String` cannot fail.
    if let Some(kind) = kind {
        let _ = writeln!(out, "event: {kind}");
    }
    let _ = write!(out, "data: {data}\n\n");
}

/// How long a response without a stream may stay silent. Proxies give up after about 100 seconds.
const SILENCE: Duration = Duration::from_secs(45);

/// Returns the response of a call that may take long: that of `outcome` if it comes soon, else status 200 with
/// white space before the JSON, which keeps proxies from giving up.
pub(super) async fn patient_response(
    outcome: impl Future<Output = Result<Value, super::openai::VendorError>> + Send + 'static,
) -> Response {
    let mut outcome = Box::pin(outcome);
    match tokio::time::timeout(SILENCE, &mut outcome).await {
        Ok(Ok(body)) => axum::Json(body).into_response(),
        Ok(Err(error)) => error.into_response(),
        Err(_) => kept_alive(async { outcome.await.unwrap_or_else(|error| error.body()) }),
    }
}

/// Like [`patient_response`], of a call whose failures are JSON with status 200 as well.
pub(super) async fn patient_json(outcome: impl Future<Output = Value> + Send + 'static) -> Response {
    let mut outcome = Box::pin(outcome);
    match tokio::time::timeout(SILENCE, &mut outcome).await {
        Ok(body) => axum::Json(body).into_response(),
        Err(_) => kept_alive(outcome),
    }
}

/// The response with the JSON of `outcome`, and white space before it while it does not come.
fn kept_alive(outcome: impl Future<Output = Value> + Send + 'static) -> Response {
    let chunks = futures::stream::unfold(Some(Box::pin(outcome)), |outcome| async {
        let mut outcome = outcome?;
        Some(match tokio::time::timeout(SILENCE, &mut outcome).await {
            Ok(body) => (Ok::<_, Infallible>(Bytes::from(body.to_string())), None),
            Err(_) => (Ok(Bytes::from_static(b" ")), Some(outcome)),
        })
    });
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(chunks)).into_response()
}
