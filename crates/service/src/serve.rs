//! The accept loop: what `axum::serve` leaves open, closed.
//!
//! A connection must send its request's head in time, there is a cap on connections, small writes are not held
//! back (`TCP_NODELAY`), who is refused while sending can read why, and the drain at shutdown ends by a deadline however many streams are open.

mod alarm;
mod linger;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceExt as _};

use self::alarm::Alarm;
use self::linger::{Lingering, Unread};

/// The bounds of an accept loop.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many connections may be open at once; further ones wait in the system's queue.
    pub max_connections: usize,
    /// How long a client may take to send a request's head. An idle kept-alive connection is closed after
    /// the same time.
    pub header_read_timeout: Duration,
    /// How long requests in flight may take to finish once shutdown has begun.
    pub drain: Duration,
}

/// How long to wait after a failed accept: out of file descriptors, the next try would fail as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `service`, such as a router, on `listener` until `shutdown`, then drains: no new connection, requests
/// in flight finish, and what is still open after [`Bounds::drain`] is cut.
pub async fn serve<S>(listener: TcpListener, service: S, bounds: Bounds, shutdown: CancellationToken)
where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(bounds.max_connections));
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    while let Some((stream, permit)) = accept(&listener, &permits, &shutdown).await {
        let connection = Connection { permit, shutdown: shutdown.clone(), cut: cut.clone() };
        connections.spawn(connection.run(stream, service.clone(), bounds.header_read_timeout));
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(bounds.drain, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "Connections still open after the drain are cut.");
        cut.cancel();
        connections.wait().await;
    }
}

/// The next connection with its permit; none once shutdown has begun.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    shutdown: &CancellationToken,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    loop {
        let next = async {
            let permit = Arc::clone(permits).acquire_owned().await.ok()?;
            Some((listener.accept().await, permit))
        };
        let (accepted, permit) = tokio::select! {
            () = shutdown.cancelled() => return None,
            next = next => next?,
        };
        match accepted {
            Ok((stream, _)) => return Some((stream, permit)),
            Err(error) => {
                tracing::warn!(%error, "A connection could not be accepted.");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Connection {
    /// Held while the connection is open.
    permit: OwnedSemaphorePermit,
    shutdown: CancellationToken,
    cut: CancellationToken,
}

impl Connection {
    async fn run<S>(self, stream: TcpStream, service: S, header_read_timeout: Duration)
    where
        S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static,
    {
        let unread = Unread::default();
        let watched = unread.clone();
        let service = service.map_request(move |request: hyper::Request<Incoming>| {
            request.map(|body| Body::new(watched.watch(body)))
        });
        let Self { permit, shutdown, cut } = self;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set.");
        }
        let connection = http1::Builder::new()
            .timer(Alarm::default())
            .header_read_timeout(header_read_timeout)
            .serve_connection(
                TokioIo::new(Lingering::new(stream, unread, shutdown.clone())),
                TowerToHyperService::new(service),
            );
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = shutdown.cancelled() => {
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
        drop(permit);
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
