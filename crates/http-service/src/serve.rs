//! The accept loop, with the limits that `axum::serve` lacks.
//!
//! - The head and the body of a request must arrive in time, and the head's size is limited.
//! - The number of connections is limited, and no address can occupy all of them.
//! - Small writes are not delayed (`TCP_NODELAY`).
//! - A client that is refused while sending can still read the error; even for input that is no HTTP it is in the
//!   envelope.
//! - The drain at shutdown has a deadline, however many streams are open.

mod body_timeout;
mod connection_limiter;
mod connection_state;
mod error_envelope;
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
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceExt as _};

use self::body_timeout::TimedBody;
use self::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use self::error_envelope::ErrorEnvelopeStream;
use self::lingering_close::{LingeringStream, UnreadBody};
use crate::http::{ApiError, ClientAddress, with_request_id};

/// The limits of an accept loop.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// The maximum number of regular connections. A few hundred further ones get one response each, within
    /// [`OVERFLOW_TIMEOUT`]: `GET /health` as usual, anything else 503 `CAPACITY_EXHAUSTED`.
    pub max_connections: usize,
    /// How long a client may take to send a request's head. An idle kept-alive connection is closed after
    /// the same time.
    pub header_read_timeout: Duration,
    /// How long requests in flight may take to finish after shutdown has begun.
    pub drain_timeout: Duration,
}

/// How long to wait after a failed accept: without free file descriptors, an immediate retry would fail as well.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The size of the read buffer. A head that has not ended when the buffer is full is refused; one read may exceed
/// the size by as much again. It is also the limit on buffered data of a body that arrives faster than it is read.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// How long a connection beyond [`ServeLimits::max_connections`] may take for its single request.
const OVERFLOW_TIMEOUT: Duration = Duration::from_secs(5);

/// The path that is answered even when the connection limit is reached.
const HEALTH_PATH: &str = "/health";

/// Serves `service`, such as a router, on `listener` until `shutdown`, then drains: new connections are refused,
/// requests in flight finish, and connections still open after [`ServeLimits::drain_timeout`] are closed.
pub async fn serve<S>(listener: TcpListener, service: S, limits: ServeLimits, shutdown: CancellationToken)
where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    let limiter = ConnectionLimiter::new(limits.max_connections);
    let connections = TaskTracker::new();
    let abort = CancellationToken::new();
    while let Some((stream, permit)) = accept(&listener, &limiter, &shutdown).await {
        let is_overflow = permit.is_overflow;
        let connection = Connection { permit, shutdown: shutdown.clone(), abort: abort.clone() };
        if is_overflow {
            let service = health_only(service.clone());
            let overflow = connection.run(stream, service, OVERFLOW_TIMEOUT);
            connections.spawn(async { drop(tokio::time::timeout(OVERFLOW_TIMEOUT, overflow).await) });
        } else {
            connections.spawn(connection.run(stream, service.clone(), limits.header_read_timeout));
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(limits.drain_timeout, connections.wait()).await.is_err() {
        tracing::warn!(
            open = connections.len(),
            "Connections are still open after the drain; they are closed."
        );
        abort.cancel();
        connections.wait().await;
    }
}

/// Accepts the next connection and acquires its permit; returns `None` once shutdown has begun.
async fn accept(
    listener: &TcpListener,
    limiter: &Arc<ConnectionLimiter>,
    shutdown: &CancellationToken,
) -> Option<(TcpStream, ConnectionPermit)> {
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            // A connection without a permit is closed at once: waiting for one would block all later connections.
            Ok((stream, address)) => {
                if let Some(permit) = limiter.try_acquire(address.ip()) {
                    return Some((stream, permit));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "A connection could not be accepted.");
                limiter.evict_idle();
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Returns the service for a connection beyond the limit, which answers one request.
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
                let error = ApiError::new(ErrorCode::CapacityExhausted, message).retry_after(1);
                with_request_id(request.headers(), error.into_response())
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
        let Self { permit, shutdown, abort } = self;
        let unread = UnreadBody::default();
        let (unread_body, request_state) = (unread.clone(), Arc::clone(&permit.connection_state));
        let response_state = Arc::clone(&request_state);
        let client = stream.peer_addr().ok().map(|address| ClientAddress(address.ip().to_canonical()));
        let service = service
            .map_request(move |mut request: hyper::Request<Incoming>| {
                request_state.request_started();
                if let Some(client) = client {
                    request.extensions_mut().insert(client);
                }
                request.map(|body| Body::new(unread_body.track(TimedBody::new(body))))
            })
            .map_response(move |response| Arc::clone(&response_state).track_response(response));
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set.");
        }
        let stream = LingeringStream::new(stream, unread.clone(), shutdown.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(header_read_timeout)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(
                TokioIo::new(ErrorEnvelopeStream::new(stream, Arc::clone(&permit.connection_state), unread)),
                TowerToHyperService::new(service),
            );
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = permit.evicted.cancelled() => None,
            () = shutdown.cancelled() => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            // A connection that waits for a request, or has sent half a head, can be closed without loss.
            None if permit.evicted.is_cancelled() && permit.connection_state.idle_since().is_some() => Ok(()),
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = abort.cancelled() => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            // Clients that disconnect in mid-stream are normal, and not an error of the service.
            tracing::debug!(%error, "A connection ended early.");
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/serve.rs"]
mod tests;
