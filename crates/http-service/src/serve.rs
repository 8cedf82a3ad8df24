//! The accept loop: what `axum::serve` leaves open, closed.
//!
//! A connection must send its request's head and body in time, a head has a bound, there is a cap on connections in
//! which no address has all places, small writes are not held back (`TCP_NODELAY`), who is refused while sending can
//! read why, in the envelope even if it was no HTTP, and the drain at shutdown ends by a deadline however many streams
//! are open.

mod body_timeout;
mod connection_limiter;
mod connection_state;
mod error_envelope;
mod header_timer;
mod lingering_close;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::ErrorCode;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceExt as _};

use self::body_timeout::TimedBody;
use self::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use self::error_envelope::ErrorEnvelopeStream;
use self::header_timer::HeaderTimer;
use self::lingering_close::{LingeringStream, UnreadBody};
use crate::http::{ApiError, ClientAddress, with_request_id};

/// The bounds of an accept loop.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// How many connections may be at work at once. Of further ones some hundreds are answered, each once and within
    /// [`OVERFLOW_TIMEOUT`]: `GET /health` as ever, anything else with 503 `CAPACITY_EXHAUSTED`.
    pub max_connections: usize,
    /// How long a client may take to send a request's head. An idle kept-alive connection is closed after
    /// the same time.
    pub header_read_timeout: Duration,
    /// How long requests in flight may take to finish once shutdown has begun.
    pub drain_timeout: Duration,
}

/// How long to wait after a failed accept: out of file descriptors, the next try would fail as well.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A request's head is refused that has not ended after so many bytes and what one look at the socket brings beside
/// them, which is as much at most. As much is kept of a body that comes faster than it is read.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// How long a connection without a place may take for its one request.
const OVERFLOW_TIMEOUT: Duration = Duration::from_secs(5);

/// The one path that is answered however full it is.
const HEALTH_PATH: &str = "/health";

/// Serves `service`, such as a router, on `listener` until `shutdown`, then drains: no new connection, requests
/// in flight finish, and what is still open after [`ServeLimits::drain_timeout`] is cut.
pub async fn serve<S>(listener: TcpListener, service: S, bounds: ServeLimits, shutdown: CancellationToken)
where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    let room = ConnectionLimiter::new(bounds.max_connections);
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    while let Some((stream, place)) = accept(&listener, &room, &shutdown).await {
        let is_overflow = place.is_overflow;
        let connection = Connection { permit: place, shutdown: shutdown.clone(), abort: cut.clone() };
        if is_overflow {
            let service = health_only(service.clone());
            let standing = connection.run(stream, service, OVERFLOW_TIMEOUT);
            connections.spawn(async { drop(tokio::time::timeout(OVERFLOW_TIMEOUT, standing).await) });
        } else {
            connections.spawn(connection.run(stream, service.clone(), bounds.header_read_timeout));
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(bounds.drain_timeout, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "Connections still open after the drain are cut.");
        cut.cancel();
        connections.wait().await;
    }
}

/// The next connection with its place; none once shutdown has begun.
async fn accept(
    listener: &TcpListener,
    room: &Arc<ConnectionLimiter>,
    shutdown: &CancellationToken,
) -> Option<(TcpStream, ConnectionPermit)> {
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            // Who cannot even stand is closed at once: one that waited would keep all behind it waiting.
            Ok((stream, address)) => {
                if let Some(place) = room.try_acquire(address.ip()) {
                    return Some((stream, place));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "A connection could not be accepted.");
                room.evict_idle();
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// The service for a connection that has no place: it answers one request.
fn health_only<S>(
    service: S,
) -> impl Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static
where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    tower::service_fn(move |request: Request| {
        let service = service.clone();
        async move {
            let is_health = request.method() == Method::GET && request.uri().path() == HEALTH_PATH;
            let mut response = if is_health {
                service.oneshot(request).await?
            } else {
                let message =
                    "too many connections are open at the moment; try again later, and keep fewer open";
                let full = ApiError::new(ErrorCode::CapacityExhausted, message).retry_after(1);
                with_request_id(request.headers(), full.into_response())
            };
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            Ok(response)
        }
    })
}

struct Connection {
    /// Held while the connection is open.
    permit: ConnectionPermit,
    shutdown: CancellationToken,
    abort: CancellationToken,
}

impl Connection {
    async fn run<S>(self, stream: TcpStream, service: S, header_read_timeout: Duration)
    where
        S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
    {
        let Self { permit: place, shutdown, abort: cut } = self;
        let unread = UnreadBody::default();
        let (watched, exchange) = (unread.clone(), Arc::clone(&place.connection_state));
        let answers = Arc::clone(&exchange);
        let client = stream.peer_addr().ok().map(|address| ClientAddress(address.ip().to_canonical()));
        let service = service
            .map_request(move |mut request: hyper::Request<Incoming>| {
                exchange.request_started();
                if let Some(client) = client {
                    request.extensions_mut().insert(client);
                }
                request.map(|body| Body::new(watched.track(TimedBody::new(body))))
            })
            .map_response(move |answer| Arc::clone(&answers).track_response(answer));
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set.");
        }
        let stream = LingeringStream::new(stream, unread.clone(), shutdown.clone());
        let connection = http1::Builder::new()
            .timer(HeaderTimer::default())
            .header_read_timeout(header_read_timeout)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(
                TokioIo::new(ErrorEnvelopeStream::new(stream, Arc::clone(&place.connection_state), unread)),
                TowerToHyperService::new(service),
            );
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = place.evicted.cancelled() => None,
            () = shutdown.cancelled() => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            // One that waits for a request, or has sent half a head, has nothing to lose.
            None if place.evicted.is_cancelled() && place.connection_state.idle_since().is_some() => Ok(()),
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = cut.cancelled() => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            // A client that leaves in mid-stream is everyday life, not a fault of ours.
            tracing::debug!(%error, "A connection ended early.");
        }
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
